"""Logs in which nothing is of QNN: what the doctor makes of them.

Pieces of one to a dozen lines that people copied into threads about other matters: package
managers, compilers, version control, tests, servers, kernels, phones, training and other runtimes.
Names of people and machines are taken out. Each was labelled before the doctor was asked; half of
them, drawn by lot (pieces that share a line together), is held out, and only its numbers are
looked at.
"""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cache
from typing import NamedTuple

from doctor_cases import ROOT

from qnnmem.doctor.diagnose import diagnose
from qnnmem.doctor.kb.knowledge import Knowledge
from qnnmem.doctor.logs.source import find_streams

FILE = ROOT / "tests" / "doctor" / "foreign_logs.jsonl"
GRADES = ("nothing of QNN", "healthy", "undecided", "a side")
# Of what was looked at and of what was not, before anything was mended for them.
_AT_FIRST = {
    False: {"nothing of QNN": 17, "undecided": 8, "a side": 58},
    True: {"nothing of QNN": 13, "undecided": 8, "a side": 48},
}


class ForeignLog(NamedTuple):
    """A piece of a log of another program."""

    text: str
    held_out: bool


def read_foreign() -> tuple[ForeignLog, ...]:
    """All of them; nobody looks at the answers to those that are held out."""
    rows = [json.loads(line) for line in FILE.read_text("utf-8").splitlines()]
    return tuple(ForeignLog(row["text"], row["held_out"]) for row in rows)


def grade(log: ForeignLog, knowledge: Knowledge) -> str:
    """One of GRADES; a side is an alarm, whatever its confidence."""
    with tempfile.NamedTemporaryFile(suffix=".log") as file:
        file.write(f"{log.text}\n".encode())
        file.flush()
        found = diagnose(find_streams([file.name]), knowledge)
    try:
        if any(one.verdict != "undecided" for one in found.incidents()):
            return "a side"
        return "undecided" if len(found) else "healthy" if found.exit_code == 0 else GRADES[0]
    finally:
        found.close()


@cache
def graded(knowledge: Knowledge) -> tuple[tuple[ForeignLog, str], ...]:
    """Each log with how it went."""
    return tuple((one, grade(one, knowledge)) for one in read_foreign())


def tables(knowledge: Knowledge) -> Iterator[str]:
    """How many were told to hold nothing of QNN, before anything was mended for them and now."""
    rows = graded(knowledge)
    yield "## Logs of other programs\n"
    yield (
        f"{len(rows)} short pieces of logs in which nothing is of QNN, from threads about other "
        "matters: package managers, compilers and build tools, version control, tests, servers, "
        "kernels, phones, training and other runtimes, and, gathered later, media players, robots, "
        "microcontrollers, databases. One person labelled them once, before the doctor was asked; "
        "half, drawn by lot, is held out. The right answer is that nothing there is of QNN; a side "
        "is an alarm. Programs that nobody thought of are still alarmed: of 240 pieces drawn from "
        "16 logs of servers and supercomputers 7 were given a side afterwards, 36 before.\n"
    )
    yield "| logs of other programs | logs | " + " | ".join(GRADES) + " |"
    yield "|---" + "|--:" * (1 + len(GRADES)) + "|"
    for held_out in (False, True):
        who = "held out" if held_out else "looked at"
        yield _row(f"{who}, at first", _AT_FIRST[held_out])
        yield _row(f"{who}, now", Counter(how for one, how in rows if one.held_out is held_out))
    yield ""


def _row(name: str, counts: Mapping[str, int]) -> str:
    cells = (sum(counts.values()), *(counts.get(how, 0) for how in GRADES))
    return f"| {name} | " + " | ".join(map(str, cells)) + " |"
