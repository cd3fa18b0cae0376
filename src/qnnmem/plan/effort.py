"""How much a search may still do.

Limits are counted in elementary work, so that the same problem gives the same plan on every
machine; the clock only stops a machine that is much slower than expected.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from qnnmem.errors import UsageError

# A little less than what one core of a 2020s laptop does, so that the clock rarely decides.
WORK_PER_SECOND = 150_000_000
A_YEAR = 365 * 86_400.0


@dataclass(slots=True)
class Effort:
    """Work that is left, until a deadline."""

    left: int
    deadline: float
    cut_by_clock: bool = field(default=False, init=False)

    @staticmethod
    def of_seconds(seconds: float) -> Effort:
        """Nominal work of that many seconds, and that much time."""
        if not seconds >= 0:  # nan fails every comparison
            raise UsageError(f"a time limit must be a number of seconds, not {seconds}")
        seconds = min(seconds, A_YEAR)
        return Effort(int(seconds * WORK_PER_SECOND), time.monotonic() + seconds)

    def excuse(self, seconds: float) -> None:
        """Moves the deadline by time that was not spent on searching."""
        self.deadline += seconds

    def spend(self, work: int) -> None:
        """Takes work off what is left."""
        self.left -= work

    @property
    def over(self) -> bool:
        """Whether nothing is left."""
        if self.left > 0 and time.monotonic() > self.deadline:
            self.left, self.cut_by_clock = 0, True
        return self.left <= 0
