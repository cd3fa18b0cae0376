"""Findings of a run with their places in the program, each reported once and counted."""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock

from msgspec.structs import replace

from qnnmem.contract.rules import every_rule
from qnnmem.finding import Finding
from qnnmem.programs.stacks import of_program
from qnnmem.results.programs import ClientFinding, OtherPlace, Stack

MOST = 1000  # of different ones
CALLED, MADE = "called at", "made at"  # what a stack is of

FindingKey = tuple[str, str, str, str, str]


def client_finding(
    found: Finding,
    code: int = 0,
    place: str = "",
    stack: Stack = (),
    other: OtherPlace | None = None,
    *,
    process: int = 0,
    label: str = CALLED,
) -> ClientFinding:
    """A broken rule with the places in the program."""
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
        place=place,
        stack=stack,
        other=other,
        process=process,
        label=label,
    )


def other_place(what: str, stack: Stack, program: str = "") -> OtherPlace | None:
    """A second place, e.g. "freed at"; None where it is not known."""
    if not what:
        return None
    frame = of_program(stack, program)
    return OtherPlace(what, "" if frame is None else frame.place, stack)


def _key(one: ClientFinding) -> FindingKey:
    """Equal for findings of the same mistake."""
    # One call may leave several handles behind.
    made = one.other.place if one.other is not None and one.other.what == MADE else ""
    return one.rule, one.call, one.place, one.buffer, made


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
            key = _key(one)
            before = self._found.get(key)
            if before is not None:
                self._found[key] = replace(before, count=before.count + 1)
                return
            if len(self._found) >= MOST:
                self.left_out += 1
                return
            self._found[key] = one
        self._say(one)

    def all(self) -> tuple[ClientFinding, ...]:
        """Return all findings so far."""
        with self._lock:
            return tuple(self._found.values())
