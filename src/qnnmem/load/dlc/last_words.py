"""What the vendor's reader of DLC files says before it aborts."""

from __future__ import annotations

import re

from qnnmem.text import printable, shorten

_THROWN = re.compile(r"terminating with uncaught exception of type [^:\n]*(?:::[^:\n]*)*: (.+)")


def said_before_end(words: str) -> str:
    """Why a reader that crashed gave up, as far as it said so."""
    found = _THROWN.findall(words)
    if found:
        return f"the vendor's reader gave up on it: {shorten(printable(found[-1].strip()), 300)}"
    return "the vendor's reader crashed on it, as it does on damaged files"
