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
from qnnmem.client.findings import ClientFinding
from qnnmem.client.rules import client_rules
from qnnmem.errors import LoadError
from qnnmem.text import quote

_MOST = 1 << 20  # bytes
_WORDS = 3


@dataclass(frozen=True, slots=True)
class Suppression:
    """One line of the file."""

    rule: str
    call: str = "*"
    place: str = "*"

    def covers(self, one: ClientFinding) -> bool:
        """Whether a finding is meant."""
        place = self.place if ":" in self.place or self.place == "*" else f"{self.place}:*"
        return (
            fnmatchcase(one.finding.rule, self.rule)
            and fnmatchcase(one.finding.call, self.call)
            and (fnmatchcase(one.place, place) or fnmatchcase(one.place, f"*/{place}"))
        )


def read_suppressions(path: Path) -> tuple[Suppression, ...]:
    """All lines of a file; a rule that there is not is an error, not a line without effect."""
    from qnnmem.lpai.rules import rules

    found = []
    text = read_bytes(path, _MOST).decode("utf-8", "replace")
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        if len(words) > _WORDS:
            raise LoadError(path, f"line {number} has more than a rule, a call and a place")
        known = {*rules(), *client_rules()}
        if not any(fnmatchcase(one, words[0]) for one in known):
            raise LoadError(path, f"line {number}: there is no rule {quote(words[0])}")
        found.append(Suppression(*words))
    return tuple(found)
