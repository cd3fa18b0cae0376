"""Standard input, output and error; any of them might be closed when the program starts."""

from __future__ import annotations

import os
import sys
from contextlib import suppress

from qnnmem.text import shorten


def open_closed() -> None:
    """Open closed standard streams, so that no other file gets their descriptors and output.

    Reads from a closed input and writes to a closed output still fail; text for a closed standard
    error is discarded.
    """
    for number, flags in ((0, os.O_WRONLY), (1, os.O_RDONLY), (2, os.O_WRONLY)):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, flags), True)  # gets the lowest free one
    if sys.stdin is None:
        sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    if sys.stdout is None:
        sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        # File names and tensor names may contain any characters; printing them must not fail.
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def finish_output() -> OSError | None:
    """Flush standard output; return the error, if any. A pipe closed by its reader is no error."""
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
    """Print the reason for the end of the program; return the exit code."""
    note(f"qnnmem: {shorten(sentence, 2000)}")
    return code


def note(line: str) -> None:
    """Print a note to standard error; do nothing if standard error is closed."""
    from qnnmem.cli.screen import sentence

    with suppress(OSError, ValueError):
        sys.stderr.write(f"{sentence(line, sys.stderr)}\n")
        sys.stderr.flush()
