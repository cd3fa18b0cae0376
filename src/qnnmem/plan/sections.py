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
    lo, hi = [0] * len(lowers), [0] * len(lowers)
    births = sorted(range(len(lowers)), key=lowers.__getitem__)
    deaths = sorted(range(len(uppers)), key=uppers.__getitem__)
    current, cut, born = 0, 0, 0  # `cut`: births before the current section
    for index in deaths:
        # Deaths come before births at one step: spans are half-open, touching ones do not meet.
        while born < len(births) and lowers[births[born]] < uppers[index]:
            lo[births[born]] = current
            born += 1
        if born > cut:
            current, cut = current + 1, born
        hi[index] = current
    return TimeSections(lo, hi, current)
