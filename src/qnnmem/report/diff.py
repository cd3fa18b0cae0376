"""Two results against each other as text, Markdown and JSON of schema `qnnmem.diff/1`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from qnnmem.gate.changes import (
    ComparedSubject,
    LimitChange,
    PoolChange,
    ResultComparison,
    TensorChange,
    VerdictChange,
)
from qnnmem.results.schema import write_json
from qnnmem.text import counted, printable, shorten

SCHEMA = "qnnmem.diff/1"
_TENSORS = 8  # of each file that the short answer names
_REASONS = 3  # that the verdict names
_DISJOINT = ("scratch", "persistent", "io", "constants")  # pools of LPAI that add up
_CHANGED = ("appeared", "grew", "vanished", "shrank", "moved")


def verdict(found: ResultComparison) -> str:
    """One line: worse, better, mixed or neither, and by what; the largest change first."""
    if not found.is_changed:
        return "unchanged: no number and no verdict differs"
    losses, gains = list(_losses(found)), list(_gains(found))
    if losses and gains:
        return f"mixed: {_first(gains, 'gain')}, but {_first(losses, 'reason')}{_together(found)}"
    if losses:
        return f"worse: {_first(losses, 'reason')}"
    if gains:
        return f"better: {_first(gains, 'gain')}"
    rest = list(_neither(found))
    return f"changed: {_first(rest, 'change')}" if rest else "changed: all growth is allowed"


def _first(said: Sequence[str], kind: str) -> str:
    more = [f"{counted(len(said) - _REASONS, f'more {kind}')}"] if len(said) > _REASONS else []
    return ", ".join([*said[:_REASONS], *more])


def _losses(found: ResultComparison) -> Iterator[str]:
    yield from (f"{shorten(name)} is new and does not fit" for name in found.failing)
    for subject in found.subjects:
        of = _of(found, subject)
        yield from (f"{_turned(one)}{of}" for one in subject.verdicts if one.is_worse)
        worse = [pool for pool in subject.pools if pool.is_worse]
        yield from (f"{_grown(pool)}{of}" for pool in _largest_first(worse))


def _gains(found: ResultComparison) -> Iterator[str]:
    for subject in found.subjects:
        of = _of(found, subject)
        yield from (f"{_turned(one)}{of}" for one in subject.verdicts if one.is_better)
        smaller = [pool for pool in subject.pools if (pool.delta or 0) < 0]
        yield from (f"{_grown(pool)}{of}" for pool in _largest_first(smaller))


def _of(found: ResultComparison, subject: ComparedSubject) -> str:
    return f" of {shorten(subject.after)}" if len(found.subjects) > 1 else ""


def _largest_first(pools: Sequence[PoolChange]) -> list[PoolChange]:
    return sorted(pools, key=lambda pool: -abs(pool.delta or 0))


def _together(found: ResultComparison) -> str:
    """What all pools of LPAI make together; nothing for pools that overlap."""
    pools = {pool.pool: pool for subject in found.subjects for pool in subject.pools}
    parts = [pools[name] for name in _DISJOINT if name in pools]
    known = all(part.delta is not None for part in parts)
    if len(found.subjects) != 1 or "scratch" not in pools or not known:
        return ""
    before, after = sum(p.before or 0 for p in parts), sum(p.after or 0 for p in parts)
    return f"; {_grown(PoolChange('all pools together', before, after))}"


def _turned(turned: VerdictChange) -> str:
    """A question that is answered otherwise than before."""
    before, after = turned.before.words, turned.after.words
    return f"{shorten(turned.question, 100)} changed from '{before}' to '{after}'"


def _neither(found: ResultComparison) -> Iterator[str]:
    """What differs and is neither better nor worse."""
    for names, word in ((found.vanished, "gone"), (found.appeared, "new")):
        yield from [f"{shorten(names[0])} is {word}"] if len(names) == 1 else []
        yield from [f"{len(names):,} are {word}"] if len(names) > 1 else []
    for subject in found.subjects:
        turned = (one for one in subject.verdicts if not one.is_better and not one.is_worse)
        yield from map(_turned, turned)
        yield from (
            f"{shorten(one.pool)} is not comparable"
            for one in subject.pools
            if not one.is_comparable
        )
        turned_too = {turned.question for turned in subject.verdicts}
        yield from (_limit_words(one) for one in subject.limits if one.name not in turned_too)


def _limit_words(one: LimitChange) -> str:
    """A budget that is another one."""
    before, after = ("none" if size is None else f"{size:,}" for size in (one.before, one.after))
    return f"{shorten(one.name)}: {before}, now {after}"


def not_comparable(pool: PoolChange) -> str:
    """Why two numbers of a pool are not compared; empty where they are."""
    if pool.unlike:
        before, after = pool.unlike
        return f"not comparable: {shorten(pool.pool)} counts {before} before, {after} after"
    if not pool.bound:
        return ""
    other = "after" if pool.bound == "before" else "before"
    side = f"{shorten(pool.pool)} {pool.bound}"
    return f"not comparable: {side} is at most that much, and exact {other}"


def _grown(pool: PoolChange) -> str:
    delta = pool.delta or 0
    share = "" if pool.fraction is None else f" ({_percent(pool)})"
    word = "more" if delta > 0 else "less"
    return f"{shorten(pool.pool)} {counted(abs(delta), 'byte')} {word}{share}"


def render_text(found: ResultComparison, *, verbose: bool = False) -> str:
    """The verdict, then what changed of each file; with `verbose` all numbers and tensors."""
    lines = [verdict(found)]
    shown = [one for one in found.subjects if verbose or one.is_changed or one.settings]
    for subject in shown:
        lines += ["", *_subject_lines(subject, verbose)]
    for title, names in (("new", found.appeared), ("gone", found.vanished)):
        lines += ["", *(f"{title}: {shorten(name, 200)}" for name in names)] if names else []
    same = len(found.subjects) - len(shown)
    if same and shown:
        lines += ["", f"no change: {counted(same, 'other')}"]
    return "\n".join(lines) + "\n"


def _subject_lines(subject: ComparedSubject, verbose: bool) -> Iterator[str]:
    if subject.before == subject.after:
        yield shorten(subject.after, 200)
    else:
        yield f"before  {shorten(subject.before, 200)}"
        yield f"after   {shorten(subject.after, 200)}"
    pools = [one for one in subject.pools if verbose or one.before != one.after]
    if pools:
        yield ""
        yield from pool_lines(pools)
    if subject.verdicts:
        yield ""
        yield from map(_turned, subject.verdicts)
    if subject.limits:
        yield ""
        yield from map(_limit_words, subject.limits)
    if subject.tensors:
        yield ""
        yield from _tensor_lines(subject.tensors, verbose)
    for changed in subject.settings:
        words = f"{shorten(changed.before)}, now {shorten(changed.after)}"
        yield f"note: {changed.name} differs: {words}"


def pool_lines(pools: Sequence[PoolChange]) -> Iterator[str]:
    """Pools before and after as a table."""
    names = [shorten(pool.pool, 40) for pool in pools]
    width = max(16, *map(len, names))
    yield f"{'pool':<{width}}{'before':>16}{'after':>16}{'change':>16}"
    for name, pool in zip(names, pools, strict=True):
        sizes = f"{_size(pool.before):>16}{_size(pool.after):>16}{signed(pool.delta):>16}"
        share = f"  {_percent(pool)}" if pool.delta and pool.before else ""
        yield f"{name:<{width}}{sizes}{share:<11}{'  worse' if pool.is_worse else ''}".rstrip()
    yield from (words for pool in pools if (words := not_comparable(pool)))


def _tensor_lines(tensors: Sequence[TensorChange], verbose: bool) -> Iterator[str]:
    counts = {word: sum(one.change == word for one in tensors) for word in _CHANGED}
    said = ", ".join(f"{number:,} {word}" for word, number in counts.items() if number)
    yield f"tensors: {said}"
    shown = tensors if verbose else tensors[:_TENSORS]
    for one in shown:
        yield f"{signed(one.delta):>16}  {one.change:<9} {shorten(one.name)} ({_pool_of(one)})"
    if len(tensors) > len(shown):
        yield f"{'':16}  {len(tensors) - len(shown):,} more with -v"


def _pool_of(one: TensorChange) -> str:
    pools = [pool for pool in (one.pool_before, one.pool_after) if pool]
    return printable(" to ".join(dict.fromkeys(pools)))


def _size(size: int | None) -> str:
    return "-" if size is None else f"{size:,}"


def signed(delta: int | None) -> str:
    """A difference with its sign."""
    return "-" if delta is None else f"{delta:+,}" if delta else "0"


def _percent(pool: PoolChange) -> str:
    return "" if pool.fraction is None else f"{100 * pool.fraction:+.1f} %"


def render_markdown(found: ResultComparison) -> str:
    """For a ticket or a comment on a change: the verdict and a table of what changed."""
    lines = [f"**{_cell(verdict(found))}**"]
    changed = [one for one in found.subjects if one.is_changed]
    if changed:
        lines += ["", "| file | what | before | after | change |", "|---|---|---:|---:|---:|"]
        lines += [_row(cells) for one in changed for cells in _rows(one)]
    for title, names in (("new", found.appeared), ("gone", found.vanished)):
        lines += ["", f"{title}: {', '.join(map(_cell, names))}"] if names else []
    for one in changed:
        if one.tensors:
            lines += ["", f"<details><summary>Tensors of {_cell(one.after)}</summary>", ""]
            lines += ["| tensor | change | bytes |", "|---|---|---:|"]
            lines += [_row((_cell(t.name), t.change, signed(t.delta))) for t in one.tensors[:100]]
            lines += ["", "</details>"]
    return "\n".join(lines) + "\n"


def _rows(one: ComparedSubject) -> Iterator[Sequence[str]]:
    name = _cell(one.after)
    for turned in one.verdicts:
        mark = " :x:" if turned.is_worse else ""
        words = (_cell(turned.before.words), _cell(turned.after.words) + mark, "")
        yield name, _cell(turned.question), *words
    for pool in one.pools:
        if pool.before != pool.after:
            share = f"{signed(pool.delta)} {_percent(pool)}".rstrip()
            mark = " :x:" if pool.is_worse else ""
            share = share + mark if pool.is_comparable else "not comparable"
            yield name, _cell(pool.pool), _size(pool.before), _size(pool.after), share
    for limit in one.limits:
        yield name, _cell(limit.name), _size(limit.before), _size(limit.after), ""


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cell(text: str) -> str:
    from qnnmem.report.doctor_markdown import escape

    return escape(shorten(text, 200))


def render_json(found: ResultComparison) -> str:
    """One JSON object."""
    return write_json(as_values(found))


def as_values(found: ResultComparison) -> dict[str, Any]:
    """The object behind the JSON text."""
    return {
        "schema": SCHEMA,
        "worse": found.is_worse,
        "changed": found.is_changed,
        "verdict": verdict(found),
        "kind": found.kind,
        "subjects": [subject_values(one) for one in found.subjects],
        "appeared": list(found.appeared),
        "vanished": list(found.vanished),
        "failing": list(found.failing),
    }


def subject_values(one: ComparedSubject) -> dict[str, Any]:
    """One file before and after."""
    return {
        "before": one.before,
        "after": one.after,
        "worse": one.is_worse,
        "pools": [
            {
                "pool": pool.pool,
                "before_bytes": pool.before,
                "after_bytes": pool.after,
                "change_bytes": pool.delta,
                "worse": pool.is_worse,
                "bound": pool.bound or None,
                "not_comparable": not_comparable(pool) or None,
            }
            for pool in one.pools
        ],
        "verdicts": [
            {
                "question": turned.question,
                "before": turned.before.words,
                "after": turned.after.words,
                "worse": turned.is_worse,
            }
            for turned in one.verdicts
        ],
        "tensors": [
            {
                "name": tensor.name,
                "change": tensor.change,
                "before_bytes": tensor.before,
                "after_bytes": tensor.after,
                "pool_before": tensor.pool_before or None,
                "pool_after": tensor.pool_after or None,
            }
            for tensor in one.tensors
        ],
        "limits": [
            {"name": limit.name, "before_bytes": limit.before, "after_bytes": limit.after}
            for limit in one.limits
        ],
        "settings": [
            {"name": changed.name, "before": changed.before, "after": changed.after}
            for changed in one.settings
        ],
    }
