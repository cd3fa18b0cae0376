"""Pits in the skyline: where a search goes on, and with which buffers.

A pit is a run of sections with one floor and higher floors on both sides. Importing this module
imports numba.
"""

from __future__ import annotations

import numpy as np
from numba.extending import register_jitable

from qnnmem.plan.compiled.arrays import (
    Boxes,
    Cover,
    Flags,
    Floats,
    Ints,
    Skyline,
    State,
    Strategy,
)

# Branching rules, what counts when choosing a section: only how few choices it has, or also how
# little slack, or also how low its floor is.
FEW, TIGHT, LOW = 0, 1, 2
_NEVER = np.iinfo(np.int64).max


@register_jitable
def stack(boxes: Boxes, least: Ints, sky: Skyline, order: Ints, a: int, b: int) -> int:
    """Finds floors, the next least offsets and the heights of sections a..b; returns the work."""
    lo, hi, size = boxes.lo, boxes.hi, boxes.size
    floor, second, height = sky.floor, sky.second, sky.height
    floor[a:b] = _NEVER
    second[a:b] = _NEVER
    height[a:b] = 0
    work = 0
    for u in order:
        # Plain loops over slices: the hottest lines of the search, which the compiler vectorises.
        low, high, above = floor[lo[u] : hi[u]], height[lo[u] : hi[u]], second[lo[u] : hi[u]]
        level, more = least[u], size[u]
        for k in range(len(low)):
            low[k] = min(low[k], level)
        for k in range(len(low)):
            above[k] = min(above[k], level if level > low[k] else _NEVER)
        for k in range(len(high)):
            high[k] = max(high[k], level) + more
        work += len(low) // 4
    return work


@register_jitable
def too_high(height: Ints, cap: Ints, weight: Floats, a: int, b: int) -> bool:
    """Whether some section passes its capacity; such sections gain weight."""
    failed = False
    for s in range(a, b):
        if height[s] > cap[s]:
            weight[s] += 1.0
            failed = True
    return failed


@register_jitable
def choose(
    boxes: Boxes,
    cap: Ints,
    state: State,
    sky: Skyline,
    cover: Cover,
    order: Ints,
    component: tuple[int, int],
    branching_rule: int,
) -> tuple[int, int, int]:
    """The section to branch on and the ends of its pit; -1: a dead end.

    A section scores by its choices and by how few conflicts it has met, see the branching rules.
    """
    floor, options, weight = sky.floor, cover.options, state.weight
    (a, b), smallest = component, boxes.size[order].min()
    cover.viable[order] = False
    best, left, right, lowest = -1, -1, -1, 0.0
    s = a
    while s < b:
        t = s + 1
        while t < b and floor[t] == floor[s]:
            t += 1
        if (s == a or floor[s - 1] > floor[s]) and (t == b or floor[t] > floor[s]):
            if not _cover(boxes, cap, state, sky, cover, order, s, t, smallest):
                for q in range(s, t):
                    weight[q] += cover.must[q] / (t - s)
                return -1, -1, -1
            for q in range(s, t):
                score = options[q] / weight[q]
                if options[q] > 1 and branching_rule == TIGHT:
                    score *= (cap[q] - sky.height[q]) / cap[q] + 0.05
                elif options[q] > 1 and branching_rule == LOW:
                    score *= floor[q] + 1.0
                if best < 0 or score < lowest:
                    best, left, right, lowest = q, s, t, score
        s = t
    return best, left, right


