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

from qnnmem.plan.instance import Instance

_LEADING = 5
# Stretches of a buffer's own class may be too short for it; a few are worth a look.
_LOOKS = 4


def place_by_class(instance: Instance) -> list[int]:
    """Offsets in units after placing buffers as they are born."""
    offsets = []
    free = _FreeStretches()
    dying: list[tuple[int, int, int]] = []  # (one past the last section, start, end)
    for lo, hi, size, align in zip(
        instance.lo, instance.hi, instance.size, instance.align, strict=True
    ):
        while dying and dying[0][0] <= lo:
            free.give_back(*heappop(dying)[1:])
        offset = free.take(size, align)
        heappush(dying, (hi, offset, offset + size))
        offsets.append(offset)
    return offsets


def _class_of(length: int) -> int:
    shift = max(length.bit_length() - _LEADING, 0)
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
        if start in self.start_of:
            start = self.start_of[start]
            self._drop(start)
        if end in self.end_of:
            after = self.end_of[end]
            self._drop(end)
            end = after
        if end == self.top:
            self.top = start
        else:
            self._add(start, end)

    def take(self, size: int, align: int) -> int:
        """The start of `size` units that were free, or that are new at the top."""
        found = self._find(size, align)
        if found is None:
            found = (self.top, -(-self.top // align) * align + size)
            self.top = found[1]
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
        heappush(self.classes.setdefault(number, []), (start, end))
        self.filled |= 1 << number

    def _drop(self, start: int) -> None:
        del self.start_of[self.end_of.pop(start)]

    def _find(self, size: int, align: int) -> tuple[int, int] | None:
        """A stretch that holds the buffer, no longer among those that are free."""
        own = self._find_in(_class_of(size), size, align, _LOOKS)
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
        heap, found = self.classes.get(number, []), None
        seen: list[tuple[int, int]] = []
        while heap and found is None and len(seen) < looks:
            start, end = heappop(heap)
            if self.end_of.get(start) != end:
                continue
            if -(-start // align) * align + size <= end:
                found = (start, end)
                self._drop(start)
            else:
                seen.append((start, end))
        for stretch in seen:
            heappush(heap, stretch)
        if not heap:
            self.filled &= ~(1 << number)
        return found
