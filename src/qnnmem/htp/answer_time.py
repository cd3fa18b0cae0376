"""One limit for everything that an answer takes: reading, quantizing, compiling, loading."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from qnnmem.errors import OutOfTime, Setting


@dataclass(frozen=True, slots=True)
class AnswerTime:
    """When an answer has to be there."""

    limit_s: float  # as the user gave it
    ends_at: float  # of the monotonic clock

    @classmethod
    def after(cls, limit_s: float) -> AnswerTime:
        """The end of so many seconds from now."""
        return cls(limit_s, time.monotonic() + limit_s)

    @property
    def left_s(self) -> float:
        """Seconds that are left; none after the end."""
        return max(0.0, self.ends_at - time.monotonic())


def not_in_time(path: Path, what: str) -> OutOfTime:
    """The error for an answer that is not there when its time is over."""
    return OutOfTime(path, what, cure=("give more time with ", Setting("time_limit_s")))
