"""A program run under the contract, from its first instruction to the last thing it left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from qnnmem.client.build import PRELOADED, check_program, sanitizer_of, shim_folder
from qnnmem.client.findings import ClientFinding
from qnnmem.client.rules import client_finding
from qnnmem.client.server import ClientServer
from qnnmem.client.session import ClientSession, can_be_freed
from qnnmem.client.stacks import Symbols, of_program
from qnnmem.client.suppress import Suppression
from qnnmem.errors import UsageError
from qnnmem.finding import Finding
from qnnmem.lpai.profiles import Profile
from qnnmem.lpai.runtime.leaks import separate
from qnnmem.scratch_folder import scratch_folder
from qnnmem.text import quote

_POLL_S = 0.05


@dataclass(frozen=True, slots=True)
class ClientOptions:
    """What is run, and how."""

    command: tuple[str, ...]
    profile: Profile
    lenient: bool = False  # a call that a device would not refuse reports success
    suppressions: tuple[Suppression, ...] = ()
    time_limit_s: float | None = None
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

    @property
    def called(self) -> bool:
        """Whether the program called QNN at all."""
        return bool(self.calls)


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
            code, timed_out = _run(program, options, folder, server)
        finally:
            server.close()
        if server.crash is not None:
            raise server.crash
        ended_by = signal.Signals(-code).name if code < 0 else ""
        if code < 0:
            _note_crash(session, ended_by, timed_out)
        elif not (code and session.last[1]):  # a program that gives up need not clean up
            for found in filter(can_be_freed, made.left("was never freed")):
                _note_leak(session, found)
            _note_codes(session, code)
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
        timed_out,
        session.last[0],
        symbols.has_tool,
    )


def _chosen(
    options: ClientOptions, say: Callable[[ClientFinding], None] | None
) -> Callable[[ClientFinding], None]:
    def tell(one: ClientFinding) -> None:
        if say is not None and not any(s.covers(one) for s in options.suppressions):
            say(one)

    return tell


def _run(
    program: str, options: ClientOptions, folder: Path, server: ClientServer
) -> tuple[int, bool]:
    """The program's end: its code, negative for a signal, and whether its time was over."""
    environment = {
        **os.environ,
        "QNNMEM_CLIENT_SOCKET": str(server.path),
        "QNNMEM_CLIENT_PARENT": str(os.getpid()),
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
        return _wait(child, options.time_limit_s)
    finally:
        if child.poll() is None:
            child.kill()
            child.wait()
        server.settle()


def _wait(child: subprocess.Popen[bytes], limit_s: float | None) -> tuple[int, bool]:
    end = None if limit_s is None else time.monotonic() + limit_s
    while True:
        try:
            return child.wait(None if end is None else max(0.0, end - time.monotonic())), False
        except subprocess.TimeoutExpired:
            child.kill()
            return child.wait(), True
        except KeyboardInterrupt:
            # The terminal has told the program, too: it may end in its own way.
            end = time.monotonic() + 2.0 if end is None else min(end, time.monotonic() + 2.0)


def _joined(*names: str) -> str:
    return ":".join(filter(None, names))


def _note_crash(session: ClientSession, ended_by: str, timed_out: bool) -> None:
    last = session.last[0]
    after = f", the last call was {last}" if last else " before its first call"
    what = "did not end in time and was killed" if timed_out else f"was ended by {ended_by}"
    found = client_finding("C7", f"the program {what}{after}", last)
    session.findings.add(ClientFinding(found, 0, ""))


def _note_leak(session: ClientSession, found: Finding) -> None:
    stack = session.stack_of(found.line)
    frame = of_program(stack, "")
    place = frame.place if frame is not None else ""
    said = replace(session.readable(found), call="exit")
    session.findings.add(ClientFinding(said, 0, place, stack))


def _note_codes(session: ClientSession, code: int) -> None:
    """A program that says it worked, although what it is for did not."""
    failed = session.codes.get("QnnGraph_execute", 0)
    if failed and code == 0 and failed == session.counts.get("QnnGraph_execute"):
        sentence = "every QnnGraph_execute failed, and the program ended with 0"
        session.findings.add(ClientFinding(client_finding("C3", sentence, "exit"), 0, ""))
