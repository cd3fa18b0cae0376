"""From a model to the plan of all its pools, with budgets judged."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from qnnmem.collector import collector_paused
from qnnmem.errors import Setting, UsageError
from qnnmem.ir.lifetime import stored_bytes
from qnnmem.ir.model import Buffer, Model
from qnnmem.planner.blockers import find_blockers
from qnnmem.planner.effort import Effort
from qnnmem.planner.instance import arrange
from qnnmem.planner.layout import Layout, constant_bytes
from qnnmem.planner.pools import (
    Budget,
    BudgetVerdict,
    Io,
    MemoryPlan,
    PlacedBuffer,
    Pool,
    PoolOptions,
    Reordered,
    as_limits,
    as_options,
)
from qnnmem.planner.problem import Infeasible, Plan, Problem, find_peak
from qnnmem.planner.problem_plan import DEFAULT_TIME_LIMIT_S, Watcher, plan_within
from qnnmem.planner.states import check_states, suggest_states
from qnnmem.planner.tcm import TcmAlignment, TcmTensor, TcmVerdict, judge, request_tcm
from qnnmem.provenance import Origin, Sourced
from qnnmem.units import Align, Bytes, round_up

if TYPE_CHECKING:
    from qnnmem.planner.order.graph import ScratchRule

DEFAULT_ALIGN = Align(64)

_MODELS_ONLY = (
    *("a buffer list is one pool of fixed buffers; ", Setting("states"), ", ", Setting("io"), ", "),
    *(Setting("bits"), ", ", Setting("inplace"), " and ", Setting("reorder"), " are for models"),
)


@collector_paused()
def plan_model(
    model: Model,
    options: PoolOptions | Mapping[str, Any] | None = None,
    *,
    budget: Budget | None = None,
    time_limit: float = DEFAULT_TIME_LIMIT_S,
    seed: int = 0,
    watch: Watcher | None = None,
) -> MemoryPlan:
    """Plans all pools of a model; see `PoolOptions` for what can be chosen.

    Budgets are judged after planning. For a buffer list a scratch budget is the question itself:
    the search stops at the first plan that fits.
    """
    options, wanted = as_options(options), as_limits(budget)
    limits = dict(wanted.pools)
    effort = Effort.of_seconds(time_limit)
    if wanted.tcm is not None and model.format == "csv":
        raise UsageError("a budget of tcm is for models: a buffer list has no constants and no IO")
    capacity = limits.pop(Pool.SCRATCH, None) if model.format == "csv" else None
    layout, buffers, reordered = _lay_out(model, options, effort, seed)
    # A budget for scratch is a question of its own, for which half is kept.
    part = effort.part(effort.left // 2 if Pool.SCRATCH in limits else effort.left)
    given = part.left
    answer = plan_within(Problem(buffers, capacity), part, seed=seed, watch=watch)
    effort.settle(part, given)
    scratch = answer.best if isinstance(answer, Infeasible) else answer
    placed = [
        PlacedBuffer(b.name, Pool.SCRATCH, b.size, b.live, offset, layout.aliases.get(b.name, ()))
        for b, offset in zip(buffers, scratch.offsets, strict=True)
    ]
    result = MemoryPlan(
        model=layout.model,
        options=options,
        align=layout.align,
        scratch=scratch,
        buffers=(*placed, *layout.placed),
        io_sizes=tuple(layout.io_sizes()),
        persistent_bytes=layout.used(Pool.PERSISTENT),
        io_bytes=layout.used(Pool.IO),
        constant_bytes=constant_bytes(model, options.bits),
        peak=find_peak(buffers),
        reordered=reordered,
        likely_states=() if options.states else suggest_states(model),
        body_search_missing=layout.search_missing,
    )
    if capacity is not None:
        result = replace(result, budgets=(_judge_capacity(answer, capacity),))
    result = _with_budgets(result, limits, effort, seed)
    if wanted.tcm is None:
        return result
    limit = Sourced(wanted.tcm, Origin.REPORTED, "budget")
    return replace(result, tcm=judge_plan(result, limit))


def judge_plan(plan: MemoryPlan, limit: Sourced | None = None) -> TcmVerdict | None:
    """Whether a planned model fits, its constants in place of the binary; None for a bare list.

    The limit is the documented one by default.
    """
    model, sizes = plan.model, dict(plan.io_sizes)
    if model.format == "csv":
        return None
    tensors = tuple(
        TcmTensor(name, sizes[name], kind)
        for kind, names in (("input", model.inputs), ("output", model.outputs))
        for name in names
        if name in sizes  # state is not allocated with IO
    )
    request = request_tcm(plan.constant_bytes, tensors, TcmAlignment(plan.align, plan.align))
    return judge(request if limit is None else replace(request, limit=limit))


def _lay_out(
    model: Model, options: PoolOptions, effort: Effort, seed: int
) -> tuple[Layout, tuple[Buffer, ...], Reordered | None]:
    """All pools but scratch, the buffers of scratch, and what another operator order brought."""
    if model.format == "csv":
        if options != PoolOptions(align=options.align):
            raise UsageError(_MODELS_ONLY)
        layout = Layout(model, options, options.align or Align(1))
        return layout, tuple(_listed(model, options.align)), None
    check_states(model, options.states)
    layout = Layout(model, options, options.align or DEFAULT_ALIGN)
    buffers = layout.sort_into_pools(effort, seed)
    if options.reorder:
        return _reorder(layout, buffers, effort, seed)
    return layout, buffers, None


def _judge_capacity(answer: Plan | Infeasible, capacity: Bytes) -> BudgetVerdict:
    if isinstance(answer, Plan):
        return BudgetVerdict(Pool.SCRATCH, answer.peak, answer.lower_bound, capacity)
    need = answer.best.peak
    return BudgetVerdict(Pool.SCRATCH, need, answer.lower_bound, capacity, answer.blockers)


def _listed(model: Model, align: Align | None) -> Iterator[Buffer]:
    """The buffers of a list, with an alignment on top of their own if one was chosen."""
    if align is None:
        return (Buffer(b.name, b.size, b.live, b.align) for b in model.buffers)
    return (
        Buffer(b.name, Bytes(round_up(b.size, align)), b.live, Align(math.lcm(b.align, align)))
        for b in model.buffers
    )


def _reorder(
    given: Layout, buffers: tuple[Buffer, ...], effort: Effort, seed: int
) -> tuple[Layout, tuple[Buffer, ...], Reordered]:
    """The layout in an operator order with fewer bytes of scratch alive, if there is one."""
    from qnnmem.planner.order import EFFORT, WORK_PER_LOOK, reorder

    before = after = _live_bytes(buffers)
    best, at_least, skipped = (given, buffers), Bytes(0), None
    for number, rule in enumerate(_scratch_rules(given)):
        looks = min(EFFORT, effort.at_once // WORK_PER_LOOK)
        found = reorder(given.model, rule, effort=looks)
        if number == 0:
            at_least, skipped = found.at_least, found.skipped
        if found.model is not given.model:
            other = Layout(found.model, given.options, given.align)
            moved = other.sort_into_pools(effort, seed)
            if _live_bytes(moved) < after:
                best, after = (other, moved), _live_bytes(moved)
        if after == at_least:
            break
    # The block of a body may be larger than needed, so that it proves nothing about the whole.
    proven = skipped is None and after == at_least and not given.workspaces
    return *best, Reordered(before, after, proven, skipped)


def _scratch_rules(layout: Layout) -> Iterator[ScratchRule]:
    """What counts as scratch: first no more than in any order, then no less.

    The order decides whether new state is written to persistent, where the old one was, or waits
    in scratch to be copied there. It waits in any order if the op that writes it reads the old one.
    """
    from qnnmem.planner.order.graph import ScratchRule

    options = layout.options
    outside = {name for name, _ in layout.io_sizes()} if options.io is Io.OUTSIDE else set()
    away = outside | {old for old, _ in options.states}
    steps = [(set(op.inputs), set(op.outputs)) for op in layout.model.ops]
    waits = {new for old, new in options.states if any(old in r and new in w for r, w in steps)}
    moves = {new for _, new in options.states} - waits
    for elsewhere in (away | moves, away) if moves else (away,):
        yield ScratchRule(
            bits=options.bits,
            inplace=options.inplace,
            align=layout.align,
            elsewhere=frozenset(elsewhere),
            workspaces=layout.workspaces,
        )


def _live_bytes(buffers: tuple[Buffer, ...]) -> Bytes:
    peak = find_peak(buffers)
    return peak.size if peak else Bytes(0)


def _with_budgets(
    plan: MemoryPlan, budget: Mapping[Pool, Bytes], effort: Effort, seed: int
) -> MemoryPlan:
    verdicts = list(plan.budgets)
    for pool, have in budget.items():
        need = plan.pool_bytes(pool)
        if pool is not Pool.SCRATCH or need <= have:
            blockers = () if need <= have else _largest(plan, pool)
            verdicts.append(BudgetVerdict(pool, need, need, have, blockers))
            continue
        answer = _explain_scratch(plan, have, effort, seed)
        if isinstance(answer, Plan):
            plan = _with_scratch(plan, answer)
        verdicts.append(_judge_capacity(answer, have))
    return replace(plan, budgets=tuple(verdicts))


def _explain_scratch(plan: MemoryPlan, have: Bytes, effort: Effort, seed: int) -> Plan | Infeasible:
    problem = Problem(plan.scratch.problem.buffers, have)
    if plan.scratch.lower_bound > have:  # nothing to search for: only the culprits are wanted
        blockers = find_blockers(problem, arrange(problem), True, effort.deadline)
        return Infeasible(problem, blockers, plan.scratch.lower_bound, True, plan.scratch)
    answer = plan_within(problem, effort, seed=seed)
    if isinstance(answer, Infeasible) and plan.scratch.peak < answer.best.peak:
        bound = max(answer.lower_bound, plan.scratch.lower_bound)
        return replace(answer, best=plan.scratch, lower_bound=bound)
    return answer


def _with_scratch(plan: MemoryPlan, scratch: Plan) -> MemoryPlan:
    rest = tuple(b for b in plan.buffers if b.pool is not Pool.SCRATCH)
    moved = tuple(
        replace(b, offset=scratch.offset_of[b.name]) for b in plan.buffers if b.pool is Pool.SCRATCH
    )
    better = replace(plan.scratch, offsets=scratch.offsets)
    return replace(plan, scratch=better, buffers=(*moved, *rest))


def _largest(plan: MemoryPlan, pool: Pool) -> tuple[str, ...]:
    sizes = pool_sizes(plan, pool)
    return tuple(sorted(sizes, key=lambda name: (-sizes[name], name))[:5])


def alike(plan: MemoryPlan, verdict: BudgetVerdict) -> int:
    """How many others in scratch are as large as those in the way; of one, too large by itself."""
    if verdict.fits is not False or verdict.pool is not Pool.SCRATCH or not verdict.blockers:
        return 0
    sizes = pool_sizes(plan, verdict.pool)
    least = min(sizes[name] for name in verdict.blockers)
    if len(verdict.blockers) == 1:
        least = min(least, verdict.have + 1)
    return sum(size >= least for size in sizes.values()) - len(verdict.blockers)


def pool_sizes(plan: MemoryPlan, pool: Pool) -> dict[str, int]:
    """What lies in a pool by name, in bytes; of constants those outside of bodies."""
    if pool is Pool.CONSTANTS:
        tensors, bits = plan.model.tensors, plan.options.bits
        return {name: stored_bytes(tensors[name], bits) for name in plan.model.constants}
    return {b.name: b.size for b in plan.buffers if b.pool is pool}
