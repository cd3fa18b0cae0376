"""Logs that were gathered after the knowledge base: how the doctor does on them.

They come from other people's threads. A quarter of them is frozen: nobody looks at those logs or at
the answers to them, only at the numbers. Labels were given from the whole thread, then
once more from the lines alone; where the two differ, both are accepted or less is asked for.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from doctor_cases import CLASSES, ROOT, incidents

from qnnmem.doctor.incident import Incident
from qnnmem.doctor.kb.entry import is_memory
from qnnmem.doctor.kb.knowledge import Knowledge

FILE = ROOT / "tests" / "doctor" / "fresh_logs.jsonl"
GRADES = ("right", "side", "undecided", "silent", "wrong")
_WORDS = {
    "cause": "the log names the cause",
    "memory_only": "the log tells only whether memory is short",
    "no": "the log does not decide",
    "healthy": "nothing failed",
}


class FreshLog(NamedTuple):
    """A log and what it is known to mean."""

    id: str
    frozen: bool
    causes: frozenset[str]  # any of them is right
    is_memory: bool
    decidable: str  # one of CLASSES
    text: bytes


class Answer(NamedTuple):
    """What the doctor made of a log."""

    log: FreshLog
    grade: str
    named: tuple[tuple[str, bool], ...]  # confidence of each named cause, and whether it is right
    said: tuple[tuple[str, str, bool], ...] = ()  # confidence, verdict, whether it is right


def read_fresh() -> tuple[FreshLog, ...]:
    """All of them."""
    rows = [json.loads(line) for line in FILE.read_text("utf-8").splitlines()]
    return tuple(
        FreshLog(
            row["id"],
            row["frozen"],
            frozenset((row["cause"], *row["accept"])),
            row["is_memory"],
            row["decidable"],
            "".join(f"{line}\n" for line in row["lines"]).encode(),
        )
        for row in rows
    )


def answer(log: FreshLog, knowledge: Knowledge) -> Answer:
    """The doctor's answer, graded."""
    found = incidents(log.text, knowledge)
    named = tuple((one.confidence, one.cause in log.causes) for one in _with_cause(found))
    said = tuple(_said(log, one) for one in found if one.verdict != "undecided")
    return Answer(log, _grade(log, found), named, said)


def _said(log: FreshLog, one: Incident) -> tuple[str, str, bool]:
    if log.decidable == "healthy":
        return one.confidence, one.verdict, False
    if one.verdict == "cause":
        return one.confidence, one.verdict, one.cause in log.causes
    open_side = "unknown" in log.causes and not log.is_memory
    sides = {log.is_memory, *(is_memory(cause) for cause in log.causes if cause != "unknown")}
    return one.confidence, one.verdict, open_side or one.is_memory in sides


def _with_cause(found: Sequence[Incident]) -> list[Incident]:
    return [one for one in found if one.verdict == "cause"]


def _grade(log: FreshLog, found: Sequence[Incident]) -> str:
    told = [one for one in found if one.verdict != "undecided"]
    if log.decidable == "healthy":
        return "wrong" if told else "undecided" if found else "right"
    if not found:
        return "silent"
    causes = {one.cause for one in _with_cause(found)}
    known = "unknown" not in log.causes or log.is_memory
    if causes - log.causes or (known and any(one.is_memory is not log.is_memory for one in told)):
        return "wrong"
    if log.decidable == "cause":
        return "right" if causes else "side" if told else "undecided"
    return "right" if told or log.decidable == "no" else "undecided"


def tables(answers: Sequence[Answer]) -> Iterator[str]:
    """Counts by class and by confidence, of what was looked at and of what was not."""
    yield "| log | logs | " + " | ".join(GRADES) + " |"
    yield "|---" + "|--:" * (1 + len(GRADES)) + "|"
    for frozen in (False, True):
        for kind in CLASSES:
            rows = [one for one in answers if (one.log.frozen, one.log.decidable) == (frozen, kind)]
            counts = Counter(one.grade for one in rows)
            who = "frozen" if frozen else "looked at"
            cells = (f"{who}: {_WORDS[kind]}", str(len(rows)), *(str(counts[g]) for g in GRADES))
            yield "| " + " | ".join(cells) + " |"
    yield ""
    yield "| confidence of a named cause | looked at: right | of | frozen: right | of |"
    yield "|---" + "|--:" * 4 + "|"
    for confidence in ("high", "medium", "low"):
        numbers: list[str] = []
        for frozen in (False, True):
            mine = [one for one in answers if one.log.frozen is frozen]
            right = [ok for one in mine for level, ok in one.named if level == confidence]
            numbers += [str(sum(right)), str(len(right))]
        yield f"| {confidence} | " + " | ".join(numbers) + " |"
    yield ""
