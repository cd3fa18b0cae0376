"""Run a program with the observer: once for a trace, or once per call that must fail.

To make calls fail, the program first runs unchanged, and the calls of the function are counted.
Then it runs once for each of these calls, with only that call failing, and its end is checked.

A run is bad if it crashed, hung, or leaked more than the run without a failure.
"""

from __future__ import annotations

import os
import stat
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

import msgspec

from qnnmem.errors import UsageError
from qnnmem.programs import launch
from qnnmem.programs.functions import NAMES, in_table
from qnnmem.programs.ledger import Ledger
from qnnmem.programs.stacks import Symbols
from qnnmem.programs.watch.injections import Injection
from qnnmem.programs.watch.observer_server import Turns, WatchServer
from qnnmem.programs.watch.prepared_tensors import BinaryReader
from qnnmem.programs.watch.summary import failure_of, summarize
from qnnmem.programs.watch.trace import (
    MOST_MISSED,
    MOST_RULES,
    SCHEMA,
    ProgramEnd,
    TraceHead,
    TraceRecorder,
    read_trace,
)
from qnnmem.results.programs import (
    FailEachResult,
    FailedRun,
    FunctionTotal,
    LeakedHandle,
    NotChecked,
    SerialisedRun,
    WatchResult,
)
from qnnmem.results.result import MAX_COUNT
from qnnmem.temporary_folder import temporary_folder
from qnnmem.text import counted, quote, shorten
from qnnmem.version import __version__

_MORE_LIBRARIES = "calls of libraries beyond 4 backends and 2 system libraries in one process"
NOT_WATCHED = "not watched"  # outcome of a run with unobserved calls
_TAIL = 4096  # bytes from the end of a run's output
_AT_LEAST_S = 10.0  # minimum time limit, however fast the first run was
_TIMES = 5.0  # time limit as a multiple of the first run
_WORD = 4000  # characters of a word of the command in the trace
_COMMAND = 64_000  # characters of the whole command


@dataclass(frozen=True, slots=True)
class WatchOptions:
    """Program to run, and the options of the run."""

    command: tuple[str, ...]
    injections: tuple[Injection, ...] = ()
    time_limit_s: float | None = None
    to_stderr: bool = False  # True: the program writes to stderr, because stdout holds the result
    output: IO[bytes] | None = None  # receives everything that the program prints
    one_at_a_time: bool = False  # run QNN calls one at a time, after a run without changes
    read_binary: BinaryReader | None = None  # reads the tensors of context binaries


def record(options: WatchOptions, folder: Path) -> Iterator[bytes]:
    """Run a program, store its events in a folder, and yield the lines of its trace."""
    program = launch.check_program(options.command[0])
    _check_loader(Path(program))
    before = ""
    if options.one_at_a_time:
        before = failure_of(_once(replace(options, one_at_a_time=False))[0])
    launch.build_objects(folder, launch.OBSERVER)
    symbols = Symbols(str(folder))
    recorder = TraceRecorder(folder / "events", symbols)
    server = WatchServer(
        *(folder, recorder, options.injections),
        one_at_a_time=options.one_at_a_time,
        read_binary=options.read_binary,
    )
    try:
        code, timed_out = _run(program, options, folder)
        server.sockets.settle()
        missed = server.sockets.ledger.not_checked(_MORE_LIBRARIES)
        totals = _totals(server.sockets.ledger)
    finally:
        server.close()
    server.sockets.check()
    end = ProgramEnd(
        recorder.now(),
        launch.exit_status(code),
        launch.signal_name(code),
        timed_out,
        totals,
        recorder.left_out,
        symbols.has_tool,
        tuple(map(str, server.injections.unmatched()))[:MOST_RULES],
        tuple(map(_missed, missed[:MOST_MISSED])),
        _serialised(server.turns, before) if options.one_at_a_time else None,
    )
    return _lines(options, recorder, end)


def _serialised(turns: Turns, before: str) -> SerialisedRun:
    return SerialisedRun(
        waited=turns.waited,
        waited_ns=turns.waited_ns,
        gave_up=turns.gave_up,
        failure_before=shorten(before, 1000),
    )


def _missed(entry: NotChecked) -> NotChecked:
    thread, process = (number & 0xFFFF_FFFF for number in (entry.thread, entry.process))
    return NotChecked(entry.what, entry.calls, process, thread)


def _lines(options: WatchOptions, recorder: TraceRecorder, end: ProgramEnd) -> Iterator[bytes]:
    encode = msgspec.json.Encoder().encode
    injected = tuple(map(str, options.injections))[:MOST_RULES]
    yield encode(TraceHead(SCHEMA, f"qnnmem {__version__}", _words(options), injected)) + b"\n"
    yield from recorder.lines()
    yield encode(end) + b"\n"


def _words(options: WatchOptions) -> tuple[str, ...]:
    """Return the command, shortened to fit into a line of a trace."""
    kept: list[str] = []
    room = _COMMAND
    for word in options.command:
        # An argument may be invalid UTF-8.
        text = word.encode("utf-8", "backslashreplace").decode()
        if len(text) > _WORD:
            text = f"{text[: _WORD // 2]}…{text[-_WORD // 2 :]}"
        room -= len(text) + 3
        if room < 0:
            kept.append(f"… and {counted(len(options.command) - len(kept), 'word')} more")
            break
        kept.append(text)
    return tuple(kept)


