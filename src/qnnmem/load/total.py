"""How much all tensors of a model may be together."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from qnnmem.errors import LoadError
from qnnmem.ir import Tensor
from qnnmem.units import MAX_BYTES


def check_total(path: Path, tensors: Iterable[Tensor]) -> None:
    """Refuse a model whose tensors together are beyond what planners can add up."""
    if sum(tensor.nbytes for tensor in tensors) > MAX_BYTES:
        raise LoadError(path, f"its tensors add up to more than {MAX_BYTES:,} bytes")
