"""Half-open spans of steps."""

from __future__ import annotations

from dataclasses import dataclass

from qnnmem.units import Step


@dataclass(frozen=True, slots=True, order=True)
class Span:
    """Steps `lower <= t < upper`."""

    lower: Step
    upper: Step

    def __post_init__(self) -> None:
        if self.upper <= self.lower:
            raise ValueError(f"empty span [{self.lower}, {self.upper})")

    def overlaps(self, other: Span) -> bool:
        """Whether the two share a step; touching spans do not."""
        return self.lower < other.upper and other.lower < self.upper

    def covers(self, step: int) -> bool:
        """Whether `step` lies inside."""
        return self.lower <= step < self.upper

    def __len__(self) -> int:
        return self.upper - self.lower
