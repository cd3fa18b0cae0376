"""Half-open spans of steps."""

from __future__ import annotations

from dataclasses import dataclass

from qnnmem.errors import UsageError
from qnnmem.text import quote
from qnnmem.units import Step, as_step


@dataclass(frozen=True, slots=True, order=True, init=False)
class Span:
    """Steps `lower <= t < upper`."""

    lower: Step
    upper: Step

    def __init__(self, lower: int, upper: int) -> None:
        object.__setattr__(self, "lower", lower if type(lower) is int else as_step(lower))
        object.__setattr__(self, "upper", upper if type(upper) is int else as_step(upper))
        if self.upper <= self.lower:
            raise UsageError(f"empty span [{quote(self.lower)}, {quote(self.upper)})")

    def overlaps(self, other: Span) -> bool:
        """Whether the two share a step; touching spans do not."""
        return self.lower < other.upper and other.lower < self.upper

    def covers(self, step: int) -> bool:
        """Whether `step` lies inside."""
        return self.lower <= step < self.upper

    def __len__(self) -> int:
        return self.upper - self.lower


def as_span(life: Span | tuple[int, int]) -> Span:
    """The life, which may be written as a pair of steps."""
    if isinstance(life, Span):
        return life
    if isinstance(life, tuple | list) and len(life) == 2:
        return Span(*life)
    raise UsageError(f"a life is a pair of steps, as (0, 2); this is {quote(life)}")
