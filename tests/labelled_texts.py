"""Every labelled text of the tree, and counts of the answers about them."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from doctor_cases import LOGS, ROOT, diagnosed, origin
from made_logs import made_logs

from qnnmem.doctor import cause_model as model
from qnnmem.doctor.kb.entry import is_memory
from qnnmem.doctor.kb.knowledge import Knowledge
from qnnmem.doctor.logs.json_log import lines_of_json
from qnnmem.doctor.logs.reading import may_name_qnn, names_qnn

DATA = ROOT / "tests" / "doctor"
LEAST_KEY = 24  # letters of a line that identify a copy
NOTES = "public repo notes"
OPEN = ("unknown", "mem_unknown", "benign_noise")  # labels without a named cause
# Why the lines of a failing log leave open what its thread tells.
NAMELESS = "nothing of QNN is in it"
ONLY_CALLS = "its lines name only failed calls and codes"


class Text(NamedTuple):
    """A labelled text; unknown labels are empty."""

    group: str  # the repository, or the text itself if it has no repository
    text: str
    outcome: str  # failing, healthy or foreign
    side: str  # memory or other
    causes: tuple[str, ...]  # any of them is correct; the first is the label
    stage: str
    names_cause: bool  # true if the lines decide the cause
    origin: str  # log, nameless (a failure without a QNN word), message, foreign or made
    source: str = ""  # as templates name it


def read_texts() -> list[Text]:
    """Return every labelled text of the tree, in a fixed order."""
    found = [*_logs(rows_of(DATA / "fresh_logs.jsonl")), *_logs(rows_of(LOGS / "cases.jsonl"))]
    # A message that repeats a line of a log belongs to the log's group.
    groups = {key: one.group for one in found for key in _line_keys(one.text)}
    for row in rows_of(LOGS / "healthy.jsonl"):
        where = origin(row["source"])
        found.append(_text(where, "\n".join(row["lines"]), "healthy")._replace(source=where))
    for path in sorted((DATA / "healthy_runs").glob("*.log")):
        found.append(_text("our runs", path.read_text("utf-8", "replace"), "healthy"))
    for row in rows_of(DATA / "messages.jsonl"):
        outcome = "healthy" if row["side"] == "healthy" else "failing"
        side = row["side"] if row["side"] in ("memory", "other") else ""
        causes = tuple(one for one in row["causes"] if one not in OPEN)
        known = bool(causes) and outcome == "failing"
        group = next(filter(None, map(groups.get, _line_keys(row["text"]))), row["text"])
        found.append(Text(group, row["text"], outcome, side, causes, "", known, "message"))
    for name in ("foreign_logs.jsonl", "made_foreign_logs.jsonl"):
        for row in rows_of(DATA / name):
            found.append(_text(row.get("program", row["text"]), row["text"], "foreign", "foreign"))
    found += [_text(log.program, log.text, log.outcome, "made") for log in made_logs()]
    return found


def _text(group: str, text: str, outcome: str, where: str = "log") -> Text:
    return Text(group, text, outcome, "", (), "", False, where)


def as_read(text: str) -> str:
    """A text as the doctor passes it to the model: of JSON lines, their messages."""
    lines = text.encode("utf-8", "replace").splitlines()
    if not lines or not all(line.startswith(b"{") for line in lines):
        return text
    return lines_of_json(b"\n".join(lines)).decode("utf-8", "replace")


def _line_keys(text: str) -> Iterator[str]:
    """Yield the lines as the model sees them, without numbers; short lines identify no copy."""
    for line in text.splitlines():
        key = " ".join(word for word in model.words_of(model.normal(line)) if word.isalpha())
        if len(key) >= LEAST_KEY:
            yield key


def _logs(rows: Iterable[dict[str, Any]]) -> Iterator[Text]:
    for row in rows:
        text = "\n".join(row["lines"])
        where = source = origin(row["source"])
        if where == NOTES:  # gathered from many repositories; only the file is known
            where = row["source"].split(" (")[0]
        if row["decidable"] == "healthy":
            yield _text(where, text, "healthy")._replace(source=source)
            continue
        causes = tuple(dict.fromkeys((row["cause"], *row.get("accept", ()))))
        sides = {is_memory(cause) for cause in causes if cause != "unknown"}
        why = row.get("why_open", "")
        told = row["decidable"] in ("cause", "memory_only") and len(sides) < 2
        told = told and why != ONLY_CALLS
        side = ("memory" if row["is_memory"] else "other") if told else ""
        named = told and row["decidable"] == "cause" and row["cause"] not in OPEN
        kind = "nameless" if why == NAMELESS else "log"
        yield Text(where, text, "failing", side, causes, row["stage"], named, kind, source)


def rows_of(path: Path) -> list[dict[str, Any]]:
    """Return the objects of a file with one JSON object per line."""
    return [json.loads(line) for line in path.read_text("utf-8").splitlines() if line.strip()]


def fold_of(text: Text, folds: int) -> int:
    """Return the fold of a text; all texts of a repository share a fold."""
    return zlib.crc32(text.group.encode()) % folds


class Answer(NamedTuple):
    """An answer about one text, from any classifier."""

    alarmed: bool  # a failure is reported
    causes: tuple[str, ...]  # the named causes
    ranked: tuple[str, ...]  # the first three candidates
    memory: bool | None
    high: bool  # with high confidence


def of_doctor(text: Text, knowledge: Knowledge) -> Answer:
    """Return the doctor's answer."""
    found, unclear = diagnosed(f"{text.text}\n".encode("utf-8", "replace"), knowledge)
    told = [one for one in found if one.verdict != "undecided"]
    named = tuple(dict.fromkeys(one.cause for one in told if one.verdict == "cause"))
    ranked = [one.cause for one in found[0].candidates[:3]] if found else []
    sides = {one.is_memory for one in told or found}
    side = sides.pop() if len(sides) == 1 else None
    memory = side if isinstance(side, bool) else None
    alarmed = bool(found) or unclear if text.outcome == "failing" else bool(told)
    high = any(one.confidence == "high" for one in told)
    return Answer(alarmed, named, (*named, *ranked), memory, high)


