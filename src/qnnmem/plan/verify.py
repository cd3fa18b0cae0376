"""Checks a plan without trusting the planner that made it."""

from __future__ import annotations

from bisect import bisect_left, insort

from qnnmem.plan.problem import Plan


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
    events = []
    for index, buffer in enumerate(plan.problem.buffers):
        if buffer.size:  # nothing can collide with no bytes
            events.append((buffer.live.upper, 0, index))  # deaths come before births at one step
            events.append((buffer.live.lower, 1, index))
    live: list[tuple[int, int, int]] = []  # (start, end, index), disjoint and sorted
    for _, born, index in sorted(events):
        buffer, start = plan.problem.buffers[index], plan.offsets[index]
        entry = (start, start + buffer.size, index)
        if not born:
            live.pop(bisect_left(live, entry))
            continue
        at = bisect_left(live, entry)
        for begin, end, other in live[max(at - 1, 0) : at + 1]:
            if begin < entry[1] and entry[0] < end:
                return f"'{buffer.name}' and '{plan.problem.buffers[other].name}' share bytes"
        insort(live, entry)
    return None
