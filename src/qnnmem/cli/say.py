"""One sentence on standard error."""

from __future__ import annotations

import sys

from qnnmem.text import shorten


def say(sentence: str, code: int) -> int:
    """Says why the program ends; gives the exit code back."""
    sys.stderr.write(f"qnnmem: {shorten(sentence, 2000)}\n")
    return code
