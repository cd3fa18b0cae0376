"""Solves a packing problem: returns a verified plan, or the buffers that cannot fit."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import cast

from qnnmem.planner import greedy
from qnnmem.planner.effort import WORK_PER_SECOND, Effort
from qnnmem.planner.instance import Instance, arrange, load_bound, next_peak
from qnnmem.planner.problem import Infeasible, Plan, Problem, find_peak
from qnnmem.planner.verify import verify
from qnnmem.units import Bytes, Offset, round_up

# Pure Python places this many overlapping pairs faster than compiled code can be imported.
SMALL_PAIRS = 20_000
# Without compiled code, one pass over this many pairs takes two seconds. Above this, buffers are
# placed in the order of birth, which examines only free ranges.
MOST_PAIRS = 1_000_000
MOST_LOOKS = 50_000_000
# Work for one pair, or for examining one free gap, in pure Python; units of planner/effort.py.
WORK_PER_PAIR = 250
WORK_PER_LOOK = 15
# Work of a pass in pure Python between two checks of the clock.
LONGEST_PASS = 15_000_000
# In pure Python, with more than this many buffers, the preparation counts as work: per buffer, for
# the orders of greedy passes and for one try of the search.
LARGE = 4000
WORK_PER_ORDER = 1000
WORK_PER_TRY = 2000
DEFAULT_TIME_LIMIT_S = 10.0


@dataclass(frozen=True, slots=True)
class Progress:
    """The state of a running planner."""

    doing: str
    peak: Bytes
    lower_bound: Bytes


Watcher = Callable[[Progress], None]


def plan_problem(
    problem: Problem,
    time_limit: float = DEFAULT_TIME_LIMIT_S,
    *,
    seed: int = 0,
    watch: Watcher | None = None,
) -> Plan | Infeasible:
    """Return the lowest plan found in `time_limit` seconds, verified, with a proven lower bound.

    With a capacity, stop at the first plan that fits; return `Infeasible` if none is found.
    """
    return plan_within(problem, Effort.of_seconds(time_limit), seed=seed, watch=watch)


def plan_within(
    problem: Problem, effort: Effort, *, seed: int = 0, watch: Watcher | None = None
) -> Plan | Infeasible:
    """Return the result of `plan_problem` within an effort shared with other searches."""
    search = _Search(problem, effort, seed, watch)
    search.run()
    return search.answer()


class _OutOfEffortError(Exception):
    """Raised if the effort is used up in the middle of a greedy pass."""


class _Search:
    """The state of one planning run: the best plan, the proven bound, the remaining effort."""

    def __init__(self, problem: Problem, effort: Effort, seed: int, watch: Watcher | None) -> None:
        self.problem, self.effort, self.seed, self.watch = problem, effort, seed, watch
        self.tries = 0
        self.search_missing = False
        self.compiled = False  # whether compiled code is used
        self.instance: Instance = arrange(problem)
        self.bound = load_bound(self.instance)
        self.target = self.bound if problem.capacity is None else problem.capacity
        # At first the peak is that of a plan in which no two buffers share bytes.
        self.placed = False
        self.best = [0] * len(self.instance)
        self.peak = sum(buffer.size + buffer.align for buffer in problem.buffers)

    @property
    def done(self) -> bool:
        """True if the search can stop: the peak meets the target or equals the lower bound."""
        return self.peak <= max(self.target, self.bound)

    def run(self) -> None:
        self._place_greedily()
        capacity = self.problem.capacity
        if self.done or self.effort.over or (capacity is not None and self.bound > capacity):
            return
        compiled = self._load_compiled()
        if capacity is None:
            self._minimise()
        else:
            self._try(capacity, 1.0)
        self.search_missing = not (compiled or self.done)

    def _keep(self, offsets: list[int]) -> None:
        peak = self.instance.peak_bytes(offsets)
        if peak < self.peak or not self.placed:
            self.best, self.peak, self.placed = offsets, peak, True

    def _report(self, doing: str) -> None:
        if self.watch is not None:
            self.watch(Progress(doing, Bytes(self.peak), Bytes(self.bound)))

    def _place_greedily(self) -> None:
        if len(self.instance) == 0:
            self.peak = 0
            return
        try:
            self._place_in_orders()
        except _OutOfEffortError:
            if not self.placed:
                self._keep(greedy.place_by_class(self.instance))

    def _place_in_orders(self) -> None:
        # A plan that cannot fit should still be small, so the bound is a second target.
        target = max(self.target, self.bound)
        plans = self._greedy_plans(target)
        # If greedy passes are long, half of the effort is reserved for the search.
        reserve = self.effort.left // 2 if self.compiled else 0
        for offsets in plans:
            self._keep(offsets)
            self._report("placing greedily")
            if self.done or self.effort.over or self.effort.left < reserve:
                return

    def _load_compiled(self) -> bool:
        """Return whether compiled loops exist; compiling them does not count as effort."""
        from qnnmem.planner.packing import is_compiled

        started = time.monotonic()
        self.compiled = is_compiled()
        self.effort.excuse(time.monotonic() - started)
        return self.compiled

    def _greedy_plans(self, target: int) -> Iterator[greedy.Offsets]:
        instance = self.instance
        if len(instance) > LARGE and not self.effort.begin(WORK_PER_ORDER * len(instance)):
            raise _OutOfEffortError
        if instance.pairs > SMALL_PAIRS and self._load_compiled():
            return greedy.portfolio(instance, self._compiled_placer(), target)
        if instance.pairs <= MOST_PAIRS:
            return greedy.portfolio(instance, self._plain_placer(), target)
        return self._plans_by_birth()

    def _plans_by_birth(self) -> Iterator[greedy.Offsets]:
        """Yield complete placements, each made in the order of birth."""
        yield greedy.place_by_class(self.instance)
        for best_fit in (False, True):
            looks = min(MOST_LOOKS, self.effort.at_once // WORK_PER_LOOK)
            self.effort.spend(looks * WORK_PER_LOOK)
            yield greedy.place_by_birth(self.instance, best_fit, looks)

    def _plain_placer(self) -> greedy.Placer:
        instance = self.instance
        near = greedy.neighbours(instance)
        work = 0 if instance.pairs <= SMALL_PAIRS else instance.pairs * WORK_PER_PAIR
        parts = 1 + work // LONGEST_PASS
        length = 1 + len(instance) // parts

        def placer(order: list[int], best_fit: bool) -> list[int]:
            offsets = None
            for start in range(0, len(order), length):
                if start and self.effort.over:
                    raise _OutOfEffortError
                self.effort.spend(work // parts)
                piece = order[start : start + length]
                offsets = greedy.place(instance, near, piece, best_fit, offsets)
            return offsets or []

        return placer

    def _compiled_placer(self) -> greedy.Placer:
        from qnnmem.planner.exact import packing, place_packed

        loops = packing(self.instance)

        def placer(order: list[int], best_fit: bool) -> list[int]:
            offsets = place_packed(loops, order, best_fit, self.effort)
            if offsets is None:
                raise _OutOfEffortError
            return offsets

        return placer

    def _try(self, capacity: int, share: float) -> bool | None:
        """Return whether a plan fits `capacity`; None if undecided after `share` of the effort."""
        from qnnmem.planner.exact import Answer, dive_work, fit

        if len(self.instance) > LARGE and not self.effort.begin(WORK_PER_TRY * len(self.instance)):
            return None
        self._report(f"searching for a plan within {capacity:,} bytes")
        # With less work than one path from root to leaf needs, the search could find nothing.
        wanted = max(int(self.effort.left * share), dive_work(self.instance))
        self.tries += 1  # makes another try a different search, even at the same capacity
        with self.effort.part(wanted) as allowed:
            answer, offsets = fit(self.instance, capacity, allowed, self.seed + self.tries)
        if offsets is not None:
            self._keep(offsets)
            return True
        if answer is Answer.NO:
            self.bound = max(self.bound, next_peak(self.instance, capacity))
            return False
        return None

    def _minimise(self) -> None:
        """Lower the peak: try the bound, bisect between bound and peak, then take smaller steps."""
        from qnnmem.planner.exact import dive_work

        # A search that succeeds usually does so within a few dives (paths from root to leaf), and
        # its result is then optimal. If dives take long, first search for any plan better than the
        # greedy plan.
        dives = 10 * dive_work(self.instance) / max(self.effort.left, 1)
        if dives > 0.2:
            self._try((self.bound + self.peak) // 2, 0.04)
        while self._try(self.bound, min(max(0.2, dives), 0.5)) is not None:
            if self.peak == self.bound or self.effort.over:
                return
        low = self.bound
        while not self.effort.over and self.peak - low > self.peak // 256:
            middle = (low + self.peak) // 2
            if not self._try(middle, 0.04):
                low = max(middle, self.bound)
        self._descend()

    def _descend(self) -> None:
        """Lower the peak in steps: a share of the distance to the bound, smaller after failures."""
        parts = 3
        while self.peak > self.bound and not self.effort.over:
            step = max(1, (self.peak - self.bound) // parts)
            if self._try(self.peak - step, 0.25):
                parts = 3
            elif parts < 100:
                parts *= 2
            else:
                parts = 1

    def answer(self) -> Plan | Infeasible:
        problem, instance = self.problem, self.instance
        offsets = [0] * len(problem.buffers)
        for i, offset in zip(instance.source, self.best, strict=True):
            offsets[i] = offset * instance.unit
        placed = cast(tuple[Offset, ...], tuple(offsets))
        best = Plan(
            problem, placed, Bytes(self.bound), self.effort.cut_by_clock, self.search_missing
        )
        fault = verify(best)
        if fault is not None:
            raise AssertionError(f"the planner made an invalid plan: {fault}")
        if problem.capacity is None or best.peak <= problem.capacity:
            return best
        proven = self.bound > problem.capacity
        blockers = find_blockers(problem, instance, proven, self.effort.deadline)
        return Infeasible(problem, blockers, best.lower_bound, proven, best)


# Shrinking a set repeats the search many times; this is the limit for all of them.
SHRINK_SECONDS = 5.0
# Blockers are needed even if the search for a plan took all the time.
GRACE_SECONDS = 0.5
MOST_SECTIONS = 64
# Dropping single buffers from larger sets takes too long for a slightly smaller result.
MOST_SHRUNK = 20_000


def find_blockers(
    problem: Problem, instance: Instance, proven: bool, deadline: float = math.inf
) -> tuple[str, ...]:
    """Return names of a small set of buffers that cannot fit, largest first.

    If too many bytes are alive at one step, these are the largest buffers of that step, as few as
    suffice to exceed the capacity. If only a search proved that the buffers do not fit, single
    buffers are dropped as long as the remaining set cannot fit either. If nothing was proven, these
    are the buffers of the fullest step, which are the likeliest cause.
    """
    capacity = problem.capacity or 0
    effort = Effort.of_seconds(SHRINK_SECONDS)
    effort.deadline = min(effort.deadline, max(deadline, time.monotonic()) + GRACE_SECONDS)
    if load_bound(instance) > capacity:
        chosen = _overfull(instance, capacity, effort)
        # With mixed alignments, a search proves more than the bound and can find a smaller set.
        if len(set(instance.align)) > 1 and len(chosen) <= MOST_SHRUNK:
            chosen = _shrink(instance, chosen, capacity, effort)
    elif proven:
        chosen = _shrink(instance, list(range(len(instance))), capacity, effort)
    else:
        peak = find_peak(problem.buffers)
        return tuple(buffer.name for buffer in peak.live) if peak else ()
    buffers = [problem.buffers[instance.source[i]] for i in chosen]
    return tuple(b.name for b in sorted(buffers, key=lambda b: (-b.size, b.name)))


def _overfull(instance: Instance, capacity: int, effort: Effort) -> list[int]:
    """Return a few buffers of one section that together exceed the capacity."""
    best = list(range(len(instance)))
    for section in _suspects(instance):
        if len(best) < len(instance) and effort.over:
            break
        alive = [i for i in range(len(instance)) if instance.lo[i] <= section < instance.hi[i]]
        alive.sort(key=lambda i: (-instance.true_size(i), i))
        if _fewest(instance, alive, capacity) >= len(best) or not _exceed(
            instance, alive, capacity
        ):
            continue
        low, high = 1, len(alive)
        while low < high:
            middle = (low + high) // 2
            over = _exceed(instance, alive[:middle], capacity)
            low, high = (low, middle) if over else (middle + 1, high)
        needed = _without_bystanders(instance, alive[:low], capacity, effort)
        best = min(best, needed, key=len)
    return best


def _suspects(instance: Instance) -> list[int]:
    """Return sections to search for blockers: the fullest, and those with the largest buffers."""
    by_load = sorted(range(instance.sections), key=lambda s: -instance.load[s])[:MOST_SECTIONS]
    largest = sorted(range(len(instance)), key=lambda i: -instance.true_size(i))[:MOST_SECTIONS]
    return list(dict.fromkeys([*by_load, *map(instance.fullest_section, largest)]))


def _fewest(instance: Instance, alive: list[int], capacity: int) -> int:
    """Return a lower bound on how many live buffers it takes to exceed the capacity."""
    total = 0
    for count, i in enumerate(alive, 1):
        total += round_up(instance.size[i], instance.align[i]) * instance.unit
        if total > capacity:
            return count
    return len(alive)


def _exceed(instance: Instance, chosen: list[int], capacity: int) -> bool:
    """Return True if the lower bound on the peak of these buffers alone exceeds the capacity."""
    return load_bound(instance.subset(chosen)) > capacity


def _without_bystanders(
    instance: Instance, chosen: list[int], capacity: int, effort: Effort
) -> list[int]:
    """Drop single buffers as long as the others exceed the capacity; return the remaining ones."""
    for i in reversed(chosen.copy()):
        if effort.over:
            break
        rest = [k for k in chosen if k != i]
        if rest and _exceed(instance, rest, capacity):
            chosen = rest
    return chosen


def _shrink(instance: Instance, chosen: list[int], capacity: int, effort: Effort) -> list[int]:
    """Drop ever smaller groups of buffers while the rest cannot fit; return the remaining ones."""
    from qnnmem.planner.exact import Answer, fit

    def cannot_fit(chosen: list[int]) -> bool:
        with effort.part(WORK_PER_SECOND // 2) as trial:
            answer, _ = fit(instance.subset(chosen), capacity, trial)
        effort.spend(1000)
        return answer is Answer.NO

    group = max(len(chosen) // 2, 1)
    while group and not effort.over:
        start = 0
        while start < len(chosen) and not effort.over:
            rest = chosen[:start] + chosen[start + group :]
            if rest and cannot_fit(rest):
                chosen = rest
            else:
                start += group
        group //= 2
    return chosen
