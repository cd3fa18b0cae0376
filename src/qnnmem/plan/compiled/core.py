"""Arrays made ready for a search, compiled; importing this module imports numba."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numba.extending import intrinsic, register_jitable

from qnnmem.plan.compiled.arrays import (
    Boxes,
    BufferArrays,
    Core,
    Cover,
    Ints,
    Rests,
    Skyline,
    SplitBounds,
    State,
    Tables,
    Workspace,
)
from qnnmem.plan.compiled.kept import KEPT


def prepare(buffers: BufferArrays, limit: Ints, twin: Ints, pairs: int) -> Core:
    """The core of a search: `limit` and `twin` as in `Rests` and `Core`, `pairs` that overlap."""
    start, near = np.zeros(len(limit) + 1, np.int64), np.empty(2 * pairs, np.int64)
    cap = np.zeros(len(buffers.first) - 1, np.int64)
    _list_neighbours(buffers.lo, buffers.hi, start, near)
    _raise_caps(buffers, limit, cap)
    rests = Rests(buffers.align, limit, near, start)
    return Core(Boxes(buffers.lo, buffers.hi, buffers.size), rests, buffers.first, cap, twin)


# Whatever compiled code returns but numbers is made by Python: a signal that comes then crashes it.
@njit(cache=KEPT)
def _raise_caps(buffers: BufferArrays, limit: Ints, cap: Ints) -> None:
    """Fills in the caps of `Core`."""
    for u in range(len(limit)):
        for s in range(buffers.lo[u], buffers.hi[u]):
            cap[s] = max(cap[s], limit[u] + buffers.size[u])


@njit(cache=KEPT)
def _list_neighbours(lo: Ints, hi: Ints, start: Ints, near: Ints) -> None:
    """Fills in the neighbours: those of u are near[start[u] : start[u + 1]]."""
    n = len(lo)
    for i in range(n):
        j = i + 1
        while j < n and lo[j] < hi[i]:
            start[i + 1] += 1
            start[j + 1] += 1
            j += 1
    for i in range(n):
        start[i + 1] += start[i]
    fill = start[:n].copy()
    for i in range(n):
        j = i + 1
        while j < n and lo[j] < hi[i]:
            near[fill[i]], near[fill[j]] = j, i
            fill[i] += 1
            fill[j] += 1
            j += 1


def _uncounted_view(typing_context: Any, array: Any) -> Any:
    """A view that counts no references; the caller of the search owns the array.

    Counting the references of some twenty arrays in every step would cost a third of the time.
    """
    del typing_context

    def view(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        del signature
        made = context.make_array(array)(context, builder, arguments[0])
        made.meminfo = made.meminfo.type(None)
        return made._getvalue()

    return array(array), view


_borrow: Any = intrinsic(_uncounted_view)


@register_jitable
def borrow_core(core: Core) -> Core:
    """The same arrays, without counting references."""
    b, r = core.boxes, core.rests
    return Core(
        Boxes(_borrow(b.lo), _borrow(b.hi), _borrow(b.size)),
        Rests(_borrow(r.align), _borrow(r.limit), _borrow(r.near), _borrow(r.start)),
        _borrow(core.first),
        _borrow(core.cap),
        _borrow(core.twin),
    )


@register_jitable
def borrow_workspace(space: Workspace) -> Workspace:
    """The same arrays, without counting references."""
    s, k, c, p = space.state, space.sky, space.cover, space.parts
    return Workspace(
        State(_borrow(s.least), _borrow(s.placed), _borrow(s.total), _borrow(s.weight)),
        Skyline(_borrow(k.floor), _borrow(k.second), _borrow(k.height)),
        Cover(_borrow(c.options), _borrow(c.must), _borrow(c.reach), _borrow(c.viable)),
        SplitBounds(_borrow(p.change), _borrow(p.bounds)),
        _borrow(space.order),
    )


@register_jitable
def new_tables(count: int, columns: int) -> Tables:
    """Stacks that are long enough for most searches; a choice point takes `columns` numbers."""
    return Tables(
        np.empty((64 + 4 * count, 2), np.int64),
        np.empty((64 + 2 * count, 4), np.int64),
        np.empty((64 + 2 * count, columns), np.int64),
        np.empty(64 + 8 * count, np.int64),
    )


@register_jitable
def longer(table: Ints, needed: int) -> Ints:
    """The table, or a copy at least twice as long where it has fewer than `needed` rows."""
    if needed <= len(table):
        return table
    larger = np.empty((len(table) + needed, table.shape[1]), np.int64)
    for k in range(len(table)):  # a loop compiles faster than an assignment of slices
        for column in range(table.shape[1]):
            larger[k, column] = table[k, column]
    return larger


@register_jitable
def longer_line(line: Ints, needed: int) -> Ints:
    """As `longer`, for a plain list."""
    if needed <= len(line):
        return line
    larger = np.empty(len(line) + needed, np.int64)
    for k in range(len(line)):
        larger[k] = line[k]
    return larger
