"""Greedy placement, compiled; importing this module imports numba.

Two things keep it near the number of overlapping pairs. The placed buffers that share a section
come from an interval tree: `latest` holds for each block of buffers, and each subtree of blocks,
the largest `hi` placed there. And they come out sorted by offset without sorting: most placed
buffers carry a rank, marking ranks and reading the marks in order sorts them; only the few placed
since the ranks were last renewed are really sorted.

Knows no clock: effort is counted in elementary work, the same on every machine.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit
from numba.extending import register_jitable

from qnnmem.plan.compiled.arrays import BufferArrays, Ints, Marks
from qnnmem.plan.compiled.kept import KEPT

_BLOCK = 16


class _Placed(NamedTuple):
    """The buffers placed so far, by section and by offset."""

    latest: Ints
    rank: Ints  # by offset; -1 for what was placed since ranks were renewed
    by_rank: Ints
    marks: Marks
    recent: Ints  # overlapping buffers without a rank
    near: Ints  # all overlapping buffers by offset


@register_jitable
def round_up_units(value: int, align: int) -> int:
    """Smallest multiple of `align` that is not below `value`."""
    return (value + align - 1) // align * align


@njit(cache=KEPT, nogil=True)  # so that progress is shown meanwhile
def place(
    order: Ints, buffers: BufferArrays, offsets: Ints, best_fit: bool, work_limit: int
) -> tuple[int, int]:
    """Places the buffers of `order` one by one around those whose offset is already >= 0.

    Returns how many it came to before the limit, at least one, and the work.
    """
    n = len(buffers.lo)
    placed = _start(buffers, offsets)
    ranked, unranked, work = 0, n, 0
    for turn in range(len(order)):
        i = order[turn]
        if offsets[i] >= 0:
            continue
        if work > work_limit:
            return turn, work
        if unranked > 32 + ranked // 12:
            ranked = _renew_ranks(offsets, placed)
            unranked = 0
            work += 2 * n
        late, seen = _mark_overlapping(buffers, i, offsets, placed)
        recent = placed.recent[:late]
        fresh = recent[np.argsort(offsets[recent])]
        k = _read_marks(offsets, fresh, ranked, placed)
        offsets[i] = _lowest_gap(placed.near[:k], offsets, buffers, i, best_fit)
        work += 64 + seen + ranked // 8 + 2 * k
        unranked += 1
        _note_placed(i, buffers.hi[i], placed.latest)
    return len(order), work


@register_jitable
def _start(buffers: BufferArrays, offsets: Ints) -> _Placed:
    n = len(buffers.lo)
    leaves = 1
    while leaves * _BLOCK < n:
        leaves *= 2
    latest = np.zeros(2 * leaves, np.int64)
    for u in range(n):
        if offsets[u] >= 0:
            _note_placed(u, buffers.hi[u], latest)
    return _Placed(
        latest,
        np.full(n, -1, np.int64),
        np.empty(n, np.int64),
        np.zeros(8 * (n // 8 + 1), np.uint8),
        np.empty(n, np.int64),
        np.empty(n, np.int64),
    )


@register_jitable
def _note_placed(u: int, hi: int, latest: Ints) -> None:
    node = len(latest) // 2 + u // _BLOCK
    while node > 0 and latest[node] < hi:
        latest[node] = hi
        node //= 2


@register_jitable
def _renew_ranks(offsets: Ints, placed: _Placed) -> int:
    by_rank = placed.by_rank
    ranked = 0
    for u in range(len(offsets)):
        if offsets[u] >= 0:
            by_rank[ranked] = u
            ranked += 1
    by_rank[:ranked] = by_rank[:ranked][np.argsort(offsets[by_rank[:ranked]])]
    for r in range(ranked):
        placed.rank[by_rank[r]] = r
    return ranked


@register_jitable
def _mark_overlapping(
    buffers: BufferArrays, i: int, offsets: Ints, placed: _Placed
) -> tuple[int, int]:
    """Marks placed buffers that share a section with `i`; lists those without a rank."""
    lo, bound = buffers.lo[i], buffers.first[buffers.hi[i]]
    leaves = len(placed.latest) // 2
    stack = np.empty(64, np.int64)
    stack[0] = 1
    depth, late, seen = 1, 0, 0
    while depth > 0:
        depth -= 1
        node = stack[depth]
        if placed.latest[node] <= lo:
            continue
        if node < leaves:
            left = node
            while left < leaves:
                left *= 2
            if (left - leaves) * _BLOCK < bound:
                stack[depth] = 2 * node + 1
                stack[depth + 1] = 2 * node
                depth += 2
            continue
        begin = (node - leaves) * _BLOCK
        seen += _BLOCK
        for u in range(begin, min(begin + _BLOCK, bound)):
            if buffers.hi[u] > lo and offsets[u] >= 0:
                if placed.rank[u] >= 0:
                    placed.marks[placed.rank[u]] = 1
                else:
                    placed.recent[late] = u
                    late += 1
    return late, seen


@register_jitable
def _read_marks(offsets: Ints, fresh: Ints, ranked: int, placed: _Placed) -> int:
    """Writes marked and fresh buffers to `near` by offset, clears the marks, returns the count."""
    marks, near = placed.marks, placed.near
    words = marks.view(np.uint64)
    k = q = 0
    for w in range((ranked + 7) // 8):
        if words[w] == 0:
            continue
        for r in range(8 * w, 8 * w + 8):
            if marks[r] == 0:
                continue
            u = placed.by_rank[r]
            while q < len(fresh) and offsets[fresh[q]] < offsets[u]:
                near[k] = fresh[q]
                k += 1
                q += 1
            near[k] = u
            k += 1
        words[w] = 0
    for r in range(q, len(fresh)):
        near[k] = fresh[r]
        k += 1
    return k


@register_jitable
def _lowest_gap(near: Ints, offsets: Ints, buffers: BufferArrays, i: int, best_fit: bool) -> int:
    """Lowest offset, or with `best_fit` the one in the tightest gap, that keeps clear of `near`."""
    need, align = buffers.size[i], buffers.align[i]
    top, chosen, tightest = 0, -1, -1
    for u in near:
        if offsets[u] > top:
            offset = round_up_units(top, align)
            gap = offsets[u] - top
            if offsets[u] - offset >= need and (chosen < 0 or gap < tightest):
                chosen, tightest = offset, gap
                if not best_fit:
                    break
        top = max(top, offsets[u] + buffers.size[u])
    return chosen if chosen >= 0 else round_up_units(top, align)
