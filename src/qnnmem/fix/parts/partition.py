"""Partition: a model cut into the fewest parts that fit, where the fewest bytes cross.

    sequence = read_sequence(path)                              its ops in a row
    found = partition(sequence, PlannedParts("256K"))      or a judge of your own
    chain = write_chain(found, folder)                  part1.onnx, part2.onnx ..., chain.json

A judge says whether a stretch of ops fits as a model of its own: the planner for LPAI, the real
compiler and loader for HTP (`partition_htp`). Results do not change: every part computes with the
nodes of the whole, and `fix.parts.chain` compares them bit by bit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from qnnmem.errors import Words, chain_words
from qnnmem.fix.parts.cut import Cuts, PartFit, Rows, Stuck, Undecided, least_cuts, narrow_places
from qnnmem.fix.parts.deployment import first_over
from qnnmem.fix.parts.op_sequence import OpSequence, Stretch
from qnnmem.fix.parts.part_needs import limits_of, planned_need
from qnnmem.planner import Io, MemoryPlan, Pool, PoolOptions, plan_model
from qnnmem.planner.pools import Budget, as_limits
from qnnmem.text import counted, quote
from qnnmem.units import MAX_BYTES

PLANNING_S = 1.0  # for one stretch
MOST_PLACES = 1000  # for cuts that are looked at
MOST_TRIALS = 300


@dataclass(frozen=True, slots=True)
class PartVerdict:
    """Whether a stretch fits as a model of its own, and why not."""

    fit: PartFit
    why: Words = ""
    need_bytes: int | None = None


class PartJudge(Protocol):
    """Says whether stretches of a sequence fit as models of their own."""

    def __call__(self, sequence: OpSequence, stretch: Stretch) -> PartVerdict:
        """Look at one stretch, however long that takes."""
        ...

    def rows(self, sequence: OpSequence) -> Rows | None:
        """A rule that tells at once of many stretches that they cannot fit, if there is one."""
        ...


@dataclass(frozen=True, slots=True)
class Partition:
    """A model in parts that all fit."""

    sequence: OpSequence
    parts: tuple[Stretch, ...]
    verdicts: tuple[PartVerdict, ...]
    crossing_bytes: int
    trials: int  # stretches that were judged
    is_cheapest: bool = True  # False: trials ran out before fewer bytes were ruled out


@dataclass(frozen=True, slots=True)
class NoPartition:
    """No cuts make a model fit, or none were found with the trials allowed."""

    why: Words
    trials: int
    op: str = ""  # that does not fit even alone


def partition(
    sequence: OpSequence,
    judge: PartJudge,
    *,
    places: Sequence[int] | None = None,
    most_trials: int | None = MOST_TRIALS,
    is_over: Callable[[], bool] | None = None,
) -> Partition | NoPartition:
    """Cut a sequence into the fewest parts that a judge passes, then where fewest bytes cross.

    `is_over` says that no more may be tried, because time is up.
    """
    said: dict[tuple[int, int], PartVerdict] = {}

    def fits(first: int, last: int) -> PartFit:
        said[first, last] = judge(sequence, sequence.stretch(first, last))
        return said[first, last].fit

    if places is None and len(sequence) > MOST_PLACES:
        places = narrow_places(sequence.crossing, sequence.work, MOST_PLACES)
    rows = judge.rows(sequence)
    found = least_cuts(
        sequence.crossing, fits, places=places, rows=rows, most_trials=most_trials, is_over=is_over
    )
    if isinstance(found, Cuts):
        parts = tuple(sequence.stretch(*ends) for ends in found.parts)
        verdicts = tuple(said[ends] for ends in found.parts)
        cost = found.crossing_bytes
        return Partition(sequence, parts, verdicts, cost, found.trials, found.is_cheapest)
    if isinstance(found, Undecided):
        what = f"no cuts were found with {counted(found.trials, 'trial')}"
        return NoPartition(what, found.trials)
    return _stuck(sequence, judge, found, said)


def _stuck(
    sequence: OpSequence,
    judge: PartJudge,
    found: Stuck,
    said: Mapping[tuple[int, int], PartVerdict],
) -> NoPartition:
    ops = sequence.model.ops[found.first : found.last]
    verdict = said.get((found.first, found.last))
    if verdict is None:  # the rule excluded it
        verdict = judge(sequence, sequence.stretch(found.first, found.last))
    reason = verdict.why
    if len(ops) == 1:
        what = f"parts that fit lead only up to {ops[0].type} {quote(ops[0].name)}; alone"
    else:
        what = f"parts that fit lead only up to {quote(ops[0].name)}; with the {len(ops)} ops there"
    why = chain_words(f"{what}, ", reason) if reason else what.split(";")[0]
    return NoPartition(why, found.trials, ops[0].name)


@dataclass(frozen=True, slots=True)
class PlannedParts:
    """A judge that plans the pools of LPAI for a part and holds them against a budget."""

    budget: Budget
    options: PoolOptions = field(default_factory=PoolOptions)
    time_limit_s: float = PLANNING_S
    seed: int = 0

    def __call__(self, sequence: OpSequence, stretch: Stretch) -> PartVerdict:
        """Plan one stretch; tensors that wait for other parts meanwhile count as well."""
        plan = plan_part(stretch, self.options, time_limit_s=self.time_limit_s, seed=self.seed)
        state = {name for pair in self.options.states for name in pair}
        need = planned_need(sequence, stretch, plan, state)
        broken = first_over(need, limits_of(self.budget))
        if broken is None:
            return PartVerdict(PartFit.YES, need_bytes=need.in_turn("scratch"))
        pool, size, most = broken
        why = f"{pool} needs {size:,} bytes and may have {most:,}"
        # Inputs and outputs may be fewer for more ops; what is inside never is.
        inner = {"scratch": plan.scratch_bytes, "constants": size, "persistent": size}
        never = inner.get(pool, 0) > most
        return PartVerdict(PartFit.NEVER if never else PartFit.NO, why, size)

    def rows(self, sequence: OpSequence) -> Rows | None:
        """Constants and IO must fit tcm together, and a budget of each alone."""
        if self.options.bits is not None or self.options.states:
            return None  # sizes are others then
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
                for stored, given in zip(*sequence.around(first, constants), strict=True)
            ]

        return row


def plan_part(
    stretch: Stretch,
    options: PoolOptions,
    *,
    time_limit_s: float = PLANNING_S,
    seed: int = 0,
) -> MemoryPlan:
    """The pools of a part; state of which it has only one end is an input or output of it."""
    both = (
        pair for pair in options.states if pair[0] in stretch.inputs and pair[1] in stretch.outputs
    )
    own = PoolOptions(options.io, options.align, options.bits, tuple(both), options.inplace)
    return plan_model(stretch.model, own, time_limit=time_limit_s, seed=seed)
