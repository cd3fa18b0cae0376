"""Time compressed to the sections that matter.

Two steps with no birth between them and a death only later hold nested sets of live buffers, so
only the fullest step of each such run can decide anything. Sections number those steps; a buffer
covers sections `lo <= s < hi`, and two buffers share a step exactly when they share a section.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


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
