"""A packing problem as integers in canonical order, and lower bounds on its peak.

Buffers are sorted, so a plan does not depend on the order of the input. Offsets are counted in
units of the largest number that divides every alignment. Sizes are rounded up to whole units. This
wastes nothing below the topmost buffer, because the next offset is a whole unit anyway. `slip`
holds the bytes by which a buffer's rounded end exceeds its true end. The peak does not count the
`slip` of the topmost buffer.

Time is compressed to sections. In a run of births followed by deaths, the sets of live buffers are
nested, so only the fullest step of each run matters. Sections number those steps. A buffer covers
sections `lo <= s < hi`, and two buffers share a step exactly when they share a section.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from heapq import heappop, heappush
from itertools import accumulate

from msgspec import Struct

from qnnmem.planner.problem import Problem


class TimeSections(Struct, frozen=True):
    """For each buffer, the sections in which it lives: from `lo` to `hi` (exclusive)."""

    lo: list[int]
    hi: list[int]
    count: int


def cut_sections(lowers: Sequence[int], uppers: Sequence[int]) -> TimeSections:
    """Return each buffer's sections; buffer `i` lives at the steps `lowers[i] <= t < uppers[i]`."""
    births, ends = sorted(set(lowers)), sorted(set(uppers))
    lo_of: dict[int, int] = {}  # by the step of birth
    hi_of: dict[int, int] = {}  # by the step of death
    current, born = 0, 0
    for end in ends:
        before = born
        # Deaths come before births at the same step: spans are half-open, so adjacent spans do not
        # overlap.
        while born < len(births) and births[born] < end:
            lo_of[births[born]] = current
            born += 1
        if born > before:
            current += 1
        hi_of[end] = current
    lo = list(map(lo_of.__getitem__, lowers))
    hi = list(map(hi_of.__getitem__, uppers))
    return TimeSections(lo, hi, current)


@dataclass(frozen=True)
class Instance:
    """Buffers of at least one byte, sorted by first section."""

    source: tuple[int, ...]  # index in problem.buffers
    unit: int  # bytes
    lo: list[int]
    hi: list[int]
    size: list[int]  # units
    align: list[int]  # units
    slip: list[int]  # bytes
    sections: int

    def __len__(self) -> int:
        return len(self.source)

    @cached_property
    def load(self) -> list[int]:
        """For each section, the total size of its live buffers, in units."""
        change = [0] * (self.sections + 1)
        for lo, hi, size in zip(self.lo, self.hi, self.size, strict=True):
            change[lo] += size
            change[hi] -= size
        return list(accumulate(change[:-1]))

    @cached_property
    def first(self) -> list[int]:
        """For each section, the index of the first buffer that is born there or later.

        The last entry is the number of buffers.
        """
        born = [0] * (self.sections + 1)
        for lo in self.lo:
            born[lo + 1] += 1
        return list(accumulate(born))

    @cached_property
    def pairs(self) -> int:
        """Number of pairs of buffers that share a section."""
        return sum(self.first[hi] - i - 1 for i, hi in enumerate(self.hi))

    def fullest_section(self, i: int) -> int:
        """Return the section with the largest load among those of buffer `i`."""
        return max(range(self.lo[i], self.hi[i]), key=self.load.__getitem__)

    def subset(self, chosen: list[int]) -> Instance:
        """Return an instance of the chosen buffers; `source` holds their indexes in `self`."""
        cut = cut_sections([self.lo[i] for i in chosen], [self.hi[i] for i in chosen])
        order = sorted(range(len(chosen)), key=lambda k: (cut.lo[k], cut.hi[k], chosen[k]))
        kept = [chosen[k] for k in order]
        return Instance(
            source=tuple(kept),
            unit=self.unit,
            lo=[cut.lo[k] for k in order],
            hi=[cut.hi[k] for k in order],
            size=[self.size[i] for i in kept],
            align=[self.align[i] for i in kept],
            slip=[self.slip[i] for i in kept],
            sections=cut.count,
        )

    def true_size(self, i: int) -> int:
        """Return the size in bytes before rounding to units."""
        return self.size[i] * self.unit - self.slip[i]

    def end_bytes(self, i: int, offset: int) -> int:
        """Return the true end in bytes of buffer `i` at `offset` units."""
        return (offset + self.size[i]) * self.unit - self.slip[i]

    def peak_bytes(self, offsets: list[int]) -> int:
        """Return the highest true end of all buffers, in bytes."""
        ends = zip(offsets, self.size, self.slip, strict=True)
        return max(((offset + size) * self.unit - slip for offset, size, slip in ends), default=0)

    def highest_offset(self, i: int, capacity: int) -> int:
        """Return the highest aligned offset (in units) from which a buffer fits `capacity` bytes.

        The result is negative if the buffer does not fit.
        """
        room = (capacity + self.slip[i]) // self.unit - self.size[i]
        return room // self.align[i] * self.align[i]


