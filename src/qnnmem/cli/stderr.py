"""Messages on standard error."""

from __future__ import annotations

import sys
from contextlib import suppress

from qnnmem.text import shorten


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
