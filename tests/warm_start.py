"""Child programs of ours as tests start them: forked from a process that has done their imports.

A child is a process of its own as ever, with the session, folder, environment, pipes and limits
that it is started with; only the half second that Python and its libraries take to start is spent
once. One whose start would differ (other programs or limits) starts the usual way, and so do the
first with its settings and all where tests start the whole command line; that of pages is forked,
too, see `warm_command`.
"""

from __future__ import annotations

import json
import os
import resource
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from qnnmem import child

PROGRAMS = (
    "qnnmem.loader.onnx.trial_program",
    "qnnmem.lpai.net_run.device",
    "qnnmem.lpai.quantize.child",
    "qnnmem.fix.graph.rework_program",
    "qnnmem.fix.parts.chain_program",
    "qnnmem.fix.proof.program",
    "qnnmem.htp.native.child",
    "qnnmem.loader.dlc.program",
)
_JOBS = "qnnmem.workbench.job_child"  # starts children itself
LINE = 200  # the descriptor of its line to the server; below the limit of a frugal machine
_LIBRARIES = ("onnx.checker", "onnx.inliner", "onnx.shape_inference", "onnxruntime")
# What Python, the loader and libraries read when they start, and never again.
_READ_AT_START = (
    *("PYTHON", "LD_", "GLIBC_", "MALLOC_", "LC_", "LANG"),
    *("OMP_", "OPENBLAS", "MKL_", "NPY_", "NUMPY_", "ORT_", "ONNX"),
)
_POPEN, _PYTHON = subprocess.Popen, sys.executable
_LIMITS = [getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")]

Settings = frozenset[tuple[str, str]]
cold_start = child.start


def _limits() -> list[tuple[int, int]]:
    return [resource.getrlimit(one) for one in _LIMITS]


def fixed(environment: Mapping[str, str]) -> Settings:
    """Settings that cannot be changed in a process that runs."""
    return frozenset(one for one in environment.items() if one[0].startswith(_READ_AT_START))


def _without_paths(environment: Mapping[str, str]) -> Settings:
    """Fixed settings but the paths, which are as they are for all that is forked."""
    return frozenset(one for one in fixed(environment) if one[0] != "PYTHONPATH")


_AT_START = _without_paths(os.environ)


class WarmProcess(subprocess.Popen[bytes]):
    """A child that the server forked; its keeper knows how it ended."""

    def __init__(self, command: list[str], report: socket.socket) -> None:
        self.args, self._report = command, report
        self.stdin = self.stdout = self.stderr = None
        self.returncode: int | None = None
        self.pid = self._number()
        self._asking = threading.Lock()

    def _number(self) -> int:
        found = b""
        while len(found) < 4:
            part = self._report.recv(4 - len(found))
            if not part:
                raise OSError("the server has gone")
            found += part
        return int.from_bytes(found, "little", signed=True)

    def _ended(self, timeout: float | None) -> int | None:
        if not self._asking.acquire(blocking=timeout != 0.0):  # somebody waits for it
            return None
        try:
            if self.returncode is None:
                self._report.settimeout(timeout)
                self.returncode = self._number()
                self._report.close()  # now it is collected
        except (BlockingIOError, TimeoutError):
            return None
        finally:
            self._asking.release()
        return self.returncode

    def poll(self) -> int | None:
        """Its exit code, if it has ended."""
        return self._ended(0.0)

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code, when it has ended."""
        code = self._ended(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        return code

    def __del__(self, *_: object) -> None:
        """The keeper collects it when nobody can ask any more."""


class WarmLine:
    """The way to a process that forks children."""

    def __init__(self, line: socket.socket) -> None:
        self.line = line
        self._asking = threading.Lock()

    def start(self, command: list[str], descriptors: dict[int, int], **more: Any) -> WarmProcess:
        """Have a child forked that has these descriptors under these numbers."""
        report, theirs = socket.socketpair()
        request = {"module": command[3], "words": command[4:], "descriptors": [*descriptors]}
        message = json.dumps(request | more).encode()
        try:
            with theirs, self._asking:
                all_of_them = [theirs.fileno(), *descriptors.values()]
                socket.send_fds(self.line, [message], all_of_them)
            return WarmProcess(command, report)
        except BaseException:
            report.close()
            raise


class WarmServer(WarmLine):
    """The process that forks children; it goes when this one does."""

    def __init__(self, environment: Mapping[str, str], more: Sequence[str] = ()) -> None:
        self.owner = os.getpid()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        super().__init__(ours)
        with theirs:
            words = (str(theirs.fileno()), *_LIBRARIES, *PROGRAMS, "warm_jobs", *more)
            self.process = _POPEN(
                [_PYTHON, "-P", "-m", "warm_server", *words],
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )

    def end(self) -> None:
        """Let it go, and collect it."""
        if self.owner == os.getpid():
            with suppress(OSError):  # it has gone already
                self.line.shutdown(socket.SHUT_RDWR)  # whoever else was forked with it
            self.line.close()
            self.process.wait()


_SERVERS: dict[Settings, WarmServer] = {}
_MOST_SERVERS = 3
_SEEN: set[Settings] = set()
_LIMITS_AT_FIRST = _limits()


def start(
    command: list[str], folder: child.ChildFolder, environment: Mapping[str, str], **pipes: Any
) -> subprocess.Popen[bytes]:
    """What `qnnmem.child.start` does, sooner where nobody can tell."""
    server = _server(environment) if is_usual(command) and _is_unlimited() else None
    if server is not None:
        with suppress(OSError):
            return start_through(server, command, str(folder.empty), environment, pipes)
    return cold_start(command, folder, environment, **pipes)


def _server(environment: Mapping[str, str]) -> WarmServer | None:
    """The one that started with these settings; the second child with them has it made."""
    settings = fixed(environment)
    server = _SERVERS.get(settings)
    if server is None and settings in _SEEN and len(_SERVERS) < _MOST_SERVERS:
        server = _SERVERS[settings] = WarmServer(environment)
    _SEEN.add(settings)
    return server if server is not None and server.owner == os.getpid() else None


def is_usual(command: list[str]) -> bool:
    """Whether a child of ours is started as ever."""
    plain = command[:3] == [_PYTHON, "-P", "-m"] and command[3] in (*PROGRAMS, _JOBS)
    return plain and subprocess.Popen is _POPEN


def _is_unlimited() -> bool:
    """Whether the limits are those that the server has, too."""
    return _limits() == _LIMITS_AT_FIRST


def start_through(
    server: WarmLine,
    command: list[str],
    folder: str,
    environment: Mapping[str, str],
    pipes: Mapping[str, Any],
) -> WarmProcess:
    """A child with its pipes, as `subprocess.Popen` would make them."""
    ours: dict[str, int] = {}
    theirs: list[int] = []
    given = {number: number for number in pipes.get("pass_fds", ())}
    if command[3] == _JOBS:
        given[LINE], command = server.line.fileno(), [*command[:3], "warm_jobs", *command[4:]]
    try:
        for number, name in enumerate(("stdin", "stdout", "stderr")):
            given[number], is_new, our_end = _ends(pipes[name], reads=name == "stdin")
            if is_new:
                theirs.append(given[number])
            if our_end is not None:
                ours[name] = our_end
        made = server.start(command, given, folder=folder, environment=dict(environment))
    except BaseException:
        for descriptor in ours.values():
            os.close(descriptor)
        raise
    finally:
        for descriptor in theirs:
            os.close(descriptor)
    for name, descriptor in ours.items():
        setattr(made, name, os.fdopen(descriptor, "wb" if name == "stdin" else "rb"))
    return made


def start_here_too() -> None:
    """Have children of this process, which the server forked, forked by it, too."""
    os.set_inheritable(LINE, False)
    line = WarmLine(socket.socket(fileno=LINE))

    def start_inside(
        command: list[str], folder: child.ChildFolder, environment: Mapping[str, str], **pipes: Any
    ) -> subprocess.Popen[bytes]:
        if _without_paths(environment) == _AT_START and is_usual(command):
            with suppress(OSError):
                return start_through(line, command, str(folder.empty), environment, pipes)
        return cold_start(command, folder, environment, **pipes)

    child.start = start_inside


def _ends(kind: Any, *, reads: bool) -> tuple[int, bool, int | None]:
    """The child's end, whether it was made for it, and our end of a pipe."""
    if kind == subprocess.PIPE:
        read, write = os.pipe()
        return (read, True, write) if reads else (write, True, read)
    if kind == subprocess.DEVNULL:
        return os.open(os.devnull, os.O_RDWR), True, None
    return kind if isinstance(kind, int) else kind.fileno(), False, None


def warm_children() -> None:
    """Have children of this process started so from now on."""
    child.start = start


def end_server() -> None:
    """No more children are started."""
    while _SERVERS:
        _SERVERS.popitem()[1].end()
