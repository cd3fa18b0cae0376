"""Why a capacity is too small: a set of buffers that already cannot fit."""

from __future__ import annotations

import math
import time

from qnnmem.planner.bounds import load_bound
from qnnmem.planner.effort import WORK_PER_SECOND, Effort
from qnnmem.planner.instance import Instance
from qnnmem.planner.problem import Problem, find_peak
from qnnmem.units import round_up

# Shrinking a set repeats the search many times; this bounds all of it together.
SHRINK_SECONDS = 5.0
# A reason is wanted even where the search for a plan took all the time there was.
GRACE_SECONDS = 0.5
MOST_SECTIONS = 64
# Dropping one buffer of more than this takes too long for the result to become much smaller.
MOST_SHRUNK = 20_000


def find_blockers(
    problem: Problem, instance: Instance, proven: bool, deadline: float = math.inf
) -> tuple[str, ...]:
    """Names of a smallest set found by shortly after `deadline` that cannot fit, largest first.

    When too much is alive at one step that is the fewest largest buffers of that step. When only a
    search showed it, buffers are dropped one by one while the rest still cannot fit. When nothing
    was proven these are the buffers of the fullest step, the first suspects.
    """
    capacity = problem.capacity or 0
    effort = Effort.of_seconds(SHRINK_SECONDS)
    effort.deadline = min(effort.deadline, max(deadline, time.monotonic()) + GRACE_SECONDS)
    if load_bound(instance) > capacity:
        chosen = _overfull(instance, capacity, effort)
        # With mixed alignments the bound says less than a search.
        if len(set(instance.align)) > 1 and len(chosen) <= MOST_SHRUNK:
            chosen = _shrink(instance, chosen, capacity, effort)
    elif proven:
        chosen = _shrink(instance, list(range(len(instance))), capacity, effort)
    else:
        peak = find_peak(problem.buffers)
        return tuple(buffer.name for buffer in peak.live) if peak else ()
    names = [problem.buffers[instance.source[i]] for i in chosen]
    return tuple(b.name for b in sorted(names, key=lambda b: (-b.size, b.name)))


def _overfull(instance: Instance, capacity: int, effort: Effort) -> list[int]:
    """The fewest buffers of one section that pass the capacity together, as far as looked for."""
    best = list(range(len(instance)))
    for section in _suspects(instance):
        if len(best) < len(instance) and effort.over:
            break
        alive = [i for i in range(len(instance)) if instance.lo[i] <= section < instance.hi[i]]
        alive.sort(key=lambda i: (-instance.true_size(i), i))
        if _fewest(instance, alive, capacity) >= len(best) or not _over(instance, alive, capacity):
            continue
        low, high = 1, len(alive)
        while low < high:
            middle = (low + high) // 2
            over = _over(instance, alive[:middle], capacity)
            low, high = (low, middle) if over else (middle + 1, high)
        found = _without_bystanders(instance, alive[:low], capacity, effort)
        best = min(best, found, key=len)
    return best


def _suspects(instance: Instance) -> list[int]:
    """Sections to look at: the fullest, and those with the largest buffers."""
    by_load = sorted(range(instance.sections), key=lambda s: -instance.load[s])[:MOST_SECTIONS]
    largest = sorted(range(len(instance)), key=lambda i: -instance.true_size(i))[:MOST_SECTIONS]
    fullest = [
        max(range(instance.lo[i], instance.hi[i]), key=instance.load.__getitem__) for i in largest
    ]
    return list(dict.fromkeys([*by_load, *fullest]))


def _fewest(instance: Instance, alive: list[int], capacity: int) -> int:
    """A number of buffers below which even rounded sizes stay within the capacity."""
    total = 0
    for count, i in enumerate(alive, 1):
        total += round_up(instance.size[i], instance.align[i]) * instance.unit
        if total > capacity:
            return count
    return len(alive)


def _over(instance: Instance, chosen: list[int], capacity: int) -> bool:
    return load_bound(instance.subset(chosen)) > capacity


def _without_bystanders(
    instance: Instance, chosen: list[int], capacity: int, effort: Effort
) -> list[int]:
    """Drops buffers that only mixed alignments brought in, smallest first."""
    for i in reversed(chosen.copy()):
        if effort.over:
            break
        rest = [k for k in chosen if k != i]
        if rest and _over(instance, rest, capacity):
            chosen = rest
    return chosen


def _shrink(instance: Instance, chosen: list[int], capacity: int, effort: Effort) -> list[int]:
    """Drops ever smaller groups of buffers as long as the rest provably cannot fit."""
    from qnnmem.planner.exact import Answer, fit

    def stuck(chosen: list[int]) -> bool:
        trial = effort.part(WORK_PER_SECOND // 2)
        before = trial.left
        answer, _ = fit(instance.subset(chosen), capacity, trial)
        effort.settle(trial, before)
        effort.spend(1000)
        return answer is Answer.NO

    group = max(len(chosen) // 2, 1)
    while group and not effort.over:
        start = 0
        while start < len(chosen) and not effort.over:
            rest = chosen[:start] + chosen[start + group :]
            if rest and stuck(rest):
                chosen = rest
            else:
                start += group
        group //= 2
    return chosen
