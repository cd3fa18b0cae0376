"""Exact search for offsets below a capacity, compiled; importing this module imports numba.

    least[u] = least offset buffer u can still take, given what is placed
    floor[s] = lowest least[u] among the unplaced buffers of section s
    pick a section s whose floor no neighbouring section undercuts; then in any packing either
        one of the buffers with least[u] == floor[s] sits exactly there: try each, or
        none does: raise everything in s to the next height at which something could rest
    fail where the unplaced buffers of a section, stacked by least offset, pass the capacity

Why this is complete: push every buffer of a packing down until it meets its least offset or
another buffer. On a run of sections with equal floor f and higher floors around it, buffers with
least offset f lie wholly inside the run, and no unplaced buffer there can lie below f, so whichever
is placed on f has everything else of its sections above it. What remains depends only on the
unplaced buffers and their least offsets, so failed states are remembered; and buffers that no
unplaced buffer links are separate problems, so a failure in one jumps over all choices made in
the others.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numba.extending import register_jitable

from qnnmem.plan.compiled.arrays import (
    Boxes,
    Core,
    Ints,
    Rests,
    SplitBounds,
    State,
    Strategy,
    Tables,
    Workspace,
)
from qnnmem.plan.compiled.core import (
    borrow_core,
    borrow_workspace,
    longer,
    longer_line,
    new_tables,
)
from qnnmem.plan.compiled.kept import KEPT
from qnnmem.plan.compiled.memo import hash_state, is_known, remember
from qnnmem.plan.compiled.pits import choose, list_choices, stack, too_high
from qnnmem.plan.compiled.place import round_up_units

SOLVED, EXHAUSTED, CUT = 1, 0, -1

# Columns of a choice point.
_A, _B, _PARENT, _SECTION, _FLOOR, _MUST, _TO, _NEXT = range(8)
_TRAIL, _AGENDA, _TOP, _KEY, _CHECK = range(8, 13)
_COLUMNS = 13

# Where a search stands in its tables: length of the trail, first component to solve, length of the
# agenda, number of choice points; and the work done, in units of about four nanoseconds.
_MARKS, _HEAD, _LENGTH, _DEPTH, _WORK = range(5)


@njit(cache=KEPT, nogil=True)  # so that progress is shown meanwhile
def search(
    core: Core, strategy: Strategy, space: Workspace, memo: Ints, work_limit: int
) -> tuple[int, int]:
    """How it ended and the work: SOLVED, EXHAUSTED (impossible) or CUT (`work_limit` reached).

    Offsets are in `space.state.least`. The weights in it (conflicts met by each section) and `memo`
    (failed states) help the next search for the same capacity.
    """
    core, space = borrow_core(core), borrow_workspace(space)
    boxes, first, state, parts = core.boxes, core.first, space.state, space.parts
    sections, count = len(core.cap), len(core.twin)
    tables = new_tables(count, _COLUMNS)
    at = np.zeros(5, np.int64)
    at[_HEAD] = -1
    a, b, parent = 0, sections, -1  # the component that has just changed and must be split
    while True:
        if _is_full(tables, at, count, sections):
            tables = _with_room(tables, at, count, sections)
        found = _split(boxes, first, state, parts, a, b)
        _add_components(parts.bounds, found, tables.agenda, at, parent)
        if at[_HEAD] < 0:
            return SOLVED, at[_WORK]
        if at[_WORK] > work_limit:
            return CUT, at[_WORK]
        a, b, parent = _take_component(tables.agenda, at)
        unplaced = space.order[: _gather(state, space.order, first[a], first[b])]
        last = _open(core, strategy, space, memo, tables, at, unplaced, (a, b, parent))
        last = _take_next(core, state, memo, tables, at, last)
        if last < 0:
            return EXHAUSTED, at[_WORK]
        a, b, parent = tables.frames[last, _A], tables.frames[last, _B], last


@register_jitable(forceinline=True)
def _is_full(tables: Tables, at: Ints, count: int, sections: int) -> bool:
    """Whether what the next choice may add could pass the end of a table."""
    depth = at[_DEPTH]
    used = tables.frames[depth - 1, _TO] if depth > 0 else 0
    return bool(
        at[_MARKS] + count + 1 > len(tables.trail)
        or at[_LENGTH] + sections + 1 > len(tables.agenda)
        or depth + 1 > len(tables.frames)
        or used + count > len(tables.choice)
    )


@register_jitable
def _with_room(tables: Tables, at: Ints, count: int, sections: int) -> Tables:
    """The tables, long enough for whatever the next choice adds."""
    depth = at[_DEPTH]
    used = tables.frames[depth - 1, _TO] if depth > 0 else 0
    return Tables(
        longer(tables.trail, at[_MARKS] + count + 1),
        longer(tables.agenda, at[_LENGTH] + sections + 1),
        longer(tables.frames, depth + 1),
        longer_line(tables.choice, used + count),
    )


@register_jitable
def _split(boxes: Boxes, first: Ints, state: State, parts: SplitBounds, a: int, b: int) -> int:
    """Lists the components of the unplaced buffers in sections a..b, least conflicted first."""
    lo, hi, change, bounds = boxes.lo, boxes.hi, parts.change, parts.bounds
    placed, weight = state.placed, state.weight
    change[a : b + 2] = 0
    for u in range(first[a], first[b]):
        if not placed[u]:
            change[lo[u], 0] += 1
            change[hi[u], 0] -= 1
            change[lo[u] + 1, 1] += 1
            change[hi[u], 1] -= 1
    found, alive, links, start = 0, 0, 0, -1
    for s in range(a, b + 1):
        alive += change[s, 0]
        links += change[s, 1]
        if start >= 0 and links == 0:
            heavy = weight[start:s].max()
            k = found
            while k > 0 and weight[bounds[k - 1, 0] : bounds[k - 1, 1]].max() > heavy:
                bounds[k, 0], bounds[k, 1] = bounds[k - 1, 0], bounds[k - 1, 1]
                k -= 1
            bounds[k, 0], bounds[k, 1] = start, s
            found += 1
            start = -1
        if start < 0 and alive > 0:
            start = s
    return found


@register_jitable
def _add_components(bounds: Ints, found: int, agenda: Ints, at: Ints, parent: int) -> None:
    head, length = at[_HEAD], at[_LENGTH]
    for k in range(found):
        agenda[length, 0], agenda[length, 1] = bounds[k, 0], bounds[k, 1]
        agenda[length, 2], agenda[length, 3] = parent, head
        head, length = length, length + 1
    at[_HEAD], at[_LENGTH] = head, length


@register_jitable
def _take_component(agenda: Ints, at: Ints) -> tuple[int, int, int]:
    head = at[_HEAD]
    at[_HEAD] = agenda[head, 3]
    return agenda[head, 0], agenda[head, 1], agenda[head, 2]


@register_jitable
def _gather(state: State, order: Ints, begin: int, end: int) -> int:
    """Writes the unplaced buffers from `begin` to `end` to `order`, by least offset; how many."""
    least, placed = state.least, state.placed
    m = 0
    for u in range(begin, end):
        if not placed[u]:
            order[m] = u
            m += 1
    gap = 1
    while 3 * gap + 1 < m:
        gap = 3 * gap + 1
    while gap > 0:  # Shell's sort: short lists, sorted again and again
        for k in range(gap, m):
            u, j = order[k], k
            while j >= gap and least[order[j - gap]] > least[u]:
                order[j] = order[j - gap]
                j -= gap
            order[j] = u
        gap //= 3
    return m


@register_jitable(forceinline=True)
def _open(
    core: Core,
    strategy: Strategy,
    space: Workspace,
    memo: Ints,
    tables: Tables,
    at: Ints,
    unplaced: Ints,
    component: tuple[int, int, int],
) -> int:
    """Makes a choice point for a component and returns it; its parent where there is no choice."""
    a, b, parent = component
    boxes, cap = core.boxes, core.cap
    state, sky, cover = space.state, space.sky, space.cover
    key, check = hash_state(unplaced, state.least)
    at[_WORK] += 256 + 8 * len(unplaced) + 3 * (b - a)
    if is_known(memo, key, check):
        return parent
    at[_WORK] += stack(boxes, state.least, sky, unplaced, a, b)
    if too_high(sky.height, cap, state.weight, a, b):
        return parent
    rule = strategy.branching_rule
    pit = choose(boxes, cap, state, sky, cover, unplaced, (a, b), rule)
    section, depth = pit[0], at[_DEPTH]
    if section < 0:
        return parent
    start = tables.frames[depth - 1, _TO] if depth > 0 else 0
    choice = tables.choice[start:]
    frame = tables.frames[depth]
    frame[_A], frame[_B], frame[_PARENT] = a, b, parent
    frame[_SECTION], frame[_FLOOR] = section, sky.floor[section]
    frame[_MUST], frame[_NEXT] = cover.must[section], start
    listed = list_choices(boxes, core.twin, strategy, cover.viable, unplaced, pit, choice)
    frame[_TO] = start + listed
    frame[_TRAIL], frame[_AGENDA], frame[_TOP] = at[_MARKS], at[_HEAD], at[_LENGTH]
    frame[_KEY], frame[_CHECK] = key, check
    return int(depth)


@register_jitable(forceinline=True)
def _take_next(core: Core, state: State, memo: Ints, tables: Tables, at: Ints, last: int) -> int:
    """Takes the next choice of choice point `last` that is possible; returns the point, or -1.

    When a point has no choice left, the search gives up on it and goes back to the point whose
    choice created its component.
    """
    boxes, rests, trail = core.boxes, core.rests, tables.trail
    while last >= 0:
        frame = tables.frames[last]
        at[_DEPTH] = last + 1
        _undo(boxes, state, trail, at, frame[_TRAIL])
        at[_HEAD], at[_LENGTH] = frame[_AGENDA], frame[_TOP]
        taken = frame[_NEXT]
        frame[_NEXT] += 1
        if taken + frame[_MUST] > frame[_TO]:  # a floor that must be filled is never skipped
            remember(memo, frame[_KEY], frame[_CHECK])
            last = frame[_PARENT]
        elif taken < frame[_TO]:
            if _sit(boxes, rests, state, trail, at, tables.choice[taken]):
                return last
        elif _leave_empty(boxes, rests, core.first, state, trail, at, frame):
            return last
    return -1


@register_jitable
def _undo(boxes: Boxes, state: State, trail: Ints, at: Ints, to: int) -> None:
    """Takes back everything above position `to` of the trail."""
    least, placed, total = state.least, state.placed, state.total
    for k in range(at[_MARKS] - 1, to - 1, -1):
        u = trail[k, 0]
        if u < 0:
            u = -1 - u
            placed[u] = False
            total[boxes.lo[u] : boxes.hi[u]] += boxes.size[u]
        else:
            least[u] = trail[k, 1]
    at[_MARKS] = to


@register_jitable
def _sit(boxes: Boxes, rests: Rests, state: State, trail: Ints, at: Ints, u: int) -> bool:
    """Places u at its least offset and lifts what must lie above it; False if that cannot fit."""
    lo, hi, align, limit, near = boxes.lo, boxes.hi, rests.align, rests.limit, rests.near
    least, placed = state.least, state.placed
    begin, end, marks = rests.start[u], rests.start[u + 1], at[_MARKS]
    at[_WORK] += end - begin + 1
    placed[u] = True
    state.total[lo[u] : hi[u]] -= boxes.size[u]
    trail[marks, 0] = -1 - u
    marks += 1
    top, fits = least[u] + boxes.size[u], True
    for k in range(begin, end):
        v = near[k]
        if placed[v] or least[v] >= top:
            continue
        raised = round_up_units(top, align[v])
        if raised > limit[v]:
            left, right = max(lo[u], lo[v]), min(hi[u], hi[v])
            state.weight[left:right] += 1.0 / (right - left)
            fits = False
            break
        trail[marks, 0], trail[marks, 1] = v, least[v]
        marks += 1
        least[v] = raised
    at[_MARKS] = marks
    return fits


@register_jitable
def _leave_empty(
    boxes: Boxes, rests: Rests, first: Ints, state: State, trail: Ints, at: Ints, frame: Ints
) -> bool:
    """Leaves a floor empty: lifts its section to the next height at which something can rest."""
    lo, hi, align, limit = boxes.lo, boxes.hi, rests.align, rests.limit
    least, placed, section, marks = state.least, state.placed, frame[_SECTION], at[_MARKS]
    begin, end = first[frame[_A]], first[frame[_B]]
    height, work = _next_rest(boxes, rests, state, section, frame[_FLOOR], begin, end)
    at[_WORK] += work
    fits = height >= 0
    for u in range(begin, end if fits else begin):
        if placed[u] or lo[u] > section or hi[u] <= section or least[u] >= height:
            continue
        raised = round_up_units(height, align[u])
        if raised > limit[u]:
            state.weight[section] += 1.0
            fits = False
            break
        trail[marks, 0], trail[marks, 1] = u, least[u]
        marks += 1
        least[u] = raised
    at[_MARKS] = marks
    return bool(fits)


@register_jitable
def _next_rest(
    boxes: Boxes, rests: Rests, state: State, section: int, level: int, begin: int, end: int
) -> tuple[int, int]:
    """Lowest height above `level` at which a buffer of a section can rest, or -1; and the work."""
    lo, hi, start, near = boxes.lo, boxes.hi, rests.start, rests.near
    size, align, least, placed = boxes.size, rests.align, state.least, state.placed
    work, height = end - begin, -1
    for u in range(begin, end):
        if placed[u] or lo[u] > section or hi[u] <= section:
            continue
        if least[u] > level:
            if height < 0 or least[u] < height:
                height = least[u]
            continue
        # The lowest buffer of the section rests on one from outside it.
        work += start[u + 1] - start[u]
        for k in range(start[u], start[u + 1]):
            v = near[k]
            if placed[v] or (lo[v] <= section and section < hi[v]):
                continue
            rest = round_up_units(least[v] + size[v], align[u])
            if rest > level and (height < 0 or rest < height):
                height = rest
    return height, work
