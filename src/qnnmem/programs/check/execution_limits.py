"""Limits of what a client executes here: time of each execution, and memory.

Programs are tried in a child process before, so crashes and wrong shapes do not come this far.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from time import monotonic

from qnnmem.child import memory_limit

TIME_LIMIT_S = 600.0  # of one execution, as in net-run


@dataclass(frozen=True, slots=True)
class ExecutionLimits:
    """Time and memory limit of executions."""

    time_s: float = TIME_LIMIT_S
    memory: int | None = None  # address space in bytes; None: three quarters of the machine


DEFAULT_LIMITS = ExecutionLimits()


class ExecutionClock:
    """Start times of the executions that are running."""

    def __init__(self) -> None:
        self._since: dict[Hashable, float] = {}
        self._lock = threading.Lock()

    def start(self, what: Hashable) -> None:
        """Start the clock of an execution, if it is not running yet."""
        with self._lock:
            self._since.setdefault(what, monotonic())

    def stop(self, what: Hashable) -> None:
        """Stop the clock of an execution."""
        with self._lock:
            self._since.pop(what, None)

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Count the time of the block."""
        what = object()
        self.start(what)
        try:
            yield
        finally:
            self.stop(what)

    def longest(self) -> float:
        """Return the seconds that the oldest execution has taken so far."""
        with self._lock:
            return monotonic() - min(self._since.values()) if self._since else 0.0


@contextlib.contextmanager
def limited_memory(limit: int | None) -> Iterator[None]:
    """Limit the address space of this process; earlier children keep theirs."""
    import resource

    before = resource.getrlimit(resource.RLIMIT_AS)
    wanted = limit or memory_limit(most=None)
    hard = before[1]
    soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
