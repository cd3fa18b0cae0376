"""Child processes at arm's length: frames on a pipe, limits on memory, and a sure end.

A frame is two lengths, a JSON header and a binary payload.
"""

from __future__ import annotations

import json
import os
import signal
import struct
import subprocess
import sys
import threading
from collections.abc import Mapping
from types import MappingProxyType, TracebackType
from typing import Any, BinaryIO, Self

LENGTHS = struct.Struct("<QQ")
# Address space of a child; ONNX files end at 2 GiB, and copies of weights must fit too.
MEMORY_LIMIT = 12 << 30
_LEAST_MEMORY = 2 << 30
_NOTHING: Mapping[str, str] = MappingProxyType({})

_LIFELINE = "QNNMEM_LIFELINE"  # number of the pipe's end that a child holds

Frame = tuple[dict[str, Any], bytes]


def write_frame(stream: BinaryIO, header: dict[str, Any], payload: bytes = b"") -> None:
    """Send one frame."""
    text = json.dumps(header).encode()
    stream.write(LENGTHS.pack(len(text), len(payload)))
    stream.write(text)
    stream.write(payload)
    stream.flush()


def read_frame(stream: BinaryIO, limit: int) -> Frame | None:
    """Receive one frame, or None at the end of the stream."""
    lengths = stream.read(LENGTHS.size)
    if len(lengths) < LENGTHS.size:
        return None
    text_size, payload_size = LENGTHS.unpack(lengths)
    if max(text_size, payload_size) > limit:
        return None
    text, payload = stream.read(text_size), stream.read(payload_size)
    if len(text) < text_size or len(payload) < payload_size:
        return None
    header = json.loads(text)
    return (header, payload) if isinstance(header, dict) else None


def memory_limit(most: int | None = MEMORY_LIMIT) -> int:
    """Three quarters of the machine's memory, and at most `most` bytes unless that is None."""
    try:
        physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):  # not on Windows
        return MEMORY_LIMIT
    wanted = physical // 4 * 3
    return max(_LEAST_MEMORY, wanted if most is None else min(most, wanted))


def limit_memory(limit: int) -> None:
    """Limit the address space of this process; a crash leaves no core file."""
    try:
        import resource
    except ImportError:  # not on Windows: there the time limit is the only one
        return
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def kill_group(process: subprocess.Popen[bytes]) -> None:
    """End a process and all it started."""
    if process.poll() is not None:
        return
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except (AttributeError, ProcessLookupError, PermissionError):  # no groups on Windows
        process.kill()


def end(process: subprocess.Popen[bytes]) -> None:
    """End a process, close its pipes and collect it."""
    kill_group(process)
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            try:
                pipe.close()
            except OSError:  # unsent bytes to a dead child
                continue
    process.wait()


def open_replies() -> BinaryIO:
    """In a child: the pipe to the parent, out of reach of libraries that print to stdout."""
    if _LIFELINE in os.environ:
        die_with_parent(int(os.environ[_LIFELINE]))
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return replies


def die_with_parent(lifeline: int) -> None:
    """In a child: have the kernel end this group when the parent's end of a pipe closes.

    A thread could not do it: native code may hold the interpreter for minutes. Neither could a
    signal at the parent's death: it comes when the thread ends that started the child.
    """
    import fcntl
    import select

    signal.signal(signal.SIGIO, signal.SIG_DFL)  # which is deadly
    fcntl.fcntl(lifeline, fcntl.F_SETOWN, -os.getpgrp())
    flags = fcntl.fcntl(lifeline, fcntl.F_GETFL)
    fcntl.fcntl(lifeline, fcntl.F_SETFL, flags | os.O_ASYNC)
    poll = select.poll()
    poll.register(lifeline, 0)
    if poll.poll(0):  # it was closed before anybody listened
        os._exit(1)


class _Lifeline:
    """A pipe that is open as long as the parent lives and wants the child."""

    def __init__(self) -> None:
        self.child_end, self._end = os.pipe() if os.name == "posix" else (-1, -1)
        self.passed = () if self.child_end < 0 else (self.child_end,)

    def let_go(self) -> None:
        """Close the child's end once the child has it."""
        for number in self.passed:
            os.close(number)

    def cut(self) -> None:
        """Close the parent's end."""
        end, self._end = self._end, -1
        if end >= 0:
            os.close(end)


class ChildProcess:
    """A module of ours in a child process, with limits on memory and time, spoken to in frames.

    It starts at once, gets its memory limit as its only argument, and is gone when the block ends.
    """

    def __init__(
        self, module: str, time_limit_s: float, environment: Mapping[str, str] = _NOTHING
    ) -> None:
        self.time_limit_s = time_limit_s
        self._expired = threading.Event()
        paths = os.pathsep.join(filter(None, sys.path))
        self._lifeline = _Lifeline()
        lifeline = {_LIFELINE: str(self._lifeline.child_end)} if self._lifeline.passed else {}
        try:
            self._process = subprocess.Popen(  # noqa: S603  our own module, no shell
                [sys.executable, "-P", "-m", module, str(memory_limit())],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": paths, **environment, **lifeline},
                pass_fds=self._lifeline.passed,
                start_new_session=True,
            )
        except BaseException:
            self._lifeline.cut()
            raise
        finally:
            self._lifeline.let_go()
        self._watchdog = threading.Timer(time_limit_s, self._expire)
        self._watchdog.daemon = True
        self._watchdog.start()

    @property
    def expired(self) -> bool:
        """Whether the child was ended because its time was over."""
        return self._expired.is_set()

    def send(self, header: Mapping[str, Any], payload: bytes = b"") -> None:
        """Send one frame; a child that is gone shows in `receive`."""
        try:
            if self._process.stdin is not None:
                write_frame(self._process.stdin, dict(header), payload)  # type: ignore[arg-type]  # IO[bytes] of Popen
        except (OSError, ValueError):  # closed
            return

    def receive(self) -> Frame | None:
        """One frame, or None from a child that crashed, was ended or speaks nonsense."""
        try:
            if self._process.stdout is not None:
                return read_frame(self._process.stdout, MEMORY_LIMIT)  # type: ignore[arg-type]  # as above
        except (OSError, ValueError):
            pass
        return None

    def ask(self, header: Mapping[str, Any], payload: bytes = b"") -> Frame | None:
        """Send a request and receive its answer."""
        self.send(header, payload)
        return self.receive()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._watchdog.cancel()
        end(self._process)
        self._lifeline.cut()

    def _expire(self) -> None:
        self._expired.set()
        kill_group(self._process)
