"""A session with its meaning, as the JSON object that every output is made from."""

from __future__ import annotations

import json
from functools import lru_cache

from qnnmem.doctor.judge import Judgement, Seen, judge
from qnnmem.doctor.kb.entry import CAUSES
from qnnmem.doctor.logs import header
from qnnmem.doctor.logs.line import SCALES
from qnnmem.doctor.logs.session import NEAR, NUMBER, OFFSET, PART, TEXT, TIMES, VALUES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from qnnmem.doctor.kb.entry import Entry
    from qnnmem.doctor.kb.knowledge import Knowledge
    from qnnmem.doctor.logs.session import Mark, Session

_MAX_EVIDENCE = 12
_MAX_TEXT = 400
_REMEMBERED = 1024

_quoted = json.encoder.encode_basestring_ascii

_UNKNOWN_TITLE = "A failure that no entry of the knowledge base explains"
_COLLECT = (
    "the log from the start of the process, not only its end: the first error decides",
    "the log at verbose level: ONNX Runtime log_severity_level=0 of the default logger; "
    "qnn tools --log_level verbose; ExecuTorch QNN log level 5",
    "adb logcat -b all of the same minute: FastRPC and kernel lines stand there",
)


class Writer:
    """Turns sessions into JSON texts; remembers judgements, which repeat."""

    def __init__(self, knowledge: Knowledge) -> None:
        self._knowledge = knowledge
        self._judged: dict[object, tuple[Judgement, int]] = {}
        self._kinds: dict[str, int] = {}  # what depends on the judgement alone, numbered
        self._fixed: list[str] = []
        self.noise: dict[str, int] = {}
        self.verdicts: dict[str, int] = {}

    def write(self, session: Session, parts: Sequence[str]) -> tuple[int, str] | None:
        """An incident's kind and its own part; None when its lines are those of a healthy run."""
        marks = sorted(session.seen.items(), key=_by_place)
        judgement, kind = self._judge(marks)
        for name in judgement.noise:
            self.noise[name] = self.noise.get(name, 0) + 1
        if judgement.healthy:
            return None
        verdict = judgement.entry.verdict if judgement.entry else "undecided"
        self.verdicts[verdict] = self.verdicts.get(verdict, 0) + 1
        return kind, _of_this_session(self._knowledge, session, marks, judgement, parts)

    def whole(self, kind: int, own: str) -> str:
        """The JSON text of an incident."""
        if len(self._fixed) <= kind:
            self._fixed = list(self._kinds)
        return f"{self._fixed[kind][:-1]}, {own[1:]}"

    def _judge(self, marks: Sequence[tuple[int, Mark]]) -> tuple[Judgement, int]:
        knowledge = self._knowledge
        key = tuple(
            (line, mark[TIMES], mark[VALUES]) if knowledge.signs[line] in knowledge.tested else line
            for line, mark in marks
        )
        found = self._judged.get(key)
        if found is None:
            seen = [Seen(line, mark[TIMES], mark[VALUES]) for line, mark in marks]
            judgement = judge(knowledge, seen)
            fixed = json.dumps(_of_every_session(judgement))
            found = judgement, self._kinds.setdefault(fixed, len(self._kinds))
            if len(self._judged) < _REMEMBERED:
                self._judged[key] = found
        return found


def _of_every_session(judgement: Judgement) -> dict[str, Any]:
    """What depends on the judgement alone."""
    entry = judgement.entry
    verdict = entry.verdict if entry else "undecided"
    cause = entry.cause if entry and verdict != "undecided" else "unknown"
    memory = entry.is_memory if entry else None
    return {
        "stage": judgement.stage,
        "cause": cause,
        "cause_meaning": CAUSES[cause],
        "is_memory": "unknown" if memory is None else memory,
        "confidence": "low" if verdict == "undecided" or entry is None else entry.confidence,
        "verdict": verdict,
        "entry": entry.id if entry else None,
        "title": entry.title if entry else _UNKNOWN_TITLE,
        "remedies": list(entry.remedies) if entry else [],
        "collect_next": list((entry.collect if entry else ()) or _default_collect(verdict)),
        "candidates": [
            {"cause": name, "score": round(score, 3)} for name, score in judgement.candidates
        ],
    }


def _default_collect(verdict: str) -> tuple[str, ...]:
    return () if verdict == "cause" else _COLLECT


def _by_place(item: tuple[int, Mark]) -> tuple[int, int]:
    return item[1][OFFSET], item[0]


