"""A problem in the form the algorithms work on: integers in canonical order.

Buffers are sorted, so that a plan does not depend on the order of the input. Offsets are counted in
units of the largest number that divides every alignment; a size is rounded up to whole units, which
loses nothing below the topmost buffer because the next offset is a whole unit anyway. What the
topmost buffer may keep is in `slip`: the bytes by which its rounded end lies above its true end.

Time is compressed to sections. Two steps with no birth between them and a death only later hold
nested sets of live buffers, so only the fullest step of each such run can decide anything. Sections
number those steps; a buffer covers sections `lo <= s < hi`, and two buffers share a step exactly
when they share a section.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from qnnmem.planner.problem import Problem


@dataclass(frozen=True, slots=True)
class TimeSections:
    """Where each buffer begins and ends, counted in sections."""

    lo: list[int]
    hi: list[int]
    count: int


def cut_sections(lowers: Sequence[int], uppers: Sequence[int]) -> TimeSections:
    """Sections of buffers that live from `lowers[i]` up to but not including `uppers[i]`."""
    births, ends = sorted(set(lowers)), sorted(set(uppers))
    lo_of: dict[int, int] = {}  # by the step of birth
    hi_of: dict[int, int] = {}  # by the step of death
    current, born = 0, 0
    for end in ends:
        before = born
        # Deaths come before births at one step: spans are half-open, touching ones do not meet.
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
    """Buffers with at least one byte, sorted by first section."""

    source: tuple[int, ...]  # position in problem.buffers
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
        """Units alive in each section."""
        change = [0] * (self.sections + 1)
        for lo, hi, size in zip(self.lo, self.hi, self.size, strict=True):
            change[lo] += size
            change[hi] -= size
        total, load = 0, []
        for delta in change[:-1]:
            total += delta
            load.append(total)
        return load

    @cached_property
    def pairs(self) -> int:
        """How many pairs of buffers share a section."""
        born = [0] * (self.sections + 1)
        for lo in self.lo:
            born[lo + 1] += 1
        for section in range(self.sections):
            born[section + 1] += born[section]
        return sum(born[hi] - i - 1 for i, hi in enumerate(self.hi))

    def subset(self, chosen: list[int]) -> Instance:
        """Only the given buffers, sections cut anew; `source` then counts in this instance."""
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
        """Size in bytes, not rounded to units."""
        return self.size[i] * self.unit - self.slip[i]

    def end_bytes(self, i: int, offset: int) -> int:
        """True end in bytes of buffer `i` at `offset` units."""
        return (offset + self.size[i]) * self.unit - self.slip[i]

    def peak_bytes(self, offsets: list[int]) -> int:
        """Highest true end over all buffers."""
        ends = zip(offsets, self.size, self.slip, strict=True)
        return max(((offset + size) * self.unit - slip for offset, size, slip in ends), default=0)

    def highest_offset(self, i: int, capacity: int) -> int:
        """Highest legal offset in units of buffer `i` below `capacity` bytes; may be negative."""
        room = (capacity + self.slip[i]) // self.unit - self.size[i]
        return room // self.align[i] * self.align[i]


def arrange(problem: Problem) -> Instance:
    """The instance of a problem; the same for every order of its buffers."""
    kept = [(i, buffer) for i, buffer in enumerate(problem.buffers) if buffer.size]
    lives = [buffer.live for _, buffer in kept]
    cut = cut_sections([live.lower for live in lives], [live.upper for live in lives])
    # Names differ, so that the place in the problem decides nothing.
    rows = sorted(
        (lo, hi, -buffer.size, buffer.align, buffer.name, i)
        for lo, hi, (i, buffer) in zip(cut.lo, cut.hi, kept, strict=True)
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
