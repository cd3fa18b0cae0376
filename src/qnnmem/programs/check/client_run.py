"""Run a program under the contract and report broken rules and leaks."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path

from msgspec.structs import replace as with_fields

from qnnmem.contract.leaks import separate
from qnnmem.contract.rules import finding
from qnnmem.finding import Finding
from qnnmem.lpai.profiles import Profile
from qnnmem.programs import launch
from qnnmem.programs.check.client_server import ClientServer
from qnnmem.programs.check.client_session import (
    DEFAULT_LIMITS,
    ClientSession,
    ExecutionLimits,
    can_be_freed,
    limited_memory,
)
from qnnmem.programs.check.findings import MADE, Suppression, client_finding
from qnnmem.programs.ledger import in_words
from qnnmem.programs.stacks import Symbols
from qnnmem.results.programs import (
    BufferAlignment,
    ClientFinding,
    ClientResult,
    NotChecked,
)
from qnnmem.temporary_folder import temporary_folder
from qnnmem.text import counted, shorten

_LOOK_S = 0.5  # interval between checks of the execution time limit
_OTHER_LIBRARY = "calls to a libQnnLpai.so or libQnnSystem.so from another folder"


@dataclass(frozen=True, slots=True)
class ClientOptions:
    """Program to run, and the options of the run."""

    command: tuple[str, ...]
    profile: Profile
    lenient: bool = False  # True: a call that a device would accept returns success
    suppressions: tuple[Suppression, ...] = ()
    time_limit_s: float | None = None
    limits: ExecutionLimits = DEFAULT_LIMITS  # limits of the program's executions
    to_stderr: bool = False  # True: the program writes to stderr, because stdout holds the result
    binary_info: int = 0  # struct version of the system library's answer; 0: by function
    trace_state: bool = False  # True: find the source lines that write to persistent memory


def check_client(
    options: ClientOptions, say: Callable[[ClientFinding], None] | None = None
) -> ClientResult:
    """Run a program and return its findings; `say` gets each new finding immediately."""
    program = launch.check_program(options.command[0])
    with temporary_folder() as name, separate() as made:
        folder = launch.build_objects(Path(name), launch.SHIM)
        symbols = Symbols(name)
        session = ClientSession(
            options.profile,
            symbols,
            _chosen(options, say),
            lenient=options.lenient,
            binary_info=options.binary_info,
            trace_state=options.trace_state,
        )
        _tell(folder, options)
        server = ClientServer(session, folder)
        try:
            pid, code, over = _run(program, options, folder, server)
            missed = (*server.sockets.ledger.not_checked(_OTHER_LIBRARY), *session.missed())
        finally:
            server.close()
        server.sockets.check()
        ended_by = launch.signal_name(code)
        _note_caught(session, pid, code)
        if over is _Over.EXECUTION:
            _note_late(session, options.limits.time_s)
        elif code >= 0:
            _excuse(session, _gave_up(session, pid, code) | _unheard(session, missed))
            for found in filter(can_be_freed, made.left()):
                _note_at_end(session, found)
            (_note_early if code else _note_codes)(session, pid)
        elif over is _Over.PROGRAM or not _has_crashed(session, pid):
            _note_crash(session, ended_by, over is _Over.PROGRAM)
    everything, profile = session.findings.all(), options.profile
    kept = tuple(f for f in everything if not any(s.covers(f) for s in options.suppressions))
    result = ClientResult(
        verdict="",
        passes=bool(session.counts) and not kept and not missed,
        command=options.command,
        mode=profile.mode.value,
        hw_version=profile.hw_version.word,
        alignment=BufferAlignment(profile.start_alignment, profile.size_alignment),
        exit_code=launch.exit_status(code),
        ended_by=ended_by or None,
        timed_out=over is not None,
        last_call=session.last or None,
        calls=dict(sorted(session.counts.items())),
        failed_calls=dict(sorted(session.codes.items())),
        suppressed=len(everything) - len(kept),
        left_out=session.findings.left_out,
        not_checked=missed,
        timeline=tuple(session.timeline),
        findings=kept,
        has_lines=symbols.has_tool,
        notes=tuple(session.notes),
    )
    return with_fields(result, verdict=_verdict(result))


def _tell(folder: Path, options: ClientOptions) -> None:
    """Pass options to the client as files: `trace`, and `alignment`.

    The size of the file `alignment` in bytes is the alignment.
    """
    if options.trace_state:
        (folder / "trace").touch()
    (folder / "alignment").write_bytes(bytes(options.profile.start_alignment))


def _verdict(result: ClientResult) -> str:
    """Return a verdict of one line: clean, or the broken rules."""
    program = shorten(result.command[0], 200)
    missed, end = in_words(result.not_checked), launch.end_words(result)
    if not result.called and not missed:
        return f"cannot tell whether {program} breaks a rule: it never called QNN ({end})"
    calls = counted(sum(result.calls.values()), "QNN call")
    if result.findings:
        rules = dict.fromkeys(one.rule for one in result.findings)
        number = counted(len(result.findings), "finding")
        said = f"{number} in {program}: {', '.join(rules)} ({calls}, {end})"
        return f"{said}; not checked: {missed}" if missed else said
    if missed:
        return f"not checked: {missed}; {program} breaks no rule in the other {calls} ({end})"
    known = counted(result.suppressed, "known finding")
    silent = f", {known} ignored" if result.suppressed else ""
    return f"clean: {program} breaks no rule in {calls}{silent} ({end})"


def _chosen(
    options: ClientOptions, say: Callable[[ClientFinding], None] | None
) -> Callable[[ClientFinding], None]:
    def tell(found: ClientFinding) -> None:
        if say is not None and not any(s.covers(found) for s in options.suppressions):
            say(found)

    return tell


class _Over(Enum):
    """The time limit that the program exceeded."""

    PROGRAM = "program"
    EXECUTION = "execution"


def _run(
    program: str, options: ClientOptions, folder: Path, server: ClientServer
) -> tuple[int, int, _Over | None]:
    """Return the pid, the exit code (negative for a signal) and the exceeded limit, if any."""
    over = _Over.PROGRAM

    def execution_time_left() -> float:
        nonlocal over
        left = options.limits.time_s - server.session.clock.longest()
        over = _Over.EXECUTION if left <= 0 else _Over.PROGRAM
        return left

    folders = filter(None, (str(folder), os.environ.get("LD_LIBRARY_PATH")))
    try:
        with (
            launch.started(
                program,
                options.command,
                folder / launch.PRELOADED,
                environment={"LD_LIBRARY_PATH": ":".join(folders)},
                to_stderr=options.to_stderr,
            ) as child,
            limited_memory(options.limits.memory),  # not earlier: the program has its own limit
        ):
            code, killed = launch.wait(child, options.time_limit_s, execution_time_left, _LOOK_S)
            return child.pid, code, over if killed else None
    finally:
        server.sockets.settle()


def _gave_up(session: ClientSession, pid: int, code: int) -> set[int]:
    """Return processes that need not clean up after a failed call or a fatal signal."""
    has_refused = pid in session.refused or session.early.get(pid) is not None
    own = {pid} if code and has_refused else set()
    return (session.failed - {pid}) | own | set(_crashed(session))


def _has_crashed(session: ClientSession, pid: int) -> bool:
    """Return True if the crash of the program, or of a wrapper's child, was reported."""
    known = session.processes.now()
    is_wrapper = all(process.pid != pid for process in known)
    return any(process.crashed and (is_wrapper or process.pid == pid) for process in known)


