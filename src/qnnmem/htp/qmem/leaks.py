"""What is said at the end of the process, when nobody reads findings any more."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from qnnmem.finding import Finding

_MOST_SAID = 20
_PROCESS = os.getpid()


def is_quiet() -> bool:
    """Whether nothing is to be said.

    QNNMEM_LEAKS=0 asks for it; a program that ended with a traceback has another problem; and what
    was made before a fork is for the parent to free.
    """
    wanted = os.environ.get("QNNMEM_LEAKS") == "0" or os.getpid() != _PROCESS
    return wanted or hasattr(sys, "last_type") or sys.stderr is None


def say_at_end(findings: Sequence[Finding], what: str) -> None:
    """Print findings to standard error, below how many there are of what; nothing for none."""
    if not findings or is_quiet():
        return
    lines = [f"[{one.rule}] {one.sentence} ({one.line})" for one in findings[:_MOST_SAID]]
    if len(findings) > _MOST_SAID:
        lines.append(f"and {len(findings) - _MOST_SAID:,} more")
    print(f"qnnmem: {len(findings):,} {what}", *lines, sep="\n  ", file=sys.stderr)
