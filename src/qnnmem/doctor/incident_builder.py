"""Turn one session of a log into a judged incident, with its evidence and quantities."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

import msgspec

from qnnmem.doctor.judge import Judgement, SeenTemplate, judge
from qnnmem.doctor.kb.entry import CAUSES, COUNTED, OPEN_CAUSES, Entry, is_memory
from qnnmem.doctor.kb.knowledge import Knowledge
from qnnmem.doctor.logs import header
from qnnmem.doctor.logs.line import SCALES
from qnnmem.doctor.logs.reading import code_alone, ends_well, names_only_call, read
from qnnmem.doctor.logs.session import NEAR, LogSession, Sighting
from qnnmem.results.incident import Candidate, Conclusion, Evidence, Incident, Resemblance

if TYPE_CHECKING:
    from qnnmem.doctor.cause_model import Guess
    from qnnmem.doctor.kb.similar import SimilarEntry

# The number of a line template, and its sighting in a session.
Seen: TypeAlias = "tuple[int, Sighting]"

# Measured: for 49 of 67 failing lines, one of the similar entries has the right cause.
_OF_FILES = "version_mismatch"  # a cause about which sizes say nothing
_GUESSED = 0.45
_MAX_EVIDENCE = 12
_MAX_TEXT = 400
_PRIOR = 0.4  # what a candidate of an entry is worth beside those of the model
_GUESSES, _LEAST = 3, 0.05  # causes of the model that are shown, and the least likely
_REMEMBERED = 1024
_MEM_ALLOC = 1002
_ON_CPU = ", or keep it on the CPU"
_LINUX = ("journal", "kernel")  # heads of logs from a board, of which no phone is asked

_UNLIKELY = 0.4  # probability of a cause's side below which the side speaks against the cause
_OVERRULED = 0.05  # probability of memory below which code 1002 (memory) does not count
_DISPUTED = 0.75  # what the side of an entry is worth that the model disputes
_UNKNOWN_TITLE = "A failure that no entry of the knowledge base explains"
_COLLECT = (
    "the log from the start of the process, not only its end: the first error is decisive",
    "the log at verbose level: in ONNX Runtime, log_severity_level=0 of the default logger; "
    "in the SDK's qnn tools, --log_level verbose; in ExecuTorch, QNN log level 5",
    "adb logcat -b all of the same minute: it contains FastRPC and kernel lines",
)

_DISPUTED_VERDICT = {
    "verdict": "undecided",
    "cause": "unknown",
    "cause_meaning": CAUSES["unknown"],
    "is_memory": "unknown",
    "confidence": "low",
    "entry": None,
    "title": "A failure whose lines point both to memory and to another cause",
    "remedies": (),
    "collect_next": _COLLECT,
}


class _Judged(NamedTuple):
    """Judgement that all incidents with the same templates share."""

    judgement: Judgement
    conclusion: Conclusion
    fields: dict[str, Any]  # of the conclusion
    strange: int | None  # which of the lines is an error before the deciding one that nobody knows


class IncidentBuilder:
    """Builds incidents from sessions, and caches judgements for sessions with the same lines."""

    def __init__(self, knowledge: Knowledge) -> None:
        self._knowledge = knowledge
        self._judged: dict[object, _Judged] = {}
        # Templates whose numbers are tested by a condition.
        self._tested = {i for i, sign in enumerate(knowledge.signs) if sign in knowledge.tested}
        self._names = _QuantityNames(knowledge)
        self.noise: dict[str, int] = {}
        self.verdicts: dict[str, int] = {}

    def build(self, session: LogSession, parts: Sequence[str]) -> Incident | None:
        """Return the incident of a session; None for lines of a healthy run."""
        seen = sorted(session.seen.items(), key=_by_place)
        judged = self._judge(seen)
        judgement = judged.judgement
        for name in judgement.noise:
            self.noise[name] = self.noise.get(name, 0) + 1
        if judgement.healthy:
            return None
        if _is_open(self._knowledge, judged, seen) and not _only_1002(seen, session.context):
            judged = _by_model(self._knowledge, judged, seen, session.context)
        verdict = judged.conclusion.verdict
        self.verdicts[verdict] = self.verdicts.get(verdict, 0) + 1
        return _incident(self._knowledge, self._names, session, seen, judged, parts)

    def _judge(self, seen: Sequence[Seen]) -> _Judged:
        knowledge, tested = self._knowledge, self._tested
        key = tuple(
            [
                (number, one.calm, one.times, one.values)
                if number in tested
                else (number, one.calm)
                for number, one in seen
            ]
        )
        found = self._judged.get(key)
        if found is None:
            templates = [
                SeenTemplate(number, one.times, one.values, one.calm) for number, one in seen
            ]
            judgement = judge(knowledge, templates)
            numbers = [one.template for one in templates]
            strange = _strange(knowledge, judgement, numbers)
            conclusion = _conclude(judgement, _doubt(knowledge, judgement, numbers, strange))
            fields = msgspec.structs.asdict(conclusion)
            found = _Judged(judgement, conclusion, fields, strange)
            if len(self._judged) < _REMEMBERED:
                self._judged[key] = found
        return found


def _is_open(knowledge: Knowledge, judged: _Judged, seen: Sequence[Seen]) -> bool:
    """Return True if no entry decides the cause, so that the cause model is needed."""
    judgement, told = judged.judgement, judged.conclusion
    known = judgement.deciding >= 0 and seen[judgement.deciding][0] not in knowledge.read
    if judgement.entry is not None and judgement.entry.own:
        return False
    return not known or (told.verdict != "cause" and not _has_meanings(told))


def _has_meanings(told: Conclusion) -> bool:
    """Return True if the entry has its own description of a candidate cause."""
    return any(one.meaning for one in told.candidates)


def _is_whole(seen: Sequence[Seen], context: bytes) -> bool:
    """Return True if a short log contains only the lines of the incident."""
    said = sum(bool(line.strip()) for line in context.split(b"\n"))
    return said <= len({one.line for _, one in seen})


def _only_1002(seen: Sequence[Seen], context: bytes) -> bool:
    """Return True if each line is only the code 1002 (memory), which has many causes."""
    lines = context.split(b"\n") if context else [one.text for _, one in seen]
    return all(code_alone(line) == _MEM_ALLOC for line in lines if line.strip())


def _code_of(text: bytes) -> int | None:
    failing = read(text, alone=True)
    return failing.code if failing else None


def _is_silent(knowledge: Knowledge, seen: Sequence[Seen]) -> bool:
    """Return True if no line reports a failure."""
    opening = [(number, one) for number, one in seen if knowledge.opens[number] and not one.calm]
    return all(n in knowledge.read and read(one.text, alone=True) is None for n, one in opening)


def _by_model(
    knowledge: Knowledge, judged: _Judged, seen: Sequence[Seen], context: bytes
) -> _Judged:
    """Add the cause model's guess, based on the short log or on the incident's lines."""
    from qnnmem.doctor.cause_model import guess, threshold

    lines = context.decode("utf-8", "replace") if context else ""
    made = guess(lines or "\n".join(dict.fromkeys(_text(one.text) for _, one in seen)))
    told = judged.conclusion
    only_calls = _is_whole(seen, context) and all(names_only_call(one.text) for _, one in seen)
    says_1002 = any(_code_of(one.text) == _MEM_ALLOC for _, one in seen)
    said: dict[str, Any] = {}
    # What came later wins: a success at the end leaves the failure undecided.
    unsure = made.outcomes["failing"] < threshold("failing")
    mended = ends_well(context) and (unsure or all(names_only_call(one.text) for _, one in seen))
    # Otherwise the guess must not change the verdict: no line reports a failure, or the lines name
    # only failed calls, for which the model just ranks causes by frequency.
    if not (_is_silent(knowledge, seen) or only_calls or mended):
        ends = all(number in knowledge.end_lines for number, _ in seen)
        said = _said_by_model(knowledge, told, made, ends, says_1002)
    disputed = said.get("verdict") == "undecided"
    known = (Candidate(told.cause, _DISPUTED), *told.candidates) if disputed else told.candidates
    said["candidates"] = _with_guesses(known, made.ranked)
    if (
        said.get("verdict", "undecided") != "undecided"
        and not judged.judgement.stage_told
        and made.stage_odds >= threshold("stage")
    ):
        said["stage"] = made.stage
    if said.get("verdict", told.verdict) == "undecided" and not (disputed or only_calls):
        said["is_memory"] = _leaning(made, said["candidates"], says_1002)
    conclusion = msgspec.structs.replace(told, **said)
    reason = {"words": made.words} if said.get("verdict") == "cause" else {}
    return judged._replace(conclusion=conclusion, fields={**judged.fields, **said, **reason})


def _said_by_model(
    knowledge: Knowledge, told: Conclusion, made: Guess, ends: bool, says_1002: bool
) -> dict[str, Any]:
    """Return the fields of the conclusion that the model changes.

    `ends` is True if all lines are ends of an error chain; `says_1002` if a line has the code 1002
    (memory).
    """
    from qnnmem.doctor.cause_model import threshold

    entry = _entry_named(knowledge, made.cause)
    memory = made.memory > 1 / 2
    sided = told.verdict == "memory" and told.confidence != "low"
    agrees = told.is_memory in ("unknown", is_memory(made.cause))
    leaves_open = made.decides["cause"] < threshold("decides")
    # A cause on the less likely side, or where the entry settles the side, must be more probable.
    side_odds = made.memory if is_memory(made.cause) else 1 - made.memory
    careful = side_odds < _UNLIKELY or not agrees or sided or (ends and leaves_open)
    least = "cause_medium" if careful else "cause_low"
    if sided and not agrees and made.odds >= threshold("cause_medium"):
        # The entry and the model disagree about memory: both are shown, neither decides.
        return dict(_DISPUTED_VERDICT)
    named = told.verdict != "cause" and (agrees or not sided)
    if named and entry and made.odds >= threshold(least):
        return {
            "verdict": "cause",
            "cause": entry.cause,
            "cause_meaning": entry.meaning or CAUSES[entry.cause],
            "is_memory": entry.is_memory,
            "confidence": "medium" if made.odds >= threshold("cause_medium") else "low",
            "entry": entry.id,
            "title": entry.title,
            "remedies": entry.remedies,
            "collect_next": entry.collect,
        }
    # Code 1002 (memory) does not decide the verdict, but a guess does not overrule it.
    doubted = (made.memory_causes > 1 / 2) != memory or (says_1002 and not memory)
    if told.verdict == "undecided" and made.side_odds >= threshold("side") and not doubted:
        cause = "mem_unknown" if memory else "unknown"
        return {
            "verdict": "memory",
            "cause": cause,
            "cause_meaning": CAUSES[cause],
            "is_memory": memory,
        }
    return {}


def _leaning(made: Guess, shown: Sequence[Candidate], says_1002: bool) -> bool | Literal["unknown"]:
    """Return whether memory is short; "unknown" unless model, candidates and code agree."""
    from qnnmem.doctor.cause_model import threshold

    if max(made.memory, 1 - made.memory) < threshold("leaning"):
        return "unknown"
    memory = made.memory > 1 / 2
    if says_1002 and made.memory > _OVERRULED and not memory:
        return "unknown"
    named = [one for one in shown if one.cause not in OPEN_CAUSES]
    agreeing = sum(one.score for one in named if is_memory(one.cause) == memory)
    return memory if agreeing > sum(one.score for one in named) / 2 else "unknown"


def _with_guesses(known: Sequence[Candidate], causes: Mapping[str, float]) -> tuple[Candidate, ...]:
    """Merge the model's candidates with the entry's candidates, whose scores count less."""
    scores = {cause: round(odds, 3) for cause, odds in islice(causes.items(), _GUESSES)}
    for one in known:
        scores[one.cause] = max(scores.get(one.cause, 0.0), round(one.score * _PRIOR, 3))
    words = {one.cause: one.meaning for one in known}
    order = sorted(scores, key=lambda cause: (-scores[cause], cause))
    return tuple(
        Candidate(cause, scores[cause], words.get(cause, ""))
        for cause in order
        if scores[cause] >= _LEAST
    )


def _entry_named(knowledge: Knowledge, cause: str) -> Entry | None:
    """Return the entry for a cause that the model names; None if no entry explains this cause."""
    number = knowledge.reads.get(f"names {cause}")
    if number is None:
        return None
    entries = (knowledge.entries[one] for one in knowledge.by_sign[knowledge.signs[number]])
    return next((entry for entry in entries if entry.cause == cause), None)


def _doubt(
    knowledge: Knowledge, judgement: Judgement, numbers: Sequence[int], strange: int | None
) -> str:
    """Return why the entry's confidence is lowered: "words" or "strange"; "" if it is not."""
    if judgement.deciding < 0:
        return ""
    if numbers[judgement.deciding] in knowledge.read:
        return "words"
    return "" if strange is None else "strange"