@register_jitable(forceinline=True)
def _cover(
    boxes: Boxes,
    cap: Ints,
    state: State,
    sky: Skyline,
    cover: Cover,
    order: Ints,
    s: int,
    t: int,
    smallest: int,
) -> bool:
    """Whether the floor of sections s..t can be filled as far as it must be.

    A section whose buffers would pass the capacity if none of them sat on the floor must be
    covered by one that does. Buffers on one floor do not overlap in time, so going along the
    sections from both ends tells which of them can take part in such a covering. Fills in
    `must`, `options` (buffers that can, plus one if the section may stay empty) and `viable`.
    """
    level, second, total = sky.floor[s], sky.second, state.total
    must, options, reach = cover.must, cover.options, cover.reach
    for q in range(s, t):
        # The next thing to rest on is a buffer of the run on this floor or something higher up.
        empty = min(second[q], level + smallest)
        must[q] = 1 if empty + total[q] > cap[q] else 0
        options[q] = 1 - must[q]
        reach[q + 1] = 0
    reach[s] = 1
    chosen = _on_floor(boxes.lo, boxes.hi, state.least, order, s, t, level)
    if not _reach_from_left(boxes.lo, boxes.hi, must, reach, chosen, s, t):
        return False
    _reach_from_right(boxes.lo, boxes.hi, cover, chosen, s, t)
    return True


@register_jitable(forceinline=True)
def _on_floor(lo: Ints, hi: Ints, least: Ints, order: Ints, s: int, t: int, level: int) -> Ints:
    """Buffers inside sections s..t that could sit on the floor, by first section."""
    begin = end = _first_at(level, order, least)
    while end < len(order) and least[order[end]] == level:
        end += 1
    chosen = np.empty(end - begin, np.int64)
    m = 0
    for u in order[begin:end]:
        if s <= lo[u] and hi[u] <= t:
            chosen[m] = u
            m += 1
    return np.sort(chosen[:m])


@register_jitable(forceinline=True)
def _reach_from_left(
    lo: Ints, hi: Ints, must: Ints, reach: Ints, chosen: Ints, s: int, t: int
) -> bool:
    """Sets bit 0 of `reach`; False if the right end cannot be reached."""
    k = 0
    for q in range(s, t):
        reached = reach[q] != 0
        if reached and must[q] == 0:
            reach[q + 1] = 1
        while k < len(chosen) and lo[chosen[k]] == q:
            if reached:
                reach[hi[chosen[k]]] = 1
            k += 1
    return bool(reach[t] != 0)


@register_jitable(forceinline=True)
def _reach_from_right(lo: Ints, hi: Ints, cover: Cover, chosen: Ints, s: int, t: int) -> None:
    """Sets bit 1 of `reach`; a buffer with reached sections on both sides is viable."""
    must, reach, options, viable = cover.must, cover.reach, cover.options, cover.viable
    reach[t] = 3
    k = len(chosen) - 1
    for q in range(t - 1, s - 1, -1):
        if must[q] == 0 and reach[q + 1] >= 2:
            reach[q] |= 2
        while k >= 0 and lo[chosen[k]] == q:
            u = chosen[k]
            if reach[hi[u]] >= 2:
                if reach[q] & 1:
                    viable[u] = True
                    options[q : hi[u]] += 1
                reach[q] |= 2
            k -= 1


@register_jitable
def _first_at(level: int, order: Ints, least: Ints) -> int:
    """Position of the first buffer whose least offset is not below `level`."""
    low, high = 0, len(order)
    while low < high:
        middle = (low + high) // 2
        if least[order[middle]] < level:
            low = middle + 1
        else:
            high = middle
    return low


@register_jitable
def list_choices(
    boxes: Boxes,
    twin: Ints,
    strategy: Strategy,
    viable: Flags,
    order: Ints,
    pit: tuple[int, int, int],
    choice: Ints,
) -> int:
    """Writes the buffers that can sit on the floor, the best first and each kind once.

    `pit` is what `choose` returned. A buffer that touches a wall of the pit leaves no narrow pit
    beside it.
    """
    lo, hi, rank = boxes.lo, boxes.hi, strategy.rank
    section, left, right = pit
    worth = np.empty(len(order), np.int64)
    end = 0
    for u in order:
        if not viable[u] or lo[u] > section or hi[u] <= section:
            continue
        known = False
        for k in range(end):
            known |= twin[choice[k]] == twin[u]
        if known:
            continue
        touched = int(lo[u] == left) + int(hi[u] == right)
        value = rank[u] - strategy.wall_bonus * touched
        k = end
        while k > 0 and worth[k - 1] > value:
            choice[k], worth[k] = choice[k - 1], worth[k - 1]
            k -= 1
        choice[k], worth[k] = u, value
        end += 1
    return end
