"""Known findings that are not to be told: a file with one of them a line.

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
from qnnmem.programs.check.findings import MADE, ClientFinding
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
        """Whether a finding is meant."""
        place = self.place if ":" in self.place or self.place == "*" else f"{self.place}:*"
        # What is left behind is meant by the line that made it as well as by the call that met it.
        places = (one.place, one.other_place) if one.other == MADE else (one.place,)
        return (
            fnmatchcase(one.finding.rule, self.rule)
            and fnmatchcase(one.finding.call, self.call)
            and any(fnmatchcase(f"/{at}", f"*/{place}") for at in places)
        )


def read_suppressions(path: Path) -> tuple[Suppression, ...]:
    """All lines of a file; a rule that there is not is an error, not a line without effect."""
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
