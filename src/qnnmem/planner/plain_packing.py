"""The planner's inner loops in plain Python: the fallback for `packing.c`, and its test oracle.

The exact search for offsets below a capacity:

    least[u] = lowest offset that buffer u can still take, given the placed buffers
    floor[s] = lowest least[u] among the unplaced buffers of section s
    pick a section s whose floor no neighbouring section undercuts; then in any packing either
        one of the buffers with least[u] == floor[s] sits exactly there: try each, or
        none does: raise everything in s to the next height at which something could rest
    fail where the unplaced buffers of a section, stacked by lowest offset, exceed the capacity

Why this is complete: push every buffer of a packing down until it meets its lowest offset or
another buffer. Take a run of sections with equal floor f and higher floors around it. Buffers with
lowest offset f lie entirely inside the run, and no unplaced buffer there can lie below f. So the
buffer placed on f has everything else of its sections above it. The remaining problem depends only
on the unplaced buffers and their lowest offsets, so failed states are stored. Groups of
buffers that no unplaced buffer links are separate problems, so a failure in one group jumps over
all choices made in the other groups.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from qnnmem.planner import greedy
from qnnmem.planner.instance import Instance
from qnnmem.planner.packing import (
    CUT,
    EXHAUSTED,
    LOW,
    MOST_ELIMINATION_LOOKS,
    SOLVED,
    TIGHT,
    PackingCore,
    Strategy,
)

# Failed states that are stored: each takes some hundred bytes for each of its buffers.
_MOST_FAILED = 20_000
_TURNS = 64  # buffers placed between two checks of the work
_PLACING_WORK = 2  # for each neighbour

State = tuple[tuple[int, int], ...]  # unplaced buffers and their lowest offsets


class PlainPacking:
    """The inner loops for one packing problem."""

    cost = 100  # measured factor: time for a unit of work relative to compiled code
    most_pairs = 1_000_000  # pairs of neighbours, which take 60 MB here

    def __init__(self, instance: Instance) -> None:
        self.instance = instance

    @cached_property
    def near(self) -> list[list[int]]:
        """For each buffer, the buffers that share a section with it."""
        return greedy.neighbours(self.instance)

    def eliminate(self, limit: Sequence[int]) -> list[int]:
        """Return the buffers that fit no matter where the others are placed.

        A neighbour of size s blocks at most `s + z - 1` consecutive offsets for a buffer of size z,
        hence at most `(s + z - 1 + a - 1) / a` multiples of the alignment a. If all neighbours
        together cannot block every allowed multiple up to `limit`, the buffer can be placed after
        them in any case. Once it is removed, the same argument can apply to others.
        """
        size, align, near = self.instance.size, self.instance.align, self.near
        total = [sum(size[v] for v in near[u]) for u in range(len(near))]
        count = [len(neighbours) for neighbours in near]
        aside: list[int] = []
        left, looks, before = dict.fromkeys(range(len(near))), 0, -1
        while len(aside) > before and looks < MOST_ELIMINATION_LOOKS:
            before, looks = len(aside), looks + len(near)
            for u in list(left):
                # Skipped, as in C, where the product below would overflow.
                if size[u] + align[u] > (1 << 61) // (count[u] + 1):
                    continue
                blocked = (total[u] + count[u] * (size[u] + align[u] - 2)) // align[u]
                if limit[u] // align[u] + 1 > blocked:
                    del left[u]
                    aside.append(u)
                    for v in near[u]:
                        total[v] -= size[u]
                        count[v] -= 1
        return aside

    def place(
        self, order: list[int], best_fit: bool, offsets: list[int], work_limit: int
    ) -> tuple[int, int, list[int]]:
        """Place buffers in this order; return how many were placed, the work, and all offsets."""
        work = 0
        for turn in range(0, len(order), _TURNS):
            if work > work_limit:
                return turn, work, offsets
            piece = [u for u in order[turn : turn + _TURNS] if offsets[u] < 0]
            offsets = greedy.place(self.instance, self.near, piece, best_fit, offsets)
            work += sum(1 + _PLACING_WORK * len(self.near[u]) for u in piece)
        return len(order), work, offsets

    def core(self, limit: Sequence[int], twin: Sequence[int]) -> PackingCore:
        """Return an exact search, given the highest offset and the class of each buffer."""
        return _PlainCore(self, limit, twin)


class _PlainCore:
    """Exact search in Python for one instance and capacity; learns from earlier searches."""

    def __init__(self, packing: PlainPacking, limit: Sequence[int], twin: Sequence[int]) -> None:
        self.instance = instance = packing.instance
        self.near, self.limit, self.twin = packing.near, limit, twin
        self.first = instance.first
        self.weight = [1.0] * instance.sections  # conflicts in each section
        self.failed: set[State] = set()
        # By section: the highest end that any of its buffers may reach.
        self.cap = [0] * instance.sections
        for lo, hi, size, highest in zip(
            instance.lo, instance.hi, instance.size, limit, strict=True
        ):
            for s in range(lo, hi):
                self.cap[s] = max(self.cap[s], highest + size)

    def search(self, strategy: Strategy, work_limit: int) -> tuple[int, int, list[int]]:
        """Return a search's status and work, and offsets that are valid if the status is SOLVED."""
        search = _Search(self, strategy)
        status = search.run(work_limit)
        return status, search.work, search.least

    def forget(self, share: float) -> None:
        """Multiply by `share` the weights that sections gained in past conflicts."""
        self.weight = [1.0 + (weight - 1.0) * share for weight in self.weight]