def _strange(knowledge: Knowledge, judgement: Judgement, numbers: Sequence[int]) -> int | None:
    """Return the index of the first unknown error before the deciding line, or None."""
    deciding, entry = judgement.deciding, judgement.entry
    if entry is None or entry.own or numbers[deciding] in knowledge.read:
        return None  # a team's note is believed whatever else is there
    for index, number in enumerate(numbers[:deciding]):
        if number in knowledge.strange and knowledge.signs[number] not in judgement.harmless:
            return index
    return None


def _conclude(judgement: Judgement, doubt: str) -> Conclusion:
    entry = judgement.entry
    verdict = entry.verdict if entry else "undecided"
    cause = entry.cause if entry and verdict != "undecided" else "unknown"
    memory = entry.is_memory if entry else None
    confidence = judgement.confidence if entry and verdict != "undecided" else "low"
    if doubt == "words" and confidence == "high":
        confidence = "medium"
    if doubt == "strange":
        confidence = "low"  # an error that nobody knows came first, and may be the reason
    words = dict(entry.words) if entry else {}
    return Conclusion(
        stage=judgement.stage,
        cause=cause,
        cause_meaning=(entry.meaning if entry and verdict != "undecided" else "") or CAUSES[cause],
        is_memory="unknown" if memory is None else memory,
        confidence=confidence,
        verdict=verdict,
        entry=entry.id if entry else None,
        title=entry.title if entry else _UNKNOWN_TITLE,
        remedies=entry.remedies if entry else (),
        collect_next=(entry.collect if entry else ()) or _default_collect(verdict),
        candidates=tuple(
            Candidate(name, round(score, 3), words.get(name, ""))
            for name, score in judgement.candidates
        ),
    )


