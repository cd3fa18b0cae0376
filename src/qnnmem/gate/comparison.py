"""Two results compared: subjects paired by name, then pools, tensors and verdicts of each pair."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import PurePath
from typing import Any

from qnnmem.errors import UsageError
from qnnmem.gate.changes import (
    ComparedSubject,
    LimitChange,
    PoolChange,
    ResultComparison,
    SettingChange,
    TensorChange,
    VerdictChange,
    WhatCounts,
)
from qnnmem.gate.subject import BAD, ResultSubject
from qnnmem.gate.subjects import subjects_of
from qnnmem.text import nearest, quote

ALL = WhatCounts()
_UNASKED = "not asked"


def compare_results(
    before: Any,
    after: Any,
    counts: WhatCounts = ALL,
    *,
    names: tuple[str, str] = ("the first", "the second"),
) -> ResultComparison:
    """Two results as read from JSON; UsageError where they have nothing in common."""
    first, second = subjects_of(before, names[0]), subjects_of(after, names[1])
    kinds = [{one.kind for one in side} for side in (first, second)]
    if first and second and not kinds[0] & kinds[1]:
        said = [f"{name} is {_a(min(kind))}" for name, kind in zip(names, kinds, strict=True)]
        raise UsageError(f"{' and '.join(said)}, which cannot be compared")
    return compare_subjects(first, second, counts)


def compare_subjects(
    before: Sequence[ResultSubject], after: Sequence[ResultSubject], counts: WhatCounts = ALL
) -> ResultComparison:
    """The comparison of what two results are about."""
    _check_pools(counts, [*before, *after])
    pairs = _pairs(before, after)
    paired = {id(one) for pair in pairs for one in pair}
    new = [one for one in after if id(one) not in paired]
    kinds = {one.kind for one in (*before, *after)}
    return ResultComparison(
        min(kinds, default=""),
        tuple(_compared(first, second, counts) for first, second in pairs),
        tuple(one.name for one in new),
        tuple(one.name for one in before if id(one) not in paired),
        tuple(one.name for one in new if any(a.rank >= BAD for a in one.answers.values())),
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


def _compared(before: ResultSubject, after: ResultSubject, counts: WhatCounts) -> ComparedSubject:
    tensors = sorted(_tensors(before, after), key=lambda one: (-abs(one.delta), one.name))
    return ComparedSubject(
        before.name,
        after.name,
        tuple(_pools(before, after, counts)),
        tuple(tensors),
        tuple(_verdicts(before, after)),
        tuple(
            SettingChange(name, before.settings[name], value)
            for name, value in after.settings.items()
            if before.settings.get(name, value) != value
        ),
        tuple(_limits(before, after)),
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
            yield PoolChange(pool, old, new, unlike=held)
            continue
        sides = pool in before.at_most, pool in after.at_most
        # What is at most so much may be less than a number that is exact, or more.
        bound = "" if sides[0] is sides[1] else ("before" if sides[0] else "after")
        worse = not bound and not counts.tolerance.allows(old, new)
        is_counted = not counted or pool.lower() in counted
        yield PoolChange(pool, old, new, worse and is_counted, bound)


def _tensors(before: ResultSubject, after: ResultSubject) -> Iterator[TensorChange]:
    both = before.has_all_tensors and after.has_all_tensors
    for name in dict.fromkeys((*before.tensors, *after.tensors)):
        old, new = before.tensors.get(name), after.tensors.get(name)
        if old == new or (not both and (old is None or new is None)):
            continue
        yield TensorChange(
            name,
            None if old is None else old.size,
            None if new is None else new.size,
            "" if old is None else old.pool,
            "" if new is None else new.pool,
        )


def _verdicts(before: ResultSubject, after: ResultSubject) -> Iterator[VerdictChange]:
    for question in dict.fromkeys((*before.answers, *after.answers)):
        old = before.answers.get(question, before.unasked)
        new = after.answers.get(question, after.unasked)
        if before.limits is not None and after.limits is not None:
            # An answer to a question that is new says nothing about what was: neither is worse.
            old = old or (new and replace(new, words=_UNASKED))
            new = new or (old and replace(old, words=_UNASKED))
        if old is not None and new is not None and old != new:
            yield VerdictChange(question, old, new)


def _limits(before: ResultSubject, after: ResultSubject) -> Iterator[LimitChange]:
    if before.limits is None or after.limits is None:
        return
    for name in dict.fromkeys((*before.limits, *after.limits)):
        old, new = before.limits.get(name), after.limits.get(name)
        if old != new:
            yield LimitChange(name, old, new)
