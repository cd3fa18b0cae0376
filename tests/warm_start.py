"""Starts child programs for tests by forking a process that has done their imports.

A child still is its own process with its own session, folder, environment, pipes and limits. Only
the half second of starting Python and its libraries is spent once. A child with other settings or
limits starts normally, and so does the first child with its settings. Tests that start the whole
command line start normally too; for the commands of pages see `warm_command`.
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
LINE = 200  # descriptor of the server connection; below the limit of a small machine
_LIBRARIES = ("onnx.checker", "onnx.inliner", "onnx.shape_inference", "onnxruntime")
# What the programs import when they need it.
_LATER = (
    *("numpy.random", "onnxruntime.quantization", "qnnmem.htp.native.session"),
    "warm_libraries",
)
# Variables that Python, the loader and libraries read only at their start.
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
    """Return the settings that cannot change in a running process."""
    return frozenset(one for one in environment.items() if one[0].startswith(_READ_AT_START))


def _without_paths(environment: Mapping[str, str]) -> Settings:
    """Return the fixed settings without the paths, which are equal in all forks."""
    return frozenset(one for one in fixed(environment) if one[0] != "PYTHONPATH")


_AT_START = _without_paths(os.environ)


class WarmProcess(subprocess.Popen[bytes]):
    """A child that the server forked; its keeper knows the exit code."""

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
        if not self._asking.acquire(blocking=timeout != 0.0):  # another thread waits
            return None
        try:
            if self.returncode is None:
                self._report.settimeout(timeout)
                self.returncode = self._number()
                self._report.close()  # the keeper collects the child now
        except (BlockingIOError, TimeoutError):
            return None
        finally:
            self._asking.release()
        return self.returncode

    def poll(self) -> int | None:
        """Return the exit code, or None if the child runs."""
        return self._ended(0.0)

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code after the child has ended."""
        code = self._ended(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        return code

    def __del__(self, *_: object) -> None:
        """Do nothing: the keeper collects the child."""


class WarmLine:
    """The connection to a process that forks children."""

    def __init__(self, line: socket.socket) -> None:
        self.line = line
        self._asking = threading.Lock()

    def start(self, command: list[str], descriptors: dict[int, int], **more: Any) -> WarmProcess:
        """Fork a child that has these descriptors under these numbers."""
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
    """The process that forks children; it ends with this process."""

    def __init__(self, environment: Mapping[str, str], more: Sequence[str] = ()) -> None:
        self.owner = os.getpid()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        super().__init__(ours)
        with theirs:
            words = (str(theirs.fileno()), *_LIBRARIES, *PROGRAMS, *_LATER, "warm_jobs", *more)
            self.process = _POPEN(
                [_PYTHON, "-P", "-m", "warm_server", *words],
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )

    def end(self) -> None:
        """End the server and collect it."""
        if self.owner == os.getpid():
            with suppress(OSError):  # the server has ended
                self.line.shutdown(socket.SHUT_RDWR)  # other forks hold it too
            self.line.close()
            self.process.wait()


_SERVERS: dict[Settings, WarmServer] = {}
_MOST_SERVERS = 3
_SEEN: set[Settings] = set()
_LIMITS_AT_FIRST = _limits()


def start(
    command: list[str], folder: child.ChildFolder, environment: Mapping[str, str], **pipes: Any
) -> subprocess.Popen[bytes]:
    """Start a child as `qnnmem.child.start` does, by fork where the result is the same."""
    server = _server(environment) if is_usual(command) and _is_unlimited() else None
    if server is not None:
        with suppress(OSError):
            return start_through(server, command, str(folder.empty), environment, pipes)
    return cold_start(command, folder, environment, **pipes)


def _server(environment: Mapping[str, str]) -> WarmServer | None:
    """Return the server with these settings, started for the second child that has them."""
    settings = fixed(environment)
    server = _SERVERS.get(settings)
    if server is None and settings in _SEEN and len(_SERVERS) < _MOST_SERVERS:
        server = _SERVERS[settings] = WarmServer(environment)
    _SEEN.add(settings)
    return server if server is not None and server.owner == os.getpid() else None


def is_usual(command: list[str]) -> bool:
    """True if the package starts this child in the usual way."""
    plain = command[:3] == [_PYTHON, "-P", "-m"] and command[3] in (*PROGRAMS, _JOBS)
    return plain and subprocess.Popen is _POPEN


def _is_unlimited() -> bool:
    """True if the limits equal those of the server."""
    return _limits() == _LIMITS_AT_FIRST


def start_through(
    server: WarmLine,
    command: list[str],
    folder: str,
    environment: Mapping[str, str],
    pipes: Mapping[str, Any],
) -> WarmProcess:
    """Start a child with pipes like those of `subprocess.Popen`."""
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
    """Make the children of this forked process be forked by the server too."""
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
    """Return the child's end, whether it is new, and the parent's end of a pipe."""
    if kind == subprocess.PIPE:
        read, write = os.pipe()
        return (read, True, write) if reads else (write, True, read)
    if kind == subprocess.DEVNULL:
        return os.open(os.devnull, os.O_RDWR), True, None
    return kind if isinstance(kind, int) else kind.fileno(), False, None


def warm_children() -> None:
    """Make this process start its children by fork from now on."""
    child.start = start


def end_server() -> None:
    """End all servers."""
    while _SERVERS:
        _SERVERS.popitem()[1].end()
