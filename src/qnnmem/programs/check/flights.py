"""Executions in flight, and the rules for memory while they run.

A simulated execution is shorter than an execution on a device, so a mistake of another thread would
be detected only by luck. Therefore the first executions of each thread are delayed briefly, and the
very first ones longer, so that a missing wait is always detected. The delay alone causes no
finding: an overlap is a call, or a change of bytes, while the execution is in flight. On a busy
machine the delay is longer, until every runnable thread has had its share of the processor.
"""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Condition
from time import monotonic, sleep
from typing import Any, Protocol

from qnnmem.contract.regions import Extent, ForeignMemory
from qnnmem.contract.rules import finding
from qnnmem.finding import Finding
from qnnmem.programs.stacks import Trace

HOLD_S, _SHORT_HOLD_S = 0.05, 0.005
_LONGEST_HOLD_S, _LOOK_S = 10.0, 0.01
_WORK_S = 1.0  # longest wait for calls that are being answered: they may wait for the execution
_LONG_HOLDS, _HOLDS = 3, 16  # delayed executions for each thread and graph
_LOOKS = 64  # executions before which the threads of the process are counted
_LARGEST = 16 << 20  # bytes of a buffer that are compared
Part = tuple[str, ForeignMemory]  # name for a sentence, and the memory


class FlyingGraph(Protocol):
    """A checked graph, with only the attributes that this module uses."""

    graph: Any
    owner: Any
    process: Any
    pools: dict[str, ForeignMemory]


@dataclass(eq=False, slots=True)
class Flight:
    """An execution that has begun and not yet ended."""

    graph: FlyingGraph
    thread: Hashable
    is_async: bool
    reads: Sequence[Part]
    writes: Sequence[Part]
    trace: Trace
    signal: object = None
    before: dict[int, bytes] = field(default_factory=dict)  # content of its buffers, by object id
    is_held: bool = False  # True: delay it before it ends
    is_answered: Callable[[], bool] = lambda: True  # returns whether the program continues
    is_met: bool = False  # True: another execution has met this one
    covered: list[tuple[Part, Extent]] = field(default_factory=list)  # closed pages

    def keep(self) -> None:
        """Store the content of the buffers, for comparison when the execution ends."""
        buffers = self.graph.process.buffers
        for _, buffer in self.writes:
            if buffer.size <= _LARGEST and not buffer.freed:
                self.before[id(buffer)] = buffers.peek(buffer)
        for _, buffer in self.reads:  # already read
            if buffer.size <= _LARGEST:
                self.before[id(buffer)] = buffer.array.tobytes()

    def changes(self, call: str) -> Iterator[Finding]:
        """Yield findings for buffers that the program wrote to; `losses` reports freed buffers."""
        seen: set[int] = set()
        for name, buffer in (*self.reads, *self.writes):
            before = self.before.get(id(buffer))
            if before is None or buffer.freed or id(buffer) in seen:
                continue
            seen.add(id(buffer))
            if self.graph.process.buffers.peek(buffer) not in (before, b""):  # b"": freed
                sentence = f"the program wrote to {name} during the execution of the graph"
                cure = "access inputs and outputs only after the execution has ended"
                place = buffer.address
                yield finding("R9", sentence, call, buffer=name, address=place, cure=cure, line="")

    def losses(self, call: str) -> Iterator[Finding]:
        """Yield findings for buffers that the program freed during the execution."""
        for name, buffer in (*self.reads, *self.writes):
            if buffer.freed:
                sentence = f"{name} was {buffer.loss} during the execution of the graph"
                place = buffer.address
                yield finding("R9", sentence, call, buffer=name, address=place, line="")


