"""One time limit over several steps."""

from __future__ import annotations

import time
from dataclasses import dataclass

from qnnmem.errors import Setting, UsageError

# For what every run has to do before and after the work that the limit is about: reading files and
# starting processes.
ROOM_S = 10.0


@dataclass(frozen=True, slots=True)
class Deadline:
    """Until when all steps together may work; without a limit each step has its usual one.

    All end `ROOM_S` after the limit, which is one for the main work.
    """

    limit_s: float | None
    started: float

    @classmethod
    def after(cls, limit_s: float | None) -> Deadline:
        """A deadline some seconds from now."""
        return cls(limit_s, time.monotonic())

    def left(self, usual_s: float) -> float:
        """Seconds for the next step; refused when none are left."""
        if self.limit_s is None:
            return usual_s
        left = self.started + self.limit_s + ROOM_S - time.monotonic()
        if left <= 0:
            raise UsageError(
                f"not finished within {self.limit_s + ROOM_S:g} s",
                cure=("allow more with ", Setting("time_limit_s")),
            )
        return left
