"""A program run with the observer in it; what was seen ends in a trace."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import msgspec

from qnnmem.client.build import build_objects, check_program, sanitizer_of
from qnnmem.client.functions import NAMES
from qnnmem.client.ledger import Ledger, NotChecked
from qnnmem.client.stacks import Symbols
from qnnmem.errors import UsageError
from qnnmem.text import counted, quote
from qnnmem.version import __version__
from qnnmem.watch.injections import Injection
from qnnmem.watch.observer import OBSERVER, OBSERVER_OBJECT
from qnnmem.watch.recorder import TraceRecorder
from qnnmem.watch.server import WatchServer
from qnnmem.watch.trace import (
    MOST_MISSED,
    MOST_RULES,
    SCHEMA,
    FunctionTotal,
    MissedSeen,
    ProgramEnd,
    TraceHead,
)

_LARGEST = (1 << 63) - 1
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
    """Run a program; gives the lines of its trace, kept in a folder until they are read."""
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
        code if code >= 0 else 128 - code,
        _signal_name(-code) if code < 0 else "",
        timed_out,
        totals,
        recorder.left_out,
        symbols.has_tool,
        tuple(map(str, server.injections.unmatched()))[:MOST_RULES],
        tuple(map(_missed, missed[:MOST_MISSED])),
    )
    return _lines(options, recorder, end)


def _missed(one: NotChecked) -> MissedSeen:
    thread, process = (number & 0xFFFF_FFFF for number in (one.thread, one.process))
    return MissedSeen(one.what, one.calls, process, thread)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # those for real time have no names but the first and the last
        return f"SIGRTMIN+{number - signal.SIGRTMIN}"


def _lines(options: WatchOptions, recorder: TraceRecorder, end: ProgramEnd) -> Iterator[bytes]:
    encode = msgspec.json.Encoder().encode
    injected = tuple(map(str, options.injections))[:MOST_RULES]
    yield encode(TraceHead(SCHEMA, f"qnnmem {__version__}", _words(options), injected)) + b"\n"
    yield from recorder.lines()
    yield encode(end) + b"\n"


def _words(options: WatchOptions) -> tuple[str, ...]:
    """The command, cut so that it fits into a line of a trace."""
    kept: list[str] = []
    room = _COMMAND
    for word in options.command:
        # A word may hold what is no text.
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
    """Refuses a program that the system's loader puts nothing into."""
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
    """The program's end: its code, negative for a signal, and whether its time was over."""
    preload = (
        sanitizer_of(Path(program)),
        str(folder / OBSERVER_OBJECT),
        os.environ.get("LD_PRELOAD", ""),
    )
    environment = {
        **os.environ,
        "LD_PRELOAD": ":".join(filter(None, preload)),
    }
    printed = options.output
    try:
        child = subprocess.Popen(  # noqa: S603  # the user's own program, as asked
            list(options.command),
            executable=program,
            env=environment,
            stdin=None if printed is None else subprocess.DEVNULL,
            stdout=printed
            if printed is not None
            else sys.__stderr__
            if options.to_stderr
            else None,
            stderr=printed,
        )
    except OSError as exc:
        raise UsageError(
            f"the program {quote(options.command[0])} cannot be run ({exc.strerror or exc})"
        ) from exc
    try:
        return _wait(child, options.time_limit_s)
    finally:
        if child.poll() is None:
            _end_tree(child.pid)
            child.wait()


def _wait(child: subprocess.Popen[bytes], limit_s: float | None) -> tuple[int, bool]:
    end = None if limit_s is None else time.monotonic() + limit_s
    while True:
        try:
            return child.wait(None if end is None else max(0.0, end - time.monotonic())), False
        except subprocess.TimeoutExpired:
            _end_tree(child.pid)
            return child.wait(), True
        except KeyboardInterrupt:
            # The terminal has told the program, too: it may end in its own way.
            end = time.monotonic() + 2.0 if end is None else min(end, time.monotonic() + 2.0)


def _end_tree(pid: int) -> None:
    """Kill a program and what it has started."""
    with suppress(OSError):
        os.kill(pid, signal.SIGSTOP)  # or it starts more in the meantime
    for one in _started_by(pid):
        _end_tree(one)
    with suppress(OSError):
        os.kill(pid, signal.SIGKILL)


def _started_by(pid: int) -> list[int]:
    """The processes that any thread of a process has started."""
    found: list[int] = []
    with suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            with suppress(OSError):
                found.extend(map(int, (task / "children").read_text("ascii").split()))
    return found


def _totals(ledger: Ledger) -> dict[str, FunctionTotal]:
    return {
        NAMES[number]: FunctionTotal(*(min(one, _LARGEST) for one in totals))
        for number, totals in enumerate(ledger.functions())
        if totals[0] and number in NAMES
    }
