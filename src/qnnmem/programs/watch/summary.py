"""What a trace says: who lived how long, what failed and what was left behind."""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path, PurePath

from qnnmem.contract.handles import HandleTable
from qnnmem.errors import LoadError
from qnnmem.programs.functions import FREES, MAKES, is_question
from qnnmem.programs.ledger import NotChecked
from qnnmem.programs.stacks import Frame, Stack, of_program
from qnnmem.programs.watch.trace import (
    MOST_BYTES,
    MOST_PARTS,
    CallSeen,
    Event,
    FunctionTotal,
    LibrarySeen,
    LogSeen,
    ProgramEnd,
    StackSeen,
    TraceHead,
)
from qnnmem.text import counted
from qnnmem.units import format_size

_MOST_FAILURES = 200  # of different ones
_LOG_LINES = 200  # that are kept for one call
_OWNERS = {"graph": "context", "context": "backend"}
_Key = tuple[str, int, int, int]  # kind, process, slot and handle
_INTERPRETER = re.compile(
    r"(?:lib)?python3?[0-9.]*(?:\.so.*)?$|_ctypes\.|libffi\.|libc\.so|_start$"
)


@dataclass(frozen=True, slots=True)
class LiveHandle:
    """A handle that a program made and has not freed, and where it was made."""

    kind: str
    process: int
    slot: int
    handle: int
    maker: str  # the function
    time: int
    owner: int  # the handle that it belongs to
    name: str
    bytes: int
    place: str
    stack: Stack


@dataclass(frozen=True, slots=True)
class FailedCall:
    """A call that answered with another code than 0; alike ones are counted."""

    function: str
    code: int
    place: str
    stack: Stack
    time: int  # of the first
    injected: bool
    log: tuple[tuple[int, str], ...]  # what QNN logged while the first one ran, with levels
    count: int = 1
    diagnosis: str = ""

    @property
    def is_finding(self) -> bool:
        """Whether the program met it: not on purpose, and not the answer to a question."""
        return not self.injected and not is_question(self.function)


@dataclass(frozen=True, slots=True)
class AliveAt:
    """What was alive from a time on."""

    time: int
    contexts: int
    graphs: int
    memory_handles: int
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class WatchReport:
    """One run of a program."""

    command: tuple[str, ...]
    injected: tuple[str, ...]
    libraries: tuple[LibrarySeen, ...]
    totals: dict[str, FunctionTotal]
    failures: tuple[FailedCall, ...]
    unreleased: tuple[LiveHandle, ...]
    early: tuple[LiveHandle, ...]  # contexts that were alive when their backend was freed
    timeline: tuple[AliveAt, ...]
    log_lines: int
    end: ProgramEnd

    @property
    def unmatched(self) -> tuple[str, ...]:
        """Which calls were to fail and never came."""
        return self.end.unmatched

    @property
    def called(self) -> bool:
        """Whether the program used QNN at all."""
        return bool(self.libraries)

    @property
    def peak(self) -> AliveAt:
        """The most of each that was alive together, whenever that was."""
        rows = self.timeline or (AliveAt(0, 0, 0, 0, 0),)
        return AliveAt(
            max(rows, key=lambda row: row.contexts).time,
            max(row.contexts for row in rows),
            max(row.graphs for row in rows),
            max(row.memory_handles for row in rows),
            max(row.memory_bytes for row in rows),
        )

    @property
    def not_checked(self) -> tuple[NotChecked, ...]:
        """What the report knows nothing of."""
        seen = self.end.not_checked
        found = [NotChecked(one.what, one.calls, one.process, one.thread) for one in seen]
        if self.end.left_out:
            events = counted(self.end.left_out, "event")
            limit = f"{format_size(MOST_BYTES)} or {MOST_PARTS:,} parts of a trace"
            found.append(NotChecked(f"{events} (limit: {limit})"))
        return tuple(found)

    @property
    def passes(self) -> bool:
        """Whether everything was seen, and there is nothing to say about it."""
        return self.called and not self.findings and not self.not_checked

    @property
    def findings(self) -> int:
        """How many things there are to say."""
        met = sum(one.is_finding for one in self.failures)
        ended = bool(self.end.ended_by or self.end.timed_out)
        return met + len(self.unreleased) + len(self.early) + len(self.unmatched) + ended


def summarize(lines: Iterable[TraceHead | Event], path: Path | str = "") -> WatchReport:
    """Read a trace; the path is for what is wrong with it."""
    reading = _Reading()
    head: TraceHead | None = None
    for line in lines:
        if isinstance(line, TraceHead):
            head = line
        else:
            reading.take(line)
    if head is None or reading.end is None:
        raise LoadError(path, "the trace stops before its program ended")
    life = _Life(reading.stacks)
    for call in sorted(reading.lives, key=_settled):
        life.take(call)
    ended_badly = bool(reading.end.ended_by)
    return WatchReport(
        head.command,
        head.injected,
        tuple(reading.libraries.values()),
        reading.end.totals,
        tuple(reading.failures()),
        # Who is killed cannot give anything back.
        () if ended_badly else tuple(life.left()),
        tuple(life.early),
        tuple(life.timeline),
        reading.log_lines,
        reading.end,
    )


def _settled(call: CallSeen) -> int:
    """When it counts: a handle is free as soon as that begins, and made when that is done."""
    return call.begin if call.function in FREES else call.end


