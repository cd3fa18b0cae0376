"""The line of Python that made a call: the nearest one outside of this package."""

from __future__ import annotations

import contextlib
import linecache
import os
import sys
from collections.abc import Iterator
from contextvars import ContextVar
from pathlib import Path
from types import FrameType

from qnnmem.text import shorten

_PACKAGE = str(Path(__file__).resolve().parent) + os.sep
_LONGEST = 120  # characters


# Place and line of a caller that is no Python at all: a program in another process.
_elsewhere: ContextVar[tuple[str, str] | None] = ContextVar("_elsewhere", default=None)


@contextlib.contextmanager
def called_from(place: str, line: str) -> Iterator[None]:
    """Let what is called inside count as called by a line of another program."""
    token = _elsewhere.set((place, line))
    try:
        yield
    finally:
        _elsewhere.reset(token)


def caller_line() -> str:
    """Where the client's own code called, e.g. `client.py:12: context.free()`; empty if nowhere."""
    elsewhere = _elsewhere.get()
    if elsewhere is not None:
        return elsewhere[1]
    frame = _outside()
    if frame is None:
        return ""
    text = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
    place = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
    return shorten(f"{place}: {text}" if text else place, _LONGEST)


def caller_place() -> str:
    """File and line alone, the file as it is reached from the working folder."""
    elsewhere = _elsewhere.get()
    if elsewhere is not None:
        return elsewhere[0]
    frame = _outside()
    if frame is None:
        return ""
    name = frame.f_code.co_filename
    with contextlib.suppress(OSError):  # a working folder that is gone
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
    return os.path.abspath(name).startswith(_PACKAGE)  # noqa: PTH100  # a name may be no path
