"""Greedy placement and elimination, compiled; importing this module imports numba.

Works on int64 arrays of buffers sorted by `lo`, in sections and units as in plan/instance.py. Knows
no clock: effort is counted in elementary work, the same on every machine.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]
Marks = NDArray[np.uint8]


@njit(cache=True)
def round_up_units(value: int, align: int) -> int:
    """Smallest multiple of `align` that is not below `value`."""
    return (value + align - 1) // align * align


@njit(cache=True, nogil=True)  # so that progress is shown meanwhile
def place(
    order: Ints,
    lo: Ints,
    hi: Ints,
    size: Ints,
    align: Ints,
    first: Ints,
    offsets: Ints,
    best_fit: bool,
) -> int:
    """Places the buffers of `order` one by one around those whose offset is already >= 0.

    Two things keep this near the number of overlapping pairs. The placed buffers that share a
    section come from an interval tree: `latest` holds for each block of buffers, and each subtree
    of blocks, the largest `hi` placed there. And they come out sorted by offset without sorting:
    most placed buffers carry a rank, marking ranks and reading the marks in order sorts them;
    only the few placed since the ranks were last renewed are really sorted.
    """
    n = len(lo)
    latest = _interval_tree(hi, offsets)
    rank = np.full(n, -1, np.int64)
    by_rank = np.empty(n, np.int64)
    marks = np.zeros(8 * (n // 8 + 1), np.uint8)
    near = np.empty(n, np.int64)
    recent = np.empty(n, np.int64)
    ranked, unranked, work = 0, n, 0
    for i in order:
        if offsets[i] >= 0:
            continue
        if unranked > 32 + ranked // 12:
            ranked = _renew_ranks(offsets, rank, by_rank)
            unranked = 0
            work += 2 * n
        late, seen = _mark_overlapping(
            lo[i], first[hi[i]], hi, offsets, latest, rank, marks, recent
        )
        fresh = recent[:late][np.argsort(offsets[recent[:late]])]
        k = _read_marks(offsets, fresh, ranked, marks, by_rank, near)
        offsets[i] = _lowest_gap(near[:k], offsets, size, size[i], align[i], best_fit)
        work += 64 + seen + ranked // 8 + 2 * k
        unranked += 1
        _note_placed(i, hi[i], latest)
    return work


_BLOCK = 16


@njit(cache=True)
def _interval_tree(hi: Ints, offsets: Ints) -> Ints:
    leaves = 1
    while leaves * _BLOCK < len(hi):
        leaves *= 2
    latest = np.zeros(2 * leaves, np.int64)
    for u in range(len(hi)):
        if offsets[u] >= 0:
            _note_placed(u, hi[u], latest)
    return latest


@njit(cache=True)
def _note_placed(u: int, hi: int, latest: Ints) -> None:
    node = len(latest) // 2 + u // _BLOCK
    while node > 0 and latest[node] < hi:
        latest[node] = hi
        node //= 2


@njit(cache=True)
def _renew_ranks(offsets: Ints, rank: Ints, by_rank: Ints) -> int:
    ranked = 0
    for u in range(len(offsets)):
        if offsets[u] >= 0:
            by_rank[ranked] = u
            ranked += 1
    by_rank[:ranked] = by_rank[:ranked][np.argsort(offsets[by_rank[:ranked]])]
    for r in range(ranked):
        rank[by_rank[r]] = r
    return ranked


@njit(cache=True)
def _mark_overlapping(
    lo: int,
    bound: int,
    hi: Ints,
    offsets: Ints,
    latest: Ints,
    rank: Ints,
    marks: Marks,
    recent: Ints,
) -> tuple[int, int]:
    """Marks placed buffers before `bound` that end after `lo`; lists those without a rank."""
    leaves = len(latest) // 2
    stack = np.empty(64, np.int64)
    stack[0] = 1
    depth, late, seen = 1, 0, 0
    while depth > 0:
        depth -= 1
        node = stack[depth]
        if latest[node] <= lo:
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
            if hi[u] > lo and offsets[u] >= 0:
                if rank[u] >= 0:
                    marks[rank[u]] = 1
                else:
                    recent[late] = u
                    late += 1
    return late, seen


@njit(cache=True)
def _read_marks(
    offsets: Ints, fresh: Ints, ranked: int, marks: Marks, by_rank: Ints, near: Ints
) -> int:
    """Writes marked and fresh buffers to `near` by offset, clears the marks, returns the count."""
    words = marks.view(np.uint64)
    k = q = 0
    for w in range((ranked + 7) // 8):
        if words[w] == 0:
            continue
        for r in range(8 * w, 8 * w + 8):
            if marks[r] == 0:
                continue
            u = by_rank[r]
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


@njit(cache=True)
def _lowest_gap(
    near: Ints, offsets: Ints, size: Ints, need: int, align: int, best_fit: bool
) -> int:
    """Lowest offset, or with `best_fit` the one in the tightest gap, that keeps clear of `near`."""
    top, chosen, tightest = 0, -1, -1
    for u in near:
        if offsets[u] > top:
            offset = round_up_units(top, align)
            gap = offsets[u] - top
            if offsets[u] - offset >= need and (chosen < 0 or gap < tightest):
                chosen, tightest = offset, gap
                if not best_fit:
                    break
        top = max(top, offsets[u] + size[u])
    return chosen if chosen >= 0 else round_up_units(top, align)


@njit(cache=True)
def eliminate(lo: Ints, hi: Ints, size: Ints, align: Ints, limit: Ints, sections: int) -> Ints:
    """Buffers that fit wherever the others are, in the order in which they may be set aside.

    A neighbour of size s keeps a buffer of size z away from at most `s + z - 1` consecutive
    offsets, hence from at most `(s + z - 1 + a - 1) / a` multiples of the alignment a. If all
    neighbours together cannot block every legal multiple up to `limit`, the buffer can be placed
    after them, whatever they do. Removing it makes room for the same argument about the others.
    """
    n = len(lo)
    born_size, born_count = np.zeros(sections + 1, np.int64), np.zeros(sections + 1, np.int64)
    dead_size, dead_count = np.zeros(sections + 1, np.int64), np.zeros(sections + 1, np.int64)
    for u in range(n):
        _add(born_size, lo[u], size[u])
        _add(born_count, lo[u], 1)
        _add(dead_size, hi[u], size[u])
        _add(dead_count, hi[u], 1)
    gone = np.zeros(n, np.bool_)
    order = np.empty(n, np.int64)
    removed, before = 0, -1
    while removed > before:
        before = removed
        for u in range(n):
            if gone[u]:
                continue
            total = _sum(born_size, hi[u] - 1) - _sum(dead_size, lo[u]) - size[u]
            count = _sum(born_count, hi[u] - 1) - _sum(dead_count, lo[u]) - 1
            if size[u] + align[u] > (1 << 61) // (count + 1):  # would overflow below
                continue
            blocked = (total + count * (size[u] + align[u] - 2)) // align[u]
            if limit[u] // align[u] + 1 <= blocked:
                continue
            gone[u] = True
            order[removed] = u
            removed += 1
            _add(born_size, lo[u], -size[u])
            _add(born_count, lo[u], -1)
            _add(dead_size, hi[u], -size[u])
            _add(dead_count, hi[u], -1)
    return order[:removed]


@njit(cache=True)
def _add(tree: Ints, at: int, value: int) -> None:
    # A Fenwick tree: prefix sums under point updates, both in O(log n).
    k = at + 1
    while k <= len(tree):
        tree[k - 1] += value
        k += k & -k


@njit(cache=True)
def _sum(tree: Ints, to: int) -> int:
    total, k = 0, to + 1
    while k > 0:
        total += tree[k - 1]
        k -= k & -k
    return total
