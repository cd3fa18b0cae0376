"""A child program for tests: it tries what a hostile model would make a real one do."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from qnnmem.child import serve
from qnnmem.wire import Done, Frame, WireMessage


class Take(WireMessage, frozen=True):
    """Allocate so many bytes."""

    size: int


class Sleep(WireMessage, frozen=True):
    """Answer late."""

    seconds: float


class Start(WireMessage, frozen=True):
    """Start another process."""


class Reply(WireMessage, frozen=True):
    """Answer with so many bytes."""

    size: int


class Look(WireMessage, frozen=True):
    """Say where it is."""


class Number(WireMessage, frozen=True):
    """Bytes that were allocated, or a process."""

    value: int


class Place(WireMessage, frozen=True):
    """Where the child is and what it sees."""

    here: Path
    names: list[str]
    environment: dict[str, str]


def take(request: Take, _payload: bytes) -> Number:
    """Allocate memory, if there is any."""
    try:
        return Number(len(bytearray(request.size)))
    except MemoryError:
        return Number(0)


def sleep(request: Sleep, _payload: bytes) -> Done:
    """Answer late."""
    time.sleep(request.seconds)
    return Done()


def start(_request: Start, _payload: bytes) -> Number:
    """Start another process."""
    return Number(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(100)"]).pid)


def look(_request: Look, _payload: bytes) -> Place:
    """Look around."""
    here = Path.cwd()
    return Place(here, [path.name for path in here.iterdir()], dict(os.environ))


def reply(request: Reply, _payload: bytes) -> Frame[Done]:
    """Answer with many bytes."""
    return Done(), bytes(request.size)


if __name__ == "__main__":
    sys.exit(serve({Take: take, Sleep: sleep, Start: start, Look: look, Reply: reply}))
