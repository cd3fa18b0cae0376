"""The line of Python that made a call: the nearest one outside of this package."""

from __future__ import annotations

import contextlib
import linecache
import sys
from pathlib import Path

from qnnmem.text import shorten

_PACKAGE = f"{Path(__file__).absolute().parent}/"
_LONGEST = 120  # characters


def caller_line() -> str:
    """Where the client's own code called, e.g. `client.py:12: context.free()`; empty if nowhere."""
    frame = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith(_PACKAGE) and file != contextlib.__file__:
            text = linecache.getline(file, frame.f_lineno).strip()
            place = f"{Path(file).name}:{frame.f_lineno}"
            return shorten(f"{place}: {text}" if text else place, _LONGEST)
        frame = frame.f_back  # type: ignore[assignment]  # None ends the loop
    return ""