def _crashed(session: ClientSession) -> Iterator[int]:
    """Yield processes that crashed, and processes that a debugger still holds at the end.

    Each process of the second kind gets a finding, because a debugger can hide a crash.
    """
    for process in session.processes.now():
        if process.is_debugged and not process.has_ended and not process.crashed:
            sentence = f"process {process.pid} did not end under its debugger"
            after = f"; the last call was {session.last}" if session.last else ""
            found = finding("C7", sentence + after, session.last, line="")
            session.findings.add(client_finding(found, process=process.pid))
            yield process.pid
        elif process.crashed:
            yield process.pid


def _note_caught(session: ClientSession, pid: int, code: int) -> None:
    """Report rule C7 for a process that handled a signal itself but failed afterwards."""
    for process in session.processes.now():
        has_failed = code != 0 if process.pid == pid else not process.has_ended
        if process.caught is not None and has_failed:
            process.caught()


def _note_crash(session: ClientSession, ended_by: str, timed_out: bool) -> None:
    last = session.last
    after = f"; the last call was {last}" if last else " before its first call"
    what = "did not end in time and was killed" if timed_out else f"was ended by {ended_by}"
    found = finding("C7", f"the program {what}{after}", last, line="")
    session.findings.add(client_finding(found))


def _note_late(session: ClientSession, limit_s: float) -> None:
    sentence = f"an execution did not finish within {limit_s:g} s, and the program was killed"
    found = replace(finding("B1", sentence, session.last, line=""), cure="")
    session.findings.add(client_finding(found))


def _note_at_end(session: ClientSession, found: Finding, label: str = MADE) -> None:
    stack = session.symbols.stack(found.trace)
    session.findings.add(client_finding(replace(found, call="exit"), 0, stack, label=label))


def _excuse(session: ClientSession, processes: set[int]) -> None:
    """Drop the handles of processes that gave up after a failed call: they need not clean up.

    Only the exit code of the program itself is known. Processes that it starts (a worker, or the
    program behind a script or a debugger) are assumed to have given up.
    """
    for number, handle in session.handles:
        if handle.process.pid in processes:
            session.handles.free(number)
            if handle.kind == "backend":
                handle.value.disown()
            elif handle.kind == "system context":
                handle.value.system.disown()
            elif handle.kind in ("log", "profile"):
                handle.value.made.freed()


def _unheard(session: ClientSession, missed: Iterable[NotChecked]) -> set[int]:
    """Return processes with unchecked calls; all processes if a call's process is unknown."""
    processes = {entry.process for entry in missed if entry.calls}
    return {process.pid for process in session.processes.now()} if 0 in processes else processes


def _note_early(session: ClientSession, pid: int) -> None:
    """Report rule C10 if a process gave up after an execution returned 6038 (early termination)."""
    early = session.early.get(pid)
    if early is not None:
        sentence = (
            f"the last {early.call} returned 6038 (more input is needed), and the program gave up"
        )
        found = finding("C10", sentence, "exit", line="")
        _note_at_end(session, replace(found, trace=early.trace), "answered at")


def _note_codes(session: ClientSession, pid: int) -> None:
    """Report rule C3: the program ended with 0 although its last execution failed."""
    failure = session.unheeded.get(pid)
    if failure is not None and not session.lenient:
        sentence = (
            f"the last {failure.call} failed with {failure.code}, but the program ended with "
            "exit code 0"
        )
        found = finding("C3", sentence, "exit", line="")
        _note_at_end(session, replace(found, trace=failure.trace), "failed at")
