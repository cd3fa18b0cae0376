"""Findings of a run with their places in the program; repeated findings are only counted.

A suppression file lists known findings, one per line, that the report leaves out:

# comment with the reason
R3                        every finding of a rule
R3 QnnGraph_setConfig     findings of the rule at one call
R3 * src/client.c:120     findings of the rule at one place

The file may be a pattern, and the line may be left out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from threading import Lock

from msgspec.structs import replace

from qnnmem.bounded_file import read_bytes
from qnnmem.contract.rules import LPAI, PROGRAM, every_rule, rules
from qnnmem.errors import LoadError
from qnnmem.finding import Finding
from qnnmem.programs.stacks import of_program
from qnnmem.results.programs import ClientFinding, OtherPlace, Stack
from qnnmem.text import quote

MOST = 1000  # distinct findings
_ALSO = 16  # further places of one cause
_MISSED = frozenset({"R7", "R8", "R9", "R10", "C4"})
_GONE = frozenset({"freed at", "reallocated at", "unmapped at"})
# Labels for the event of a stack.
CALLED, MADE, STILL_EXECUTES = "called at", "made at", "still executes at"
_MOST_BYTES = 1 << 20  # bytes of a suppression file
_WORDS = 3
_LONGEST = 500  # characters of a pattern
_MOST_STARS = 20  # stars in a pattern: each slows the match down
_MOST_LINES = 10_000  # lines other than blank lines and comments

FindingKey = tuple[str, str, str, str, str]


def client_finding(
    found: Finding,
    code: int = 0,
    stack: Stack = (),
    other: OtherPlace | None = None,
    *,
    program: str = "",
    process: int = 0,
    label: str = CALLED,
) -> ClientFinding:
    """Return a finding in the form for reports, with its places in the program."""
    return ClientFinding(
        rule=found.rule,
        title=every_rule()[found.rule].title,
        sentence=found.sentence,
        call=found.call,
        code=code,
        buffer=found.buffer,
        address=found.address,
        need=found.need,
        given=found.given,
        cure=found.cure,
        place=_place(stack, program),
        stack=stack,
        other=other,
        process=process,
        label=label,
    )


def other_place(what: str, stack: Stack, program: str = "") -> OtherPlace | None:
    """Return a second place with its label, such as "freed at"; None if the label is empty."""
    return OtherPlace(what, _place(stack, program), stack) if what else None


def _place(stack: Stack, program: str) -> str:
    frame = of_program(stack, program)
    return "" if frame is None else frame.place


def _key(found: ClientFinding) -> FindingKey:
    """Return a key that is equal for findings with the same cause."""
    if found.rule == "R1":  # one missing or late query is one cause
        return found.rule, "", "", "", ""
    if found.rule == "R3":  # one allocation is one cause
        return found.rule, found.call, found.place, "", ""
    if found.rule == "C2":  # one library closed too early is one cause
        return found.rule, found.buffer, "", "", ""
    if found.other is not None and found.other.what in _GONE and found.other.stack:
        if found.rule in _MISSED:  # one cause: a function frees too early, a call misses it
            functions = ",".join(frame.function for frame in found.other.stack)
            return "", found.other.what, functions, found.call, found.place
        return found.rule, found.other.what, found.other.place, found.buffer, ""
    # One call may leak several handles.
    made = found.other.place if found.other is not None and found.other.what == MADE else ""
    return found.rule, found.call, found.place, found.buffer, made


def _also(before: ClientFinding, new: ClientFinding) -> tuple[OtherPlace, ...]:
    """Return the other places of the finding `before`; add the place of `new` if it differs."""
    known = {(before.buffer, before.place), *((a.what, a.place) for a in before.also)}
    if {(new.buffer, new.place), (new.sentence, new.place)} & known or len(before.also) >= _ALSO:
        return before.also
    return (*before.also, OtherPlace(new.sentence, new.place, new.stack))


class FindingList:
    """List of findings in order of first occurrence; repeated findings are counted."""

    def __init__(self, say: Callable[[ClientFinding], None]) -> None:
        self._say = say
        self._found: dict[FindingKey, ClientFinding] = {}
        self._lock = Lock()
        self.left_out = 0

    def add(self, new: ClientFinding) -> None:
        """Add a finding; report it immediately if it is new."""
        with self._lock:
            key = _key(new)
            before = self._found.get(key)
            if before is not None:
                self._found[key] = replace(before, count=before.count + 1, also=_also(before, new))
                return
            if len(self._found) >= MOST:
                self.left_out += 1
                return
            self._found[key] = new
        self._say(new)

    def all(self) -> tuple[ClientFinding, ...]:
        """Return all findings so far."""
        with self._lock:
            return tuple(self._found.values())


@dataclass(frozen=True, slots=True)
class Suppression:
    """A line of a suppression file: patterns for rule, call and place."""

    rule: str
    call: str = "*"
    place: str = "*"

    def covers(self, found: ClientFinding) -> bool:
        """Return True if this line suppresses a finding."""
        place = self.place if ":" in self.place or self.place == "*" else f"{self.place}:*"
        # A leak matches by the creating line, and by the call that found it.
        made = found.other if found.other is not None and found.other.what == MADE else None
        places = (found.place,) if made is None else (found.place, made.place)
        return (
            fnmatchcase(found.rule, self.rule)
            and fnmatchcase(found.call, self.call)
            and any(fnmatchcase(f"/{at}", f"*/{place}") for at in places)
        )


def read_suppressions(path: Path) -> tuple[Suppression, ...]:
    """Read a suppression file; raise LoadError for an unknown rule."""
    suppressions: list[Suppression] = []
    known = {*rules(LPAI), *rules(PROGRAM)}
    text = read_bytes(path, _MOST_BYTES).decode("utf-8", "replace")
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        if len(words) > _WORDS:
            raise LoadError(path, f"line {number} has more than three words: rule, call and place")
        if any(len(word) > _LONGEST or word.count("*") > _MOST_STARS for word in words):
            limits = f"{_LONGEST} characters or {_MOST_STARS} stars"
            raise LoadError(path, f"line {number} has a pattern of more than {limits}")
        if len(suppressions) == _MOST_LINES:
            raise LoadError(path, f"the file has more than {_MOST_LINES:,} lines")
        if not any(fnmatchcase(rule, words[0]) for rule in known):
            raise LoadError(path, f"line {number}: {quote(words[0])} is not a rule")
        suppressions.append(Suppression(*words))
    return tuple(suppressions)
