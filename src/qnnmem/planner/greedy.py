"""Greedy placement: in several orders for real models, in one sweep for lists of any size.

In several orders, for the few thousand buffers of a real model:

    for each order, for first fit and best fit:
        for each buffer in that order:
            look at the gaps between the placed buffers that share a section with it
            take the lowest gap (first fit) or the tightest one (best fit) that holds it
    repeat with the buffers that ended too high moved forward

In one sweep, with free ranges segregated by length:

    for each buffer in order of birth:
        free the buffers that have died
        take the lowest range of the first class in which every range is long enough
        or grow at the top

A class holds the lengths with the same five leading bits, so a range is found without scanning
others: the cost of a buffer does not depend on the number of live buffers.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from heapq import heappop, heappush

from qnnmem.planner.instance import Instance

_NO_END = 1 << 80  # above every address
# Number of list entries that can be shifted in the time it takes to examine one.
_MOVED_AT_A_LOOK = 256

Offsets = list[int]
Placer = Callable[[list[int], bool], Offsets]  # (order, best fit) -> offsets in units


def orders(instance: Instance) -> Iterator[list[int]]:
    """Yield orders in which to place buffers, most promising first.

    Orders sort by size, width (sections covered), area, and the highest load in the buffer's
    sections. Ties fall back to the canonical order of the instance.
    """
    size = instance.size
    width = [hi - lo for lo, hi in zip(instance.lo, instance.hi, strict=True)]
    area = [s * w for s, w in zip(size, width, strict=True)]
    load = highest_load(instance)
    keys: tuple[Callable[[int], tuple[int, ...]], ...] = (
        lambda i: (-size[i],),
        lambda i: (-load[i], -size[i]),
        lambda i: (-size[i], -width[i]),
        lambda i: (-load[i], -width[i], -area[i]),
        lambda i: (-area[i],),
        lambda i: (-width[i], -size[i]),
    )
    for key in keys:
        yield sorted(range(len(instance)), key=key)


def highest_load(instance: Instance) -> list[int]:
    """Return for each buffer the largest load among its sections, in O(n log n)."""
    table = [instance.load]  # table[k][s] = highest load in sections s .. s + 2**k - 1
    while 2 ** len(table) <= instance.sections:
        last, half = table[-1], 2 ** (len(table) - 1)
        table.append([max(last[s], last[s + half]) for s in range(len(last) - half)])
    result = []
    for lo, hi in zip(instance.lo, instance.hi, strict=True):
        level = (hi - lo).bit_length() - 1
        result.append(max(table[level][lo], table[level][hi - 2**level]))
    return result


def neighbours(instance: Instance) -> list[list[int]]:
    """Return for each buffer the buffers that share a section with it."""
    lo, hi, n = instance.lo, instance.hi, len(instance)
    near: list[list[int]] = [[] for _ in range(n)]
    for i in range(n):
        for j in range(i + 1, n):
            if lo[j] >= hi[i]:
                break
            near[i].append(j)
            near[j].append(i)
    return near


def place(
    instance: Instance,
    near: list[list[int]],
    order: list[int],
    best_fit: bool,
    around: Offsets | None = None,
) -> Offsets:
    """Return offsets in units, with buffers placed in `order` around those placed in `around`."""
    size, align = instance.size, instance.align
    offsets = [-1] * len(instance) if around is None else around.copy()
    for i in order:
        taken = sorted((offsets[j], offsets[j] + size[j]) for j in near[i] if offsets[j] >= 0)
        offsets[i] = _lowest_gap(taken, size[i], align[i], best_fit)
    return offsets


def _lowest_gap(taken: list[tuple[int, int]], size: int, align: int, best_fit: bool) -> int:
    """Return an offset in the lowest gap that fits the buffer; with `best_fit`, in the tightest."""
    top, chosen, tightest = 0, -1, -1
    for start, end in taken:
        if start > top:
            offset = -(-top // align) * align
            gap = start - top
            if start - offset >= size and (chosen < 0 or gap < tightest):
                chosen, tightest = offset, gap
                if not best_fit:
                    break
        if end > top:
            top = end
    return chosen if chosen >= 0 else -(-top // align) * align


def place_by_birth(instance: Instance, best_fit: bool, looks: int) -> Offsets:
    """Return offsets in units for any number of buffers, placed in order of birth.

    Free ranges are in a list, as in an allocator, and at most `looks` of them are examined in
    total. After that, each buffer goes above everything alive. Shifting list entries counts as
    examining, because a long list would otherwise cost quadratic time.
    """
    offsets = []
    free = [(0, _NO_END)]  # (start, end) by address
    dying: list[tuple[int, int, int]] = []  # (one past the last section, start, end)
    for i, size in enumerate(instance.size):
        while dying and dying[0][0] <= instance.lo[i]:
            _release(free, *heappop(dying)[1:])
        seen = free if looks > 0 else free[-1:]
        k, offset = _find_gap(seen, size, instance.align[i], best_fit)
        looks -= k + 1 + len(free) // _MOVED_AT_A_LOOK
        k += len(free) - len(seen)
        start, end = free[k]
        free[k : k + 1] = [(a, b) for a, b in ((start, offset), (offset + size, end)) if a < b]
        heappush(dying, (instance.hi[i], offset, offset + size))
        offsets.append(offset)
    return offsets


def _find_gap(
    free: list[tuple[int, int]], size: int, align: int, best_fit: bool
) -> tuple[int, int]:
    """Return the index of the free range to use, and the offset in it.

    The last free range has no end.
    """
    chosen, tightest = -1, 0
    for k, (start, end) in enumerate(free):
        offset = -(-start // align) * align
        if offset + size <= end and (chosen < 0 or end - start < tightest):
            chosen, tightest = k, end - start
            if not best_fit:
                break
    return chosen, -(-free[chosen][0] // align) * align


def _release(free: list[tuple[int, int]], start: int, end: int) -> None:
    """Free a range and join it with the free ranges next to it."""
    k = bisect_left(free, (start, end))
    if free[k][0] == end:  # there is always one above, without end
        end = free.pop(k)[1]
    if k > 0 and free[k - 1][1] == start:
        k -= 1
        start = free.pop(k)[0]
    free.insert(k, (start, end))


def portfolio(instance: Instance, placer: Placer, target: int) -> Iterator[Offsets]:
    """Yield complete placements: one for each order, then improvements of the best.

    The improvement is squeaky-wheel optimisation: a buffer that ended above `target` bytes moves
    half way to the front, and everything is placed again. It corrects the typical mistakes of fixed
    orders on real models.
    """
    ready = []
    for order in orders(instance):
        ready.append(order)
        for best_fit in (False, True):
            yield placer(order, best_fit)
    for order in (ready[1], ready[0], ready[3]):
        for _ in range(12):
            offsets = placer(order, False)
            yield offsets
            order = _squeak(instance, order, offsets, target)


def _squeak(instance: Instance, order: list[int], offsets: Offsets, target: int) -> list[int]:
    keys = [
        (2 * k, 0) if instance.end_bytes(i, offsets[i]) <= target else (k, -1)
        for k, i in enumerate(order)
    ]
    return [order[k] for k in sorted(range(len(order)), key=keys.__getitem__)]


_LEADING = 5
# Ranges of a buffer's own class may be too short for it; a few are worth examining.
_LOOKS = 4


def place_by_class(instance: Instance) -> list[int]:
    """Return offsets in units, found in one sweep with free ranges segregated by length."""
    lo, hi, size, align = instance.lo, instance.hi, instance.size, instance.align
    offsets: list[int] = []
    free = _FreeRanges()
    deaths = iter(sorted(range(len(hi)), key=hi.__getitem__))
    dying = next(deaths, -1)
    for born, start in enumerate(lo):
        while hi[dying] <= start:  # the buffer born now dies later: the iterator does not end
            free.give_back(offsets[dying], offsets[dying] + size[dying])
            dying = next(deaths)
        offsets.append(free.take(size[born], align[born]))
    return offsets


def _class_of(length: int) -> int:
    bits = length.bit_length()
    if bits <= _LEADING:
        return length
    shift = bits - _LEADING
    return (shift << (_LEADING - 1)) + (length >> shift)


class _FreeRanges:
    """Free ranges below `top`, indexed by start, end and length class; no two of them touch."""

    def __init__(self) -> None:
        self.top = 0
        self.end_of: dict[int, int] = {}
        self.start_of: dict[int, int] = {}
        # Ranges of each class, lowest first. Ranges that were used or joined stay in the heap until
        # they are popped.
        self.classes: dict[int, list[tuple[int, int]]] = {}
        self.filled = 0  # bit k: class k may hold a range

    def give_back(self, start: int, end: int) -> None:
        """Free a range and join it with the free ranges next to it."""
        before = self.start_of.pop(start, None)
        if before is not None:
            del self.end_of[before]
            start = before
        after = self.end_of.pop(end, None)
        if after is not None:
            del self.start_of[after]
            end = after
        if end == self.top:
            self.top = start
        else:
            self._add(start, end)

    def take(self, size: int, align: int) -> int:
        """Take `size` units from a free range, or else above all used units; return their start."""
        free = self._find(size, align)
        if free is None:
            start = self.top
            offset = -(-start // align) * align
            self.top = end = offset + size
        else:
            start, end = free
            offset = -(-start // align) * align
        if start < offset:
            self._add(start, offset)
        if offset + size < end:
            self._add(offset + size, end)
        return offset

    def _add(self, start: int, end: int) -> None:
        self.end_of[start], self.start_of[end] = end, start
        number = _class_of(end - start)
        heap = self.classes.get(number)
        if heap is None:
            self.classes[number] = heap = []
        if not heap:
            self.filled |= 1 << number
        heappush(heap, (start, end))

    def _find(self, size: int, align: int) -> tuple[int, int] | None:
        """Remove and return a free range in which the buffer fits; None if there is none."""
        number = _class_of(size)
        if self.filled >> number & 1:
            free_range = self._find_in(number, size, align, _LOOKS)
            if free_range is not None:
                return free_range
        number = _class_of(size + align - 2) + 1  # all from here on have size + align - 1 units
        while above := self.filled >> number:
            number += (above & -above).bit_length() - 1
            free_range = self._find_in(number, size, align, 1)
            if free_range is not None:
                return free_range
        return None

    def _find_in(self, number: int, size: int, align: int, looks: int) -> tuple[int, int] | None:
        heap, chosen = self.classes[number], None
        seen: list[tuple[int, int]] = []
        while heap and len(seen) < looks:
            free_range = start, end = heappop(heap)
            if self.end_of.get(start) != end:
                continue
            if -(-start // align) * align + size <= end:
                del self.end_of[start], self.start_of[end]
                chosen = free_range
                break
            seen.append(free_range)
        for free_range in seen:
            heappush(heap, free_range)
        if not heap:
            self.filled &= ~(1 << number)
        return chosen