def _default_collect(verdict: str) -> tuple[str, ...]:
    return () if verdict == "cause" else _COLLECT


def _by_place(item: Seen) -> tuple[int, int]:
    return item[1].offset, item[0]


def _incident(
    knowledge: Knowledge,
    names: _QuantityNames,
    session: LogSession,
    seen: Sequence[Seen],
    judged: _Judged,
    parts: Sequence[str],
) -> Incident:
    judgement, conclusion, fields, strange = judged
    decider = seen[judgement.deciding] if judgement.deciding >= 0 else None
    unknown_error = None if strange is None else _shown(seen[strange][1], parts)
    if judgement.harmless:
        seen = [one for one in seen if knowledge.signs[one[0]] not in judgement.harmless]
    template, deciding = decider or seen[0]
    first = next((one for number, one in seen if knowledge.opens[number]), seen[0][1])
    others = [one for one in seen if one[1] is not deciding]
    if judgement.entry is not None and judgement.entry.cause == _OF_FILES:
        # Sizes printed earlier belong to another binary, which was loaded successfully.
        others = [one for one in others if one[1].offset >= first.offset]
    quantities, shortage = names.quantities([(template, deciding), *others])
    origins: dict[str, str] = {}
    if shortage is None and judgement.entry is not None and judgement.entry.pool_bytes:
        from qnnmem.doctor.pool import FailedPool

        counted = _counted(knowledge, seen)
        pool = FailedPool(judgement.entry.pool_bytes, counted["level"], counted["added"])
        quantities, origins, shortage = pool.numbers(quantities, deciding.offset)
    _, _, last_part, last_line = session.until
    unknown = judgement.entry is None or template in knowledge.read
    ranked = _similar(_text(deciding.text)) if unknown else ()
    shown = b" ".join(one.text for _, one in seen).lower()
    fields = {**fields, **_fitting(conclusion, shown, deciding.text)}
    if not conclusion.candidates:
        fields = {**fields, "candidates": _supposed(ranked, conclusion)}
    return Incident(
        **fields,
        file=parts[first.part],
        first_line=first.line,
        last_line=last_line,
        last_file=parts[last_part],
        process=session.pid,
        producer=header.producer(deciding.text),
        count=deciding.times,
        evidence=_evidence(seen, first, deciding if judgement.entry else None, parts),
        quantities=quantities,
        shortage_bytes=shortage,
        origins=origins,
        similar=_resemblances(ranked) if unknown else None,
        stage_told=judgement.stage_told,
        unknown_error=unknown_error,
    )


