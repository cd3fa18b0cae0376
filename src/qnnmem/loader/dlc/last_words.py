"""What the vendor's reader of DLC files says before it aborts."""

from __future__ import annotations

import re

from qnnmem.text import printable, shorten

# What the C++ runtime prints that ends the process: LLVM's, or GNU's where that was loaded first.
_THROWN = re.compile(
    r"terminating with uncaught exception of type [^:\n]*(?:::[^:\n]*)*: (.+)"
    r"|^[ \t]*what\(\): +(.+)",
    re.MULTILINE,
)


def said_before_end(words: str) -> str:
    """Why a reader that crashed gave up, as far as it said so."""
    found = _THROWN.findall(words)
    if found:
        thrown = "".join(found[-1]).strip()
        return f"the vendor's reader gave up on it: {shorten(printable(thrown), 300)}"
    return "the vendor's reader crashed on it, as it does on damaged files"
