"""Find the nearest Python source line outside this package that made a call."""

from __future__ import annotations

import contextlib
import linecache
import os
import sys
from collections.abc import Iterator
from contextvars import ContextVar
from pathlib import Path
from types import FrameType
from typing import Protocol

from msgspec import Struct

from qnnmem.text import shorten

_PACKAGE = str(Path(__file__).resolve().parent) + os.sep
_LONGEST = 120  # characters


# Files and offsets of return addresses: a native call stack before symbols are resolved.
Trace = tuple[tuple[str, int], ...]


class Caller(Protocol):
    """Where a call came from: a Python line of the client, or a place in another program."""

    @property
    def place(self) -> str:
        """Return the file and line as text."""

    @property
    def line(self) -> str:
        """Return file, line and source, e.g. `client.py:12: context.free()`; empty if unknown."""

    @property
    def trace(self) -> Trace:
        """Return the native call stack of a call from another program; empty for Python callers."""


class PythonCaller(Struct, frozen=True):
    """Python line of the client."""

    place: str
    line: str
    trace: Trace = ()


_elsewhere: ContextVar[Caller | None] = ContextVar("_elsewhere", default=None)


@contextlib.contextmanager
def called_from(caller: Caller) -> Iterator[None]:
    """Record another program as the caller of the calls in the block."""
    token = _elsewhere.set(caller)
    try:
        yield
    finally:
        _elsewhere.reset(token)


def current_caller() -> Caller:
    """Return the origin of the current call into this package."""
    return _elsewhere.get() or PythonCaller(caller_place(), caller_line())


def caller_line() -> str:
    """Return file, line and source of the calling client code; empty if there is none."""
    elsewhere = _elsewhere.get()
    if elsewhere is not None:
        return elsewhere.line
    frame = _outside()
    if frame is None:
        return ""
    text = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
    place = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
    return shorten(f"{place}: {text}" if text else place, _LONGEST)


def caller_place() -> str:
    """Return the file and line of the call site; the path can be opened from the working folder."""
    elsewhere = _elsewhere.get()
    if elsewhere is not None:
        return elsewhere.place
    frame = _outside()
    if frame is None:
        return ""
    name = frame.f_code.co_filename
    with contextlib.suppress(OSError):  # the working folder was removed
        name = name.removeprefix(str(Path.cwd()) + os.sep)
    return f"{name}:{frame.f_lineno}"


def _outside() -> FrameType | None:
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and _is_passed(frame.f_code.co_filename):
        frame = frame.f_back
    return frame


def _is_passed(name: str) -> bool:
    if name == contextlib.__file__ or name.startswith((_PACKAGE, "<frozen")):
        return True
    return os.path.abspath(name).startswith(_PACKAGE)  # noqa: PTH100  # the name may not be a path