class Flights:
    """Executions of a run that are in flight."""

    def __init__(self) -> None:
        self._now: list[Flight] = []
        self._held: Counter[Hashable] = Counter()
        self._looked: Counter[Hashable] = Counter()
        self._changed = Condition()
        self.begun: Callable[[int], int] = lambda _: 0  # number of begun calls of a process

    def is_alone(self, graph: FlyingGraph, thread: Hashable) -> bool:
        """Return True if no other thread of the process can act during an execution."""
        if self._now:
            return False
        self._looked[id(graph), thread] += 1
        if self._looked[id(graph), thread] > _LOOKS:
            return bool(graph.process.threads < 2)
        return not has_threads(graph)

    def may_hold(self, graph: FlyingGraph, thread: Hashable) -> bool:
        """Return True if an execution of this graph by this thread may still be delayed."""
        return self._held[id(graph), thread] < _HOLDS

    def begin(self, flight: Flight) -> tuple[Finding, Flight] | None:
        """Add an execution.

        If it conflicts with another execution, return a finding and that other execution.
        """
        with self._changed:
            others = [old for old in self._now if _is_beside(old, flight)]
            self._now.append(flight)
            for other in others:
                found = _conflict(flight, other)
                if found is not None:
                    flight.is_met = other.is_met = True
                    self._changed.notify_all()
                    return found, other
        return None

    def end(self, flight: Flight) -> None:
        """Remove an execution."""
        with self._changed:
            if flight in self._now:
                self._now.remove(flight)

    def using(self, owner: object, thread: Hashable) -> Flight | None:
        """Return an execution that uses a graph or context, except a call that `thread` is making.

        Return None if there is no such execution.
        """
        with self._changed:
            for flight in self._now:
                is_callback = flight.thread == thread and not flight.is_async
                if owner in (flight.graph, flight.graph.owner) and not is_callback:
                    return self._meet(flight)
        return None

    def watched_by(self, signal: object) -> Flight | None:
        """Return the execution that a signal watches, or None."""
        with self._changed:
            flight = next((f for f in self._now if f.signal is signal), None)
            return None if flight is None else self._meet(flight)

    def _meet(self, flight: Flight) -> Flight:
        """End the delay of an execution, because an overlap was found; return the execution."""
        flight.is_met = True
        self._changed.notify_all()
        return flight

    def reading(self, process: object, address: int) -> tuple[Flight, Part] | None:
        """Return the execution that blocks access to an address, and the buffer at that address.

        Return None if no execution blocks the access.
        """
        with self._changed:
            flights = [f for f in self._now if f.graph.process is process]
        for flight in flights:
            for part, extent in flight.covered:
                if extent.holds(address):
                    flight.before.pop(id(part[1]), None)  # a write is not reported again
                    return flight, part
        return None

    def note_results(self, flight: Flight) -> None:
        """Remove the outputs of an execution from the comparisons of other executions."""
        with self._changed:
            others = [old for old in self._now if old is not flight]
        for other in others:
            for _, buffer in (*other.reads, *other.writes):
                if any(buffer.extent.overlap(made.extent) for _, made in flight.writes):
                    other.before.pop(id(buffer), None)

    def hold(self, flight: Flight) -> None:
        """Delay the end of an execution by a moment, or until another execution overlaps it."""
        last = monotonic() + _LONGEST_HOLD_S
        while not flight.is_answered() and monotonic() < last:
            sleep(_LOOK_S)
        with self._changed:
            held = self._held[id(flight.graph), flight.thread]
            self._held[id(flight.graph), flight.thread] += 1
        wait_s = HOLD_S if held < _LONG_HOLDS else _SHORT_HOLD_S
        end = monotonic() + wait_s
        process = flight.graph.process
        pid, quiet = process.pid, 0
        before = {task: used for task, used, _ in _tasks(pid)}
        with self._changed:
            while not flight.is_met and (now := monotonic()) < last:
                is_quiet = (
                    not _has_waiting(pid, before, wait_s)
                    and self.begun(pid) <= process.served
                    and (not process.at_work or now >= end + _WORK_S)
                )
                quiet = quiet + 1 if now >= end and is_quiet else 0
                if quiet == 2:  # a call that just arrived has been seen by then
                    return
                self._changed.wait(max(end - now, _LOOK_S))


