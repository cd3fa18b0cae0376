"""Buffers that fit whatever the others do, compiled; importing this module imports numba."""

from __future__ import annotations

import numpy as np
from numba import njit
from numba.extending import register_jitable

from qnnmem.plan.compiled.arrays import BufferArrays, Ints
from qnnmem.plan.compiled.kept import KEPT

# A list can be made so that each pass sets aside a single buffer.
_MOST_LOOKS = 4_000_000


@njit(cache=KEPT)
def eliminate(buffers: BufferArrays, limit: Ints, order: Ints) -> int:
    """How many buffers fit wherever the others are; `order` is when they may be set aside.

    A neighbour of size s keeps a buffer of size z away from at most `s + z - 1` consecutive
    offsets, hence from at most `(s + z - 1 + a - 1) / a` multiples of the alignment a. If all
    neighbours together cannot block every legal multiple up to `limit`, the buffer can be placed
    after them, whatever they do. Removing it makes room for the same argument about the others.
    """
    n = len(buffers.lo)
    born = np.zeros((2, len(buffers.first)), np.int64)  # Fenwick trees: sizes, numbers of buffers
    dead = np.zeros((2, len(buffers.first)), np.int64)
    for u in range(n):
        _count(buffers, u, 1, born, dead)
    gone = np.zeros(n, np.bool_)
    removed, before, looks = 0, -1, 0
    while removed > before and looks < _MOST_LOOKS:  # stopping early only leaves more to search
        before = removed
        looks += n
        for u in range(n):
            if not gone[u] and _always_fits(buffers, u, limit[u], born, dead):
                gone[u] = True
                order[removed] = u
                removed += 1
                _count(buffers, u, -1, born, dead)
    return removed


@register_jitable
def _always_fits(buffers: BufferArrays, u: int, limit: int, born: Ints, dead: Ints) -> bool:
    size, align = buffers.size[u], buffers.align[u]
    last, first = buffers.hi[u] - 1, buffers.lo[u]
    total = _sum(born[0], last) - _sum(dead[0], first) - size
    count = _sum(born[1], last) - _sum(dead[1], first) - 1
    if size + align > (1 << 61) // (count + 1):  # would overflow below
        return False
    blocked = (total + count * (size + align - 2)) // align
    return bool(limit // align + 1 > blocked)


@register_jitable
def _count(buffers: BufferArrays, u: int, sign: int, born: Ints, dead: Ints) -> None:
    """Takes a buffer into the count, or out of it again."""
    _add(born[0], buffers.lo[u], sign * buffers.size[u])
    _add(born[1], buffers.lo[u], sign)
    _add(dead[0], buffers.hi[u], sign * buffers.size[u])
    _add(dead[1], buffers.hi[u], sign)


@register_jitable
def _add(tree: Ints, at: int, value: int) -> None:
    # A Fenwick tree: prefix sums under point updates, both in O(log n).
    k = at + 1
    while k <= len(tree):
        tree[k - 1] += value
        k += k & -k


@register_jitable
def _sum(tree: Ints, to: int) -> int:
    total, k = 0, to + 1
    while k > 0:
        total += tree[k - 1]
        k -= k & -k
    return total
