"""Pits in the skyline: where the search of plan/compiled_search.py goes on, and with whom.

A pit is a run of sections with one floor and higher floors on both sides. Importing this module
imports numba.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from qnnmem.plan.compiled.place import Flags, Floats, Ints

# Where to branch first: few choices, and then little slack or a low floor.
FEW, TIGHT, LOW = 0, 1, 2
_NEVER = np.iinfo(np.int64).max


@njit(cache=True)
def stack(
    a: int,
    b: int,
    order: Ints,
    lo: Ints,
    hi: Ints,
    size: Ints,
    least: Ints,
    floor: Ints,
    second: Ints,
    height: Ints,
) -> int:
    """Floors, the next least offset above, and the heights if all sat as low as they can."""
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


@njit(cache=True)
def too_high(a: int, b: int, height: Ints, cap: Ints, weight: Floats) -> bool:
    """Whether some section passes its capacity; such sections gain weight."""
    failed = False
    for s in range(a, b):
        if height[s] > cap[s]:
            weight[s] += 1.0
            failed = True
    return failed


@njit(cache=True)
def choose(
    a: int,
    b: int,
    order: Ints,
    lo: Ints,
    hi: Ints,
    size: Ints,
    least: Ints,
    floor: Ints,
    second: Ints,
    height: Ints,
    total: Ints,
    cap: Ints,
    weight: Floats,
    count: Ints,
    reach: Ints,
    viable: Flags,
    taste: int,
) -> int:
    """The section to branch on, in the pit with the lowest score; -1: a dead end."""
    smallest = size[order].min()
    viable[order] = False
    best, lowest = -1, 0.0
    s = a
    while s < b:
        t = s + 1
        while t < b and floor[t] == floor[s]:
            t += 1
        if (s == a or floor[s - 1] > floor[s]) and (t == b or floor[t] > floor[s]):
            if not cover(
                s,
                t,
                order,
                lo,
                hi,
                least,
                floor[s],
                second,
                smallest,
                total,
                cap,
                count,
                reach,
                viable,
            ):
                for q in range(s, t):
                    weight[q] += count[q, 1] / (t - s)
                return -1
            for q in range(s, t):
                score = count[q, 0] / weight[q]
                if count[q, 0] > 1 and taste == TIGHT:
                    score *= (cap[q] - height[q]) / cap[q] + 0.05
                elif count[q, 0] > 1 and taste == LOW:
                    score *= floor[q] + 1.0
                if best < 0 or score < lowest:
                    best, lowest = q, score
        s = t
    return best


@njit(cache=True)
def cover(
    s: int,
    t: int,
    order: Ints,
    lo: Ints,
    hi: Ints,
    least: Ints,
    level: int,
    second: Ints,
    smallest: int,
    total: Ints,
    cap: Ints,
    count: Ints,
    reach: Ints,
    viable: Flags,
) -> bool:
    """Whether the floor of sections s..t can be filled as far as it must be.

    A section whose buffers would pass the capacity if none of them sat on the floor must be
    covered by one that does. Buffers on one floor do not overlap in time, so going along the
    sections from both ends tells which of them can take part in such a covering. Fills in
    count[q] = (buffers that can, plus one if q may stay empty; whether q must be covered) and
    marks the buffers as viable.
    """
    for q in range(s, t):
        # The next thing to rest on is a buffer of the run on this floor or something higher up.
        empty = min(second[q], level + smallest)
        count[q, 1] = 1 if empty + total[q] > cap[q] else 0
        count[q, 0] = 1 - count[q, 1]
        reach[q + 1] = 0
    reach[s] = 1
    # Bit 0: the sections before q can be covered, bit 1: those from q on can.
    begin = end = _first_at(level, order, least)
    while end < len(order) and least[order[end]] == level:
        end += 1
    chosen = np.empty(end - begin, np.int64)
    m = 0
    for u in order[begin:end]:
        if s <= lo[u] and hi[u] <= t:
            chosen[m] = u
            m += 1
    chosen = np.sort(chosen[:m])  # by first section
    k = 0
    for q in range(s, t):
        if reach[q] == 0:
            while k < m and lo[chosen[k]] == q:
                k += 1
            continue
        if count[q, 1] == 0:
            reach[q + 1] = 1
        while k < m and lo[chosen[k]] == q:
            reach[hi[chosen[k]]] = 1
            k += 1
    if reach[t] == 0:
        return False
    reach[t] = 3
    k = m - 1
    for q in range(t - 1, s - 1, -1):
        if count[q, 1] == 0 and reach[q + 1] >= 2:
            reach[q] |= 2
        while k >= 0 and lo[chosen[k]] == q:
            u = chosen[k]
            if reach[hi[u]] >= 2:
                if reach[q] & 1:
                    viable[u] = True
                    count[q : hi[u], 0] += 1
                reach[q] |= 2
            k -= 1
    return True


@njit(cache=True)
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


@njit(cache=True)
def list_choices(
    section: int,
    a: int,
    b: int,
    order: Ints,
    lo: Ints,
    hi: Ints,
    floor: Ints,
    viable: Flags,
    rank: Ints,
    twin: Ints,
    lean: int,
    choice: Ints,
    start: int,
) -> int:
    """Writes the buffers that can sit on the floor, the best first and each kind once.

    A buffer that leans on a wall of the pit leaves no narrow pit beside it.
    """
    left, right = section, section + 1
    while left > a and floor[left - 1] == floor[section]:
        left -= 1
    while right < b and floor[right] == floor[section]:
        right += 1
    worth = np.empty(len(order), np.int64)
    end = start
    for u in order:
        if not viable[u] or lo[u] > section or hi[u] <= section:
            continue
        known = False
        for k in range(start, end):
            known |= twin[choice[k]] == twin[u]
        if known:
            continue
        value = rank[u] - lean * (int(lo[u] == left) + int(hi[u] == right))
        k = end
        while k > start and worth[k - 1 - start] > value:
            choice[k], worth[k - start] = choice[k - 1], worth[k - 1 - start]
            k -= 1
        choice[k], worth[k - start] = u, value
        end += 1
    return end
