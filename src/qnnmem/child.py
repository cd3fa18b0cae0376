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
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return replies


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
        self._process = subprocess.Popen(  # noqa: S603  our own module, no shell
            [sys.executable, "-P", "-m", module, str(memory_limit())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": paths, **environment},
            start_new_session=True,
        )
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

    def _expire(self) -> None:
        self._expired.set()
        kill_group(self._process)