def _fitting(said: Conclusion, low: bytes, deciding: bytes) -> dict[str, tuple[str, ...]]:
    """Return the remedies and the data to collect that suit the failed backend and the OS."""
    remedies, collect = said.remedies, said.collect_next
    if b"qnncpu" in low:
        remedies = tuple(one.replace(_ON_CPU, "") for one in remedies)
    if header.parse(deciding).style in _LINUX:
        remedies = tuple(one for one in remedies if "adb " not in one)
        collect = tuple(one for one in collect if "adb " not in one)
    return {"remedies": remedies, "collect_next": collect}


@lru_cache(maxsize=256)
def _similar(text: str) -> tuple[SimilarEntry, ...]:
    """Return entries that resemble a line that matches no entry."""
    from qnnmem.doctor.kb.similar import base_ranker

    return base_ranker().rank(text)


def _resemblances(ranked: Sequence[SimilarEntry]) -> tuple[Resemblance, ...]:
    return tuple(
        Resemblance(one.entry.id, one.entry.title, round(one.score, 3), one.shared)
        for one in ranked
    )


def _supposed(ranked: Sequence[SimilarEntry], said: Conclusion) -> tuple[Candidate, ...]:
    """Return the causes of similar entries, except those that contradict a known `is_memory`."""
    scores: dict[str, float] = {}
    for one in ranked:
        other = isinstance(said.is_memory, bool) and is_memory(one.entry.cause) != said.is_memory
        if one.entry.cause not in (*OPEN_CAUSES, "benign_noise") and not other:
            scores[one.entry.cause] = scores.get(one.entry.cause, 0.0) + one.score
    total = sum(scores.values())
    order = sorted(scores, key=lambda cause: (-scores[cause], cause))
    return tuple(Candidate(cause, round(_GUESSED * scores[cause] / total, 3)) for cause in order)


