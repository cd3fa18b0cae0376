"""Logs that were gathered after the knowledge base: how the doctor does on them.

They come from other people's threads, titles and notes, and only what a program printed is kept;
paths and names of people are taken out. A log that repeats the lines of a known one is left out.

Labels are given twice. The first reading has the whole thread: stage, cause, memory or not, and
what the lines allow, that is the cause, only the side, or neither. The second has the lines alone,
in another order and without the first label. Where the two differ, both causes are accepted, or
less is asked for, or the log is left out. A bare code never asks for more than the side.

A random part of each gathering is frozen: nobody looks at the answers to those logs, only at the
numbers. A log whose words went into an entry is not frozen any more.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import product
from typing import Any, NamedTuple

from doctor_cases import CLASSES, ROOT, incidents

from qnnmem.doctor.kb.entry import is_memory
from qnnmem.doctor.kb.knowledge import Knowledge
from qnnmem.results.incident import Incident

FILE = ROOT / "tests" / "doctor" / "fresh_logs.jsonl"
MESSAGES = ROOT / "tests" / "doctor" / "messages.jsonl"
GRADES = ("right", "side", "undecided", "silent", "wrong")
_WORDS = {
    "cause": "the log names the cause",
    "memory_only": "the log tells only whether memory is short",
    "no": "the log does not decide",
    "healthy": "nothing failed",
}

_FIRST_SIGHT = (
    ("first", "149", "48 of 68", "not counted", "4", "0 of 21", "1 (high)"),
    ("second", "131", "32 of 40", "24 of 40", "7 of 107", "0 of 24", "1 (medium)"),
    ("third, titles mostly, after the second", "13", "0 of 3", "2 of 5", "0 of 10", "1 of 3", "0"),
    ("fourth", "61", "11 of 15", "16 of 25", "2 of 48", "4 of 13", "2 (medium)"),
    ("fifth, in three batches", "67", "10 of 12", "24 of 27", "0 of 57", "1 of 10", "1 (high)"),
    ("sixth", "22", "4 of 6", "7 of 8", "1 of 18", "0 of 4", "0"),
    ("seventh", "32", "9 of 15", "4 of 6", "1 of 28", "2 of 4", "0"),
    ("eighth, after the seventh", "16", "1 of 3", "3 of 4", "0 of 12", "2 of 4", "2 (medium)"),
    ("ninth", "22", "2 of 2", "11 of 12", "0 of 15", "1 of 7", "1 (high)"),
    ("tenth", "47", "7 of 11", "6 of 8", "1 of 25", "2 of 22", "2 (medium)"),
    ("eleventh", "199", "53 of 73", "40 of 49", "8 of 165", "6 of 34", "2 (medium)"),
    (
        *("twelfth, notes and titles, after the eleventh", "164", "33 of 76", "24 of 30"),
        *("13 of 147", "5 of 17", "2 (medium)"),
    ),
)
# Of each lot of messages before anything was mended for it: messages with a side, sides told
# rightly, told wrongly, and failing messages that were not taken for such.
_MESSAGES_AT_FIRST = (
    ("first", 47, 39, 0, 4),
    ("second", 46, 35, 0, 2),
    ("third", 44, 30, 0, 6),
    ("fourth", 42, 31, 1, 7),
    ("fifth", 42, 31, 0, 9),
    ("sixth", 34, 26, 0, 3),
    ("seventh, held out", 24, 21, 1, 0),
    ("eighth, printed by programs", 78, 66, 4, 0),
    ("eighth, held out", 75, 58, 3, 0),
    ("of drivers and backends", 179, 147, 2, 8),
    ("of drivers and backends, frozen", 184, 135, 7, 10),
    ("from notes in many languages", 33, 26, 5, 0),
    ("from notes in many languages, held out", 28, 20, 0, 2),
    ("from notes, after mending", 22, 17, 0, 1),
    ("of clients' buffers and LPAI", 43, 14, 2, 20),
    ("of clients' buffers and LPAI, held out", 40, 16, 0, 15),
    ("of a stranger", 70, 48, 1, 15),
    ("of a stranger, held out", 80, 48, 2, 21),
    ("of a second stranger, short logs", 59, 54, 2, 0),
    ("of a second stranger, held out", 61, 53, 3, 0),
    ("of a third stranger, after threads", 57, 55, 1, 0),
    ("of a third stranger, held out", 53, 51, 0, 0),
)
# The frozen lot once the others were mended: sides told, told wrongly, passed over, of these
# called healthy.
_FROZEN_AFTER = (144, 6, 7, 3)


class FreshLog(NamedTuple):
    """A log and what it is known to mean."""

    id: str
    frozen: bool
    causes: frozenset[str]  # any of them is right
    is_memory: bool
    decidable: str  # one of CLASSES
    text: bytes


class Message(NamedTuple):
    """What somebody might write of a failure or of a good run, in a line."""

    text: str
    side: str  # memory, other, open or healthy
    held_out: bool


class Answer(NamedTuple):
    """What the doctor made of a log."""

    log: FreshLog
    grade: str
    named: tuple[tuple[str, bool], ...]  # confidence of each named cause, and whether it is right
    said: tuple[tuple[str, str, bool], ...] = ()  # confidence, verdict, whether it is right


def read_fresh() -> tuple[FreshLog, ...]:
    """All of them."""
    return tuple(
        FreshLog(
            row["id"],
            row["frozen"],
            frozenset((row["cause"], *row["accept"])),
            row["is_memory"],
            row["decidable"],
            "".join(f"{line}\n" for line in row["lines"]).encode(),
        )
        for row in read_rows()
    )


def read_rows() -> list[dict[str, Any]]:
    """All of them as they are stored."""
    return [json.loads(line) for line in FILE.read_text("utf-8").splitlines()]


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


def about(answers: Sequence[Answer]) -> Iterator[str]:
    """How they were gathered, and what was known of them before anything was mended."""
    frozen = sum(one.log.frozen for one in answers)
    yield "## Logs gathered later\n"
    yield (
        f"{len(answers)} logs from threads that no entry was written from, gathered when the "
        f"entries were there. {len(answers) - frozen} were looked at afterwards, and entries and "
        f"rules were mended where they failed; of the other {frozen}, the frozen part, only these "
        "numbers are known. Labels were given twice, from the thread and from the lines alone; "
        "where the two differ, both are accepted or less is asked for. The fifth gathering is "
        "weaker: one person read it twice in one go, some of its lines are messages of published "
        "sources with values filled in, none of it is frozen, and two logs were dropped after "
        "their answers were seen (with them 24 of 28 sides, 2 of 11 healthy ones alarmed). The "
        "sixth was read by one person and a second time by another, without the first labels: of "
        "21 logs two ask for less since; what search finds is mostly stored by now (71 of 93 "
        "pieces were from known threads and are not counted), labels often accept several "
        "causes, and the one failure passed over is not kept, as no word of its two lines is of "
        "QNN (the answer is `nothing of QNN in here`). The seventh and the eighth are weaker "
        "again: one person read them once, before the doctor was asked; the parts of threads "
        "that search shows are short, some messages are titles or come from published sources; "
        "11 of 64 pieces were put together from prose and 5 repeat lines of known logs, none of "
        "which is counted. The failure that the seventh passed over, four frames of a crash, is "
        "not kept (the answer is that the lines show neither a failure nor a success). The "
        "ninth is weaker still: one person, who knew the doctor, read it once, "
        "before it was asked; what search shows of QNN is nearly used up, so half of its 22 logs "
        "are of neighbours (cameras, graphics, other runtimes); 8 pieces repeat known lines and "
        "17 more (all told rightly) are of threads that entries cite, none of which is counted. "
        "The tenth was read once, by one person, before the doctor was asked; it was found by "
        "strings in notes of many projects and languages, 22 of its 47 logs are good runs, six "
        "pieces repeat known lines and are not counted. One of its good runs asks for less since: "
        "its two lines do not say whether the second way worked. One log is not frozen any more, "
        "as a test gave its answer away. The eleventh and the twelfth were gathered by five people "
        "who never saw the doctor's rules, and labelled a second time by three others from the "
        "lines alone: of 371 pieces 8 were left out, as one saw a failure and the other none, and "
        "11 ask for less. Most are lines quoted in notes of public projects; in the twelfth many "
        "are told in sentences, and it is a sentence that names the cause. All of the eleventh "
        "and half of the twelfth were looked at; of its other half seven were, as they were passed "
        "over or told wrongly, and are not frozen any more, nor are three older ones that were "
        "called healthy. Six pieces that show only the start or "
        "the end of a run are not kept. What was mended for the eleventh helped the twelfth little "
        "(31 causes before, 33 after), so expect no more of sentences than that. "
        "*Side*: memory or not is right, the cause is not named.\n"
    )
    yield "At first sight, before anything was mended for them:\n"
    yield (
        "| gathering | logs | causes named | sides told | failures passed over "
        "| healthy ones alarmed | wrong causes |"
    )
    yield "|---" + "|--:" * 6 + "|"
    for row in _FIRST_SIGHT:
        yield "| " + " | ".join(row) + " |"
    yield ""


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


def read_messages() -> tuple[Message, ...]:
    """All of them; nobody looks at the answers to those that are held out."""
    rows = [json.loads(line) for line in MESSAGES.read_text("utf-8").splitlines()]
    return tuple(Message(row["text"], row["side"], row["held_out"]) for row in rows)


def grade_message(message: Message, knowledge: Knowledge) -> str:
    """`right`, `open`, `passed over` or `wrong`, by the side alone."""
    found = incidents(f"{message.text}\n".encode(), knowledge)
    told = {one.is_memory for one in found if one.verdict != "undecided"}
    if message.side == "healthy":
        return "wrong" if told else "right"
    if not found:
        return "passed over"
    if message.side == "open":
        return "right"  # a side is a guess there, and says so
    return "open" if not told else "right" if told == {message.side == "memory"} else "wrong"


@cache
def graded_messages(knowledge: Knowledge) -> tuple[tuple[Message, str], ...]:
    """Each message with how it went."""
    return tuple((one, grade_message(one, knowledge)) for one in read_messages())


def messages(knowledge: Knowledge) -> Iterator[str]:
    """How many messages were told rightly, before anything was mended for them and now."""
    grades = graded_messages(knowledge)
    yield "## Messages in people's own words\n"
    yield (
        f"{len(grades)} short messages, most of one line, written the way people write to a forum: "
        "half a log line, an exception, a sentence with mistakes. They were made up from what "
        "threads show, "
        "with their labels, before the doctor was asked; each lot before anything was mended for "
        "it. The eighth is no such lot but what programs can print: messages in the sources of "
        "ONNX Runtime's QNN provider, ExecuTorch, LiteRT and the AI Engine Direct helper, with "
        "values filled in. One person labelled them once, from the code around them, before the "
        "doctor was asked; messages like others that were looked at later are not held out. Of "
        "its 60 healthy ones 14 were alarmed at first. Of what is held out only these numbers "
        "are known.\n"
    )
    told, wrong, passed, healthy = _FROZEN_AFTER
    yield (
        "The lots of drivers and backends are others: 563 messages that the sources of public "
        "programs hold (FastRPC in the kernel and beside it, remoteproc, Hexagon backends of "
        "llama.cpp, MNN, mllm, PowerServe, sherpa-onnx, sample applications, GStreamer and SNPE "
        "wrappers), printed as these would with likely values. One person labelled them from the "
        "code around them, once, before the doctor was asked; half, drawn by lot, is frozen, and "
        "only its numbers are known. After mending with the other half and with messages of the "
        f"same sources that are in neither, {told} sides of the frozen half were told, {wrong} "
        f"wrongly, {passed} failures had no incident (of which {healthy} were called healthy); of "
        "41 lines of good runs 5 were alarmed, at first 12, and between two other good lines 5, "
        "at first 23. Part of the half that was looked at is stored here. The lots from notes are "
        "sentences, rows of tables and list items in which people quote errors, in seven "
        "languages, labelled once before the doctor was asked; of their 5 healthy ones 3 were "
        "alarmed at first. Those of clients' buffers and LPAI were made up by one who knew the "
        "doctor and had seen some of the answers before the lot was drawn; one label was changed "
        "to open afterwards, as a bare code decides nothing. Those of a stranger were written and "
        "labelled by somebody who had not seen the doctor; of its 30 healthy ones 5 were alarmed "
        "at first, 4 of them among what is held out. Those of a second one are 160 short logs, of "
        "one to eight lines; of its 25 healthy ones 5 were alarmed at first, 2 of them held out. "
        "Those of a third one are 140 pieces worded as threads word them, asked when the others "
        "were mended; of its 18 healthy ones 3 were alarmed at first, all of them held out. 46 "
        "pieces of good runs were copied from threads that show them, with the warnings they "
        "print; 1 was alarmed at first, held out.\n"
    )
    yield "| lot | failing, with a side | sides told | told wrongly | not taken for a failure |"
    yield "|---" + "|--:" * 4 + "|"
    for row in _MESSAGES_AT_FIRST:
        yield "| " + " | ".join(map(str, row)) + " |"
    yield ""
    yield "| now | messages | right | open | passed over | wrong |"
    yield "|---" + "|--:" * 5 + "|"
    for held_out, side in product((False, True), ("memory", "other", "open", "healthy")):
        mine = [grade for one, grade in grades if (one.held_out, one.side) == (held_out, side)]
        counts = Counter(mine)
        cells = [counts[grade] for grade in ("right", "open", "passed over", "wrong")]
        who = "held out" if held_out else "looked at"
        yield f"| {who}: {side} | {len(mine)} | " + " | ".join(map(str, cells)) + " |"
    yield ""
