"""Placement in one sweep, for lists of any size: free stretches are kept by class of length.

for each buffer as it is born:
    give back what has died
    take the lowest stretch of the first class in which every stretch is long enough
    or else grow at the top

A class holds the lengths that agree in their five leading bits, so a stretch is found without
looking at others: each buffer costs the same however many are alive. That is the plan that is there
before any better one is looked for.
"""

from __future__ import annotations

from heapq import heappop, heappush

from qnnmem.planner.instance import Instance

_LEADING = 5
# Stretches of a buffer's own class may be too short for it; a few are worth a look.
_LOOKS = 4


def place_by_class(instance: Instance) -> list[int]:
    """Offsets in units after placing buffers as they are born."""
    lo, hi, size, align = instance.lo, instance.hi, instance.size, instance.align
    offsets: list[int] = []
    free = _FreeStretches()
    deaths = iter(sorted(range(len(hi)), key=hi.__getitem__))
    dying = next(deaths, -1)
    for born, start in enumerate(lo):
        while hi[dying] <= start:  # what is born now dies later, so that the deaths do not run out
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


class _FreeStretches:
    """Free stretches below `top`, by start, by end and by class; no two of them touch."""

    def __init__(self) -> None:
        self.top = 0
        self.end_of: dict[int, int] = {}
        self.start_of: dict[int, int] = {}
        # Lowest first. What was taken or joined stays in until it comes up.
        self.classes: dict[int, list[tuple[int, int]]] = {}
        self.filled = 0  # bit k: class k may hold a stretch

    def give_back(self, start: int, end: int) -> None:
        """Frees a stretch and joins it with its neighbours."""
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
        """The start of `size` units that were free, or that are new at the top."""
        found = self._find(size, align)
        if found is None:
            start = self.top
            offset = -(-start // align) * align
            self.top = end = offset + size
        else:
            start, end = found
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
        """A stretch that holds the buffer, no longer among those that are free."""
        number = _class_of(size)
        if self.filled >> number & 1:
            own = self._find_in(number, size, align, _LOOKS)
            if own is not None:
                return own
        number = _class_of(size + align - 2) + 1  # all in it and above have size + align - 1 units
        while above := self.filled >> number:
            number += (above & -above).bit_length() - 1
            found = self._find_in(number, size, align, 1)
            if found is not None:
                return found
        return None

    def _find_in(self, number: int, size: int, align: int, looks: int) -> tuple[int, int] | None:
        heap, found = self.classes[number], None
        seen: list[tuple[int, int]] = []
        while heap and len(seen) < looks:
            stretch = start, end = heappop(heap)
            if self.end_of.get(start) != end:
                continue
            if -(-start // align) * align + size <= end:
                del self.end_of[start], self.start_of[end]
                found = stretch
                break
            seen.append(stretch)
        for stretch in seen:
            heappush(heap, stretch)
        if not heap:
            self.filled &= ~(1 << number)
        return found