def _evidence(
    seen: Sequence[Seen], first: Sighting, decider: Sighting | None, parts: Sequence[str]
) -> tuple[Evidence, ...]:
    """Return the relevant lines, each once, without lines long before the failure."""
    lines: dict[tuple[int, int], Sighting] = {}
    earliest = first.offset - NEAR
    for _, one in seen:
        if one.offset >= earliest or one is decider:
            place = (one.part, one.line)
            if one is decider or place not in lines:
                lines[place] = one
    rows = list(lines.values())
    if len(rows) > _MAX_EVIDENCE:
        kept = rows[: _MAX_EVIDENCE - 2]
        kept += [row for row in rows[_MAX_EVIDENCE - 2 : -1] if row is decider]
        rows = [*kept, rows[-1]]
    return tuple([_shown(one, parts, one is decider) for one in rows])


def _shown(one: Sighting, parts: Sequence[str], decides: bool = False) -> Evidence:
    return Evidence(parts[one.part], one.line, _text(one.text), one.times, decides)


class _Quantities(NamedTuple):
    """Positions of named numbers; they hold for all incidents with this sequence of templates."""

    named: tuple[tuple[str, int, int], ...]  # name, line, number in it
    sizes: tuple[tuple[int, int, int], ...]  # lines that say what is needed and the limit, where


class _QuantityNames:
    """The names of the numbers in templates; numbers that are summed over lines have no name."""

    def __init__(self, knowledge: Knowledge) -> None:
        self._holes = knowledge.holes
        self._known: dict[tuple[int, ...], _Quantities] = {}

    def quantities(self, order: Sequence[Seen]) -> tuple[dict[str, int | str], int | None]:
        """Return the named numbers (the deciding line's if possible), and the shortage if known."""
        key = tuple([number for number, one in order if one.values])
        known = self._known.get(key)
        if known is None:
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            known = self._known[key] = self._look(key)
        rows = [one.values for _, one in order if one.values]
        found = {name: rows[line][index] for name, line, index in known.named}
        for line, needed, limit in known.sizes:
            if (shortage := _missing(rows[line][needed], rows[line][limit])) is not None:
                return found, shortage
        return found, None

    def _look(self, numbers: Sequence[int]) -> _Quantities:
        """Return where each named number is: the last position in the first line that has it."""
        named: dict[str, tuple[int, int]] = {}
        sizes: list[tuple[int, int, int]] = []
        for line, number in enumerate(numbers):
            here = {self._name(*hole): at for at, hole in enumerate(self._holes[number])}
            here.pop("", None)
            if "needed_bytes" in here and "limit_bytes" in here:
                sizes.append((line, here["needed_bytes"], here["limit_bytes"]))
            for name, at in here.items():
                named.setdefault(name, (line, at))
        return _Quantities(tuple((name, *place) for name, place in named.items()), tuple(sizes))

    @staticmethod
    def _name(name: str, kind: str) -> str:
        return "" if kind in COUNTED else f"{name}_bytes" if kind in SCALES else name


def _counted(knowledge: Knowledge, seen: Sequence[Seen]) -> dict[str, list[tuple[int, int]]]:
    """Return, by type of hole, the numbers to be summed, with their offsets in the log."""
    places: dict[str, list[tuple[int, int]]] = {kind: [] for kind in COUNTED}
    for number, one in seen:
        if one.counted:
            places[knowledge.holes[number][0][1]] += one.counted
    return places


def _missing(needed: int | str, limit: int | str) -> int | None:
    if isinstance(needed, int) and isinstance(limit, int) and needed > limit:
        return needed - limit
    return None


def _text(raw: bytes) -> str:
    text = raw.decode("utf-8", "replace").strip()
    return text if len(text) <= _MAX_TEXT else text[: _MAX_TEXT - 3] + "..."
