"""One time limit for all steps of a request, checked in every loop over a file.

    with Deadline.after(5.0).enforced():
        for node in graph:
            ask_deadline()

The code that answers a user sets the deadline. Code that loops over a file calls `ask_deadline`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

from msgspec import Struct

from qnnmem.errors import NotInTime, OutOfTime, Setting


class Deadline(Struct, frozen=True):
    """Time by which a result must be ready."""

    limit_s: float  # limit given by the user; infinite without a limit
    ends_at: float  # time of the monotonic clock

    @classmethod
    def after(cls, limit_s: float | None, room_s: float = 0.0) -> Deadline:
        """Return a deadline `limit_s + room_s` from now; it never passes if `limit_s` is None."""
        limit_s = math.inf if limit_s is None else limit_s + room_s
        return cls(limit_s, time.monotonic() + limit_s)

    @property
    def left_s(self) -> float:
        """Return the seconds left; 0 after the deadline."""
        return max(0.0, self.ends_at - time.monotonic())

    @property
    def is_over(self) -> bool:
        """Return True if the deadline has passed."""
        return self.left_s <= 0

    def left(self, usual_s: float) -> float:
        """Return the seconds left, `usual_s` if unlimited; raise NotInTime if time is up."""
        self.check()
        return usual_s if math.isinf(self.ends_at) else self.left_s

    def check(self) -> None:
        """Raise NotInTime after the deadline."""
        if time.monotonic() > self.ends_at:
            raise NotInTime(
                f"not finished within {self.limit_s:g} s",
                cure=("allow more time with ", Setting("time_limit_s")),
            )

    @contextmanager
    def enforced(self) -> Iterator[None]:
        """Make `ask_deadline` raise in the block once this or an outer deadline has passed."""
        outer = _enforced.get()
        token = _enforced.set(self if outer is None or self.ends_at < outer.ends_at else outer)
        try:
            yield
        finally:
            _enforced.reset(token)


_enforced: ContextVar[Deadline | None] = ContextVar("deadline", default=None)


def ask_deadline() -> None:
    """Raise NotInTime if the deadline of the enclosing `enforced` block has passed."""
    deadline = _enforced.get()
    if deadline is not None:
        deadline.check()


def enforced_s() -> float:
    """Return the seconds until the enclosing block's deadline; infinite if it has none."""
    deadline = _enforced.get()
    return math.inf if deadline is None else deadline.left_s


def not_in_time(path: Path, problem: str) -> OutOfTime:
    """Return the error for a result that is not ready at its deadline."""
    return OutOfTime(path, problem, cure=("allow more time with ", Setting("time_limit_s")))
