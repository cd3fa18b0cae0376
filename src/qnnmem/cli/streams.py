"""Standard input, output and error, any of which may be closed at the start."""

from __future__ import annotations

import os
import sys
from contextlib import suppress

from qnnmem.text import shorten


def open_closed() -> None:
    """Open closed streams, so that no file gets their descriptor and our output.

    Reading from a closed input and writing to a closed output fail as they did before; what would
    be said on a closed standard error is lost.
    """
    for number, flags in ((0, os.O_WRONLY), (1, os.O_RDONLY), (2, os.O_WRONLY)):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, flags), True)  # gets the lowest free number
    if sys.stdin is None:
        sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    if sys.stdout is None:
        sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        # File names and tensor names may hold anything; output must not fail on them.
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def finish_output() -> OSError | None:
    """Flush standard output; return the error if that fails."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        discard_output()
    except (OSError, ValueError) as exc:
        discard_output()
        return exc if isinstance(exc, OSError) else OSError(str(exc))
    return None


def discard_output() -> None:
    """Discard buffered output, so that it does not fail again at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def say(sentence: str, code: int) -> int:
    """Print why the program ends and return the exit code."""
    note(f"qnnmem: {shorten(sentence, 2000)}")
    return code


def note(line: str) -> None:
    """Print a note; a closed standard error is ignored."""
    from qnnmem.cli.screen import sentence

    with suppress(OSError, ValueError):
        sys.stderr.write(f"{sentence(line, sys.stderr)}\n")
        sys.stderr.flush()
