"""A problem in the form the algorithms work on: integers in canonical order.

Buffers are sorted, so that a plan does not depend on the order of the input. Offsets are counted in
units of the largest number that divides every alignment; a size is rounded up to whole units, which
loses nothing below the topmost buffer because the next offset is a whole unit anyway. What the
topmost buffer may keep is in `slip`: the bytes by which its rounded end lies above its true end.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from qnnmem.plan.problem import Problem
from qnnmem.plan.sections import cut_sections
from qnnmem.units import round_up


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
        return max(
            (self.end_bytes(i, offset) for i, offset in enumerate(offsets)),
            default=0,
        )

    def highest_offset(self, i: int, capacity: int) -> int:
        """Highest legal offset in units of buffer `i` below `capacity` bytes; may be negative."""
        room = (capacity + self.slip[i]) // self.unit - self.size[i]
        return room // self.align[i] * self.align[i]


def arrange(problem: Problem) -> Instance:
    """The instance of a problem; the same for every order of its buffers."""
    buffers = problem.buffers
    kept = [i for i, buffer in enumerate(buffers) if buffer.size]
    lives = [buffers[i].live for i in kept]
    sections = cut_sections([live.lower for live in lives], [live.upper for live in lives])
    unit = math.gcd(*(buffers[i].align for i in kept)) or 1

    def key(k: int) -> tuple[int, int, int, int, str]:
        buffer = buffers[kept[k]]
        return (sections.lo[k], sections.hi[k], -buffer.size, buffer.align, buffer.name)

    order = sorted(range(len(kept)), key=key)
    chosen = [buffers[kept[k]] for k in order]
    return Instance(
        source=tuple(kept[k] for k in order),
        unit=unit,
        lo=[sections.lo[k] for k in order],
        hi=[sections.hi[k] for k in order],
        size=[-(-buffer.size // unit) for buffer in chosen],
        align=[buffer.align // unit for buffer in chosen],
        slip=[round_up(buffer.size, unit) - buffer.size for buffer in chosen],
        sections=sections.count,
    )
