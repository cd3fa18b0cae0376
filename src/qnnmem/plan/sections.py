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
    # Deaths sort before births at one step: spans are half-open, touching ones do not meet.
    events = [(upper, 0, i) for i, upper in enumerate(uppers)]
    events += [(lower, 1, i) for i, lower in enumerate(lowers)]
    events.sort()
    current, born_since_cut = 0, False
    for _, born, index in events:
        if born:
            lo[index], born_since_cut = current, True
            continue
        if born_since_cut:
            current, born_since_cut = current + 1, False
        hi[index] = current
    return TimeSections(lo, hi, current)
