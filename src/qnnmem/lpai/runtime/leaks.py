"""What was made and not freed: contexts, graphs, registered memory, signals, each with its line.

Things are kept as a tree: a context under its backend, graphs and registered memory under their
context. What an owner leaves behind when it is freed is a finding then; what nobody frees is one
when the process ends. The line is that of the program which called, not one of this package.
"""

from __future__ import annotations

import atexit
import os
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from qnnmem.caller import caller_line, caller_place
from qnnmem.finding import Finding
from qnnmem.lpai.rules import finding

_MOST = 1000  # of one owner that are kept apart; the rest is only counted
_SHOWN = 20  # at the end of the process


class Made:
    """One thing that has to be freed; `of` is its owner."""

    def __init__(self, rule: str, what: str, of: Made | None = None, cure: str = "") -> None:
        self.rule, self.what, self.cure = rule, what, cure
        self.at = "" if of is None else caller_place()
        self.line = "" if of is None else caller_line()
        self.more = 0
        self._parts: dict[int, Made] = {}
        self._of = of

    def part(self, rule: str, what: str, cure: str = "") -> Made:
        """Something that belongs to it; `{at}` in the words stands for the line that made it."""
        made = Made(rule, what, self, cure)
        if len(self._parts) < _MOST:
            self._parts[id(made)] = made
        else:
            self.more += 1
        return made

    def keep(self) -> None:
        """Count from now on, where it did not yet."""
        if self._of is not None:
            self._of._parts.setdefault(id(self), self)

    def freed(self) -> None:
        """It is gone, and all that belongs to it."""
        if self._of is not None:
            self._of._parts.pop(id(self), None)
        self._parts.clear()

    def left(self, how: str, rule: str = "") -> Iterator[Finding]:
        """A finding for everything that belongs to it; `how` ends the sentence."""
        for made in tuple(self._parts.values()):
            sentence = f"{made.what.replace('{at}', made.at)} {how}"
            yield finding(rule or made.rule, sentence, line=made.line, cure=made.cure)
            yield from made.left(how, rule)
        if self.more:
            sentence = f"{self.more:,} things more, and each of them {how}"
            yield finding(rule or "L2", sentence, line=self.line)


class _Ledger:
    """What belongs to the process itself."""

    def __init__(self) -> None:
        self.process = Made("", "")
        self.is_watched = False


_ledger = _Ledger()


def _begin_anew() -> None:
    """A forked child has made nothing yet; what its parent made, the parent frees."""
    _ledger.process = Made("", "")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_anew)


def of_process() -> Made:
    """The owner of backends and of what has no backend."""
    if not _ledger.is_watched:
        _ledger.is_watched = True
        atexit.register(report)
    return _ledger.process


def leaks() -> list[Finding]:
    """What was made and is not freed, with the lines that made it.

    At the end of a test or a program the list is empty, or somebody forgot something.
    """
    return list(_ledger.process.left("was never freed"))


@contextmanager
def separate() -> Iterator[Made]:
    """Keep what is made inside apart: nothing of it is reported at the end of the process."""
    before, _ledger.process = _ledger.process, Made("", "")
    try:
        yield _ledger.process
    finally:
        _ledger.process = before


def report() -> None:
    """Say on standard error what was never freed; QNNMEM_LEAKS=0 keeps it quiet."""
    if os.environ.get("QNNMEM_LEAKS") == "0" or hasattr(sys, "last_type"):
        return  # a program that ended with a traceback has another problem
    found = leaks()
    if not found or sys.stderr is None:
        return
    counted = Counter(f"[{one.rule}] {one.sentence}" for one in found)
    lines = [f"{line} ({n:,} times)" if n > 1 else line for line, n in counted.items()]
    if len(lines) > _SHOWN:
        lines[_SHOWN:] = [f"and {len(lines) - _SHOWN:,} more"]
    with suppress(OSError, ValueError):  # nobody reads it any more
        print(f"qnnmem: {len(found):,} not freed", *lines, sep="\n  ", file=sys.stderr)
