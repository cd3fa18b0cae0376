"""Known findings that are not reported: a file with one per line.

# why it is known
R3                        every finding of a rule
R3 QnnGraph_setConfig     of a rule, at one call
R3 * src/client.c:120     of a rule, at one place; the file may be a pattern, the line left out
"""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from qnnmem.bounded_file import read_bytes
from qnnmem.contract.rules import LPAI, PROGRAM, rules
from qnnmem.errors import LoadError
from qnnmem.programs.check.findings import MADE
from qnnmem.results.programs import ClientFinding
from qnnmem.text import quote

_MOST = 1 << 20  # bytes
_WORDS = 3
_LONGEST = 500  # characters of a pattern
_MOST_STARS = 20  # of a pattern: each may stand for every part of a name
_MOST_LINES = 10_000  # that say something


@dataclass(frozen=True, slots=True)
class Suppression:
    """One line of the file."""

    rule: str
    call: str = "*"
    place: str = "*"

    def covers(self, one: ClientFinding) -> bool:
        """Return whether a finding is suppressed."""
        place = self.place if ":" in self.place or self.place == "*" else f"{self.place}:*"
        # A leak is matched by the line that made it and by the call that found it.
        made = one.other if one.other is not None and one.other.what == MADE else None
        places = (one.place,) if made is None else (one.place, made.place)
        return (
            fnmatchcase(one.rule, self.rule)
            and fnmatchcase(one.call, self.call)
            and any(fnmatchcase(f"/{at}", f"*/{place}") for at in places)
        )


def read_suppressions(path: Path) -> tuple[Suppression, ...]:
    """Read a file; an unknown rule is an error."""
    found: list[Suppression] = []
    known = {*rules(LPAI), *rules(PROGRAM)}
    text = read_bytes(path, _MOST).decode("utf-8", "replace")
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        if len(words) > _WORDS:
            raise LoadError(path, f"line {number} has more than a rule, a call and a place")
        if any(len(word) > _LONGEST or word.count("*") > _MOST_STARS for word in words):
            limits = f"{_LONGEST} characters or {_MOST_STARS} stars"
            raise LoadError(path, f"line {number} has a pattern of more than {limits}")
        if len(found) == _MOST_LINES:
            raise LoadError(path, f"it has more than {_MOST_LINES:,} lines")
        if not any(fnmatchcase(one, words[0]) for one in known):
            raise LoadError(path, f"line {number}: there is no rule {quote(words[0])}")
        found.append(Suppression(*words))
    return tuple(found)
