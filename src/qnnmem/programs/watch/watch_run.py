"""Run a program with the observer in it and record a trace."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import msgspec

from qnnmem.errors import UsageError
from qnnmem.programs import launch
from qnnmem.programs.functions import NAMES
from qnnmem.programs.ledger import Ledger
from qnnmem.programs.shims import OBSERVER, OBSERVER_OBJECT, build_objects, check_program
from qnnmem.programs.stacks import Symbols
from qnnmem.programs.watch.injections import Injection
from qnnmem.programs.watch.observer_server import WatchServer
from qnnmem.programs.watch.trace import (
    MOST_MISSED,
    MOST_RULES,
    SCHEMA,
    ProgramEnd,
    TraceHead,
    TraceRecorder,
)
from qnnmem.results.programs import FunctionTotal, NotChecked
from qnnmem.results.result import MAX_COUNT
from qnnmem.text import counted, quote
from qnnmem.version import __version__

_LARGEST = MAX_COUNT
_MORE_LIBRARIES = "calls of more than 4 backends and 2 system libraries in one process"
_WORD = 4000  # characters of a word of the command in the trace
_COMMAND = 64_000  # and of all of them


@dataclass(frozen=True, slots=True)
class WatchOptions:
    """What is run, and how."""

    command: tuple[str, ...]
    injections: tuple[Injection, ...] = ()
    time_limit_s: float | None = None
    to_stderr: bool = False  # what the program prints: standard output is for the result
    output: IO[bytes] | None = None  # all that it prints goes here


def record(options: WatchOptions, folder: Path) -> Iterator[bytes]:
    """Run a program and return the lines of its trace, which are kept in a folder."""
    program = check_program(options.command[0])
    _check_loader(Path(program))
    build_objects(folder, OBSERVER)
    symbols = Symbols(str(folder))
    recorder = TraceRecorder(folder / "events", symbols)
    server = WatchServer(folder, recorder, options.injections)
    try:
        code, timed_out = _run(program, options, folder)
        server.settle()
        missed = server.ledger.not_checked(_MORE_LIBRARIES)
        totals = _totals(server.ledger)
    finally:
        server.close()
    if server.crash is not None:
        raise server.crash
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
    )
    return _lines(options, recorder, end)


def _missed(one: NotChecked) -> NotChecked:
    thread, process = (number & 0xFFFF_FFFF for number in (one.thread, one.process))
    return NotChecked(one.what, one.calls, process, thread)


def _lines(options: WatchOptions, recorder: TraceRecorder, end: ProgramEnd) -> Iterator[bytes]:
    encode = msgspec.json.Encoder().encode
    injected = tuple(map(str, options.injections))[:MOST_RULES]
    yield encode(TraceHead(SCHEMA, f"qnnmem {__version__}", _words(options), injected)) + b"\n"
    yield from recorder.lines()
    yield encode(end) + b"\n"


def _words(options: WatchOptions) -> tuple[str, ...]:
    """Return the command, cut to fit into a line of a trace."""
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
    """Refuse a program that the dynamic loader preloads nothing into."""
    state = program.stat()
    other_user = state.st_mode & stat.S_ISUID and state.st_uid != os.getuid()
    other_group = state.st_mode & stat.S_ISGID and state.st_gid != os.getgid()
    if other_user or other_group:
        raise UsageError(
            f"{quote(str(program))} runs with the rights of another user or group, and the loader "
            "puts nothing into such a program",
            cure="run a copy of it, which has your rights",
        )


def _run(program: str, options: WatchOptions, folder: Path) -> tuple[int, bool]:
    """Return the exit code, negative for a signal, and whether the time was over."""
    child = launch.start(
        program,
        options.command,
        folder / OBSERVER_OBJECT,
        to_stderr=options.to_stderr,
        output=options.output,
    )
    try:
        return launch.wait(child, options.time_limit_s)
    finally:
        if child.poll() is None:
            launch.kill_tree(child)


def _totals(ledger: Ledger) -> dict[str, FunctionTotal]:
    return {
        NAMES[number]: FunctionTotal(*(min(one, _LARGEST) for one in totals))
        for number, totals in enumerate(ledger.functions())
        if totals[0] and number in NAMES
    }