Row = tuple[int, int]
# Rows for logs without a failure: name, outcome, origins.
QUIET_ROWS = (
    ("good runs: no failure reported", "healthy", ("log", "foreign")),
    ("other programs: no failure reported", "foreign", ("log", "foreign")),
    ("good runs written for the training: no failure reported", "healthy", ("made",)),
    ("other programs, written for the training: no failure reported", "foreign", ("made",)),
)


def counted(texts: Sequence[Text], found: dict[int, Answer]) -> dict[str, Row]:
    """Count the correct answers for each question."""
    logs = [at for at in found if texts[at].origin == "log"]
    named = [at for at in logs if texts[at].names_cause]
    sided = [at for at in logs if texts[at].side]
    failing = [at for at in logs if texts[at].outcome == "failing"]
    sure = [at for at in failing if found[at].high]

    def right(at: int) -> bool:
        return bool(found[at].causes) and {*found[at].causes} <= {*texts[at].causes}

    def among(at: int) -> bool:
        return bool({*found[at].ranked} & {*texts[at].causes})

    def same_side(at: int) -> bool:
        return found[at].memory is (texts[at].side == "memory")

    def other_side(at: int) -> bool:
        return found[at].memory is not None and not same_side(at)

    wrong = sum(bool({*found[at].causes} - {*texts[at].causes}) for at in named)
    opened = [at for at in failing if not texts[at].names_cause]
    claimed = [at for at in opened if found[at].causes]
    rows = {
        "correct cause": (sum(map(right, named)), len(named)),
        "wrong cause": (wrong, len(named)),
        "correct cause among the first three": (sum(map(among, named)), len(named)),
        "memory or not: correct": (sum(map(same_side, sided)), len(sided)),
        "memory or not: wrong": (sum(map(other_side, sided)), len(sided)),
        "correct cause at high confidence": (sum(map(right, sure)), len(sure)),
        "no cause named if the log shows none": (
            len(opened) - sum(not right(at) for at in claimed),
            len(opened),
        ),
    }
    lost = sum(not found[at].alarmed for at in failing)
    rows["failures: called healthy or foreign"] = (lost, len(failing))
    for row, outcome, origins in QUIET_ROWS:
        mine = [at for at in found if texts[at].outcome == outcome and texts[at].origin in origins]
        rows[row] = (sum(not found[at].alarmed for at in mine), len(mine))
    nameless = [at for at in found if texts[at].origin == "nameless"]
    lost = sum(not found[at].alarmed for at in nameless)
    rows["failures without a QNN word: called foreign"] = (lost, len(nameless))
    return rows


def is_doubtful(text: str) -> bool:
    """Whether a text has words of QNN's chips or codes, but no word of QNN alone."""
    low = text.lower().encode("utf-8", "replace")
    return may_name_qnn(low) and not names_qnn(low)
