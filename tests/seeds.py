"""How many cases a test tries: few by default, more or all on request."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")

EVERY = bool(os.environ.get("QNNMEM_EVERY_CASE"))


def seeds(few: int) -> range:
    """Return the seeds of a test; `QNNMEM_SEEDS` sets another number than `few`."""
    return range(int(os.environ.get("QNNMEM_SEEDS", few)))


def few(count: int, times: int = 3) -> int:
    """Return a part of `count` for random cases; all with `QNNMEM_EVERY_CASE`."""
    return count if EVERY else max(1, count // times)


def share(cases: Sequence[T], step: int) -> list[T]:
    """Return every `step`-th of similar cases; all with `QNNMEM_EVERY_CASE`."""
    return list(cases if EVERY else cases[::step])
