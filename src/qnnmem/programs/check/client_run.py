"""A program run under the contract, from its first instruction to the last thing it left behind."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path

from qnnmem.contract.leaks import separate
from qnnmem.contract.rules import finding
from qnnmem.finding import Finding
from qnnmem.lpai.profiles import Profile
from qnnmem.programs import launch
from qnnmem.programs.check.client_server import ClientServer
from qnnmem.programs.check.client_session import ClientSession, HeldMoment, can_be_freed
from qnnmem.programs.check.execution_limits import DEFAULT_LIMITS, ExecutionLimits, limited_memory
from qnnmem.programs.check.findings import MADE, ClientFinding
from qnnmem.programs.check.suppressions import Suppression
from qnnmem.programs.ledger import NotChecked
from qnnmem.programs.shims import PRELOADED, check_program, shim_folder
from qnnmem.programs.stacks import Symbols, of_program
from qnnmem.temporary_folder import temporary_folder

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
    with temporary_folder() as name, separate() as made:
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
        ended_by = launch.signal_name(code)
        if over is _Over.EXECUTION:
            _note_late(session, options.limits.time_s)
        elif code < 0:
            _note_crash(session, ended_by, over is _Over.PROGRAM)
        else:
            _excuse(session, session.failed - (set() if code else {pid}))
            _excuse(session, _unheard(session, missed))
            for found in filter(can_be_freed, made.left()):
                _note_at_end(session, found)
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
        launch.exit_status(code),
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
    """Return pid and exit code, negative for a signal, and whose time was over."""
    child = launch.start(
        program,
        options.command,
        folder / PRELOADED,
        environment={
            "LD_LIBRARY_PATH": ":".join(
                filter(None, (str(folder), os.environ.get("LD_LIBRARY_PATH")))
            )
        },
        to_stderr=options.to_stderr,
    )
    over = _Over.PROGRAM

    def execution_time_left() -> float:
        nonlocal over
        left = server.execution_time_left(options.limits)
        over = _Over.EXECUTION if left <= 0 else _Over.PROGRAM
        return left

    try:
        with limited_memory(options.limits.memory):  # not before: the program has its own limit
            code, killed = launch.wait(child, options.time_limit_s, execution_time_left, _LOOK_S)
            return child.pid, code, over if killed else None
    finally:
        if child.poll() is None:
            launch.kill_tree(child)
        server.settle()


def _note_crash(session: ClientSession, ended_by: str, timed_out: bool) -> None:
    last = session.last
    after = f", the last call was {last}" if last else " before its first call"
    what = "did not end in time and was killed" if timed_out else f"was ended by {ended_by}"
    found = finding("C7", f"the program {what}{after}", last, line="")
    session.findings.add(ClientFinding(found, 0, ""))


def _note_late(session: ClientSession, limit_s: float) -> None:
    sentence = f"an execution did not finish within {limit_s:g} s, and the program was killed"
    found = replace(finding("B1", sentence, session.last, line=""), cure="")
    session.findings.add(ClientFinding(found, 0, ""))


def _note_at_end(session: ClientSession, found: Finding, label: str = MADE) -> None:
    stack = session.symbols.stack(found.trace)
    frame = of_program(stack, "")
    place = frame.place if frame is not None else ""
    line = frame.text if frame is not None else found.line
    said = replace(found, call="exit", line=line)
    session.findings.add(ClientFinding(said, 0, place, stack, label=label))


def _excuse(session: ClientSession, processes: set[int]) -> None:
    """A process that gives up after a failed call need not clean up.

    Only the end of the program itself is known, not that of what it starts: a worker, or all of it
    behind a script or a debugger. Those are believed to have given up.
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
    """Processes that may have freed something without our knowing."""
    found = {one.process for one in missed if one.calls}
    return {one.pid for one in session.processes.now()} if 0 in found else found


def _note_codes(session: ClientSession, pid: int) -> None:
    """A program that says it worked, although what it is for did not."""
    failure = session.unheeded.get(pid)
    if failure is not None and not session.lenient:
        sentence = (
            f"the last {failure.call} failed with {failure.code}, and the program ended with 0"
        )
        found = finding("C3", sentence, "exit", line="")
        _note_at_end(session, replace(found, trace=failure.trace), "failed at")
