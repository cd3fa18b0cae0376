"""How much a pool may grow, written as `4K`, `2%`, or `4K or 2%` for whichever is more."""

from __future__ import annotations

import re
from dataclasses import dataclass

from qnnmem.errors import UsageError
from qnnmem.text import quote
from qnnmem.units import parse_size

_PERCENT = re.compile(r"\s*([0-9]{1,4}(?:\.[0-9]{1,6})?)\s*%\s*", re.ASCII)


@dataclass(frozen=True, slots=True)
class Tolerance:
    """How much a pool may grow: so many bytes or that part of it, whichever is more."""

    size: int = 0
    fraction: float = 0.0

    def allows(self, before: int, after: int) -> bool:
        """Whether the growth is within it."""
        return after - before <= max(self.size, before * self.fraction)


NO_GROWTH = Tolerance()


@dataclass(frozen=True, slots=True)
class WhatCounts:
    """What makes a result worse: growth of these pools beyond the tolerance."""

    tolerance: Tolerance = NO_GROWTH
    pools: tuple[str, ...] = ()  # all where none is named


def parse_tolerance(text: str) -> Tolerance:
    """Bytes, or a part of what was there, or both."""
    size, fraction = 0, 0.0
    for word in text.split(" or "):
        found = _PERCENT.fullmatch(word)
        if found:
            fraction = max(fraction, float(found[1]) / 100)
            continue
        try:
            size = max(size, parse_size(word))
        except UsageError:
            example = "write it like 4096, 4K, 2% or '4K or 2%'"
            raise UsageError(f"{quote(text)} is no tolerance; {example}") from None
    return Tolerance(size, fraction)
