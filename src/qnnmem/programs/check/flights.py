"""Executions in flight, and the rules for their memory meanwhile.

An execution here takes less time than on a device, so a mistake of another thread would be seen by
luck only. The first executions of each thread are therefore held back for a moment, so that a
missing wait shows every time. Nothing is concluded from a hold itself: an overlap is a call that
came, or bytes that changed, while the execution was in flight.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from threading import Condition
from time import monotonic
from typing import Any, Protocol

from qnnmem.contract.regions import ForeignMemory
from qnnmem.contract.rules import finding
from qnnmem.finding import Finding
from qnnmem.programs.stacks import Trace

HOLD_S = 0.05
_HOLDS = 3  # executions of each thread and graph that are held back
_LOOKS = 64  # executions of each before which the threads of the process are counted
_LARGEST = 16 << 20  # bytes of a buffer that are compared
Part = tuple[str, ForeignMemory]  # a name for a sentence, and the memory


class FlyingGraph(Protocol):
    """The part of a checked graph that is compared."""

    graph: Any
    owner: Any
    process: Any
    pools: dict[str, ForeignMemory]


@dataclass(eq=False, slots=True)
class Flight:
    """One execution between its call and its end."""

    graph: FlyingGraph
    thread: Hashable
    is_async: bool
    reads: Sequence[Part]
    writes: Sequence[Part]
    trace: Trace
    before: dict[int, bytes] = field(default_factory=dict)  # what its buffers held, by identity
    is_held: bool = False  # it may be held back before it ends
    is_met: bool = False  # by another execution

    def keep(self) -> None:
        """Keep what its buffers hold, to compare it at the end."""
        buffers = self.graph.process.buffers
        for _, buffer in self.writes:
            if buffer.size <= _LARGEST and not buffer.freed:
                self.before[id(buffer)] = buffers.peek(buffer)
        for _, buffer in self.reads:  # read already
            if buffer.size <= _LARGEST:
                self.before[id(buffer)] = buffer.array.tobytes()

    def changes(self, call: str) -> Iterator[Finding]:
        """Yield findings for buffers that the program wrote to meanwhile; freed ones say more."""
        seen: set[int] = set()
        for name, buffer in (*self.reads, *self.writes):
            before = self.before.get(id(buffer))
            if before is None or buffer.freed or id(buffer) in seen:
                continue
            seen.add(id(buffer))
            if self.graph.process.buffers.peek(buffer) not in (before, b""):  # gone is another
                sentence = f"{name} was written by the program while the graph executed"
                cure = "touch inputs and outputs only after the execution"
                place = buffer.address
                yield finding("R9", sentence, call, buffer=name, address=place, cure=cure, line="")

    def losses(self, call: str) -> Iterator[Finding]:
        """Yield findings for buffers that the program freed meanwhile."""
        for name, buffer in (*self.reads, *self.writes):
            if buffer.freed:
                sentence = f"{name} was {buffer.loss} while the graph executed"
                place = buffer.address
                yield finding("R9", sentence, call, buffer=name, address=place, line="")


class Flights:
    """The executions of a run that are in flight."""

    def __init__(self) -> None:
        self._now: list[Flight] = []
        self._held: Counter[Hashable] = Counter()
        self._looked: Counter[Hashable] = Counter()
        self._changed = Condition()

    def is_alone(self, graph: FlyingGraph, thread: Hashable) -> bool:
        """Return whether nothing else of the process can happen during an execution."""
        if self._now:
            return False
        self._looked[id(graph), thread] += 1
        if self._looked[id(graph), thread] > _LOOKS:
            return bool(graph.process.threads < 2)
        return not has_threads(graph)

    def may_hold(self, graph: FlyingGraph, thread: Hashable) -> bool:
        """Return whether one more execution of the thread is held back."""
        return self._held[id(graph), thread] < _HOLDS

    def begin(self, flight: Flight) -> tuple[Finding, Flight] | None:
        """Add an execution; return the mistake if one in flight shares something with it."""
        with self._changed:
            others = [one for one in self._now if _is_beside(one, flight)]
            self._now.append(flight)
            for other in others:
                found = _conflict(flight, other)
                if found is not None:
                    flight.is_met = other.is_met = True
                    self._changed.notify_all()
                    return found, other
        return None

    def end(self, flight: Flight) -> None:
        """Take an execution out."""
        with self._changed:
            if flight in self._now:
                self._now.remove(flight)

    def note_results(self, flight: Flight) -> None:
        """Forget what others compare of the outputs of an execution: it writes them now."""
        with self._changed:
            others = [one for one in self._now if one is not flight]
        for other in others:
            for _, buffer in (*other.reads, *other.writes):
                if any(buffer.extent.overlap(made.extent) for _, made in flight.writes):
                    other.before.pop(id(buffer), None)

    def hold(self, flight: Flight) -> None:
        """Wait a moment, or until another execution has met this one."""
        end = monotonic() + HOLD_S
        with self._changed:
            self._held[id(flight.graph), flight.thread] += 1
            while not flight.is_met and (left := end - monotonic()) > 0:
                self._changed.wait(left)


def has_threads(graph: FlyingGraph) -> bool:
    """Return whether the process has threads beside the one that calls and ours."""
    try:
        tasks = len(os.listdir(f"/proc/{graph.process.pid}/task"))  # noqa: PTH208  # quicker
    except OSError:
        return False
    return tasks > 1 + (graph.process.notifier is not None)


def _is_beside(one: Flight, new: Flight) -> bool:
    """Return whether two executions can touch at all: a callback is inside of its own."""
    is_one_thread = one.thread == new.thread and not one.is_async
    return bool(one.graph.process is new.graph.process and not is_one_thread)


def _conflict(new: Flight, old: Flight) -> Finding | None:
    """Return what two executions share; those of one queue run one after the other."""
    call = "QnnGraph_executeAsync" if new.is_async else "QnnGraph_execute"
    are_queued = (new.is_async or old.is_async) and new.graph.owner is old.graph.owner
    if are_queued:
        return None
    if new.graph is old.graph:
        name = new.graph.graph.name[:80]
        sentence = f"two threads execute graph {name!r} at the same time, with one scratch"
        cure = "let one thread execute at a time, or give each its own context"
        return finding("X8", sentence, call, buffer="scratch", cure=cure, line="")
    for what, pool in new.graph.pools.items():
        if any(pool.extent.overlap(other.extent) for other in old.graph.pools.values()):
            names = f"{new.graph.graph.name[:80]!r} and {old.graph.graph.name[:80]!r}"
            sentence = f"graphs {names} execute at the same time and share bytes of {what}"
            cure = "execute one after the other, or give each graph its own"
            return finding("X8", sentence, call, buffer=what, cure=cure, line="")
    for mine, theirs, done in (
        (new.writes, old.writes, "writes"),
        (new.writes, old.reads, "reads"),
        (new.reads, old.writes, "writes"),
    ):
        for name, buffer in mine:
            for other_name, taken in theirs:
                if buffer.extent.overlap(taken.extent):
                    sentence = (
                        f"{name} shares bytes with {other_name} that another execution still {done}"
                    )
                    cure = "wait for that execution, or give other memory"
                    place = buffer.address
                    return finding(
                        "R9", sentence, call, buffer=name, address=place, cure=cure, line=""
                    )
    return None
