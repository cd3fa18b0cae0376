"""Child processes at arm's length: frames on a pipe, limits on memory, and a sure end.

A frame is two lengths, a JSON header and a binary payload.
"""

from __future__ import annotations

import json
import os
import signal
import struct
import subprocess
from typing import Any, BinaryIO

LENGTHS = struct.Struct("<QQ")
# Address space of a child; ONNX files end at 2 GiB, and copies of weights must fit too.
MEMORY_LIMIT = 12 << 30
_LEAST_MEMORY = 2 << 30


def write_frame(stream: BinaryIO, header: dict[str, Any], payload: bytes = b"") -> None:
    """Send one frame."""
    text = json.dumps(header).encode()
    stream.write(LENGTHS.pack(len(text), len(payload)))
    stream.write(text)
    stream.write(payload)
    stream.flush()


def read_frame(stream: BinaryIO, limit: int) -> tuple[dict[str, Any], bytes] | None:
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
