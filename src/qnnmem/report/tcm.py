"""Render what the TCM pool must hold: a verdict, and a table if the pool is too small."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from qnnmem.results.plan import TcmAnswer, too_many
from qnnmem.text import counted

if TYPE_CHECKING:
    from qnnmem.lpai.tcm import TcmAccount

_MAX_ROWS = 64
_MAX_CHANGES = 6


def verdict_words(answer: TcmAnswer) -> str:
    """Describe whether the model fits TCM: spare or missing bytes, and too many allocations."""
    spare = answer.spare
    over = f", {counted(-spare, 'byte')} over the limit" if spare < 0 else ""
    if answer.is_crowded:
        return f"does not fit{over}: {too_many(answer.buffers, answer.max_buffers)}"
    words = f"does not fit{over}" if over else f"fits with {counted(spare, 'byte')} to spare"
    return f"{words} ({counted(answer.buffers, 'allocation')})"


def fatal_lines(answer: TcmAnswer | None) -> Iterator[str]:
    """Yield a line if running from TCM would crash the device."""
    if answer is not None and answer.is_crowded:
        crowd = too_many(answer.buffers, answer.max_buffers)
        yield f"does not fit TCM (aDSP direct mode): {crowd}"


def together(
    shared: TcmAnswer | None, alone: Sequence[TcmAnswer | None]
) -> tuple[str, TcmAnswer] | None:
    """Return a title and the graphs' common verdict; None if fewer than 2 graphs have a verdict."""
    count = sum(answer is not None for answer in alone)
    return None if shared is None or count < 2 else (f"all {count} graphs", shared)


def shortage_lines(account: TcmAccount) -> Iterator[str]:
    """Yield the shortage, the largest users, and changes that make the model fit."""
    verdict = account.verdict
    if verdict.missing:
        yield (
            f"TCM: {verdict.need:,} bytes are needed, {verdict.missing:,} over the pool's "
            f"{verdict.limit.value:,}"
        )
    else:
        yield (
            f"TCM: {verdict.buffers} allocations are needed, but the pool serves only "
            f"{verdict.max_buffers.value}"
        )
    yield f"  {'bytes':>12} {'padding':>8} {'in total':>12}  what"
    for row in verdict.rows[:_MAX_ROWS]:
        mark = "" if row.fits else "  <- does not fit"
        yield f"  {row.exact:>12,} {row.padding:>8,} {row.running_total:>12,}  {row.what}{mark}"
    if len(verdict.rows) > _MAX_ROWS:
        yield f"  … and {len(verdict.rows) - _MAX_ROWS} more"
    yield from _changes(account)


def _changes(account: TcmAccount) -> Iterator[str]:
    if account.changes:
        yield "  possible changes:"
    for change in account.changes[:_MAX_CHANGES]:
        enough = "enough" if change.sufficient else "not enough alone"
        yield f"  - {change.what}: saves {counted(change.saves, 'byte')}, {enough}"
    yield f"  {account.advice}"


def shared_pools(graphs: Sequence[tuple[int, int]]) -> Iterator[str]:
    """Yield the scratch and the persistent memory that several graphs need together.

    `graphs` holds the scratch and persistent size of each graph. The application decides which
    graphs execute at the same time.
    """
    sizes = [scratch for scratch, _ in graphs]
    yield (
        f"  scratch    {counted(max(sizes), 'byte')} if only one graph executes at a time, "
        f"{sum(sizes):,} if all execute at once"
    )
    yield f"  persistent {counted(sum(kept for _, kept in graphs), 'byte')} for all graphs"
