"""The verdict on two results in one line."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from qnnmem.results.diff import LimitChange, PoolChange, SubjectChange, VerdictChange
from qnnmem.text import counted, shorten

_REASONS = 3  # that the verdict names
_DISJOINT = ("scratch", "persistent", "io", "constants")  # pools of LPAI that add up


def verdict_of(
    subjects: Sequence[SubjectChange],
    appeared: Sequence[str],
    vanished: Sequence[str],
    failing: Sequence[str],
) -> str:
    """Worse, better, mixed or neither, and by what; the largest change first."""
    if not (appeared or vanished or any(subject.is_changed for subject in subjects)):
        return "unchanged: no number and no verdict differs"
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
        yield from (f"{turned_words(one)}{of}" for one in subject.verdicts if one.worse)
        grown = [pool for pool in subject.pools if pool.worse]
        yield from (f"{_grown(pool)}{of}" for pool in _largest_first(grown))


def _gains(subjects: Sequence[SubjectChange]) -> Iterator[str]:
    for subject in subjects:
        of = _of(subjects, subject)
        yield from (f"{turned_words(one)}{of}" for one in subject.verdicts if one.better)
        smaller = [pool for pool in subject.pools if (pool.change_bytes or 0) < 0]
        yield from (f"{_grown(pool)}{of}" for pool in _largest_first(smaller))


def _of(subjects: Sequence[SubjectChange], subject: SubjectChange) -> str:
    return f" of {shorten(subject.after)}" if len(subjects) > 1 else ""


def _largest_first(pools: Sequence[PoolChange]) -> list[PoolChange]:
    return sorted(pools, key=lambda pool: -abs(pool.change_bytes or 0))


def _together(subjects: Sequence[SubjectChange]) -> str:
    """The sum of all pools of LPAI; nothing for pools that overlap."""
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
    """What differs and is neither better nor worse."""
    for names, word in ((vanished, "gone"), (appeared, "new")):
        yield from [f"{shorten(names[0])} is {word}"] if len(names) == 1 else []
        yield from [f"{len(names):,} are {word}"] if len(names) > 1 else []
    for subject in subjects:
        turned = (one for one in subject.verdicts if not one.better and not one.worse)
        yield from map(turned_words, turned)
        unlike = (pool.pool for pool in subject.pools if pool.not_comparable)
        yield from (f"{shorten(pool)} is not comparable" for pool in unlike)
        questions = {turned.question for turned in subject.verdicts}
        yield from (limit_words(one) for one in subject.limits if one.name not in questions)


def turned_words(turned: VerdictChange) -> str:
    """A question with another answer than before."""
    question = shorten(turned.question, 100)
    return f"{question} changed from '{turned.before}' to '{turned.after}'"


def limit_words(limit: LimitChange) -> str:
    """A budget before and after."""
    sizes = (limit.before_bytes, limit.after_bytes)
    before, after = ("none" if size is None else f"{size:,}" for size in sizes)
    return f"{shorten(limit.name)}: {before}, now {after}"


def percent(pool: PoolChange) -> str:
    """The change of a pool in percent; empty where that is not known."""
    return "" if pool.fraction is None else f"{100 * pool.fraction:+.1f} %"


def _grown(pool: PoolChange) -> str:
    change = pool.change_bytes or 0
    share = "" if pool.fraction is None else f" ({percent(pool)})"
    word = "more" if change > 0 else "less"
    return f"{shorten(pool.pool)} {counted(abs(change), 'byte')} {word}{share}"
