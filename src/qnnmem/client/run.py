"""A program run under the contract, from its first instruction to the last thing it left behind."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path

from qnnmem.client.build import PRELOADED, check_program, sanitizer_of, shim_folder
from qnnmem.client.findings import MADE, ClientFinding
from qnnmem.client.ledger import NotChecked
from qnnmem.client.limits import DEFAULT_LIMITS, ExecutionLimits, limited_memory
from qnnmem.client.rules import client_finding
from qnnmem.client.server import ClientServer
from qnnmem.client.session import ClientSession, HeldMoment, can_be_freed
from qnnmem.client.stacks import Symbols, of_program
from qnnmem.client.suppress import Suppression
from qnnmem.errors import UsageError
from qnnmem.finding import Finding
from qnnmem.lpai.profiles import Profile
from qnnmem.lpai.runtime.leaks import separate
from qnnmem.scratch_folder import scratch_folder
from qnnmem.text import quote

_LOOK_S = 0.5  # how often it is seen whether an execution takes too long
_OTHER_LIBRARY = "calls of a libQnnLpai.so or libQnnSystem.so from another folder"


@dataclass(frozen=True, slots=True)
class ClientOptions:
    """What is run, and how."""

    command: tuple[str, ...]
    profile: Profile
    lenient: bool = False  # a call that a device would not refuse reports success
    suppressions: tuple[Suppression, ...] = ()
    time_limit_s: float | None = None
    limits: ExecutionLimits = DEFAULT_LIMITS  # of what the program executes
    to_stderr: bool = False  # what the program prints: standard output is for the result


@dataclass(frozen=True, slots=True)
class ClientReport:
    """What a run showed."""

    command: tuple[str, ...]
    profile: Profile
    findings: tuple[ClientFinding, ...]
    suppressed: int
    left_out: int  # findings beyond the most that are kept
    calls: dict[str, int]
    failed: dict[str, int]  # calls by name that answered with another code than 0
    exit_code: int  # of the program, as a shell has it
    ended_by: str  # the signal; empty where it ended by itself
    timed_out: bool
    last_call: str
    has_lines: bool  # whether addresses could be turned into lines
    timeline: tuple[HeldMoment, ...] = ()
    not_checked: tuple[NotChecked, ...] = ()  # what the verdict knows nothing of

    @property
    def called(self) -> bool:
        """Whether the program called QNN at all."""
        return bool(self.calls)

    @property
    def passes(self) -> bool:
        """Whether every call was checked, and broke no rule."""
        return self.called and not self.findings and not self.not_checked


def check_client(
    options: ClientOptions, say: Callable[[ClientFinding], None] | None = None
) -> ClientReport:
    """Run a program; every finding is said when it is made, and is in the report."""
    program = check_program(options.command[0])
    with scratch_folder() as name, separate() as made:
        folder = shim_folder(Path(name))
        symbols = Symbols(name)
        session = ClientSession(
            options.profile, symbols, _chosen(options, say), lenient=options.lenient
        )
        server = ClientServer(session, folder)
        try:
            pid, code, over = _run(program, options, folder, server)
            missed = (*server.ledger.not_checked(_OTHER_LIBRARY), *session.missed())
        finally:
            server.close()
        if server.crash is not None:
            raise server.crash
        ended_by = _signal_name(-code) if code < 0 else ""
        if over is _Over.EXECUTION:
            _note_late(session, options.limits.time_s)
        elif code < 0:
            _note_crash(session, ended_by, over is _Over.PROGRAM)
        else:
            _excuse(session, session.failed - (set() if code else {pid}))
            _excuse(session, _unheard(session, missed))
            for found in filter(can_be_freed, made.left("was never freed")):
                _note_at_end(session, found)
            _note_handles(session)
            if code == 0:
                _note_codes(session, pid)
    everything = session.findings.all()
    kept = tuple(f for f in everything if not any(s.covers(f) for s in options.suppressions))
    return ClientReport(
        options.command,
        options.profile,
        kept,
        len(everything) - len(kept),
        session.findings.left_out,
        dict(sorted(session.counts.items())),
        dict(sorted(session.codes.items())),
        code if code >= 0 else 128 - code,
        ended_by,
        over is not None,
        session.last,
        symbols.has_tool,
        tuple(session.timeline),
        missed,
    )


def _chosen(
    options: ClientOptions, say: Callable[[ClientFinding], None] | None
) -> Callable[[ClientFinding], None]:
    def tell(one: ClientFinding) -> None:
        if say is not None and not any(s.covers(one) for s in options.suppressions):
            say(one)

    return tell


class _Over(Enum):
    """Whose time was over when the program was killed."""

    PROGRAM = "program"
    EXECUTION = "execution"


def _run(
    program: str, options: ClientOptions, folder: Path, server: ClientServer
) -> tuple[int, int, _Over | None]:
    """Number and end of the program: its code, negative for a signal; whether a time was over."""
    environment = {
        **os.environ,
        "LD_LIBRARY_PATH": _joined(str(folder), os.environ.get("LD_LIBRARY_PATH", "")),
        "LD_PRELOAD": _joined(
            sanitizer_of(Path(program)), str(folder / PRELOADED), os.environ.get("LD_PRELOAD", "")
        ),
    }
    output = sys.__stderr__ if options.to_stderr else None
    try:
        child = subprocess.Popen(  # noqa: S603  # the user's own program, as asked
            [options.command[0], *options.command[1:]],
            executable=program,
            env=environment,
            stdout=output,
        )
    except OSError as exc:
        raise UsageError(
            f"the program {quote(options.command[0])} cannot be run ({exc.strerror or exc})"
        ) from exc
    try:
        with limited_memory(options.limits.memory):  # from here on: the program has its own
            return child.pid, *_wait(child, options, server)
    finally:
        if child.poll() is None:
            _kill(child)
        server.settle()


def _wait(
    child: subprocess.Popen[bytes], options: ClientOptions, server: ClientServer
) -> tuple[int, _Over | None]:
    limit_s = options.time_limit_s
    end = math.inf if limit_s is None else time.monotonic() + limit_s
    while True:
        late = server.longest_execution() - options.limits.time_s
        left = min(end - time.monotonic(), -late)
        if left <= 0:
            return _kill(child), _Over.EXECUTION if late >= 0 else _Over.PROGRAM
        try:
            return child.wait(min(left, _LOOK_S)), None
        except subprocess.TimeoutExpired:
            pass  # look again
        except KeyboardInterrupt:
            # The terminal has told the program, too: it may end in its own way.
            end = min(end, time.monotonic() + 2.0)


def _kill(child: subprocess.Popen[bytes]) -> int:
    """End a program and what it started: behind a script or a debugger is the one that is meant."""
    found = [child.pid]
    for pid in found:
        for task in Path(f"/proc/{pid}/task").glob("*/children"):
            with contextlib.suppress(OSError):
                found += map(int, task.read_text("ascii").split())
    for pid in found:
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)
    return child.wait()


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # of real-time signals only two have a name
        return f"signal {number}"


def _joined(*names: str) -> str:
    return ":".join(filter(None, names))


def _note_crash(session: ClientSession, ended_by: str, timed_out: bool) -> None:
    last = session.last
    after = f", the last call was {last}" if last else " before its first call"
    what = "did not end in time and was killed" if timed_out else f"was ended by {ended_by}"
    found = client_finding("C7", f"the program {what}{after}", last)
    session.findings.add(ClientFinding(found, 0, ""))


def _note_late(session: ClientSession, limit_s: float) -> None:
    from qnnmem.lpai.rules import finding

    sentence = f"an execution did not finish within {limit_s:g} s, and the program was killed"
    found = replace(finding("B1", sentence, call=session.last), cure="")
    session.findings.add(ClientFinding(found, 0, ""))


def _note_at_end(session: ClientSession, found: Finding, label: str = MADE) -> None:
    stack = session.stack_of(found.line)
    frame = of_program(stack, "")
    place = frame.place if frame is not None else ""
    said = replace(session.readable(found), call="exit")
    session.findings.add(ClientFinding(said, 0, place, stack, label=label))


def _excuse(session: ClientSession, processes: set[int]) -> None:
    """A process that gives up after a failed call need not clean up.

    Only the end of the program itself is known, not that of what it starts: a worker, or all of it
    behind a script or a debugger. Those are believed to have given up.
    """
    for number, handle in tuple(session.handles.items()):
        if handle.process.pid in processes:
            del session.handles[number]
            if handle.kind == "backend":
                handle.value.disown()
            elif handle.kind == "system context":
                handle.value.system.disown()


def _unheard(session: ClientSession, missed: Iterable[NotChecked]) -> set[int]:
    """Processes that may have freed something without our knowing."""
    found = {one.process for one in missed if one.calls}
    return {one.pid for one in session.processes.now()} if 0 in found else found


def _note_handles(session: ClientSession) -> None:
    """Logs and profiles: nothing of the contract knows about them."""
    for handle in session.handles.values():
        if handle.kind in ("log", "profile"):
            place = session.token(handle.value.trace)
            sentence = f"the {handle.kind} made at {place} was never freed"
            _note_at_end(session, replace(client_finding("C8", sentence, "exit"), line=place))


def _note_codes(session: ClientSession, pid: int) -> None:
    """A program that says it worked, although what it is for did not."""
    failure = session.unheeded.get(pid)
    if failure is not None and not session.lenient:
        place = session.token(failure.trace)
        sentence = (
            f"the last {failure.call} failed with {failure.code}, and the program ended with 0"
        )
        found = replace(client_finding("C3", sentence, "exit"), line=place)
        _note_at_end(session, found, "failed at")