class _Reading:
    """What has to be kept of the lines of a trace."""

    def __init__(self) -> None:
        self.stacks: dict[int, Stack] = {}
        self.libraries: dict[tuple[int, int], LibrarySeen] = {}
        self.lives: list[CallSeen] = []
        self.end: ProgramEnd | None = None
        self.log_lines = 0
        self._failed: dict[
            tuple[str, int, int, bool], tuple[CallSeen, int, tuple[tuple[int, str], ...]]
        ] = {}
        self._logs: dict[tuple[int, int], deque[LogSeen]] = {}

    def take(self, event: Event) -> None:
        """One line."""
        if isinstance(event, StackSeen):
            self.stacks[event.id] = event.frames
        elif isinstance(event, LibrarySeen):
            self.libraries[event.process, event.slot] = event
        elif isinstance(event, LogSeen):
            self.log_lines += 1
            kept = self._logs.setdefault((event.process, event.thread), deque(maxlen=_LOG_LINES))
            kept.append(event)
        elif isinstance(event, ProgramEnd):
            self.end = event
        else:
            self._call(event)

    def _call(self, call: CallSeen) -> None:
        if call.code:
            self._fail(call)
        if (not call.code and call.function in MAKES) or (
            call.function in FREES and (not call.code or call.injected)
        ):
            self.lives.append(call)

    def _fail(self, call: CallSeen) -> None:
        key = call.function, call.code, call.place, call.injected
        if key in self._failed:
            first, count, log = self._failed[key]
            self._failed[key] = first, count + 1, log
        elif len(self._failed) < _MOST_FAILURES:
            lines = self._logs.get((call.process, call.thread), ())
            during = (one for one in lines if call.begin <= one.time <= call.end)
            log = tuple((one.level, one.text) for one in during)
            self._failed[key] = call, 1, log

    def failures(self) -> Iterator[FailedCall]:
        """Calls that failed, by when the first of their kind did."""
        for call, count, log in self._failed.values():
            stack = self.stacks.get(call.place, ())
            yield FailedCall(
                *(call.function, call.code, place_of(stack), stack, call.end),
                *(call.injected, log, count),
            )


class _Life:
    """Handles as they come and go."""

    def __init__(self, stacks: dict[int, Stack]) -> None:
        self._stacks = stacks
        self._places: dict[int, str] = {}
        self._handles: HandleTable[_Key, LiveHandle, None] = HandleTable()
        self._tried: set[_Key] = set()  # whose release failed on purpose
        self._counts: Counter[str] = Counter()
        self._bytes = 0
        self.timeline: list[AliveAt] = []
        self.early: list[LiveHandle] = []

    def take(self, call: CallSeen) -> None:
        """A call that makes or frees."""
        kind = MAKES.get(call.function)
        if kind is not None:
            each = call.bytes // max(len(call.handles), 1)
            for handle in call.handles:
                self._make(kind, handle, call, each)
        else:
            kind = FREES[call.function]
            keys = {(kind, call.process, call.slot, one) for one in call.handles or (call.on,)}
            if call.code:  # on purpose: the program has done what it could
                self._tried |= keys
                return
            for key in keys:
                self._free(key)
            if kind == "backend":
                self._note_early(call)
        self._note(call.end)

    def _make(self, kind: str, handle: int, call: CallSeen, size: int) -> None:
        stack = self._stacks.get(call.place, ())
        if call.place not in self._places:
            self._places[call.place] = place_of(stack)
        made = LiveHandle(
            *(kind, call.process, call.slot, handle, call.function, call.end, call.on, call.name),
            *(size, self._places[call.place], stack),
        )
        key = kind, call.process, call.slot, handle
        self._free(key)  # a graph may be asked for again and again
        self._tried.discard(key)
        self._handles.add(key, made, _owner(made) if kind in _OWNERS else None)
        self._counts[kind] += 1
        self._bytes += size if kind == "memory" else 0

    def _free(self, key: _Key) -> None:
        gone = self._handles.free(key)
        if gone is None:
            return
        self._counts[gone.kind] -= 1
        self._bytes -= gone.bytes if gone.kind == "memory" else 0
        if gone.kind == "context":
            for graph in self._handles.owned(key):
                self._free(graph)

    def _note_early(self, call: CallSeen) -> None:
        backend = "backend", call.process, call.slot, call.on
        # Reported once, however often the backend is freed.
        for context in self._handles.disown(backend):
            alive = self._handles.get(context)
            if alive is not None and context not in self._tried:
                self.early.append(alive)

    def _note(self, time: int) -> None:
        counts = self._counts
        row = (counts["context"], counts["graph"], counts["memory"], self._bytes)
        last = self.timeline[-1] if self.timeline else AliveAt(0, 0, 0, 0, 0)
        if row != (last.contexts, last.graphs, last.memory_handles, last.memory_bytes):
            self.timeline.append(AliveAt(time, *row))

    def left(self) -> Iterator[LiveHandle]:
        """What was never given back; a graph goes with its context."""
        early = set(map(id, self.early))  # told once
        for thing in self._handles.values():
            key = thing.kind, thing.process, thing.slot, thing.handle
            if thing.kind != "graph" and id(thing) not in early and key not in self._tried:
                yield thing


def _owner(thing: LiveHandle) -> _Key:
    return _OWNERS[thing.kind], thing.process, thing.slot, thing.owner


def place_of(stack: Stack) -> str:
    """File and line of the call, or where in which object."""
    frame = of_program(of_programmer(stack), "")
    return "" if frame is None else frame.place


def of_programmer(stack: Stack) -> Stack:
    """A stack without the frames of a Python interpreter, which are the same for every line."""
    kept = tuple(one for one in stack if not _INTERPRETER.match(PurePath(one.module).name))
    if kept or not stack:
        return kept
    return (Frame("Python code", "", 0, stack[-1].module, 0),)


def with_diagnoses(report: WatchReport, diagnoses: Iterable[str]) -> WatchReport:
    """The report with what is known about its failures, in their order."""
    pairs = zip(report.failures, diagnoses, strict=True)
    return replace(report, failures=tuple(replace(one, diagnosis=text) for one, text in pairs))
