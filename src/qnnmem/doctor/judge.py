"""Judgement of the lines of an incident.

signs of a healthy run   -> ignored; without other signs there is no incident
entries that match       -> the best entry decides: the user's own entries come first, then entries
that name a cause, then entries that only state whether memory is short, then undecided entries;
among equal entries, the entry with the earliest deciding line wins
no matching entry        -> undecided
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from qnnmem.doctor.kb.entry import CONFIDENCES, OPEN_CAUSES, VERDICTS, Condition, Entry, When
from qnnmem.doctor.kb.knowledge import Knowledge


class SeenTemplate(msgspec.Struct, frozen=True):
    """Line template seen in an incident: how often it occurs, and the values in its first line."""

    template: int  # template number
    times: int
    values: tuple[int | str, ...]  # captured values of the first line
    calm: bool = False  # only in lines at info or debug level, which open no incident


class Judgement(msgspec.Struct, frozen=True):
    """Judgement of an incident's lines; `entry` is None if no entry matches."""

    entry: Entry | None
    stage: str
    deciding: int  # index of the deciding line; -1 without an entry
    candidates: tuple[tuple[str, float], ...]
    noise: tuple[str, ...]  # benign entries that match
    healthy: bool  # True: all lines belong to healthy runs
    harmless: frozenset[str] = frozenset()  # signs of healthy runs in the lines
    stage_told: bool = True  # named by the entry, or by a line with a call
    confidence: str = "low"


class _Fired(msgspec.Struct, frozen=True):
    entry: Entry
    deciding: int
    weight: int  # number of conditions
    loose: bool  # decided by a line read only by its words
    confidence: str


def judge(knowledge: Knowledge, seen: Sequence[SeenTemplate]) -> Judgement:
    """Return the judgement of lines, given as templates in the order of their first occurrence."""
    signs = _first_of_each_sign(knowledge, seen)
    noise = [one for one in _fire(knowledge, seen, signs) if one.entry.cause == "benign_noise"]
    harmless = {sign for one in noise for sign in one.entry.explains}
    harmless.update(knowledge.signs[seen[one.deciding].template] for one in noise)
    left = {sign: index for sign, index in signs.items() if sign not in harmless}
    names = tuple(one.entry.id for one in noise)
    loud = (index for index in left.values() if not seen[index].calm)
    if not any(knowledge.opens[seen[index].template] for index in loud):
        return Judgement(None, "init", -1, (), names, True)
    fired = [one for one in _fire(knowledge, seen, left) if one.entry.cause != "benign_noise"]
    if not fired:
        call = _last_call(knowledge, seen, left)
        known = frozenset(harmless)
        return Judgement(None, call or "init", -1, (), names, False, known, bool(call))
    best = _best(fired)
    call = _last_call(knowledge, seen, left) if best.entry.stage_from_call else best.entry.stage
    return Judgement(
        entry=best.entry,
        stage=call or best.entry.stage,
        deciding=best.deciding,
        candidates=_candidates(best, fired),
        noise=names,
        healthy=False,
        harmless=frozenset(harmless),
        stage_told=bool(call),
        confidence=_confidence(best, fired),
    )


def _first_of_each_sign(knowledge: Knowledge, seen: Sequence[SeenTemplate]) -> dict[str, int]:
    signs: dict[str, int] = {}
    for index, one in enumerate(seen):
        signs.setdefault(knowledge.signs[one.template], index)
    return signs


def _fire(
    knowledge: Knowledge, seen: Sequence[SeenTemplate], signs: Mapping[str, int]
) -> list[_Fired]:
    asked = {number for sign in signs for number in knowledge.by_sign.get(sign, ())}
    fired = []
    for number in sorted(asked):
        entry = knowledge.entries[number]
        if found := _try(entry, knowledge, seen, signs):
            fired.append(found)
    return fired


def _try(
    entry: Entry, knowledge: Knowledge, seen: Sequence[SeenTemplate], signs: Mapping[str, int]
) -> _Fired | None:
    held = [
        (signs[sign], _weight(when), when.confidence or entry.confidence)
        for when in entry.whens
        for sign in when.signs
        if sign in signs and _holds(when, sign, knowledge, seen, signs)
    ]
    if not held:
        return None
    deciding, weight, _ = min(held, key=lambda one: (one[0], -one[1]))
    loose = seen[deciding].template in knowledge.read
    if entry.typical:  # count a repeated line of a note once
        weight = len({knowledge.texts[seen[index].template].lower() for index, _, _ in held})
    confidence = min((one[2] for one in held), key=CONFIDENCES.index)
    return _Fired(entry, deciding, weight, loose, confidence)


