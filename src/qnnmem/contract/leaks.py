"""Resources that were created and not freed, each with the line that created it.

Resources form a tree: a context under its backend, graphs and registered memory under their
context, everything under the process. A child that outlives its owner is a finding; leaks are
written to standard error when the process exits. The line is in the client's code, never in this
package.
"""

from __future__ import annotations

import atexit
import os
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace

from qnnmem.caller import PythonCaller, current_caller
from qnnmem.contract.rules import FindingLog, finding
from qnnmem.finding import Finding

_MOST = 1000  # resources listed per owner; further ones are only counted
_SHOWN = 20  # lines printed at process exit
NEVER_FREED = "was never freed"


class Resource:
    """Resource that must be freed, with the resources that belong to it.

    `kind` is the type of its handle, and `rule` the id of the rule that a leak breaks. The finding
    about a leak reads `what` followed by `never`, e.g. "the context made at {at} was never freed";
    the line that created the resource replaces `{at}`.
    """

    def __init__(
        self,
        kind: str,
        rule: str,
        what: str,
        owner: Resource | None = None,
        *,
        cure: str = "",
        never: str = NEVER_FREED,
    ) -> None:
        self.kind, self.rule, self.cure, self.never = kind, rule, cure, never
        self.what = what
        self.caller = PythonCaller("", "") if owner is None else current_caller()
        self.more = 0
        self._parts: dict[int, Resource] = {}
        self._owner = owner

    def part(
        self, kind: str, rule: str, what: str, *, cure: str = "", never: str = NEVER_FREED
    ) -> Resource:
        """Return a new resource that belongs to this resource."""
        made = Resource(kind, rule, what, self, cure=cure, never=never)
        if len(self._parts) < _MOST:
            self._parts[id(made)] = made
        else:
            self.more += 1
        return made

    def keep(self) -> None:
        """List the resource under its owner again, so that it counts as a leak until freed."""
        if self._owner is not None:
            self._owner._parts.setdefault(id(self), self)

    def freed(self) -> None:
        """Remove the resource and its children from the tree."""
        if self._owner is not None:
            self._owner._parts.pop(id(self), None)
        self._parts.clear()

    def leaked(self, how: str = "", rule: str = "", call: str = "") -> Finding:
        """Return the finding for a leak; its sentence is `what`, then `how` (default: `never`)."""
        # Replaced, not formatted, because a name may contain braces.
        what = self.what.replace("{at}", self.caller.place)
        sentence = f"{what} {how or self.never}"
        line = self.caller.line
        found = finding(rule or self.rule, sentence, call, line=line, cure=self.cure)
        return replace(found, trace=self.caller.trace, handle=self.kind)

    def left(self, how: str = "", rule: str = "") -> Iterator[Finding]:
        """Yield a finding for every resource below this resource, at any depth."""
        for part in tuple(self._parts.values()):
            yield part.leaked(how, rule)
            yield from part.left(how, rule)
        if self.more:
            sentence = f"{self.more:,} more resources, each of which {how or NEVER_FREED}"
            yield finding(rule or "L2", sentence, line=self.caller.line)


class _ProcessLeaks:
    """Root of the tree: the resources that belong to the process itself."""

    def __init__(self) -> None:
        self.is_watched = False
        self.begin_anew()

    def begin_anew(self) -> None:
        """Forget all resources in a forked child: its parent created them and frees them."""
        self.root = Resource("process", "", "")
        self.freed_twice = FindingLog()

    def watch(self) -> None:
        if not self.is_watched:
            self.is_watched = True
            atexit.register(report)


_process = _ProcessLeaks()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_process.begin_anew)


def of_process() -> Resource:
    """Return the root of the tree, which owns backends and resources without a backend."""
    _process.watch()
    return _process.root


def note_freed_twice(found: Finding) -> None:
    """Record that a buffer without a living backend was freed twice; reported at process exit."""
    _process.watch()
    _process.freed_twice.note(found)


def leaks() -> list[Finding]:
    """Return a finding for every live resource, with the line that created it.

    At the end of a test or a program, the list should be empty.
    """
    return list(_process.root.left())


@contextmanager
def separate() -> Iterator[Resource]:
    """Yield a root for resources created in the block; these are not reported at process exit."""
    before, _process.root = _process.root, Resource("process", "", "")
    try:
        yield _process.root
    finally:
        _process.root = before


def report() -> None:
    """Write leaks to standard error, unless QNNMEM_LEAKS=0."""
    if os.environ.get("QNNMEM_LEAKS") == "0" or hasattr(sys, "last_type"):
        return  # a program that ended with a traceback has another problem
    _print(leaks(), "not freed")
    _print(_process.freed_twice, "freed twice")


def _print(found: Sequence[Finding], what: str) -> None:
    if not found or sys.stderr is None:
        return
    counted = Counter(map(_text, found))
    lines = [f"{line} ({n:,} times)" if n > 1 else line for line, n in counted.items()]
    if len(lines) > _SHOWN:
        lines[_SHOWN:] = [f"and {len(lines) - _SHOWN:,} more"]
    with suppress(OSError, ValueError):  # standard error is closed
        print(f"qnnmem: {len(found):,} {what}", *lines, sep="\n  ", file=sys.stderr)


def _text(leak: Finding) -> str:
    """Return a leak as text: rule, sentence and, unless the sentence contains it, the line."""
    place = leak.line.partition(": ")[0]
    line = f" ({leak.line})" if place and place not in leak.sentence else ""
    return f"[{leak.rule}] {leak.sentence}{line}"