def _check_loader(program: Path) -> None:
    """Raise UsageError for a program that ignores LD_PRELOAD."""
    state = program.stat()
    other_user = state.st_mode & stat.S_ISUID and state.st_uid != os.getuid()
    other_group = state.st_mode & stat.S_ISGID and state.st_gid != os.getgid()
    if other_user or other_group:
        raise UsageError(
            f"{quote(str(program))} runs with the rights of another user or group, so the "
            f"loader ignores LD_PRELOAD",
            cure="run a copy of it with your own rights",
        )


def _run(program: str, options: WatchOptions, folder: Path) -> tuple[int, bool]:
    """Return the exit code (negative for a signal), and True if the time limit was exceeded."""
    with launch.started(
        program,
        options.command,
        folder / launch.OBSERVER_OBJECT,
        to_stderr=options.to_stderr,
        output=options.output,
    ) as child:
        return launch.wait(child, options.time_limit_s)


def _totals(ledger: Ledger) -> dict[str, FunctionTotal]:
    return {
        NAMES[number]: FunctionTotal(*(min(one, MAX_COUNT) for one in totals))
        for number, totals in enumerate(ledger.functions())
        if totals[0] and number in NAMES
    }


# Failing each call in turn


def fail_each(
    options: WatchOptions,
    function: int,
    code: int,
    most_runs: int,
    say: Callable[[FailedRun], None] | None = None,
) -> FailEachResult:
    """Run a program unchanged, then once for each call of a function, with that call failing."""
    begun = time.monotonic()
    usual, _ = _once(replace(options, injections=()))
    took = time.monotonic() - begun
    name = NAMES[function]
    total = usual.functions.get(name)
    _check_usual(usual, options, in_table(name), 0 if total is None else total.count)
    calls = total.count if total is not None else 0
    limit = options.time_limit_s or max(_AT_LEAST_S, _TIMES * took)
    before = Counter(one.kind for one in usual.unreleased)
    runs = []
    for nth in range(1, min(calls, most_runs) + 1):
        injections = (*options.injections, Injection(function, code, nth))
        report, printed = _once(replace(options, injections=injections, time_limit_s=limit))
        runs.append(_judged(nth, report, before, printed))
        if say is not None:
            say(runs[-1])
    return FailEachResult(
        verdict=_verdict(options.command[0], name, runs),
        passes=not any(run.bad or run.outcome == NOT_WATCHED for run in runs),
        command=options.command,
        function=name,
        code=code,
        calls=calls,
        exit_code=usual.exit_code,
        time_limit_s=limit,
        runs=tuple(runs),
    )


def _verdict(program: str, function: str, runs: Sequence[FailedRun]) -> str:
    """Return one line that counts the outcomes of the runs."""
    ends = Counter(run.outcome for run in runs)
    words = ", ".join(f"{number:,} {outcome}" for outcome, number in ends.most_common())
    what = f"{shorten(program, 200)}, each {function} call made to fail in turn"
    return f"{what} ({counted(len(runs), 'run')}): {words}"


def _check_usual(usual: WatchResult, options: WatchOptions, name: str, calls: int) -> None:
    program = shorten(options.command[0], 200)
    if usual.timed_out or usual.ended_by:
        how = "does not end in time" if usual.timed_out else f"is ended by {usual.ended_by}"
        raise UsageError(f"{program} {how} even without a failing call")
    if not calls:
        total = counted(sum(one.count for one in usual.functions.values()), "QNN call")
        raise UsageError(f"{program} never calls {name} ({total} in total)")


def _once(options: WatchOptions) -> tuple[WatchResult, str]:
    with temporary_folder() as folder, tempfile.TemporaryFile() as printed:
        lines = record(replace(options, output=printed), Path(folder))
        with temporary_folder() as own:  # a folder that the program does not know
            trace = Path(own, "trace.jsonl")
            with trace.open("wb") as file:
                file.writelines(lines)
            return summarize(read_trace(trace)), _last_line(printed)


def _last_line(printed: IO[bytes]) -> str:
    size = printed.seek(0, 2)
    printed.seek(max(0, size - _TAIL))
    lines = printed.read(_TAIL).decode("utf-8", "replace").split("\n")
    return next((shorten(line.strip(), 200) for line in reversed(lines) if line.strip()), "")


def _judged(nth: int, result: WatchResult, before: Counter[str], printed: str) -> FailedRun:
    usual, leaked = Counter(before), []
    for handle in result.unreleased:
        if usual[handle.kind] > 0:
            usual[handle.kind] -= 1
        else:
            leaked.append(LeakedHandle(handle.kind, handle.made_by, handle.place))
    injected = [call for call in result.failed_calls if call.injected]
    outcome = _outcome(result, leaked, is_reached=bool(injected))
    return FailedRun(
        call=nth,
        place=injected[-1].place if injected else "",
        outcome=outcome,
        bad=outcome in ("hung", "crashed", "leaked"),
        exit_code=result.exit_code,
        ended_by=result.ended_by,
        leaked=tuple(leaked),
        last_line=printed,
    )


def _outcome(result: WatchResult, leaked: Sequence[LeakedHandle], *, is_reached: bool) -> str:
    """Return a word for how a run ended; if several words apply, the worst one."""
    if result.timed_out:
        return "hung"
    if result.ended_by:
        return "crashed"
    if result.not_checked:  # handles that look leaked may have been freed by an unobserved call
        return NOT_WATCHED
    if leaked:
        return "leaked"
    if not is_reached:
        return "not reached"
    return "exited 0" if result.exit_code == 0 else "failed"
