"""Findings of a run with their places in the program, each reported once and counted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from threading import Lock

from qnnmem.finding import Finding
from qnnmem.programs.stacks import Stack

MOST = 1000  # of different ones
CALLED, MADE = "called at", "made at"  # what a stack is of

FindingKey = tuple[str, str, str, str, str]


@dataclass(frozen=True, slots=True)
class ClientFinding:
    """A broken rule, the call that broke it, and where else to look."""

    finding: Finding
    code: int  # what the call answered; 0 where it went on
    place: str  # file and line of the call; where a program ends, of what it is about
    stack: Stack = ()
    other: str = ""  # what the second stack is of, e.g. "freed at"
    other_place: str = ""
    other_stack: Stack = ()
    process: int = 0
    count: int = 1
    label: str = CALLED  # what the first stack is of

    @property
    def key(self) -> FindingKey:
        """Equal for findings of the same mistake."""
        made = self.other_place if self.other == MADE else ""  # one call may leave several behind
        return self.finding.rule, self.finding.call, self.place, self.finding.buffer, made


class FindingList:
    """Findings in the order in which they came first."""

    def __init__(self, say: Callable[[ClientFinding], None]) -> None:
        self._say = say
        self._found: dict[FindingKey, ClientFinding] = {}
        self._lock = Lock()
        self.left_out = 0

    def add(self, one: ClientFinding) -> None:
        """Keep a finding; report it at once if it is new."""
        with self._lock:
            before = self._found.get(one.key)
            if before is not None:
                self._found[one.key] = replace(before, count=before.count + 1)
                return
            if len(self._found) >= MOST:
                self.left_out += 1
                return
            self._found[one.key] = one
        self._say(one)

    def all(self) -> tuple[ClientFinding, ...]:
        """Return all findings so far."""
        with self._lock:
            return tuple(self._found.values())
