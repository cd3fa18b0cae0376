"""Render the difference between two results as text and Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from qnnmem.gate.comparison import limit_words, percent, turned_words
from qnnmem.report.table import Column, escape, markdown_table, text_table, thousands
from qnnmem.results.diff import DiffResult, PoolChange, SubjectChange, TensorChange
from qnnmem.text import counted, printable, shorten

_TENSORS = 8  # tensors of each file in the short form
_CHANGED = ("appeared", "grew", "vanished", "shrank", "moved")
_POOLS = (
    Column("pool", "<", 16),
    *(Column(title, ">", 16, gap=0) for title in ("before", "after", "change")),
    Column("", "<", 9),
    Column("", "<"),
)
_CHANGES = (
    *(Column(title, "<") for title in ("file", "what")),
    *(Column(title) for title in ("before", "after", "change")),
)
_TENSOR_CHANGES = (Column("tensor", "<"), Column("change", "<"), Column("bytes"))


def render_text(result: DiffResult, *, verbose: bool = False) -> str:
    """Render the verdict, then each file's changes; `verbose` adds all numbers and tensors."""
    lines = [result.verdict]
    shown = [s for s in result.subjects if verbose or s.is_changed or s.settings]
    for subject in shown:
        lines += ["", *_subject_lines(subject, verbose)]
    for title, names in (("new", result.appeared), ("gone", result.vanished)):
        lines += ["", *(f"{title}: {shorten(name, 200)}" for name in names)] if names else []
    same = len(result.subjects) - len(shown)
    if same and shown:
        lines += ["", f"no change: {counted(same, 'other')}"]
    return "\n".join(lines) + "\n"


def _subject_lines(subject: SubjectChange, verbose: bool) -> Iterator[str]:
    if subject.before == subject.after:
        yield shorten(subject.after, 200)
    else:
        yield f"before  {shorten(subject.before, 200)}"
        yield f"after   {shorten(subject.after, 200)}"
    pools = [pool for pool in subject.pools if verbose or pool.before_bytes != pool.after_bytes]
    if pools:
        yield ""
        yield from pool_lines(pools)
    if subject.verdicts:
        yield ""
        yield from map(turned_words, subject.verdicts)
    if subject.limits:
        yield ""
        yield from map(limit_words, subject.limits)
    if subject.tensors:
        yield ""
        yield from _tensor_lines(subject.tensors, verbose)
    for changed in subject.settings:
        words = f"{shorten(changed.before)}, now {shorten(changed.after)}"
        yield f"note: {changed.name} differs: {words}"


def pool_lines(pools: Sequence[PoolChange]) -> Iterator[str]:
    """Yield a table of the pools before and after, then notes about incomparable pools."""
    yield from text_table(_POOLS, map(_pool_cells, pools))
    yield from (pool.not_comparable for pool in pools if pool.not_comparable)


def _pool_cells(pool: PoolChange) -> Sequence[str]:
    return (
        shorten(pool.pool, 40),
        *map(thousands, (pool.before_bytes, pool.after_bytes)),
        signed(pool.change_bytes),
        percent(pool) if pool.change_bytes else "",
        "worse" if pool.worse else "",
    )


def _tensor_lines(tensors: Sequence[TensorChange], verbose: bool) -> Iterator[str]:
    counts = {word: sum(tensor.change == word for tensor in tensors) for word in _CHANGED}
    words = ", ".join(f"{number:,} {word}" for word, number in counts.items() if number)
    yield f"tensors: {words}"
    shown = tensors if verbose else tensors[:_TENSORS]
    for tensor in shown:
        name = f"{shorten(tensor.name)} ({_pool_of(tensor)})"
        yield f"{signed(tensor.change_bytes):>16}  {tensor.change:<9} {name}"
    if len(tensors) > len(shown):
        yield f"{'':16}  {len(tensors) - len(shown):,} more with -v"


def _pool_of(tensor: TensorChange) -> str:
    pools = [pool for pool in (tensor.pool_before, tensor.pool_after) if pool]
    return printable(" to ".join(dict.fromkeys(pools)))


def signed(delta: int | None) -> str:
    """Return a difference with its sign; a dash for None."""
    return "-" if delta is None else f"{delta:+,}" if delta else "0"


def render_markdown(result: DiffResult) -> str:
    """Render the verdict and a table of changes, for a ticket or a review comment."""
    lines = [f"**{_cell(result.verdict)}**"]
    changed = [subject for subject in result.subjects if subject.is_changed]
    if changed:
        rows = (cells for subject in changed for cells in _rows(subject))
        lines += ["", *markdown_table(_CHANGES, rows)]
    for title, names in (("new", result.appeared), ("gone", result.vanished)):
        lines += ["", f"{title}: {', '.join(map(_cell, names))}"] if names else []
    for subject in changed:
        if subject.tensors:
            tensors = (
                (_cell(tensor.name), tensor.change, signed(tensor.change_bytes))
                for tensor in subject.tensors[:100]
            )
            lines += ["", f"<details><summary>Tensors of {_cell(subject.after)}</summary>", ""]
            lines += [*markdown_table(_TENSOR_CHANGES, tensors), "", "</details>"]
    return "\n".join(lines) + "\n"


def _rows(subject: SubjectChange) -> Iterator[Sequence[str]]:
    name = _cell(subject.after)
    for turned in subject.verdicts:
        mark = " :x:" if turned.worse else ""
        yield name, _cell(turned.question), _cell(turned.before), _cell(turned.after) + mark, ""
    for pool in subject.pools:
        if pool.before_bytes != pool.after_bytes:
            mark = " :x:" if pool.worse else ""
            change = f"{signed(pool.change_bytes)} {percent(pool)}".rstrip() + mark
            sizes = map(thousands, (pool.before_bytes, pool.after_bytes))
            change = "not comparable" if pool.not_comparable else change
            yield name, _cell(pool.pool), *sizes, change
    for limit in subject.limits:
        sizes = map(thousands, (limit.before_bytes, limit.after_bytes))
        yield name, _cell(limit.name), *sizes, ""


def _cell(text: str) -> str:
    return escape(shorten(text, 200))
