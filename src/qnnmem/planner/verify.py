"""Checks a plan independently of the planner that made it."""

from __future__ import annotations

from bisect import bisect_left, bisect_right

from qnnmem.planner.problem import Plan, check_plan

# A run longer than this is split in two.
_LONGEST_RUN = 1000


def verify(plan: Plan) -> str | None:
    """Return a sentence about the first error in a plan; None if the plan is correct.

    The check sweeps over time with the live buffers sorted by address: when a buffer is born, only
    its two neighbours in address order can collide with it. It shares no code with the planners.
    """
    check_plan(plan)
    buffers, offsets = plan.problem.buffers, plan.offsets
    if len(offsets) != len(buffers):
        return f"{len(buffers)} buffers but {len(offsets)} offsets"
    for buffer, offset in zip(buffers, offsets, strict=True):
        if offset < 0 or offset % buffer.align:
            return f"'{buffer.name}' at {offset} is not a multiple of {buffer.align}"
    peak = max((o + b.size for o, b in zip(offsets, buffers, strict=True)), default=0)
    if plan.peak != peak or plan.lower_bound > peak:
        return f"peak {plan.peak} and bound {plan.lower_bound} do not match the actual peak {peak}"
    return _find_collision(plan)


def _find_collision(plan: Plan) -> str | None:
    buffers, offsets = plan.problem.buffers, plan.offsets
    kept = [i for i, buffer in enumerate(buffers) if buffer.size]  # without bytes, no collision
    lowers = [buffer.live.lower for buffer in buffers]
    uppers = [buffer.live.upper for buffer in buffers]
    births = sorted(kept, key=lowers.__getitem__)
    deaths = iter(sorted(kept, key=uppers.__getitem__))
    live, dying = _LiveRanges(), next(deaths, -1)
    for born in births:
        lower, start = lowers[born], offsets[born]
        while uppers[dying] <= lower:  # deaths come before births at the same step
            live.remove(offsets[dying])
            dying = next(deaths)
        other = live.add(start, start + buffers[born].size, born)
        if other is not None:
            return f"'{buffers[born].name}' and '{buffers[other].name}' share bytes"
    return None


class _LiveRanges:
    """Disjoint ranges sorted by address, in short runs, so that an insertion moves few entries."""

    def __init__(self) -> None:
        # This range lies below all others, so that a check for an empty list is unnecessary.
        self.runs: list[list[int]] = [[-1]]  # starts
        self.firsts: list[int] = [-1]  # first start of each run, in the same order
        self.held: dict[int, tuple[int, int]] = {-1: (0, -1)}  # end and index by start

    def add(self, start: int, end: int, index: int) -> int | None:
        """Add a range and return None, unless a neighbour overlaps the range.

        In that case, only return the neighbour's index.
        """
        k = bisect_right(self.firsts, start) - 1
        run = self.runs[k]
        position = bisect_right(run, start)
        below_end, below = self.held[run[position - 1] if position else self.runs[k - 1][-1]]
        if below_end > start:
            return below
        if position < len(run) or k + 1 < len(self.runs):
            above = run[position] if position < len(run) else self.runs[k + 1][0]
            if above < end:
                return self.held[above][1]
        run.insert(position, start)
        self.held[start] = (end, index)
        if len(run) > _LONGEST_RUN:
            middle = len(run) // 2
            self.runs.insert(k + 1, run[middle:])
            self.firsts.insert(k + 1, run[middle])
            del run[middle:]
        return None

    def remove(self, start: int) -> None:
        """Remove the range with this start."""
        k = bisect_right(self.firsts, start) - 1
        run = self.runs[k]
        del run[bisect_left(run, start)], self.held[start]
        if not run:  # no run may be empty, because neighbours are found in one step
            del self.runs[k], self.firsts[k]