def arrange(problem: Problem) -> Instance:
    """Return the canonical instance of a problem: the order of its buffers makes no difference."""
    nonempty = [(i, buffer) for i, buffer in enumerate(problem.buffers) if buffer.size]
    lives = [buffer.live for _, buffer in nonempty]
    cut = cut_sections([live.lower for live in lives], [live.upper for live in lives])
    # Names are unique, so the position in the problem never breaks a tie.
    rows = sorted(
        (lo, hi, -buffer.size, buffer.align, buffer.name, i)
        for lo, hi, (i, buffer) in zip(cut.lo, cut.hi, nonempty, strict=True)
    )
    lo, hi, minus, aligns, _, source = zip(*rows, strict=True) if rows else ((),) * 6
    unit = math.gcd(*set(aligns)) or 1
    size = [-(less // unit) for less in minus]
    return Instance(
        source=source,
        unit=unit,
        lo=list(lo),
        hi=list(hi),
        size=size,
        align=[align // unit for align in aligns],
        slip=[units * unit + less for units, less in zip(size, minus, strict=True)],
        sections=cut.count,
    )


MOST_STEPS = 32
# Limit on visits to buffers; above it, only the most common alignments are tried.
MOST_LOOKS = 1_000_000


def load_bound(instance: Instance) -> int:
    """Return a lower bound on the peak of every plan, from the bytes alive at the same time.

    Buffers that share a section do not overlap. Consider only buffers whose alignment is a multiple
    of `a`: each of them, except the topmost, takes its size rounded up to `a`. For every `a`,
    a bound is the sum of the rounded sizes, less the largest padding that the topmost can save.
    """
    best = 0
    for step in _steps(instance):
        members = [i for i, align in enumerate(instance.align) if align % step == 0]
        best = max(best, _rounded_load(instance, members, step * instance.unit))
    return best


def _steps(instance: Instance) -> list[int]:
    # Any set of numbers gives a valid bound. The alignments themselves are best for powers of two,
    # which are usual. The most common ones are enough; a hostile file could contain thousands.
    limit = min(MOST_STEPS, max(1, MOST_LOOKS // max(len(instance), 1)))
    common = (align for align, _ in Counter(instance.align).most_common(limit))
    return list(dict.fromkeys((1, *common)))


def _rounded_load(instance: Instance, members: list[int], step: int) -> int:
    """Return the largest load of a section: sizes rounded to `step`, less the largest padding."""
    lo, hi, size, slip, unit = instance.lo, instance.hi, instance.size, instance.slip, instance.unit
    change = [0] * (instance.sections + 1)
    padded = []  # (first section, minus padding, last section + 1), by first section as buffers are
    for i in members:
        true = size[i] * unit - slip[i]
        rounded = -(-true // step) * step
        change[lo[i]] += rounded
        change[hi[i]] -= rounded
        if rounded > true:
            padded.append((lo[i], true - rounded, hi[i]))
    return _highest(change, padded) if padded else max(accumulate(change), default=0)


def _highest(change: list[int], padded: list[tuple[int, int, int]]) -> int:
    """Return the largest load of all sections, after a deduction for padding.

    The largest padding among a section's live buffers is subtracted from the section's load.
    """
    best, begun = 0, 0
    saved: list[tuple[int, int]] = []  # (minus padding, last section + 1) of live buffers
    for section, total in enumerate(accumulate(change)):
        while begun < len(padded) and padded[begun][0] == section:
            heappush(saved, padded[begun][1:])
            begun += 1
        while saved and saved[0][1] <= section:
            heappop(saved)
        best = max(best, total + (saved[0][0] if saved else 0))
    return best


def next_peak(instance: Instance, capacity: int) -> int:
    """Return the lowest number of bytes above `capacity` that can be the peak of a plan."""
    # A peak is the aligned offset of a buffer plus its true size. Buffers with the same true size
    # and alignment reach the same peaks.
    ends = {(instance.true_size(i), align) for i, align in enumerate(instance.align)}
    best = None
    for true, align in ends:
        step = align * instance.unit
        above = max(0, (capacity - true) // step + 1) * step + true
        best = above if best is None else min(best, above)
    return capacity + 1 if best is None else best
