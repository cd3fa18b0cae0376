"""One sentence on standard error."""

from __future__ import annotations

import sys
from contextlib import suppress

from qnnmem.text import shorten


def say(sentence: str, code: int) -> int:
    """Says why the program ends; gives the exit code back."""
    note(f"qnnmem: {shorten(sentence, 2000)}")
    return code


def note(line: str) -> None:
    """Says something on the side; where nobody can hear it, the work goes on."""
    from qnnmem.cli.screen import sentence

    with suppress(OSError, ValueError):
        sys.stderr.write(f"{sentence(line, sys.stderr)}\n")
        sys.stderr.flush()