def _of_this_session(
    knowledge: Knowledge,
    session: Session,
    marks: Sequence[tuple[int, Mark]],
    judgement: Judgement,
    parts: Sequence[str],
) -> str:
    decider = marks[judgement.deciding] if judgement.deciding >= 0 else None
    if judgement.harmless:
        marks = [one for one in marks if knowledge.signs[one[0]] not in judgement.harmless]
    decider = decider or marks[0]
    first = next((mark for line, mark in marks if knowledge.opens[line]), marks[0][1])
    quantities, shortage = _quantities(knowledge, [decider, *marks])
    _, _, last_part, last_line = session.until
    similar = ""
    if judgement.entry is None or decider[0] in knowledge.also:
        similar = f', "similar": {_similar(_text(decider[1][TEXT]))}'
    # Written by hand: a log may hold a hundred thousand incidents.
    return (
        f'{{"file": {_quoted(parts[first[PART]])}, "first_line": {first[NUMBER]}, '
        f'"last_line": {last_line}, "last_file": {_quoted(parts[last_part])}, '
        f'"process": {"null" if session.pid is None else session.pid}, '
        f'"producer": "{header.producer(decider[1][TEXT])}", "count": {decider[1][TIMES]}, '
        f'"evidence": [{_evidence(marks, first, judgement.entry and decider[1], parts)}], '
        f'"quantities": {json.dumps(quantities) if quantities else "{}"}, '
        f'"shortage_bytes": {"null" if shortage is None else shortage}{similar}}}'
    )


@lru_cache(maxsize=1)
def _every_entry() -> tuple[Entry, ...]:
    """Entries with what people read; those that know words only are like everything."""
    from qnnmem.doctor.kb.knowledge import BUILT_IN, read_folder

    _, entries = read_folder(BUILT_IN)
    return tuple(one for one in entries if not any(line.also for line in one.lines))


@lru_cache(maxsize=256)
def _similar(text: str) -> str:
    """Entries whose lines have words in common with a line that no entry knows, as JSON."""
    from qnnmem.doctor.kb.similar import rank

    return json.dumps(
        [
            {
                "entry": one.entry.id,
                "title": one.entry.title,
                "score": round(one.score, 3),
                "shared": list(one.shared),
            }
            for one in rank(text, _every_entry())
        ]
    )


def _evidence(
    marks: Sequence[tuple[int, Mark]], first: Mark, decider: Mark | None, parts: Sequence[str]
) -> str:
    """The lines that matter: each once, and none from long before the failure."""
    lines: dict[tuple[int, int], tuple[Mark, bool]] = {}
    earliest = first[OFFSET] - NEAR
    for _, mark in marks:
        if mark[OFFSET] >= earliest or mark is decider:
            place = (mark[PART], mark[NUMBER])
            if mark is decider or place not in lines:
                lines[place] = (mark, mark is decider)
    rows = list(lines.values())
    if len(rows) > _MAX_EVIDENCE:
        kept = rows[: _MAX_EVIDENCE - 2]
        kept += [row for row in rows[_MAX_EVIDENCE - 2 : -1] if row[1]]
        rows = [*kept, rows[-1]]
    return ", ".join(
        [
            f'{{"file": {_quoted(parts[mark[PART]])}, "line": {mark[NUMBER]}, '
            f'"text": {_quoted(_text(mark[TEXT]))}, "count": {mark[TIMES]}, '
            f'"decides": {"true" if decides else "false"}}}'
            for mark, decides in rows
        ]
    )


def _quantities(
    knowledge: Knowledge, order: Sequence[tuple[int, Mark]]
) -> tuple[dict[str, int | str], int | None]:
    """Named numbers of the lines, the deciding line first; and what is missing, if they tell."""
    found: dict[str, int | str] = {}
    shortage = None
    for line, mark in order:
        if not mark[VALUES]:
            continue
        here: dict[str, int | str] = {}
        for (name, kind), value in zip(knowledge.holes[line], mark[VALUES], strict=True):
            here[f"{name}_bytes" if kind in SCALES else name] = value
        if shortage is None:
            shortage = _missing(here)
        for name, value in here.items():
            found.setdefault(name, value)
    return found, shortage


def _missing(values: dict[str, int | str]) -> int | None:
    needed, limit = values.get("needed_bytes"), values.get("limit_bytes")
    if isinstance(needed, int) and isinstance(limit, int) and needed > limit:
        return needed - limit
    return None


def _text(raw: bytes) -> str:
    text = raw.decode("utf-8", "replace").strip()
    return text if len(text) <= _MAX_TEXT else text[: _MAX_TEXT - 3] + "..."