def _has_waiting(pid: int, before: dict[str, float], wait_s: float) -> bool:
    """Return True if a runnable thread has used less CPU time than `wait_s` since `before`."""
    return any(
        is_runnable and used - before.get(task, 0.0) < wait_s
        for task, used, is_runnable in _tasks(pid)
    )


def _tasks(pid: int) -> Iterator[tuple[str, float, bool]]:
    """Yield each thread of a process: its id, its CPU seconds, and whether it is runnable."""
    for task in Path(f"/proc/{pid}/task").glob("*"):
        with contextlib.suppress(OSError, ValueError, IndexError):  # the thread has ended
            used = int((task / "schedstat").read_text("ascii").split()[0]) / 1e9
            state = (task / "stat").read_text("utf-8", "replace").rpartition(")")[2].split()[0]
            yield task.name, used, state in "RD"


def has_threads(graph: FlyingGraph) -> bool:
    """Return True if the process has threads other than the calling thread and the notifier."""
    try:
        tasks = len(os.listdir(f"/proc/{graph.process.pid}/task"))  # noqa: PTH208  # faster
    except OSError:
        return False
    return tasks > 1 + (graph.process.notifier is not None)


def _is_beside(old: Flight, new: Flight) -> bool:
    """Return True if two executions can overlap; executions nested in one thread do not count."""
    is_one_thread = old.thread == new.thread and not old.is_async
    return bool(old.graph.process is new.graph.process and not is_one_thread)


def _conflict(new: Flight, old: Flight) -> Finding | None:
    """Return a finding if two executions use memory or a graph that they must not share."""
    call = "QnnGraph_executeAsync" if new.is_async else "QnnGraph_execute"
    # Executions of one queue run in sequence, but may end in any order.
    if (new.is_async or old.is_async) and new.graph.owner is old.graph.owner:
        if [buffer.address for _, buffer in new.reads] == [b.address for _, b in old.reads]:
            return None  # the same results again, e.g. to measure time
        return _shared_buffer(call, ((new.writes, old.writes, "writes"),))
    if new.graph is old.graph:
        name = new.graph.graph.name[:80]
        sentence = f"two threads execute graph {name!r} at the same time with the same scratch"
        cure = "let one thread execute at a time, or use one context per thread"
        return finding("X8", sentence, call, buffer="scratch", cure=cure, line="")
    for what, pool in new.graph.pools.items():
        if any(pool.extent.overlap(other.extent) for other in old.graph.pools.values()):
            names = f"{new.graph.graph.name[:80]!r} and {old.graph.graph.name[:80]!r}"
            sentence = f"graphs {names} execute at the same time and share bytes of {what}"
            cure = "execute the graphs one after the other, or use separate memory for each"
            return finding("X8", sentence, call, buffer=what, cure=cure, line="")
    pairs = (
        (new.writes, old.writes, "writes"),
        (new.writes, old.reads, "reads"),
        (new.reads, old.writes, "writes"),
    )
    return _shared_buffer(call, pairs)


def _shared_buffer(
    call: str, pairs: Iterable[tuple[Sequence[Part], Sequence[Part], str]]
) -> Finding | None:
    """Return a finding of rule R9 for the first two buffers that share bytes, or None."""
    for mine, theirs, done in pairs:
        for name, buffer in mine:
            for other_name, taken in theirs:
                if buffer.extent.overlap(taken.extent):
                    sentence = (
                        f"{name} shares bytes with {other_name}, which another execution "
                        f"still {done}"
                    )
                    cure = "wait for that execution to end, or use separate memory"
                    place = buffer.address
                    return finding(
                        "R9", sentence, call, buffer=name, address=place, cure=cure, line=""
                    )
    return None
