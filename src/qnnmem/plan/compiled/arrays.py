"""What the compiled loops work on: arrays in named tuples; this module alone imports no numba."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]
Marks = NDArray[np.uint8]


class BufferArrays(NamedTuple):
    """Buffers sorted by `lo`, in sections and units as in plan/instance.py."""

    lo: Ints
    hi: Ints
    size: Ints
    align: Ints
    first: Ints  # first buffer born in section s or later


class Boxes(NamedTuple):
    """Buffers as boxes: from section `lo` to section `hi`, `size` units high."""

    lo: Ints
    hi: Ints
    size: Ints


class Rests(NamedTuple):
    """Where a buffer may come to rest on another."""

    align: Ints
    limit: Ints  # highest offset that keeps a buffer below the capacity
    near: Ints  # the neighbours of u are near[start[u] : start[u + 1]]
    start: Ints


class Core(NamedTuple):
    """The buffers a search places and what follows from them; nothing in it ever changes."""

    boxes: Boxes
    rests: Rests
    first: Ints  # first buffer born in section s or later
    cap: Ints  # for each section the highest end that any of its buffers may reach
    twin: Ints  # equal for buffers that can be exchanged for each other


class Strategy(NamedTuple):
    """Which choice a search tries first; any strategy gives the same answer, sooner or later."""

    rank: Ints  # of buffers that could sit on the same floor: the lowest goes first
    branching_rule: int  # FEW, TIGHT or LOW of plan/compiled/pits.py
    wall_bonus: int  # how far a buffer moves forward in rank for each wall of its pit it touches


class State(NamedTuple):
    """Where a search stands."""

    least: Ints  # least offset a buffer can still take; of a placed buffer its offset
    placed: Flags
    total: Ints  # for each section the size of its unplaced buffers
    weight: Floats  # for each section the conflicts met there


class Skyline(NamedTuple):
    """The sections of a component as they are; computed anew for each choice."""

    floor: Ints  # for each section the least offset of its unplaced buffers
    second: Ints  # the next least offset above the floor
    height: Ints  # where its buffers would end if all sat as low as they can


class Cover(NamedTuple):
    """How the floors of a component can be covered; computed anew for each choice."""

    options: Ints  # for each section how many ways there are to go on at the floor
    must: Ints  # 1 where the floor has to be covered
    reach: Ints  # bit 0: the sections before can be covered, bit 1: those from here on can
    viable: Flags  # buffers that can take part in covering their pit


class SplitBounds(NamedTuple):
    """What splitting a component needs and gives."""

    change: Ints  # for each section: buffers born less buffers gone; the same of links between two
    bounds: Ints  # components: from, to


class Tables(NamedTuple):
    """The stacks of a search; replaced by longer ones when they are full."""

    trail: Ints  # (buffer, old least offset), or (-1 - buffer, any) where it was placed
    agenda: Ints  # components to solve: from, to, parent, next
    frames: Ints  # choice points; plan/compiled/search.py names the columns
    choice: Ints  # buffers to try, those of one choice point after those of the one before


class Workspace(NamedTuple):
    """All that a search writes to, except its stacks; made anew for each search."""

    state: State
    sky: Skyline
    cover: Cover
    parts: SplitBounds
    order: Ints  # unplaced buffers of a component by least offset


def new_workspace(load: Ints, count: int, weight: Floats) -> Workspace:
    """A search at its start: nothing of `count` buffers is placed, sections hold their `load`."""
    sections = len(load)

    def ints(*shape: int) -> Ints:
        return np.empty(shape, np.int64)

    return Workspace(
        State(np.zeros(count, np.int64), np.zeros(count, np.bool_), load.copy(), weight),
        Skyline(ints(sections), ints(sections), ints(sections)),
        Cover(ints(sections), ints(sections), ints(sections + 1), np.zeros(count, np.bool_)),
        SplitBounds(ints(sections + 2, 2), ints(sections + 1, 2)),
        ints(count),
    )
