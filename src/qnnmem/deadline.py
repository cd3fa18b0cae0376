"""One time limit over all steps of an answer, asked in every loop that a file can make long.

    with Deadline.after(5.0).enforced():
        for node in graph:
            ask_deadline()

Passes over a file call `ask_deadline`; the caller that answers a user sets the deadline.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path

from qnnmem.errors import NotInTime, OutOfTime, Setting


@dataclass(frozen=True, slots=True)
class Deadline:
    """When an answer has to be there."""

    limit_s: float  # as the user gave it; infinite without a limit
    ends_at: float  # of the monotonic clock

    @classmethod
    def after(cls, limit_s: float | None, room_s: float = 0.0) -> Deadline:
        """A deadline some seconds from now; `room_s` are for what the limit is not about."""
        limit_s = math.inf if limit_s is None else limit_s + room_s
        return cls(limit_s, time.monotonic() + limit_s)

    @property
    def left_s(self) -> float:
        """Seconds that are left; none after the end."""
        return max(0.0, self.ends_at - time.monotonic())

    @property
    def is_over(self) -> bool:
        """Return whether the end has come."""
        return self.left_s <= 0

    def left(self, usual_s: float) -> float:
        """Seconds for the next step, `usual_s` without a limit; NotInTime when none are left."""
        self.check()
        return usual_s if math.isinf(self.ends_at) else self.left_s

    def check(self) -> None:
        """Raise NotInTime after the end."""
        if time.monotonic() > self.ends_at:
            raise NotInTime(
                f"not finished within {self.limit_s:g} s",
                cure=("allow more with ", Setting("time_limit_s")),
            )

    @contextmanager
    def enforced(self) -> Iterator[None]:
        """Let `ask_deadline` raise inside the block after the end, or that of a block around."""
        outer = _enforced.get()
        token = _enforced.set(self if outer is None or self.ends_at < outer.ends_at else outer)
        try:
            yield
        finally:
            _enforced.reset(token)


_enforced: ContextVar[Deadline | None] = ContextVar("deadline", default=None)


def ask_deadline() -> None:
    """Raise NotInTime if the deadline that is enforced here is over."""
    deadline = _enforced.get()
    if deadline is not None:
        deadline.check()


def enforced_s() -> float:
    """Seconds until the deadline that is enforced here; infinite without one."""
    deadline = _enforced.get()
    return math.inf if deadline is None else deadline.left_s


def not_in_time(path: Path, what: str) -> OutOfTime:
    """The error for an answer that is not there when its time is over."""
    return OutOfTime(path, what, cure=("give more time with ", Setting("time_limit_s")))