def _holds(
    when: When,
    sign: str,
    knowledge: Knowledge,
    seen: Sequence[SeenTemplate],
    signs: Mapping[str, int],
) -> bool:
    if any(other in signs for other in when.unless):
        return False
    if not all(any(other in signs for other in group) for group in when.needs):
        return False
    at = signs[sign]
    if not all(any(signs.get(other, at) < at for other in group) for group in when.after):
        return False
    return all(_passes(test, test.sign or sign, knowledge, seen) for test in when.where)


def _passes(test: Condition, sign: str, knowledge: Knowledge, seen: Sequence[SeenTemplate]) -> bool:
    """Return True if a line with this sign has a number that meets the condition."""
    for one in seen:
        if knowledge.signs[one.template] == sign:
            value = _value(test.name, one, knowledge)
            if isinstance(value, int) and _compare(value, test):
                return True
    return False


def _value(name: str, one: SeenTemplate, knowledge: Knowledge) -> int | str | None:
    if name == "count":
        return one.times
    for (hole, _kind), value in zip(knowledge.holes[one.template], one.values, strict=True):
        if hole == name:
            return value
    return None


def _compare(value: int, test: Condition) -> bool:
    if test.operator == "==":
        return value in test.values
    if test.operator == "!=":
        return value not in test.values
    limit = test.values[0]
    if test.operator.startswith(">"):
        return value > limit or (test.operator == ">=" and value == limit)
    return value < limit or (test.operator == "<=" and value == limit)


def _weight(when: When) -> int:
    return len(when.where) + len(when.needs) + len(when.after)


def _best(fired: Sequence[_Fired]) -> _Fired:
    beaten = {name for one in fired for name in one.entry.over}
    left = [one for one in fired if one.entry.id not in beaten] or fired
    return min(left, key=_rank)


def _rank(one: _Fired) -> tuple[object, ...]:
    entry = one.entry
    coverage = one.weight / entry.typical if entry.typical else 1.0
    # Of a team's notes, prefer the note with most lines in the log; a condition counts like a line.
    shown = (one.weight if entry.typical else 1 + one.weight) if entry.own else 0
    return (
        not entry.own,
        VERDICTS.index(entry.verdict) if not entry.own else 0,
        one.loose,
        -shown,
        -coverage,
        one.deciding,
        -one.weight,
        entry.id,
    )


def _confidence(best: _Fired, fired: Iterable[_Fired]) -> str:
    """Return the entry's confidence, lowered from medium to low if another cause also matches."""
    if best.confidence != "medium" or best.entry.verdict != "cause":
        return best.confidence
    settled = {best.entry.cause, "unknown", "mem_unknown"}
    others = (one.entry for one in fired if one.entry.id not in best.entry.over)
    rival = any(one.verdict == "cause" and one.cause not in settled for one in others)
    return "low" if rival else "medium"


def _last_call(knowledge: Knowledge, seen: Sequence[SeenTemplate], left: Mapping[str, int]) -> str:
    """Return the stage of the outermost failed call, which is logged last; "" if there is none."""
    for one in reversed(seen):
        if knowledge.calls[one.template] and knowledge.signs[one.template] in left:
            return knowledge.calls[one.template]
    return ""


def _candidates(best: _Fired, fired: Iterable[_Fired]) -> tuple[tuple[str, float], ...]:
    """Return the causes of the best entry and of other matching entries, likeliest first."""
    scores: dict[str, float] = {}
    confidence = {"high": 0.95, "medium": 0.75, "low": 0.5}[best.confidence]
    if best.entry.verdict == "cause":
        scores[best.entry.cause] = confidence
    for cause, score in best.entry.candidates:
        scores.setdefault(cause, score)
    for one in fired:
        if one is not best:
            weaker = 0.3 if one.entry.verdict == "cause" else 0.2
            if one.entry.cause not in OPEN_CAUSES:
                scores.setdefault(one.entry.cause, weaker)
    return tuple(sorted(scores.items(), key=lambda pair: (-pair[1], pair[0])))
