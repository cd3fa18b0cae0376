"""Limits on the work of a search.

Limits are counted in elementary operations, so that the same problem gives the same plan on every
machine. The clock only stops a search on a machine that is much slower than expected.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from qnnmem.errors import UsageError

# Slightly below the speed of one core of a 2020s laptop, so that the clock rarely decides.
WORK_PER_SECOND = 150_000_000
A_YEAR = 365 * 86_400.0


@dataclass(slots=True)
class Effort:
    """The remaining work of a search, and its deadline."""

    left: int
    deadline: float
    cut_by_clock: bool = field(default=False, init=False)

    @staticmethod
    def of_seconds(seconds: float) -> Effort:
        """Return the effort for a time limit: the deadline, and the work of a nominal machine."""
        if not seconds >= 0:  # nan fails every comparison
            raise UsageError(f"a time limit must be a number of seconds, not {seconds}")
        seconds = min(seconds, A_YEAR)
        return Effort(int(seconds * WORK_PER_SECOND), time.monotonic() + seconds)

    def excuse(self, seconds: float) -> None:
        """Extend the deadline by time that was not spent on the search."""
        self.deadline += seconds

    def spend(self, work: int) -> None:
        """Subtract work from the remaining budget."""
        self.left -= work

    @contextmanager
    def part(self, work: int) -> Iterator[Effort]:
        """Give a `with` block an effort of at most `work`; then subtract what the block spent."""
        part = Effort(max(min(work, self.left), 0), self.deadline)
        given = part.left
        yield part
        self.spend(given - max(part.left, 0))
        self.cut_by_clock |= part.cut_by_clock
        self.deadline = max(self.deadline, part.deadline)

    def begin(self, work: int) -> bool:
        """Return whether enough effort is left for work that cannot be interrupted.

        If so, subtract the work; if not, end the effort.
        """
        if self.at_once < work:
            self.cut_by_clock |= self.left >= work
            self.left = 0
            return False
        self.left -= work
        return True

    @property
    def at_once(self) -> int:
        """Work that may be done without checking the clock.

        On a machine of nominal speed, this is all remaining work, so the clock does not affect the
        plan.
        """
        seconds = max(self.deadline - time.monotonic(), 0.0)
        return min(self.left, int(min(seconds, A_YEAR) * WORK_PER_SECOND))

    @property
    def over(self) -> bool:
        """True if the work or the time is used up."""
        if self.left > 0 and time.monotonic() > self.deadline:
            self.left, self.cut_by_clock = 0, True
        return self.left <= 0
