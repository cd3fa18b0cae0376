"""What every reader of a result starts from."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

import msgspec

from qnnmem.gate.subject import SubjectTensor

# What two results must both be to be compared.
LPAI, HTP, LOG, FIX, SWEEP = (
    "plan of memory",
    "bill or fit on HTP",
    "diagnosis",
    "fix",
    "sweep",
)
# No memory is larger, and every reader of JSON takes such a number exactly.
ComparedCount = Annotated[int, msgspec.Meta(ge=-(1 << 53), le=1 << 53)]


class LooseRead(msgspec.Struct, frozen=True):
    """More fields than these may be there."""


def tensors_by_name(found: Iterable[tuple[str, str, int]]) -> dict[str, SubjectTensor]:
    """By name; several of one name together."""
    tensors: dict[str, SubjectTensor] = {}
    for name, pool, size in found:
        before = tensors.get(name)
        tensors[name] = SubjectTensor(pool, size + (before.size if before else 0))
    return tensors
