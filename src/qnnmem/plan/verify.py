"""Checks a plan without trusting the planner that made it."""

from __future__ import annotations

from bisect import bisect_left, bisect_right

from qnnmem.plan.problem import Plan

_Stretch = tuple[int, int, int]  # (start, end, index)

# A longer run is cut in two.
_LONGEST_RUN = 1000


def verify(plan: Plan) -> str | None:
    """The first thing wrong with a plan as a sentence, or None when it is right.

    Sweeps over time with the live buffers sorted by address: when a buffer is born, only its two
    neighbours in address order can collide with it. Shares no code with the planners.
    """
    buffers, offsets = plan.problem.buffers, plan.offsets
    if len(offsets) != len(buffers):
        return f"{len(buffers)} buffers but {len(offsets)} offsets"
    for buffer, offset in zip(buffers, offsets, strict=True):
        if offset < 0 or offset % buffer.align:
            return f"'{buffer.name}' at {offset} is not a multiple of {buffer.align}"
    peak = max((o + b.size for o, b in zip(offsets, buffers, strict=True)), default=0)
    if plan.peak != peak or plan.lower_bound > peak:
        return f"peak {plan.peak} and bound {plan.lower_bound} do not agree with {peak}"
    return _find_collision(plan)


def _find_collision(plan: Plan) -> str | None:
    buffers, offsets = plan.problem.buffers, plan.offsets
    lives = [buffer.live for buffer in buffers]
    kept = [i for i, buffer in enumerate(buffers) if buffer.size]  # no bytes, no collision
    births = sorted(kept, key=lambda i: lives[i].lower)
    deaths = iter(sorted(kept, key=lambda i: lives[i].upper))
    live, dying = _LiveStretches(), next(deaths, -1)
    for born in births:
        while lives[dying].upper <= lives[born].lower:  # deaths come before births at one step
            live.remove((offsets[dying], offsets[dying] + buffers[dying].size, dying))
            dying = next(deaths)
        entry = (offsets[born], offsets[born] + buffers[born].size, born)
        for begin, end, other in live.add(entry):
            if begin < entry[1] and entry[0] < end:
                return f"'{buffers[born].name}' and '{buffers[other].name}' share bytes"
    return None


class _LiveStretches:
    """Disjoint stretches by address, in runs that are short so that adding one moves few others."""

    def __init__(self) -> None:
        self.runs: list[list[_Stretch]] = [[]]
        self.firsts: list[_Stretch] = [(-1, -1, -1)]  # nothing of a run lies below; the same order

    def add(self, entry: _Stretch) -> list[_Stretch]:
        """Adds a stretch and returns its neighbours on both sides."""
        k = bisect_right(self.firsts, entry) - 1
        run = self.runs[k]
        at = bisect_left(run, entry)
        before = run[at - 1 : at] if at else self.runs[k - 1][-1:] if k else []
        after = run[at : at + 1] or (self.runs[k + 1][:1] if k + 1 < len(self.runs) else [])
        run.insert(at, entry)
        if len(run) > _LONGEST_RUN:
            middle = len(run) // 2
            self.runs.insert(k + 1, run[middle:])
            self.firsts.insert(k + 1, run[middle])
            del run[middle:]
        return before + after

    def remove(self, entry: _Stretch) -> None:
        """Takes out a stretch that was added."""
        k = bisect_right(self.firsts, entry) - 1
        run = self.runs[k]
        run.pop(bisect_left(run, entry))
        if not run and k:  # only the first run may be empty: neighbours are looked for in one step
            del self.runs[k], self.firsts[k]
