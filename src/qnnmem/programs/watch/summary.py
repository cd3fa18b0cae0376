"""Summary of a trace: lifetimes of handles, failed calls and leaks."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from msgspec.structs import replace

from qnnmem.contract.handles import HandleTable
from qnnmem.errors import LoadError
from qnnmem.programs.functions import FREES, MAKES, is_question
from qnnmem.programs.launch import end_words
from qnnmem.programs.ledger import in_words
from qnnmem.programs.stacks import place_of
from qnnmem.programs.watch.sessions import Sessions
from qnnmem.programs.watch.trace import (
    MOST_BYTES,
    MOST_PARTS,
    CallSeen,
    Event,
    LibrarySeen,
    LogSeen,
    ProgramEnd,
    StackSeen,
    TraceHead,
)
from qnnmem.qnn.codes import code_name
from qnnmem.qnn.enums import TensorMemType
from qnnmem.qnn.shared_memory import mixed_sentence
from qnnmem.results.programs import (
    AliveAt,
    FailedCall,
    LiveHandle,
    LoggedLine,
    LostSession,
    MadeHandle,
    MixedIo,
    NotChecked,
    SerialisedRun,
    Stack,
    WatchedLibrary,
    WatchResult,
)
from qnnmem.results.result import MAX_COUNT
from qnnmem.text import counted, printable, shorten
from qnnmem.units import format_size

_MOST_FAILURES = 200  # distinct failures
_RULES = 3  # unmatched rules named in the verdict
_MOST_MADE = 1000  # distinct entries in the list of created handles
_MOST_NAMES = 4  # graph names in the name of a context
_LONGEST_NAME = 200
_LOG_LINES = 200  # log lines stored for one call
_KINDS = ("context", "graph", "memory", "device", "backend")
_OWNERS = {"graph": "context", "context": "backend"}
_MODES = {int(TensorMemType.RAW): "raw", int(TensorMemType.MEMHANDLE): "memhandle"}
_SHOWN = ("context", "graph", "memory")
_Alike = tuple[str, int, str, int, str]  # kind, process, name, bytes and place
_Key = tuple[str, int, int, int]  # kind, process, slot and handle


def summarize(lines: Iterable[TraceHead | Event], path: Path | str = "") -> WatchResult:
    """Return the summary of a trace; raise LoadError about `path` if the trace has no end."""
    reading = _Reading()
    head: TraceHead | None = None
    for line in lines:
        if isinstance(line, TraceHead):
            head = line
        else:
            reading.take(line)
    if head is None or reading.end is None:
        raise LoadError(path, "the trace ends before the program ended")
    life = _Life(reading.stacks)
    for call in sorted(reading.lives, key=_settled):
        life.take(call)
    return _result(head, reading, life, reading.end)


def _result(head: TraceHead, reading: _Reading, life: _Life, end: ProgramEnd) -> WatchResult:
    failures, timeline = tuple(reading.failures()), tuple(life.timeline)
    # A killed program cannot free anything.
    unreleased = () if end.ended_by else tuple(life.left())
    missed = tuple(_not_checked(end))
    lost = tuple(reading.sessions.lost(end, reading.stacks))
    met = sum(call.finding for call in failures) + sum(map(_is_news, lost))
    ended = bool(end.ended_by or end.timed_out)
    ended = ended or bool(end.serialised and end.serialised.failure_before)
    findings = met + len(unreleased) + len(life.early) + len(end.unmatched) + ended
    result = WatchResult(
        verdict="",
        passes=bool(reading.libraries) and not findings and not missed,
        command=head.command,
        injected=head.injected,
        unmatched=end.unmatched,
        exit_code=end.exit_code,
        ended_by=end.ended_by or None,
        timed_out=end.timed_out,
        duration_ns=end.time,
        left_out=end.left_out,
        not_checked=missed,
        log_lines=reading.log_lines,
        libraries=tuple(map(_library, reading.libraries.values())),
        peak=_peak(timeline),
        timeline=timeline,
        functions=dict(sorted(end.totals.items())),
        made=tuple(life.made()),
        unreleased=unreleased,
        freed_after_backend=tuple(life.early),
        lost=lost,
        mixed_io=tuple(life.mixed),
        findings=findings,
        failed_calls=failures,
        has_lines=end.has_lines,
    )
    if end.serialised is not None:
        turns = replace(end.serialised, failure=failure_of(result))
        result = replace(result, serialised=turns)
    return replace(result, verdict=printable(_verdict(result)))  # it may hold any characters


def _library(seen: LibrarySeen) -> WatchedLibrary:
    return WatchedLibrary(
        process=seen.process,
        name=seen.name,
        backend=seen.backend,
        api=seen.api,
        version=seen.version or None,
        path=seen.path,
    )


def _peak(timeline: Sequence[AliveAt]) -> AliveAt:
    """Return the largest number of handles of each kind, and when the most contexts existed."""
    rows = timeline or (AliveAt(),)
    return AliveAt(
        max(rows, key=lambda row: row.contexts).time_ns,
        max(row.contexts for row in rows),
        max(row.graphs for row in rows),
        max(row.memory_handles for row in rows),
        max(row.memory_bytes for row in rows),
    )


def _not_checked(end: ProgramEnd) -> Iterator[NotChecked]:
    yield from end.not_checked
    if end.left_out:
        limit = f"a trace holds at most {format_size(MOST_BYTES)} and {MOST_PARTS:,} entries"
        yield NotChecked(f"{counted(end.left_out, 'event')} (limit: {limit})")


def failure_of(result: WatchResult) -> str:
    """Return the failures of a run as text, without injected failures; empty if nothing failed."""
    failed = Counter[str]()
    for call in result.failed_calls:
        if call.finding:
            failed[f"{call.function} with {call.code}"] += call.count
    said = [f"{counted(number, 'time')} {what}" for what, number in failed.most_common(_RULES)]
    if result.exit_code or result.ended_by or result.timed_out:
        said.append(end_words(result))
    return ", ".join(said)


def _with_turns(turns: SerialisedRun) -> str:
    """Return a sentence: whether the failure also occurs in a run with one call at a time."""
    before, after = turns.failure_before, turns.failure
    waited = f"{counted(turns.waited, 'call')} waited for another call"
    if turns.gave_up:
        waited += f", and {turns.gave_up:,} of them gave up after 60 s"
    seen = f"unchanged run: {before or 'none'}; one call at a time: {after or 'none'}; {waited}"
    if not before:
        came = (
            "a failure occurs only with one call at a time"
            if after
            else ("no failure in the unchanged run")
        )
        return f"{came} ({seen})"
    if after:
        return f"the failure also occurs with one call at a time ({seen})"
    if not turns.waited:
        return (
            "cannot tell whether overlapping calls cause the failure: it went away with one call "
            f"at a time, but no calls would have overlapped ({seen})"
        )
    return f"the failure goes away with one call at a time ({seen})"


def _verdict(result: WatchResult) -> str:
    said = _verdict_of_run(result)
    return said if result.serialised is None else f"{_with_turns(result.serialised)}; {said}"


def _verdict_of_run(result: WatchResult) -> str:
    program = shorten(result.command[0], 200)
    missed, end = in_words(result.not_checked), end_words(result)
    if not result.called and not missed:
        return f"cannot tell whether {program} has problems: it never called QNN ({end})"
    calls = counted(sum(total.count for total in result.functions.values()), "QNN call")
    after = f"({calls}, {end})"
    said = list(_findings(result))
    made = sum(call.count for call in result.failed_calls if call.injected)
    if missed and not result.findings:
        return f"not watched: {missed}; no problems found in the rest of {program} {after}"
    failed = f"; {counted(made, 'call')} {'was' if made == 1 else 'were'} made to fail" * bool(made)
    if not result.findings:
        return f"no problems found in {program}{failed} {after}"
    said = said or ["no other problems found"]
    rest = f"; not watched: {missed}" if missed else ""
    return f"{', '.join(said)} in {program}{failed} {after}{rest}"


def _findings(result: WatchResult) -> Iterator[str]:
    yield from _lost(result.lost)
    kinds = Counter(handle.kind for handle in result.unreleased)
    if kinds:
        left = ", ".join(amount(kind, kinds[kind]) for kind in sorted(kinds, key=rank))
        names = {(loss.name, loss.place) for loss in result.unreleased}
        of = f" ({_session(*names.pop())})" if len(names) == 1 else ""
        yield f"{left} never released{of}"
    if result.freed_after_backend:
        early = amount("context", len(result.freed_after_backend))
        yield f"{early} alive when the backend was freed"
    causes = {(loss.function, loss.code) for loss in result.lost if not _is_news(loss)}
    failed = sum(
        call.finding and (call.function, call.code) not in causes for call in result.failed_calls
    )
    if failed:
        yield counted(failed, "failed call")
    for rule in result.unmatched[:_RULES]:
        yield f"no call matched {shorten(rule)}"
    if len(result.unmatched) > _RULES:
        yield f"no call matched {counted(len(result.unmatched) - _RULES, 'other rule')}"
    if result.timed_out:
        yield "the program did not end in time"
    elif result.ended_by:
        yield f"the program was ended by {result.ended_by}"


def _lost(lost: Sequence[LostSession]) -> Iterator[str]:
    if len(lost) > 1:
        yield f"{counted(len(lost), 'session')} continued without QNN"
    for one in lost[:1] if len(lost) == 1 else ():
        yield f"{_session(one.name, one.place)} continued without QNN"


def _session(name: str, place: str) -> str:
    of = f" {shorten(name, 100)!r}" if name else ""
    return f"the session{of}{f' of {shorten(place, 200)}' if place else ''}"


def _is_news(lost: LostSession) -> bool:
    """Return True if the failure of a lost session is not in the list of failed calls."""
    return lost.injected or is_question(lost.function) or not lost.function


def rank(kind: str) -> int:
    """Return the sort position of a kind of handle; kinds with more memory come first."""
    return _KINDS.index(kind) if kind in _KINDS else len(_KINDS)


def amount(kind: str, number: int) -> str:
    """Return a number of handles of a kind, in words."""
    return counted(number, "memory handle" if kind == "memory" else kind)


def _settled(call: CallSeen) -> int:
    """Return when a call takes effect: a free at its start, a creation at its end."""
    return call.begin if call.function in FREES else call.end


class _Reading:
    """Collects the data for the summary from the lines of a trace."""

    def __init__(self) -> None:
        self.stacks: dict[int, Stack] = {}
        self.libraries: dict[tuple[int, int], LibrarySeen] = {}
        self.lives: list[CallSeen] = []
        self.end: ProgramEnd | None = None
        self.sessions = Sessions()
        self.log_lines = 0
        self._failed: dict[
            tuple[str, int, int, bool, str], tuple[CallSeen, int, tuple[LoggedLine, ...]]
        ] = {}
        self._logs: dict[tuple[int, int], deque[LogSeen]] = {}

    def take(self, event: Event) -> None:
        """Process one line of a trace."""
        if isinstance(event, StackSeen):
            self.stacks[event.id] = event.stack
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
        self.sessions.take(call)
        if call.code:
            self._fail(call)
        if (not call.code and (call.function in MAKES or call.uses)) or (
            call.function in FREES and (not call.code or call.injected)
        ):
            self.lives.append(call)

    def _fail(self, call: CallSeen) -> None:
        of = self.sessions.name_of(call)
        key = call.function, call.code, call.place, call.injected, of
        if key in self._failed:
            first, count, log = self._failed[key]
            self._failed[key] = first, count + 1, log
        elif len(self._failed) < _MOST_FAILURES:
            lines = self._logs.get((call.process, call.thread), ())
            during = (line for line in lines if call.begin <= line.time <= call.end)
            log = tuple(LoggedLine(line.level, line.text) for line in during)
            self._failed[key] = call, 1, log

    def failures(self) -> Iterator[FailedCall]:
        """Yield failed calls, grouped by kind, in the order of first occurrence."""
        for (*_, of), (call, count, log) in self._failed.items():
            stack = self.stacks.get(call.place, ())
            yield FailedCall(
                function=call.function,
                code=call.code,
                name=code_name(call.code),
                of=of,
                count=count,
                injected=call.injected,
                finding=not call.injected and not is_question(call.function),
                time_ns=call.end,
                place=place_of(stack),
                stack=stack,
                log=log,
            )


def _alike(one: LiveHandle) -> _Alike:
    return one.kind, one.process, one.name, one.bytes, one.place


class _Life:
    """Tracks handles from creation to free."""

    def __init__(self, stacks: dict[int, Stack]) -> None:
        self._stacks = stacks
        self._places: dict[int, str] = {}
        self._handles: HandleTable[_Key, LiveHandle, None] = HandleTable()
        self._tried: set[_Key] = set()  # handles whose release failed on purpose
        self._counts: Counter[str] = Counter()
        self._bytes = 0
        self.timeline: list[AliveAt] = []
        self.early: list[LiveHandle] = []
        self.mixed: list[MixedIo] = []
        self._used: dict[tuple[int, int, int], str] = {}  # by registered memory: the tensor's name
        self._told: list[LiveHandle] = []  # handles reported as leaked
        self._made: dict[_Alike, tuple[LiveHandle, int]] = {}
        self._graphs: dict[_Alike, dict[str, None]] = {}

    def take(self, call: CallSeen) -> None:
        """Process a call that creates or frees handles, or a first execution."""
        if call.uses:
            self.mixed.extend(self._mixed(call))
            return
        kind = MAKES.get(call.function)
        if kind is not None:
            each = call.bytes // max(len(call.handles), 1)
            for handle in call.handles:
                self._make(kind, handle, call, each)
        else:
            kind = FREES[call.function]
            keys = {(kind, call.process, call.slot, one) for one in call.handles or (call.on,)}
            if call.code:  # on purpose: the program tried to free it
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
            kind=kind,
            process=call.process,
            handle=handle,
            name=call.name,
            bytes=size,
            made_by=call.function,
            time_ns=call.end,
            place=self._places[call.place],
            stack=stack,
        )
        key = kind, call.process, call.slot, handle
        owner = (_OWNERS[kind], call.process, call.slot, call.on) if kind in _OWNERS else None
        self._free(key)  # a graph may be retrieved several times
        self._tried.discard(key)
        self._handles.add(key, made, owner)
        if kind in _SHOWN:
            self._keep(made, self._handles.get(owner) if owner else None)
        self._counts[kind] += 1
        self._bytes += size if kind == "memory" else 0

    def _mixed(self, call: CallSeen) -> Iterator[MixedIo]:
        """Yield tensors whose memory type at the first execution differs from the prepared type."""
        graph = self._handles.get(("graph", call.process, call.slot, call.on))
        for use in call.uses:
            if use.handle:
                self._used[call.process, call.slot, use.handle] = use.name
        for executed, word in _MODES.items():
            mixed = [
                (use.name, use.bytes)
                for use in call.uses
                if use.executed == executed and use.prepared not in (None, executed)
            ]
            if graph is not None and mixed and len(self.mixed) < _MOST_MADE:
                is_shared = executed == TensorMemType.MEMHANDLE
                yield MixedIo(
                    graph=graph.name,
                    tensors=tuple(name for name, _ in mixed),
                    executed=word,
                    bytes=min(sum(size for _, size in mixed), MAX_COUNT),
                    sentence=mixed_sentence(graph.name, mixed, is_shared=is_shared),
                    process=call.process,
                    place=graph.place,
                )

    def _keep(self, made: LiveHandle, owner: LiveHandle | None) -> None:
        """Record a new handle for `made`; for identical handles, only increase the count."""
        key = _alike(made)
        if key in self._made or len(self._made) < _MOST_MADE:
            first, count = self._made.get(key, (made, 0))
            self._made[key] = first, count + 1
        if made.kind == "graph" and owner is not None:
            names = self._graphs.setdefault(_alike(owner), {})
            if made.name and len(names) < _MOST_NAMES:
                names[made.name] = None

    def made(self) -> Iterator[MadeHandle]:
        """Yield contexts, graphs and registered memory; identical handles are one item."""
        for key, (one, count) in self._made.items():
            yield MadeHandle(
                kind=one.kind,
                name=one.name or shorten(", ".join(self._graphs.get(key, ())), _LONGEST_NAME),
                bytes=one.bytes,
                count=count,
                process=one.process,
                made_by=one.made_by,
                time_ns=one.time_ns,
                place=one.place,
            )

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
        # Reported only once, even if the backend is freed several times.
        for context in self._handles.disown(backend):
            alive = self._handles.get(context)
            if alive is not None and context not in self._tried:
                self._told.append(alive)
                self.early.append(self._named(context, alive))

    def _note(self, time: int) -> None:
        counts = self._counts
        row = (counts["context"], counts["graph"], counts["memory"], self._bytes)
        last = self.timeline[-1] if self.timeline else AliveAt()
        if row != (last.contexts, last.graphs, last.memory_handles, last.memory_bytes):
            self.timeline.append(AliveAt(time, *row))

    def _named(self, key: _Key, handle: LiveHandle) -> LiveHandle:
        """Return the handle, named after the context's graphs or the registered tensor."""
        if handle.kind == "memory":
            return replace(handle, name=self._used.get(key[1:], ""))
        if handle.name or handle.kind != "context":
            return handle
        graphs = (self._handles.get(one) for one in self._handles.owned(key))
        names = dict.fromkeys(one.name for one in graphs if one is not None)
        return replace(handle, name=shorten(", ".join(filter(None, names)), _LONGEST_NAME))

    def left(self) -> Iterator[LiveHandle]:
        """Yield handles that were never freed; a graph is freed with its context."""
        told = set(map(id, self._told))
        left = [
            self._named(key, handle)
            for key, handle in self._handles
            if handle.kind != "graph" and id(handle) not in told and key not in self._tried
        ]
        yield from sorted(left, key=lambda one: rank(one.kind))


def with_diagnoses(result: WatchResult, diagnoses: Iterable[str]) -> WatchResult:
    """Return the result with one diagnosis for each failed call, in the order of the calls."""
    pairs = zip(result.failed_calls, diagnoses, strict=True)
    calls = tuple(replace(call, diagnosis=text or None) for call, text in pairs)
    return replace(result, failed_calls=calls)
