"""Cut a model into the fewest parts that fit, with the fewest bytes crossing the cuts.

    sequence = read_sequence(path)                      ops in execution order
    found = partition(sequence, PlannedParts("256K"))   or another judge
    chain = write_chain(found, folder)                  part1.onnx, part2.onnx ..., chain.json

A judge decides whether a range of ops fits as a separate model: the planner for LPAI, the real
compiler and loader for HTP (`library.trials`). Results do not change: every part computes with the
nodes of the whole model, and `parts.chain` compares the results bit for bit.

A judge might have to run a compiler, so the search asks it as rarely as possible:

    from each end, take the longest parts that fit, by bisection: an upper bound on the parts
    repeat:
        choose the cheapest parts that have not been excluded yet
        ask the judge about each part; if all fit, return them
        otherwise find the longest part that fits from the start of the part that failed

If a range does not fit, larger ranges around it are presumed not to fit either. This can be wrong:
a cut with many crossing bytes can make a range need more than a larger range. If the presumption
leaves no solution, the search continues without it. A judge can also have a rule that excludes
ranges without a trial (`rows`). The judge itself has confirmed every part of a result.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cached_property
from typing import Protocol

from qnnmem.errors import Words, chain_words
from qnnmem.fix.parts.deployment import first_over, limits_of, planned_need
from qnnmem.fix.parts.op_sequence import OpRange, OpSequence, write_part
from qnnmem.planner import Io, MemoryPlan, Pool, PoolOptions, plan_model
from qnnmem.planner.pools import Budget, as_limits
from qnnmem.text import counted, quote
from qnnmem.units import MAX_BYTES


class PartFit(Enum):
    """Answer of a judge: whether a range of ops fits as a part."""

    YES = "yes"
    NO = "no"
    NEVER = "never"  # nor does any range that contains it


Fits = Callable[[int, int], PartFit]  # judges the ops first <= op < last
Rows = Callable[[int], Sequence[bool]]  # for a first op: whether a range may fit, by its end

_Cost = tuple[int, int]  # number of parts, crossing bytes


@dataclass(frozen=True, slots=True)
class Cuts:
    """Half-open ranges of ops, and the bytes that cross the cuts between the ranges."""

    parts: tuple[tuple[int, int], ...]
    crossing_bytes: int
    trials: int  # ranges that the judge tested
    is_cheapest: bool = True  # False: trials ran out before cheaper cuts were ruled out


@dataclass(frozen=True, slots=True)
class Stuck:
    """Failed search: parts that fit reach from the start to op `first`, but not to op `last`."""

    first: int
    last: int
    trials: int


@dataclass(frozen=True, slots=True)
class Undecided:
    """Result of a search that used up its trials."""

    trials: int


def least_cuts(
    crossing: Sequence[int],
    fits: Fits,
    *,
    places: Sequence[int] | None = None,
    rows: Rows | None = None,
    most_trials: int | None = None,
    is_over: Callable[[], bool] | None = None,
) -> Cuts | Stuck | Undecided:
    """Return cuts with the fewest parts that all fit, then the fewest crossing bytes.

    `crossing[at]` is the number of bytes that cross a cut before op `at`; the first and the last
    entry are the ends of the sequence. `places` are the allowed cuts, by default all. `rows`
    excludes parts without a trial: `rows(first)[last]`. The search ends when `is_over` returns
    True.
    """
    last = len(crossing) - 1
    allowed = sorted({0, last, *(range(last) if places is None else places)})
    search = _CutSearch(crossing, fits, allowed, rows, most_trials, is_over)
    try:
        cuts = search.run()
        if isinstance(cuts, Stuck) and search.presumed:
            search.presumes = False
            cuts = search.run()
    except _NoTrialsLeftError:
        return search.fallback() or Undecided(search.trials)
    return cuts


def narrow_places(crossing: Sequence[int], work: Sequence[int], most: int) -> tuple[int, ...]:
    """Divide a sequence into `most` ranges of equal work; return the cheapest cut in each range.

    The cheapest cut has the fewest crossing bytes. `work[at]` is the work of op `at`. Use this if
    every trial is expensive.
    """
    total = sum(work) or 1
    best: dict[int, int] = {}
    done = 0
    for op in range(1, len(work)):
        done += work[op - 1]
        share = min(most - 1, done * most // total)
        if share not in best or crossing[op] < crossing[best[share]]:
            best[share] = op
    return tuple(sorted(best.values()))


class _NoTrialsLeftError(Exception):
    """Raised when the allowed trials are used up."""


@dataclass(slots=True)
class _CutSearch:
    """State of the search for cuts; starts and ends are indexes into `places`."""

    crossing: Sequence[int]
    fits: Fits
    places: list[int]
    rows: Rows | None
    most_trials: int | None
    is_over: Callable[[], bool] | None = None
    presumes: bool = True
    presumed: bool = False  # True: a part was ruled out without a trial
    answers: dict[tuple[int, int], PartFit] = field(default_factory=dict)
    starts: list[set[int]] = field(default_factory=list)  # possible starts for each end
    longest: list[list[tuple[int, int]]] = field(default_factory=list)  # greedy solutions that fit

    @property
    def trials(self) -> int:
        return len(self.answers)

    def run(self) -> Cuts | Stuck:
        self._open()
        if self.presumes and not self._yes(0, len(self.places) - 1):
            for forward in (True, False):
                self._take_longest(forward=forward)
        while True:
            parts = self._cheapest()
            if isinstance(parts, Stuck):
                return parts
            # The longest part is the likeliest to fail, and a failure ends the round.
            longest_first = sorted(parts, key=lambda part: (self._ops(part), part))
            if all(self._holds(*part) for part in longest_first):
                return self._cuts(parts)

    def fallback(self) -> Cuts | None:
        """Return the cheaper greedy solution if no trials are left; None if no solution exists."""
        greedy = [replace(self._cuts(parts), is_cheapest=False) for parts in self.longest]
        return min(greedy, key=lambda cuts: (len(cuts.parts), cuts.crossing_bytes), default=None)

    def _cuts(self, parts: Sequence[tuple[int, int]]) -> Cuts:
        ranges = tuple((self.places[first], self.places[last]) for first, last in parts)
        return Cuts(ranges, sum(self.crossing[last] for _, last in ranges), self.trials)

    def _open(self) -> None:
        """Compute, for each end, the starts that neither the rule nor a trial excludes."""
        count = len(self.places)
        self.starts = [set() for _ in range(count)]
        for start in range(count - 1):
            row = None if self.rows is None else self.rows(self.places[start])
            for end in range(start + 1, count):
                if row is None or row[self.places[end]]:
                    self.starts[end].add(start)
        for (first, last), answer in self.answers.items():
            self._learn(first, last, answer)

    def _learn(self, first: int, last: int, answer: PartFit) -> None:
        if answer is not PartFit.YES:
            self.starts[last].discard(first)
        if answer is PartFit.NEVER:
            self._exclude_around(first, last)

    def _ops(self, part: tuple[int, int]) -> int:
        return self.places[part[0]] - self.places[part[1]]

    def _yes(self, first: int, last: int) -> bool:
        """Return whether a part fits; the judge is asked at most once per part."""
        key = (first, last)
        if key not in self.answers:
            if first not in self.starts[last]:
                return False
            if self.most_trials is not None and self.trials >= self.most_trials:
                raise _NoTrialsLeftError
            if self.is_over is not None and self.is_over():
                raise _NoTrialsLeftError
            self.answers[key] = self.fits(self.places[first], self.places[last])
            self._learn(first, last, self.answers[key])
        return self.answers[key] is PartFit.YES

    def _take_longest(self, *, forward: bool) -> None:
        """Cover the sequence from one end with the longest parts that fit."""
        end, goal = (0, len(self.places) - 1) if forward else (len(self.places) - 1, 0)
        parts = []
        while end != goal:
            other = self._farthest(end, forward=forward)
            if other is None:
                return
            parts.append((end, other) if forward else (other, end))
            end = other
        self.longest.append(parts if forward else parts[::-1])

    def _farthest(self, end: int, *, forward: bool) -> int | None:
        """Return the far end of the longest fitting part with one end at `end`; None if none fits.

        Longer parts are excluded from then on.
        """
        if forward:
            longer = range(end + 1, len(self.places))
            others = [other for other in longer if end in self.starts[other]]
        else:
            others = sorted(self.starts[end], reverse=True)
        low, high = 0, len(others)  # the shortest `low` parts fit, at most `high` may fit
        probe = high
        while low < high:
            other = others[probe - 1]
            ends = (end, other) if forward else (other, end)
            if self._yes(*ends):
                low = probe
            else:
                high = probe - 1
                self._presume_around(*ends)
            probe = (low + high + 1) // 2
        return others[low - 1] if low else None

    def _presume_around(self, first: int, last: int) -> None:
        if self.answers.get((first, last)) is not PartFit.NEVER:
            self.presumed = True
        self._exclude_around(first, last)

    def _exclude_around(self, first: int, last: int) -> None:
        for end in range(last, len(self.starts)):
            self.starts[end] = {
                start
                for start in self.starts[end]
                if start > first or self.answers.get((start, end)) is PartFit.YES
            }

    def _holds(self, first: int, last: int) -> bool:
        """Return whether a part fits; exclude a part that fails, and larger parts around it."""
        if self._yes(first, last):
            return True
        if self.presumes:
            self._presume_around(first, self._shortest_that_fails(first, last))
        return False

    def _shortest_that_fails(self, first: int, last: int) -> int:
        """Return the first end at which a part from `first` does not fit.

        That end is usually close to the largest known fit, so the steps start small.
        """
        fitting = (key for key, answer in self.answers.items() if answer is PartFit.YES)
        low = max((b for a, b in fitting if a <= first < b < last), default=first)
        step, high = 1, last
        while high - low > 1:
            probe = min(low + step, (low + high) // 2)
            # One excluded range says nothing about larger ranges, so the steps continue.
            if first not in self.starts[probe] or self._yes(first, probe):
                low, step = probe, 2 * step
            else:
                high, step = probe, last
        return high

    def _cheapest(self) -> list[tuple[int, int]] | Stuck:
        """Return the cheapest cover with parts that are not excluded; ties have a fixed order."""
        best: list[_Cost | None] = [(0, 0)]
        came = [0]
        for end in range(1, len(self.places)):
            cost, start = min(
                ((before, start) for start in self.starts[end] if (before := best[start])),
                default=((0, 0), -1),
            )
            came.append(start)
            crossing = cost[1] + self.crossing[self.places[end]]
            best.append(None if start < 0 else (cost[0] + 1, crossing))
        if best[-1] is None:
            last = max(place for place, cost in enumerate(best) if cost is not None)
            return Stuck(self.places[last], self.places[last + 1], self.trials)
        parts, end = [], len(came) - 1
        while end:
            parts.append((came[end], end))
            end = came[end]
        return parts[::-1]


PLANNING_S = 1.0  # seconds to plan one range
MOST_PLACES = 1000  # candidate cut positions
MOST_TRIALS = 300


@dataclass(frozen=True, slots=True)
class PartVerdict:
    """Verdict on a range of ops: whether the range fits as a separate model, and the reason."""

    fit: PartFit
    why: Words = ""
    need_bytes: int | None = None


class PartJudge(Protocol):
    """Judge that decides whether ranges of a sequence fit as separate models."""

    def __call__(self, sequence: OpSequence, op_range: OpRange) -> PartVerdict:
        """Return the verdict on one range of ops; this can take long."""
        ...

    def rows(self, sequence: OpSequence) -> Rows | None:
        """Return a cheap rule that excludes ranges of ops; None if the judge has no such rule."""
        ...


@dataclass(frozen=True)
class Partition:
    """Model cut into parts that all fit."""

    sequence: OpSequence
    cuts: Cuts
    verdicts: tuple[PartVerdict, ...] = ()

    @cached_property
    def parts(self) -> tuple[OpRange, ...]:
        """The parts in execution order."""
        return tuple(self.sequence.op_range(*ends) for ends in self.cuts.parts)

    def models(self) -> tuple[bytes, ...]:
        """Return each part as an ONNX model; not cached, because weights are large."""
        numbered = enumerate(self.parts, start=1)
        return tuple(write_part(self.sequence, part, number) for number, part in numbered)


@dataclass(frozen=True, slots=True)
class NoPartition:
    """Result of a failed partition: no cuts fit, or the trials ran out."""

    why: Words
    trials: int
    op: str = ""  # an op that does not fit even alone


def partition(
    sequence: OpSequence,
    judge: PartJudge,
    *,
    places: Sequence[int] | None = None,
    most_trials: int | None = MOST_TRIALS,
    is_over: Callable[[], bool] | None = None,
) -> Partition | NoPartition:
    """Cut a sequence into the fewest parts that fit, with the fewest crossing bytes.

    The search ends when `is_over` returns True.
    """
    verdicts: dict[tuple[int, int], PartVerdict] = {}

    def fits(first: int, last: int) -> PartFit:
        verdicts[first, last] = judge(sequence, sequence.op_range(first, last))
        return verdicts[first, last].fit

    if places is None and len(sequence) > MOST_PLACES:
        places = narrow_places(sequence.crossing, sequence.work, MOST_PLACES)
    rows = judge.rows(sequence)
    cuts = least_cuts(
        sequence.crossing, fits, places=places, rows=rows, most_trials=most_trials, is_over=is_over
    )
    if isinstance(cuts, Cuts):
        return Partition(sequence, cuts, tuple(verdicts[ends] for ends in cuts.parts))
    if isinstance(cuts, Undecided):
        trials = counted(cuts.trials, "trial")
        reason = f"the search ended after {trials} without finding parts that fit"
        return NoPartition(reason, cuts.trials)
    return _stuck(sequence, judge, cuts, verdicts)


def _stuck(
    sequence: OpSequence,
    judge: PartJudge,
    stuck: Stuck,
    verdicts: Mapping[tuple[int, int], PartVerdict],
) -> NoPartition:
    ops = sequence.model.ops[stuck.first : stuck.last]
    verdict = verdicts.get((stuck.first, stuck.last))
    if verdict is None:  # excluded by the rule without a verdict
        verdict = judge(sequence, sequence.op_range(stuck.first, stuck.last))
    op, range_ = quote(ops[0].name), f"the next {len(ops)} ops"
    if len(ops) == 1:
        op, range_ = f"{ops[0].type} {op}", "this op alone"
    reason: Words = f"the model can be cut into parts that fit only up to {op}"
    if verdict.why:
        reason = chain_words(reason, f"; for {range_}, ", verdict.why)
    return NoPartition(reason, stuck.trials, ops[0].name)


@dataclass(frozen=True, slots=True)
class PlannedParts:
    """Judge that plans the LPAI pools of a part and checks them against a budget."""

    budget: Budget
    options: PoolOptions = field(default_factory=PoolOptions)
    time_limit_s: float = PLANNING_S
    seed: int = 0

    def __call__(self, sequence: OpSequence, op_range: OpRange) -> PartVerdict:
        """Return the verdict from a plan of one range; tensors held for other parts count too."""
        plan = plan_part(op_range, self.options, time_limit_s=self.time_limit_s, seed=self.seed)
        state = {name for pair in self.options.states for name in pair}
        need = planned_need(sequence, op_range, plan, state)
        broken = first_over(need, limits_of(self.budget))
        if broken is None:
            return PartVerdict(PartFit.YES, need_bytes=need.in_turn("scratch"))
        pool, size, most = broken
        reason = f"{pool} needs {size:,} bytes, over the limit of {most:,}"
        # A larger range can need less IO, but never less scratch, constants or state.
        inner = {"scratch": plan.scratch_bytes, "constants": size, "persistent": size}
        never = inner.get(pool, 0) > most
        return PartVerdict(PartFit.NEVER if never else PartFit.NO, reason, size)

    def rows(self, sequence: OpSequence) -> Rows | None:
        """Return a rule against too many constant or IO bytes; None if there are no limits."""
        if self.options.bits is not None or self.options.states:
            return None  # other bits and states change the sizes
        limits = as_limits(self.budget)
        if limits.tcm is None and limits.pools.keys() <= {Pool.SCRATCH, Pool.PERSISTENT}:
            return None
        tcm = MAX_BYTES if limits.tcm is None else limits.tcm
        constants = min(tcm, limits.pools.get(Pool.CONSTANTS, MAX_BYTES))
        outside = self.options.io is Io.OUTSIDE
        io = limits.pools.get(Pool.IO, MAX_BYTES) if outside else MAX_BYTES

        def row(first: int) -> list[bool]:
            return [
                stored <= constants and given <= io and stored + given <= tcm
                for stored, given in zip(*sequence.range_bytes(first, constants), strict=True)
            ]

        return row


def plan_part(
    op_range: OpRange,
    options: PoolOptions,
    *,
    time_limit_s: float = PLANNING_S,
    seed: int = 0,
) -> MemoryPlan:
    """Return the plan of a part; state that is read and written in different parts is plain IO."""
    both = (
        pair
        for pair in options.states
        if pair[0] in op_range.inputs and pair[1] in op_range.outputs
    )
    own = PoolOptions(options.io, options.align, options.bits, tuple(both), options.inplace)
    return plan_model(op_range.model, own, time_limit=time_limit_s, seed=seed)
