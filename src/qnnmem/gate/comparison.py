"""Compare two results: pair subjects by name, then compare their pools, tensors and verdicts."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import Any, Literal, cast

from qnnmem.errors import UsageError
from qnnmem.gate.subjects import BAD, ResultSubject, SubjectTensor, subjects_of
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
from qnnmem.text import counted, quote, shorten, suggestion
from qnnmem.units import parse_size

_PERCENT = re.compile(r"\s*([0-9]{1,4}(?:\.[0-9]{1,6})?)\s*%\s*", re.ASCII)


@dataclass(frozen=True, slots=True)
class Tolerance:
    """Allowed growth of a pool: bytes or a share of the pool, whichever is larger."""

    size: int = 0
    fraction: float = 0.0

    def allows(self, before: int, after: int) -> bool:
        """Return True if the growth is within the tolerance."""
        return after - before <= max(self.size, before * self.fraction)


NO_GROWTH = Tolerance()


@dataclass(frozen=True, slots=True)
class WhatCounts:
    """Criterion for a worse result: growth of one of these pools beyond the tolerance."""

    tolerance: Tolerance = NO_GROWTH
    pools: tuple[str, ...] = ()  # empty: all pools


def parse_tolerance(text: str) -> Tolerance:
    """Parse a tolerance: bytes, a share, or both."""
    size, fraction = 0, 0.0
    for word in text.split(" or "):
        match = _PERCENT.fullmatch(word)
        if match:
            fraction = max(fraction, float(match[1]) / 100)
            continue
        try:
            size = max(size, parse_size(word))
        except UsageError:
            example = "write it like 4096, 4K, 2% or '4K or 2%'"
            raise UsageError(f"{quote(text)} is not a tolerance; {example}") from None
    return Tolerance(size, fraction)


_REASONS = 3  # changes named in the verdict
_DISJOINT = ("scratch", "persistent", "io", "constants")  # LPAI pools that add up to a total


def verdict_of(
    subjects: Sequence[SubjectChange],
    appeared: Sequence[str],
    vanished: Sequence[str],
    failing: Sequence[str],
) -> str:
    """Return a verdict (worse, better, mixed, changed or unchanged) and its main reasons."""
    if not (appeared or vanished or any(subject.is_changed for subject in subjects)):
        return "unchanged: the compared numbers and verdicts are equal"
    losses = [f"{shorten(name)} is new and does not fit" for name in failing]
    losses += _losses(subjects)
    gains = list(_gains(subjects))
    if losses and gains:
        total = _together(subjects)
        return f"mixed: {_first(gains, 'gain')}, but {_first(losses, 'reason')}{total}"
    if losses:
        return f"worse: {_first(losses, 'reason')}"
    if gains:
        return f"better: {_first(gains, 'gain')}"
    rest = list(_neither(subjects, appeared, vanished))
    return f"changed: {_first(rest, 'change')}" if rest else "changed: all growth is allowed"


def _first(reasons: Sequence[str], kind: str) -> str:
    left = len(reasons) - _REASONS
    more = [f"{counted(left, f'more {kind}')}"] if left > 0 else []
    return ", ".join([*reasons[:_REASONS], *more])


def _losses(subjects: Sequence[SubjectChange]) -> Iterator[str]:
    for subject in subjects:
        of = _of(subjects, subject)
        yield from (f"{turned_words(verdict)}{of}" for verdict in subject.verdicts if verdict.worse)
        grown = [pool for pool in subject.pools if pool.worse]
        yield from (f"{_grown(pool)}{of}" for pool in _largest_first(grown))


def _gains(subjects: Sequence[SubjectChange]) -> Iterator[str]:
    for subject in subjects:
        of = _of(subjects, subject)
        better = (verdict for verdict in subject.verdicts if verdict.better)
        yield from (f"{turned_words(verdict)}{of}" for verdict in better)
        smaller = [pool for pool in subject.pools if (pool.change_bytes or 0) < 0]
        yield from (f"{_grown(pool)}{of}" for pool in _largest_first(smaller))


def _of(subjects: Sequence[SubjectChange], subject: SubjectChange) -> str:
    return f" of {shorten(subject.after)}" if len(subjects) > 1 else ""


def _largest_first(pools: Sequence[PoolChange]) -> list[PoolChange]:
    return sorted(pools, key=lambda pool: -abs(pool.change_bytes or 0))


def _together(subjects: Sequence[SubjectChange]) -> str:
    """Return the change of the sum of all LPAI pools, as text.

    The text is empty unless there is exactly one LPAI subject and every change is known.
    """
    pools = {pool.pool: pool for subject in subjects for pool in subject.pools}
    parts = [pools[name] for name in _DISJOINT if name in pools]
    known = all(part.change_bytes is not None for part in parts)
    if len(subjects) != 1 or "scratch" not in pools or not known:
        return ""
    before = sum(part.before_bytes or 0 for part in parts)
    after = sum(part.after_bytes or 0 for part in parts)
    return f"; {_grown(PoolChange('all pools together', before, after, after - before))}"


def _neither(
    subjects: Sequence[SubjectChange], appeared: Sequence[str], vanished: Sequence[str]
) -> Iterator[str]:
    """Yield differences that are neither better nor worse."""
    for names, word in ((vanished, "gone"), (appeared, "new")):
        yield from [f"{shorten(names[0])} is {word}"] if len(names) == 1 else []
        yield from [f"{len(names):,} are {word}"] if len(names) > 1 else []
    for subject in subjects:
        turned = (v for v in subject.verdicts if not v.better and not v.worse)
        yield from map(turned_words, turned)
        unlike = (pool.pool for pool in subject.pools if pool.not_comparable)
        yield from (f"{shorten(pool)} is not comparable" for pool in unlike)
        questions = {turned.question for turned in subject.verdicts}
        yield from (limit_words(limit) for limit in subject.limits if limit.name not in questions)


def turned_words(turned: VerdictChange) -> str:
    """Return a sentence about a question whose verdict changed, with both verdicts."""
    question = shorten(turned.question, 100)
    return f"{question} changed from '{turned.before}' to '{turned.after}'"


def limit_words(limit: LimitChange) -> str:
    """Return a clause that states a changed limit, before and after."""
    sizes = (limit.before_bytes, limit.after_bytes)
    before, after = ("none" if size is None else f"{size:,}" for size in sizes)
    return f"{shorten(limit.name)}: {before}, now {after}"


def percent(pool: PoolChange) -> str:
    """Return the change of a pool in percent; empty if the change is unknown."""
    return "" if pool.fraction is None else f"{100 * pool.fraction:+.1f} %"


def _grown(pool: PoolChange) -> str:
    change = pool.change_bytes or 0
    share = "" if pool.fraction is None else f" ({percent(pool)})"
    word = "more" if change > 0 else "less"
    return f"{shorten(pool.pool)} {counted(abs(change), 'byte')} {word}{share}"


ALL = WhatCounts()
_UNASKED = "not asked"


def compare_results(
    before: Any,
    after: Any,
    counts: WhatCounts = ALL,
    *,
    names: tuple[str, str] = ("the first", "the second"),
) -> DiffResult:
    """Compare two results read from JSON; raise UsageError for results of different kinds."""
    first, second = subjects_of(before, names[0]), subjects_of(after, names[1])
    kinds = [{subject.kind for subject in side} for side in (first, second)]
    if first and second and not kinds[0] & kinds[1]:
        described = [f"{name} is a {min(kind)}" for name, kind in zip(names, kinds, strict=True)]
        raise UsageError(f"{' and '.join(described)}; different kinds cannot be compared")
    return compare_subjects(first, second, counts)


def compare_subjects(
    before: Sequence[ResultSubject], after: Sequence[ResultSubject], counts: WhatCounts = ALL
) -> DiffResult:
    """Return the differences between the subjects of two results."""
    _check_pools(counts, [*before, *after])
    pairs = _pairs(before, after)
    paired = {id(subject) for pair in pairs for subject in pair}
    new = [subject for subject in after if id(subject) not in paired]
    kinds = {subject.kind for subject in (*before, *after)}
    subjects = tuple(_compared(first, second, counts) for first, second in pairs)
    appeared = tuple(subject.name for subject in new)
    vanished = tuple(subject.name for subject in before if id(subject) not in paired)
    failing = tuple(s.name for s in new if any(a.rank >= BAD for a in s.answers.values()))
    return DiffResult(
        worse=bool(failing) or any(subject.worse for subject in subjects),
        changed=bool(appeared or vanished) or any(subject.is_changed for subject in subjects),
        verdict=verdict_of(subjects, appeared, vanished, failing),
        kind=min(kinds, default=""),
        subjects=subjects,
        appeared=appeared,
        vanished=vanished,
        failing=failing,
    )


def _check_pools(counts: WhatCounts, subjects: Sequence[ResultSubject]) -> None:
    known = sorted({pool for subject in subjects for pool in subject.pools})
    folded = {name.lower() for name in known}
    for pool in counts.pools:
        if pool.lower() not in folded:
            hint = f"; {suggestion(pool, known)}" if known else ""
            raise UsageError(f"{quote(pool)} is not a pool{hint}")


def _pairs(
    before: Sequence[ResultSubject], after: Sequence[ResultSubject]
) -> list[tuple[ResultSubject, ResultSubject]]:
    """Pair subjects that have the same part, and the same path or else the same file name.

    If each result has only one file, the names of the files may differ; if each result has only one
    subject, the parts may differ too.
    """
    left, right = list(before), list(after)
    paired: list[tuple[ResultSubject, ResultSubject]] = []
    keys: list[Callable[[ResultSubject], tuple[str, str]]] = [
        lambda subject: (subject.file, subject.part),
        lambda subject: (PurePath(subject.file).name, subject.part),
    ]
    # With one file on each side, the names do not matter: the files may be a model before and after
    # a change.
    if len({subject.file for subject in left}) == len({subject.file for subject in right}) == 1:
        keys.append(lambda subject: ("", subject.part))
    if len(left) == len(right) == 1:
        keys.append(lambda _: ("", ""))
    for key in keys:
        once = [{k for k, n in Counter(map(key, side)).items() if n == 1} for side in (left, right)]
        there = {key(subject): subject for subject in right if key(subject) in once[0] & once[1]}
        new = [(subject, there[key(subject)]) for subject in left if key(subject) in there]
        taken = {id(subject) for pair in new for subject in pair}
        left = [subject for subject in left if id(subject) not in taken]
        right = [subject for subject in right if id(subject) not in taken]
        paired += new
    order = {id(subject): position for position, subject in enumerate(after)}
    return sorted(paired, key=lambda pair: order[id(pair[1])])


def _compared(before: ResultSubject, after: ResultSubject, counts: WhatCounts) -> SubjectChange:
    pools, verdicts = tuple(_pools(before, after, counts)), tuple(_verdicts(before, after))
    tensors = sorted(
        _tensors(before, after), key=lambda tensor: (-abs(tensor.change_bytes), tensor.name)
    )
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
            counts_other = f"pool {shorten(pool)} counts {held[0]} before and {held[1]} after"
            yield PoolChange(pool, old, new, not_comparable=f"not comparable: {counts_other}")
            continue
        bounds = pool in before.at_most, pool in after.at_most
        if bounds[0] is not bounds[1]:
            # The true value below an upper bound may be larger or smaller than the exact number.
            side, other = ("before", "after") if bounds[0] else ("after", "before")
            why = (
                f"not comparable: {shorten(pool)} is only an upper bound {side}, but exact {other}"
            )
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
            # A verdict in only one result cannot be compared, so it is neither better nor worse.
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
