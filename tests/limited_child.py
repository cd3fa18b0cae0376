"""A child program for tests that tries what a hostile model would try."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from qnnmem.child import serve
from qnnmem.wire import Done, Frame, WireMessage


class Take(WireMessage, frozen=True):
    """Request to allocate this many bytes."""

    size: int


class Sleep(WireMessage, frozen=True):
    """Request to answer late."""

    seconds: float


class Start(WireMessage, frozen=True):
    """Request to start another process."""


class Reply(WireMessage, frozen=True):
    """Request to answer with this many bytes."""

    size: int


class Look(WireMessage, frozen=True):
    """Request to describe the child's surroundings."""


class Number(WireMessage, frozen=True):
    """A number of allocated bytes, or a process id."""

    value: int


class Place(WireMessage, frozen=True):
    """The child's folder, its files and its environment."""

    here: Path
    names: list[str]
    environment: dict[str, str]


def take(request: Take, _payload: bytes) -> Number:
    """Allocate memory and return its size, or 0 if there is too little."""
    try:
        return Number(len(bytearray(request.size)))
    except MemoryError:
        return Number(0)


def sleep(request: Sleep, _payload: bytes) -> Done:
    """Sleep before the answer."""
    time.sleep(request.seconds)
    return Done()


def start(_request: Start, _payload: bytes) -> Number:
    """Start another process and return its id."""
    return Number(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(100)"]).pid)


def look(_request: Look, _payload: bytes) -> Place:
    """Return the working folder, its files and the environment."""
    here = Path.cwd()
    return Place(here, [path.name for path in here.iterdir()], dict(os.environ))


def reply(request: Reply, _payload: bytes) -> Frame[Done]:
    """Return this many bytes."""
    return Done(), bytes(request.size)


if __name__ == "__main__":
    sys.exit(serve({Take: take, Sleep: sleep, Start: start, Look: look, Reply: reply}))