class _Component(NamedTuple):
    """Sections a..b, linked by unplaced buffers; choice point `parent` split them from the rest."""

    a: int
    b: int
    parent: int


class _Pit(NamedTuple):
    """Adjacent sections of equal floor between higher floors, and the section to branch on."""

    section: int
    left: int
    right: int


@dataclass(slots=True)
class _Frame:
    """A choice point: the buffers that can be placed on a floor, and the state to restore."""

    component: _Component
    section: int
    floor: int
    must: bool  # the floor must not stay empty
    choices: list[int]
    trail: int
    agenda: tuple[_Component, ...]
    state: State
    taken: int = 0


class _Search:
    """State of a single search: offsets, floors and choice points."""

    def __init__(self, core: _PlainCore, strategy: Strategy) -> None:
        instance = core.instance
        self.core, self.strategy = core, strategy
        self.lo, self.hi = instance.lo, instance.hi
        self.size, self.align = instance.size, instance.align
        self.least = [0] * len(instance)
        self.placed = [False] * len(instance)
        self.total = list(instance.load)  # by section: the size of its unplaced buffers
        self.trail: list[tuple[int, int]] = []  # (buffer, old least), or (-1 - buffer, 0) if placed
        self.agenda: tuple[_Component, ...] = ()  # the last is solved first
        self.frames: list[_Frame] = []
        self.work = 0
        self.floor, self.second, self.height, self.options = (
            [0] * instance.sections for _ in range(4)
        )
        self.must = [False] * instance.sections
        self.viable: set[int] = set()

    def run(self, work_limit: int) -> int:
        a, b, parent = 0, self.core.instance.sections, -1  # the component that changed last
        while True:
            self.agenda += tuple(_Component(*ends, parent) for ends in self._split(a, b))
            if not self.agenda:
                return SOLVED
            if self.work > work_limit:
                return CUT
            component, self.agenda = self.agenda[-1], self.agenda[:-1]
            last = self._take_next(self._open(component))
            if last < 0:
                return EXHAUSTED
            a, b, _ = self.frames[last].component
            parent = last

    def _split(self, a: int, b: int) -> list[tuple[int, int]]:
        """Return the section range of each component in sections a..b, fewest conflicts first."""
        weight = self.core.weight
        components: list[tuple[int, int]] = []
        start, end = -1, -1
        for u in range(self.core.first[a], self.core.first[b]):  # by first section
            if self.placed[u]:
                continue
            if self.lo[u] >= end:
                if start >= 0:
                    components.append((start, end))
                start = self.lo[u]
            end = max(end, self.hi[u])
        if start >= 0:
            components.append((start, end))
        return sorted(components, key=lambda ends: max(weight[ends[0] : ends[1]]))

    def _open(self, component: _Component) -> int:
        """Return a new choice point for a component; at a dead end, the component's parent."""
        a, b, parent = component
        unplaced = [u for u in range(self.core.first[a], self.core.first[b]) if not self.placed[u]]
        state = tuple((u, self.least[u]) for u in unplaced)
        order = _shell_sorted(unplaced, self.least)
        self.work += 256 + 8 * len(order) + 3 * (b - a)
        if state in self.core.failed:
            return parent
        self._stack_up(order, a, b)
        if self._is_too_high(a, b):
            return parent
        pit = self._choose(order, a, b)
        if pit is None:
            return parent
        self.frames.append(
            _Frame(
                *(component, pit.section, self.floor[pit.section], self.must[pit.section]),
                *(self._choices(order, pit), len(self.trail), self.agenda, state),
            )
        )
        return len(self.frames) - 1

    def _stack_up(self, order: list[int], a: int, b: int) -> None:
        """Compute the floor, the second lowest offset and the height of sections a..b."""
        floor, second, height = self.floor, self.second, self.height
        for s in range(a, b):
            floor[s] = second[s] = _NEVER
            height[s] = 0
        for u in order:  # by lowest offset, so that the first is the floor
            level, size = self.least[u], self.size[u]
            for s in range(self.lo[u], self.hi[u]):
                if floor[s] == _NEVER:
                    floor[s] = level
                elif level > floor[s] and second[s] == _NEVER:
                    second[s] = level
                height[s] = max(height[s], level) + size
            self.work += (self.hi[u] - self.lo[u]) // 4

    def _is_too_high(self, a: int, b: int) -> bool:
        """Return whether any section exceeds its capacity; each section that does gains weight."""
        high = [s for s in range(a, b) if self.height[s] > self.core.cap[s]]
        for s in high:
            self.core.weight[s] += 1.0
        return bool(high)

    def _choose(self, order: list[int], a: int, b: int) -> _Pit | None:
        """Return a run of sections to branch in, with higher floors around it; None at a dead end.

        A section's score is its number of choices, divided by the conflicts seen there and scaled
        by the branching rule. The section with the lowest score decides the run.
        """
        floor, weight, cap = self.floor, self.core.weight, self.core.cap
        smallest = min(self.size[u] for u in order)
        self.viable.clear()
        best, lowest = None, math.inf
        right = a
        while right < b:
            left, right = right, right + 1
            while right < b and floor[right] == floor[left]:
                right += 1
            if (left > a and floor[left - 1] < floor[left]) or (
                right < b and floor[right] < floor[left]
            ):
                continue
            if not self._cover(order, left, right, smallest):
                for s in range(left, right):
                    weight[s] += self.must[s] / (right - left)
                return None
            for s in range(left, right):
                score = self.options[s] / weight[s]
                if self.options[s] > 1 and self.strategy.branching_rule == TIGHT:
                    score *= (cap[s] - self.height[s]) / cap[s] + 0.05
                elif self.options[s] > 1 and self.strategy.branching_rule == LOW:
                    score *= floor[s] + 1.0
                if best is None or score < lowest:
                    best, lowest = _Pit(s, left, right), score
        return best

    def _cover(self, order: list[int], left: int, right: int, smallest: int) -> bool:
        """Return whether buffers can cover the floor of sections left..right wherever they must.

        A section must be covered by a buffer on the floor if its buffers would otherwise pass the
        capacity. Buffers on one floor do not overlap in time, so a scan along the sections from
        both ends shows which buffers can be part of such a covering. The scan fills in `must`,
        `options` (buffers that can, plus one if the section may stay empty) and `viable`.
        """
        level, must, options = self.floor[left], self.must, self.options
        for s in range(left, right):
            # If its floor stays empty, a section starts at its second lowest offset, or on top of a
            # buffer of the run that is placed on the floor.
            empty = min(self.second[s], level + smallest)
            must[s] = empty + self.total[s] > self.core.cap[s]
            options[s] = 1 - must[s]
        on_floor = sorted(
            u
            for u in order
            if self.least[u] == level and left <= self.lo[u] and self.hi[u] <= right
        )
        from_left, from_right = {left}, {right}
        k = 0
        for s in range(left, right):
            if s in from_left and not must[s]:
                from_left.add(s + 1)
            while k < len(on_floor) and self.lo[on_floor[k]] == s:
                if s in from_left:
                    from_left.add(self.hi[on_floor[k]])
                k += 1
        if right not in from_left:
            return False
        k = len(on_floor) - 1
        for s in range(right - 1, left - 1, -1):
            if not must[s] and s + 1 in from_right:
                from_right.add(s)
            while k >= 0 and self.lo[on_floor[k]] == s:
                u = on_floor[k]
                if self.hi[u] in from_right:
                    from_right.add(s)
                    if s in from_left:
                        self.viable.add(u)
                        for q in range(s, self.hi[u]):
                            options[q] += 1
                k -= 1
        return True

    def _choices(self, order: list[int], pit: _Pit) -> list[int]:
        """Return buffers that can be placed on the floor, the best first.

        Of interchangeable buffers, only one is returned.
        Buffers that reach an end of the run are preferred, as they leave no narrow gap there.
        """
        kinds: set[int] = set()
        worth: list[tuple[int, int]] = []
        for u in order:
            if u in self.viable and self._covers(u, pit.section) and self.core.twin[u] not in kinds:
                kinds.add(self.core.twin[u])
                touched = (self.lo[u] == pit.left) + (self.hi[u] == pit.right)
                worth.append((self.strategy.rank[u] - self.strategy.wall_bonus * touched, u))
        return [u for _, u in sorted(worth, key=lambda pair: pair[0])]

    def _covers(self, u: int, section: int) -> bool:
        return self.lo[u] <= section < self.hi[u]

    def _take_next(self, last: int) -> int:
        """Apply the next possible choice and return the choice point at which it was made.

        Return -1 if no choice is left. Start at choice point `last`. If a point has no choice
        left, continue at the point whose choice created its component.
        """
        while last >= 0:
            frame = self.frames[last]
            del self.frames[last + 1 :]
            self._undo(frame.trail)
            self.agenda = frame.agenda
            taken = frame.taken
            frame.taken += 1
            # A floor that must be filled is not skipped.
            if taken + frame.must > len(frame.choices):
                if len(self.core.failed) < _MOST_FAILED:
                    self.core.failed.add(frame.state)
                last = frame.component.parent
            elif taken < len(frame.choices):
                if self._sit(frame.choices[taken]):
                    return last
            elif self._leave_empty(frame):
                return last
        return -1

    def _undo(self, to: int) -> None:
        """Undo all changes above position `to` of the trail."""
        while len(self.trail) > to:
            u, least = self.trail.pop()
            if u >= 0:
                self.least[u] = least
                continue
            u = -1 - u
            self.placed[u] = False
            for s in range(self.lo[u], self.hi[u]):
                self.total[s] += self.size[u]

    def _sit(self, u: int) -> bool:
        """Place a buffer at its lowest offset; return False if a neighbour above it cannot fit."""
        near, weight = self.core.near[u], self.core.weight
        self.work += len(near) + 1
        self.placed[u] = True
        for s in range(self.lo[u], self.hi[u]):
            self.total[s] -= self.size[u]
        self.trail.append((-1 - u, 0))
        top = self.least[u] + self.size[u]
        for v in near:
            if self.placed[v] or self.least[v] >= top:
                continue
            if not self._lift(v, top):
                left, right = max(self.lo[u], self.lo[v]), min(self.hi[u], self.hi[v])
                for s in range(left, right):
                    weight[s] += 1.0 / (right - left)
                return False
        return True

    def _lift(self, u: int, height: int) -> bool:
        """Raise the lowest offset of a buffer; return False if it would exceed the capacity."""
        raised = -(-height // self.align[u]) * self.align[u]
        if raised > self.core.limit[u]:
            return False
        self.trail.append((u, self.least[u]))
        self.least[u] = raised
        return True

    def _leave_empty(self, frame: _Frame) -> bool:
        """Lift all buffers off a section's floor to the next height; return False if that fails."""
        a, b, _ = frame.component
        begin, end = self.core.first[a], self.core.first[b]
        height = self._next_rest(frame.section, frame.floor, begin, end)
        if height is None:
            return False
        for u in range(begin, end):
            low = not self.placed[u] and self._covers(u, frame.section) and self.least[u] < height
            if low and not self._lift(u, height):
                self.core.weight[frame.section] += 1.0
                return False
        return True

    def _next_rest(self, section: int, level: int, begin: int, end: int) -> int | None:
        """Return the lowest height above `level` at which a buffer of a section can rest."""
        heights: list[int] = []
        self.work += end - begin
        for u in range(begin, end):
            if self.placed[u] or not self._covers(u, section):
                continue
            if self.least[u] > level:
                heights.append(self.least[u])
                continue
            # The section's lowest buffer then rests on a buffer that does not cover the section.
            near, align = self.core.near[u], self.align[u]
            self.work += len(near)
            for v in near:
                if not self.placed[v] and not self._covers(v, section):
                    rest = -(-(self.least[v] + self.size[v]) // align) * align
                    if rest > level:
                        heights.append(rest)
        return min(heights, default=None)


_NEVER = 1 << 62


def _shell_sorted(unplaced: list[int], least: list[int]) -> list[int]:
    """Return buffers by lowest offset; ties keep the order of Shell's sort, as in C."""
    order, gap = list(unplaced), 1
    while 3 * gap + 1 < len(order):
        gap = 3 * gap + 1
    while gap > 0:
        for k in range(gap, len(order)):
            u, j = order[k], k
            while j >= gap and least[order[j - gap]] > least[u]:
                order[j] = order[j - gap]
                j -= gap
            order[j] = u
        gap //= 3
    return order
