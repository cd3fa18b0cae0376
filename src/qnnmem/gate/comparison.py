"""Two results compared: subjects paired by name, then pools, tensors and verdicts of each pair."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import PurePath
from typing import Any, Literal, cast

from qnnmem.errors import UsageError
from qnnmem.gate.subject import BAD, ResultSubject, SubjectTensor
from qnnmem.gate.subjects import subjects_of
from qnnmem.gate.tolerance import WhatCounts
from qnnmem.gate.verdict import verdict_of
from qnnmem.results.diff import (
    DiffResult,
    LimitChange,
    PoolChange,
    SettingChange,
    Side,
    SubjectChange,
    TensorChange,
    VerdictChange,
)
from qnnmem.text import nearest, quote, shorten

ALL = WhatCounts()
_UNASKED = "not asked"


def compare_results(
    before: Any,
    after: Any,
    counts: WhatCounts = ALL,
    *,
    names: tuple[str, str] = ("the first", "the second"),
) -> DiffResult:
    """Two results as read from JSON; UsageError where they have nothing in common."""
    first, second = subjects_of(before, names[0]), subjects_of(after, names[1])
    kinds = [{one.kind for one in side} for side in (first, second)]
    if first and second and not kinds[0] & kinds[1]:
        said = [f"{name} is {_a(min(kind))}" for name, kind in zip(names, kinds, strict=True)]
        raise UsageError(f"{' and '.join(said)}, which cannot be compared")
    return compare_subjects(first, second, counts)


def compare_subjects(
    before: Sequence[ResultSubject], after: Sequence[ResultSubject], counts: WhatCounts = ALL
) -> DiffResult:
    """The comparison of what two results are about."""
    _check_pools(counts, [*before, *after])
    pairs = _pairs(before, after)
    paired = {id(one) for pair in pairs for one in pair}
    new = [one for one in after if id(one) not in paired]
    kinds = {one.kind for one in (*before, *after)}
    subjects = tuple(_compared(first, second, counts) for first, second in pairs)
    appeared = tuple(one.name for one in new)
    vanished = tuple(one.name for one in before if id(one) not in paired)
    failing = tuple(one.name for one in new if any(a.rank >= BAD for a in one.answers.values()))
    return DiffResult(
        worse=bool(failing) or any(one.worse for one in subjects),
        changed=bool(appeared or vanished) or any(one.is_changed for one in subjects),
        verdict=verdict_of(subjects, appeared, vanished, failing),
        kind=min(kinds, default=""),
        subjects=subjects,
        appeared=appeared,
        vanished=vanished,
        failing=failing,
    )


def _a(kind: str) -> str:
    return f"{'an' if kind[0].lower() in 'aeiou' else 'a'} {kind}"


def _check_pools(counts: WhatCounts, subjects: Sequence[ResultSubject]) -> None:
    known = sorted({pool for one in subjects for pool in one.pools})
    folded = {name.lower() for name in known}
    for pool in counts.pools:
        if pool.lower() not in folded:
            meant = nearest(pool, known)
            hint = f"; did you mean {meant}?" if meant else f"; there are {', '.join(known)}"
            raise UsageError(f"no pool is called {quote(pool)}{hint if known else ''}")


def _pairs(
    before: Sequence[ResultSubject], after: Sequence[ResultSubject]
) -> list[tuple[ResultSubject, ResultSubject]]:
    """Those with the same name, then those whose names differ by folder, then the only ones."""
    left, right = list(before), list(after)
    found: list[tuple[ResultSubject, ResultSubject]] = []
    keys: list[Callable[[ResultSubject], tuple[str, str]]] = [
        lambda one: (one.file, one.part),
        lambda one: (PurePath(one.file).name, one.part),
    ]
    # One file on each side: its name says nothing, as of a model before and after a change.
    if len({one.file for one in left}) == len({one.file for one in right}) == 1:
        keys.append(lambda one: ("", one.part))
    if len(left) == len(right) == 1:
        keys.append(lambda _: ("", ""))
    for key in keys:
        once = [{k for k, n in Counter(map(key, side)).items() if n == 1} for side in (left, right)]
        there = {key(one): one for one in right if key(one) in once[0] & once[1]}
        new = [(one, there[key(one)]) for one in left if key(one) in there]
        taken = {id(one) for pair in new for one in pair}
        left = [one for one in left if id(one) not in taken]
        right = [one for one in right if id(one) not in taken]
        found += new
    order = {id(one): at for at, one in enumerate(after)}
    return sorted(found, key=lambda pair: order[id(pair[1])])


def _compared(before: ResultSubject, after: ResultSubject, counts: WhatCounts) -> SubjectChange:
    pools, verdicts = tuple(_pools(before, after, counts)), tuple(_verdicts(before, after))
    tensors = sorted(_tensors(before, after), key=lambda one: (-abs(one.change_bytes), one.name))
    return SubjectChange(
        before.name,
        after.name,
        worse=any(pool.worse for pool in pools) or any(turned.worse for turned in verdicts),
        pools=pools,
        verdicts=verdicts,
        tensors=tuple(tensors),
        limits=tuple(_limits(before, after)),
        settings=tuple(
            SettingChange(name, before.settings[name], value)
            for name, value in after.settings.items()
            if before.settings.get(name, value) != value
        ),
    )


def _pools(before: ResultSubject, after: ResultSubject, counts: WhatCounts) -> Iterator[PoolChange]:
    counted = {name.lower() for name in counts.pools}
    for pool in dict.fromkeys((*before.pools, *after.pools)):
        old, new = before.pools.get(pool), after.pools.get(pool)
        if old is None or new is None:
            yield PoolChange(pool, old, new)
            continue
        held = before.counted.get(pool, ""), after.counted.get(pool, "")
        if old != new and all(held) and held[0] != held[1]:
            counts_other = f"{shorten(pool)} counts {held[0]} before, {held[1]} after"
            yield PoolChange(pool, old, new, not_comparable=f"not comparable: {counts_other}")
            continue
        bounds = pool in before.at_most, pool in after.at_most
        if bounds[0] is not bounds[1]:
            # An upper bound may be less than a number that is exact, or more.
            side, other = ("before", "after") if bounds[0] else ("after", "before")
            why = f"not comparable: {shorten(pool)} {side} is at most that much, and exact {other}"
            yield PoolChange(pool, old, new, bound=cast(Side, side), not_comparable=why)
            continue
        is_counted = not counted or pool.lower() in counted
        worse = is_counted and not counts.tolerance.allows(old, new)
        yield PoolChange(pool, old, new, new - old, worse)


def _tensors(before: ResultSubject, after: ResultSubject) -> Iterator[TensorChange]:
    both = before.has_all_tensors and after.has_all_tensors
    for name in dict.fromkeys((*before.tensors, *after.tensors)):
        old, new = before.tensors.get(name), after.tensors.get(name)
        if old == new or (not both and (old is None or new is None)):
            continue
        yield TensorChange(
            name,
            _became(old, new),
            None if old is None else old.size,
            None if new is None else new.size,
            None if old is None else old.pool or None,
            None if new is None else new.pool or None,
        )


def _became(
    old: SubjectTensor | None, new: SubjectTensor | None
) -> Literal["appeared", "vanished", "grew", "shrank", "moved"]:
    if old is None:
        return "appeared"
    if new is None:
        return "vanished"
    if new.size == old.size:
        return "moved"
    return "grew" if new.size > old.size else "shrank"


def _verdicts(before: ResultSubject, after: ResultSubject) -> Iterator[VerdictChange]:
    for question in dict.fromkeys((*before.answers, *after.answers)):
        old = before.answers.get(question, before.unasked)
        new = after.answers.get(question, after.unasked)
        if before.limits is not None and after.limits is not None:
            # An answer to a question that is new says nothing about what was: neither is worse.
            old = old or (new and replace(new, words=_UNASKED))
            new = new or (old and replace(old, words=_UNASKED))
        if old is not None and new is not None and old != new:
            worse, better = new.rank > old.rank, new.rank < old.rank
            yield VerdictChange(question, old.words, new.words, worse, better)


def _limits(before: ResultSubject, after: ResultSubject) -> Iterator[LimitChange]:
    if before.limits is None or after.limits is None:
        return
    for name in dict.fromkeys((*before.limits, *after.limits)):
        old, new = before.limits.get(name), after.limits.get(name)
        if old != new:
            yield LimitChange(name, old, new)
