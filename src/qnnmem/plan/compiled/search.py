"""Exact search for offsets below a capacity, compiled; importing this module imports numba.

    least[u] = least offset buffer u can still take, given what is placed
    floor[s] = lowest least[u] among the unplaced buffers of section s
    pick a section s whose floor no neighbouring section undercuts; then in any packing either
        one of the buffers with least[u] == floor[s] sits exactly there: try each, or
        nobody does: raise everything in s to the next height at which something could rest
    fail where the unplaced buffers of a section, stacked by least offset, pass the capacity

Why this is complete: push every buffer of a packing down until it meets its least offset or
another buffer. On a run of sections with equal floor f and higher floors around it, buffers with
least offset f lie wholly inside the run, and no unplaced buffer there can lie below f, so whoever
is placed on f has everything else of its sections above it. What remains depends only on the
unplaced buffers and their least offsets, so failed states are remembered; and buffers that no
unplaced buffer links are separate problems, so a failure in one jumps over all choices made in
the others.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from qnnmem.plan.compiled.pits import choose, list_choices, stack, too_high
from qnnmem.plan.compiled.place import Flags, Floats, Ints, round_up_units

SOLVED, EXHAUSTED, CUT = 1, 0, -1

# Columns of a choice point.
_A, _B, _PARENT, _SECTION, _FLOOR, _MUST, _FROM, _TO, _NEXT = range(9)
_TRAIL, _AGENDA, _TOP, _KEY, _CHECK = range(9, 14)


@njit(cache=True, nogil=True)  # so that progress is shown meanwhile
def search(
    lo: Ints,
    hi: Ints,
    size: Ints,
    align: Ints,
    limit: Ints,
    sections: int,
    rank: Ints,
    twin: Ints,
    weight: Floats,
    memo: Ints,
    work_limit: int,
    taste: int,
    lean: int,
) -> tuple[int, Ints, int]:
    """(SOLVED, offsets, work), (EXHAUSTED, …): impossible, or (CUT, …): `work_limit` reached.

    `rank` orders the buffers tried on a floor; `twin` is equal for interchangeable buffers;
    `taste` says where to branch first, `lean` how much a buffer gains in rank by touching a wall.
    `weight` (conflicts met by each section) and `memo` (failed states) carry over to the next
    call for one capacity.
    """
    n = len(lo)
    first = np.searchsorted(lo, np.arange(sections + 1))
    pointer, index = _overlaps(lo, hi)
    cap = _section_caps(lo, hi, size, limit, sections)
    least = np.zeros(n, np.int64)
    placed = np.zeros(n, np.bool_)
    trail = np.empty((64 + 4 * n, 2), np.int64)  # (buffer, old least offset) or (-1 - buffer, 0)
    agenda = np.empty((64 + 2 * n, 4), np.int64)  # components to solve: from, to, parent, next
    frames = np.empty((64 + 2 * n, 14), np.int64)
    choice = np.empty(64 + 8 * n, np.int64)
    order = np.empty(n, np.int64)
    viable = np.zeros(n, np.bool_)
    floor = np.empty(sections, np.int64)
    second = np.empty(sections, np.int64)
    height = np.empty(sections, np.int64)
    reach = np.empty(sections + 1, np.int64)
    total = _totals(lo, hi, size, sections)  # bytes of the unplaced buffers
    count = np.empty((sections + 2, 2), np.int64)
    parts = np.empty((sections + 1, 2), np.int64)
    marks, head, top, depth, work = 0, -1, 0, 0, 0

    a, b, parent = 0, sections, -1  # the component that has just changed and must be split
    while True:
        found = _split(a, b, lo, hi, first, placed, weight, count, parts)
        if top + found > len(agenda):
            agenda = _longer(agenda, found)
        for k in range(found):
            agenda[top, 0], agenda[top, 1] = parts[k, 0], parts[k, 1]
            agenda[top, 2], agenda[top, 3] = parent, head
            head, top = top, top + 1
        if head < 0:
            return SOLVED, least, work
        if work > work_limit:
            return CUT, least, work
        a, b, parent, head = agenda[head, 0], agenda[head, 1], agenda[head, 2], agenda[head, 3]

        m, key, check = _gather(first[a], first[b], least, placed, order)
        work += 256 + 8 * m + 3 * (b - a)  # in units of about four nanoseconds, as everywhere below
        back = parent
        if not _known(memo, key, check):
            work += stack(a, b, order[:m], lo, hi, size, least, floor, second, height)
            section = -1
            if not too_high(a, b, height, cap, weight):
                section = choose(
                    a,
                    b,
                    order[:m],
                    lo,
                    hi,
                    size,
                    least,
                    floor,
                    second,
                    height,
                    total,
                    cap,
                    weight,
                    count,
                    reach,
                    viable,
                    taste,
                )
            if section >= 0:
                if depth == len(frames):
                    frames = _longer(frames, depth)
                start = 0 if depth == 0 else frames[depth - 1, _TO]
                if start + m > len(choice):
                    choice = _longer_line(choice, start + m)
                end = list_choices(
                    section, a, b, order[:m], lo, hi, floor, viable, rank, twin, lean, choice, start
                )
                back = depth
                frame = frames[back]
                frame[_A], frame[_B], frame[_PARENT] = a, b, parent
                frame[_SECTION], frame[_FLOOR] = section, floor[section]
                frame[_FROM], frame[_TO], frame[_NEXT] = start, end, start
                frame[_MUST] = count[section, 1]
                frame[_TRAIL], frame[_AGENDA], frame[_TOP] = marks, head, top
                frame[_KEY], frame[_CHECK] = key, check

        # Take the next choice of frame `back`; when it has none left, give up on it and go to the
        # frame whose choice created its component.
        while True:
            if back < 0:
                return EXHAUSTED, least, work
            frame = frames[back]
            depth = back + 1
            marks = _undo(trail, marks, frame[_TRAIL], lo, hi, size, least, placed, total)
            head, top = frame[_AGENDA], frame[_TOP]
            taken = frame[_NEXT]
            frame[_NEXT] += 1
            if taken + frame[_MUST] > frame[_TO]:  # a floor that must be filled is never skipped
                _remember(memo, frame[_KEY], frame[_CHECK])
                back = frame[_PARENT]
                continue
            if marks + n + 1 > len(trail):
                trail = _longer(trail, n + 1)
            if taken < frame[_TO]:
                u = choice[taken]
                work += pointer[u + 1] - pointer[u] + 1
                fits, marks = _sit(
                    u,
                    lo,
                    hi,
                    size,
                    align,
                    limit,
                    pointer,
                    index,
                    least,
                    placed,
                    total,
                    weight,
                    trail,
                    marks,
                )
            else:
                fits, marks, used = _skip(
                    frame[_SECTION],
                    frame[_FLOOR],
                    first[frame[_A]],
                    first[frame[_B]],
                    lo,
                    hi,
                    size,
                    align,
                    limit,
                    pointer,
                    index,
                    least,
                    placed,
                    weight,
                    trail,
                    marks,
                )
                work += used
            if fits:
                a, b, parent = frame[_A], frame[_B], back
                break


@njit(cache=True)
def _overlaps(lo: Ints, hi: Ints) -> tuple[Ints, Ints]:
    """Neighbour lists: those of u are index[pointer[u]:pointer[u + 1]]."""
    n = len(lo)
    pointer = np.zeros(n + 1, np.int64)
    for i in range(n):
        j = i + 1
        while j < n and lo[j] < hi[i]:
            pointer[i + 1] += 1
            pointer[j + 1] += 1
            j += 1
    pointer = np.cumsum(pointer)
    index = np.empty(pointer[n], np.int64)
    fill = pointer[:n].copy()
    for i in range(n):
        j = i + 1
        while j < n and lo[j] < hi[i]:
            index[fill[i]], index[fill[j]] = j, i
            fill[i] += 1
            fill[j] += 1
            j += 1
    return pointer, index


@njit(cache=True)
def _totals(lo: Ints, hi: Ints, size: Ints, sections: int) -> Ints:
    """For each section the sum of its sizes."""
    total = np.zeros(sections, np.int64)
    for u in range(len(lo)):
        total[lo[u] : hi[u]] += size[u]
    return total


@njit(cache=True)
def _section_caps(lo: Ints, hi: Ints, size: Ints, limit: Ints, sections: int) -> Ints:
    """For each section the highest end that any of its buffers may reach."""
    cap = np.zeros(sections, np.int64)
    for u in range(len(lo)):
        for s in range(lo[u], hi[u]):
            cap[s] = max(cap[s], limit[u] + size[u])
    return cap


@njit(cache=True)
def _split(
    a: int,
    b: int,
    lo: Ints,
    hi: Ints,
    first: Ints,
    placed: Flags,
    weight: Floats,
    count: Ints,
    parts: Ints,
) -> int:
    """Components of the unplaced buffers in sections a..b, least conflicted first."""
    count[a : b + 2] = 0
    for u in range(first[a], first[b]):
        if not placed[u]:
            count[lo[u], 0] += 1
            count[hi[u], 0] -= 1
            count[lo[u] + 1, 1] += 1
            count[hi[u], 1] -= 1
    found, alive, bridge, start = 0, 0, 0, -1
    for s in range(a, b + 1):
        alive += count[s, 0]
        bridge += count[s, 1]
        if start >= 0 and bridge == 0:
            heavy = weight[start:s].max()
            k = found
            while k > 0 and weight[parts[k - 1, 0] : parts[k - 1, 1]].max() > heavy:
                parts[k] = parts[k - 1]
                k -= 1
            parts[k, 0], parts[k, 1] = start, s
            found += 1
            start = -1
        if start < 0 and alive > 0:
            start = s
    return found


@njit(cache=True)
def _gather(begin: int, end: int, least: Ints, placed: Flags, order: Ints) -> tuple[int, int, int]:
    """Lists the unplaced buffers by least offset; returns how many and a double hash."""
    m = 0
    key, check = np.uint64(0), np.uint64(0)
    for u in range(begin, end):
        if placed[u]:
            continue
        order[m] = u
        m += 1
        word = np.uint64(least[u]) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(u)
        key += _mix(word)
        check += _mix(word ^ np.uint64(0x632BE59BD9B4E019))
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
    return m, int(np.int64(key)), int(np.int64(check))


@njit(cache=True)
def _mix(x: np.uint64) -> np.uint64:
    # The finaliser of splitmix64 spreads a state over 64 bits.
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@njit(cache=True)
def _known(memo: Ints, key: int, check: int) -> bool:
    for probe in range(4):
        k = (key + probe) & (len(memo) - 1)
        if memo[k, 0] == key and memo[k, 1] == check:
            return True
    return False


@njit(cache=True)
def _remember(memo: Ints, key: int, check: int) -> None:
    for probe in range(4):
        k = (key + probe) & (len(memo) - 1)
        if memo[k, 0] == 0 or probe == 3:
            memo[k, 0], memo[k, 1] = key, check
            return


@njit(cache=True)
def _undo(
    trail: Ints,
    marks: int,
    to: int,
    lo: Ints,
    hi: Ints,
    size: Ints,
    least: Ints,
    placed: Flags,
    total: Ints,
) -> int:
    while marks > to:
        marks -= 1
        u = trail[marks, 0]
        if u < 0:
            u = -1 - u
            placed[u] = False
            total[lo[u] : hi[u]] += size[u]
        else:
            least[u] = trail[marks, 1]
    return marks


@njit(cache=True)
def _sit(
    u: int,
    lo: Ints,
    hi: Ints,
    size: Ints,
    align: Ints,
    limit: Ints,
    pointer: Ints,
    index: Ints,
    least: Ints,
    placed: Flags,
    total: Ints,
    weight: Floats,
    trail: Ints,
    marks: int,
) -> tuple[bool, int]:
    """Places u at its least offset and lifts what must lie above it; False if that cannot fit."""
    placed[u] = True
    total[lo[u] : hi[u]] -= size[u]
    trail[marks, 0] = -1 - u
    marks += 1
    top = least[u] + size[u]
    for k in range(pointer[u], pointer[u + 1]):
        v = index[k]
        if placed[v] or least[v] >= top:
            continue
        raised = round_up_units(top, align[v])
        if raised > limit[v]:
            begin, end = max(lo[u], lo[v]), min(hi[u], hi[v])
            weight[begin:end] += 1.0 / (end - begin)
            return False, marks
        trail[marks, 0], trail[marks, 1] = v, least[v]
        marks += 1
        least[v] = raised
    return True, marks


@njit(cache=True)
def _skip(
    section: int,
    level: int,
    begin: int,
    end: int,
    lo: Ints,
    hi: Ints,
    size: Ints,
    align: Ints,
    limit: Ints,
    pointer: Ints,
    index: Ints,
    least: Ints,
    placed: Flags,
    weight: Floats,
    trail: Ints,
    marks: int,
) -> tuple[bool, int, int]:
    """Leaves a floor empty: lifts its section to the next height at which something can rest."""
    work, height = end - begin, -1
    for u in range(begin, end):
        if placed[u] or lo[u] > section or hi[u] <= section:
            continue
        if least[u] > level:
            if height < 0 or least[u] < height:
                height = least[u]
            continue
        # The lowest buffer of the section rests on one from outside it.
        work += pointer[u + 1] - pointer[u]
        for k in range(pointer[u], pointer[u + 1]):
            v = index[k]
            if placed[v] or (lo[v] <= section and section < hi[v]):
                continue
            rest = round_up_units(least[v] + size[v], align[u])
            if rest > level and (height < 0 or rest < height):
                height = rest
    if height < 0:
        return False, marks, work
    for u in range(begin, end):
        if placed[u] or lo[u] > section or hi[u] <= section or least[u] >= height:
            continue
        raised = round_up_units(height, align[u])
        if raised > limit[u]:
            weight[section] += 1.0
            return False, marks, work
        trail[marks, 0], trail[marks, 1] = u, least[u]
        marks += 1
        least[u] = raised
    return True, marks, work


@njit(cache=True)
def _longer(table: Ints, more: int) -> Ints:
    larger = np.empty((2 * len(table) + more, table.shape[1]), np.int64)
    larger[: len(table)] = table
    return larger


@njit(cache=True)
def _longer_line(line: Ints, more: int) -> Ints:
    larger = np.empty(2 * len(line) + more, np.int64)
    larger[: len(line)] = line
    return larger
