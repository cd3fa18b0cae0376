"""Make a model fit LPAI's memory: try remedies, judge each by planning, name obstacles."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from qnnmem.cache import ResultCache
from qnnmem.fix.bench import CaseBench
from qnnmem.fix.graph.fusion import FusionRemedy
from qnnmem.fix.graph.operators import OperatorRemedy, about_operators
from qnnmem.fix.graph.plan_settings import PlanRemedy
from qnnmem.fix.graph.rematerialise import RecomputeRemedy
from qnnmem.fix.lossy.lower_precision import without_layout
from qnnmem.fix.lossy.remedies import FEWER_CHANNELS, find_hints, lossy_words, with_lossy
from qnnmem.fix.parts.deployment import (
    Deployment,
    chosen,
    deployments,
    limits_of,
    planned_need,
    state_names,
)
from qnnmem.fix.parts.partition import Partition, plan_part
from qnnmem.fix.parts.parts_remedy import PlannedPartsRemedy
from qnnmem.fix.recipe import add_proven
from qnnmem.fix.remedy import Change, FixCase, JudgedChange, ModelRemedy, Need, has_floats
from qnnmem.fix.remedy_search import FixResult, Watcher, best_of, try_remedies, with_levels
from qnnmem.fix.tiling.region_search import RegionSearch
from qnnmem.fix.tiling.tiled_graph import TiledGraph
from qnnmem.fix.tiling.tiling_remedy import TilingRemedy
from qnnmem.loader.onnx.passes.build import build
from qnnmem.planner.model_plan import constant_bytes, plan_model
from qnnmem.planner.pools import Budget, MemoryPlan, Pool, PoolOptions, as_limits
from qnnmem.text import quote


@dataclass(frozen=True)
class PlanJudge:
    """Plans a changed model, or all of its parts together, and returns the needed memory.

    The planning effort does not depend on the time left, so planning the same change again gives
    the same plan.
    """

    budget: Budget | None = None
    seed: int = 0

    @property
    def limit(self) -> int | None:
        """Scratch limit in bytes; None if there is no limit."""
        return as_limits(self.budget).pools.get(Pool.SCRATCH)

    def __call__(self, change: Change) -> Need:
        """Return the memory that the change needs."""
        options = change.pool_options
        if change.parts is not None:
            return self._of_parts(change.parts, options)
        plan = plan_model(build(change.model), options, budget=self.budget, seed=self.seed)
        return self._need(plan)

    def _of_parts(self, parts: Partition, options: PoolOptions) -> Need:
        """Return the peak memory of the parts in their best arrangement."""
        plans = [plan_part(part, options, seed=self.seed) for part in parts.parts]
        limits = limits_of(self.budget)
        best = chosen(deployed(parts, plans, options), limits)
        over = best.over(limits)
        return Need(
            best.pools["scratch"],
            not over if limits else None,
            sum(over.values()),
            tuple(over),
            self.limit,
            plan=plans[best.worst("scratch")],
            total=best.total,
            pools={pool: (best.pools[pool], most) for pool, most in limits.items()},
            deployment=best,
        )

    def _need(self, plan: MemoryPlan) -> Need:
        over = [budget.pool.value for budget in plan.budgets if budget.fits is False]
        answers = {budget.fits for budget in plan.budgets}
        missing = sum(max(0, budget.need - budget.have) for budget in plan.budgets)
        pools: dict[str, tuple[int, int]] = {
            budget.pool.value: (budget.need, budget.have) for budget in plan.budgets
        }
        if plan.tcm is not None:
            answers.add(plan.tcm.fits)
            pools["tcm"] = (plan.tcm.need, plan.tcm.limit.value)
            if not plan.tcm.fits:
                over.append("tcm")
                missing += max(1, plan.tcm.missing)
        fits = False if False in answers else None if None in answers or not answers else True
        return Need(
            plan.scratch_bytes,
            fits,
            missing,
            tuple(over),
            self.limit,
            plan=plan,
            total=sum(plan.pool_bytes(pool) for pool in Pool),
            pools=pools,
        )


def deployed(
    parts: Partition, plans: Sequence[MemoryPlan], options: PoolOptions
) -> tuple[Deployment, ...]:
    """Return a deployment of the planned parts for each arrangement, the fastest first."""
    sequence, state = parts.sequence, state_names(parts.parts, options.states)
    needs = [
        planned_need(sequence, part, plan, state)
        for part, plan in zip(parts.parts, plans, strict=True)
    ]
    plain = constant_bytes(sequence.model, options.bits)
    return deployments(sequence, parts.parts, needs, plain, options.bits)


# From the mildest to the strongest; only tiling adds much computation.
REMEDIES: tuple[ModelRemedy, ...] = (
    PlanRemedy(),
    FusionRemedy(),
    RecomputeRemedy(),
    TilingRemedy(),
    PlannedPartsRemedy(),
)
_CHANGED = ("fusion", "recompute", "tiling", "partition")
# Not for memory: operators stay replaced, whatever memory that needs.
REQUIRED: tuple[ModelRemedy, ...] = (OperatorRemedy(),)


def fix_for_lpai(
    case: FixCase,
    budget: Budget | None = None,
    *,
    watch: Watcher | None = None,
    remedies: Sequence[ModelRemedy] = REMEDIES,
    memory: ResultCache | None = None,
) -> FixResult:
    """Try remedies until the model fits its budget; without a budget, try all remedies."""
    judge = PlanJudge(budget, case.seed)
    case = replace(case, limit=judge.limit, budget=budget)
    with CaseBench(case, judge, memory) as bench:
        tried, notes = try_remedies(bench, with_lossy(case, remedies), watch, REQUIRED)
        tried = with_levels(bench, add_proven(bench, tried, (*REQUIRED, *remedies)))
        notes = (*notes, *_planned_only(best_of(tried)))
        about = about_operators(tried[0].change.model)
        notes = (*notes, about) if about else notes
        result = FixResult(case, tried, has_limits=bool(budget), notes=notes)
        if result.exit_code != 1 or result.interrupted:
            return result
        lossless = [judged for judged in tried if not judged.change.is_lossy]
        hints = find_hints(bench, best_of(lossless))
    if case.allow.issuperset(lossy_words("lpai")):
        result = replace(result, notes=(*notes, FEWER_CHANNELS))
    return replace(result, obstacle=find_obstacle(case, result.best), hints=hints)


def _planned_only(best: JudgedChange) -> Iterator[str]:
    """Yield notes about effects that a plan cannot predict; none for an unchanged graph."""
    change, plan = best.change, best.need.plan
    if plan is None or not any(step["remedy"] in _CHANGED for step in change.steps):
        return
    quantized = any(step["remedy"] == "precision" for step in change.steps)
    if change.pool_options.bits is not None and not quantized:
        yield (
            "the plan has integer elements, but each band is quantized separately, so the prepared "
            "model may need more bytes; allow int8 or int16 to quantize first: then the bytes are "
            "exact"
        )
    if change.parts is not None and change.pool_options.bits is None and has_floats(plan):
        yield (
            "each part is quantized with its own ranges, because LPAI has no floating point; the "
            "application must convert tensors from the scale of one part to the scale of the next"
        )
    if plan.tcm is not None:
        yield (
            "the TCM size counts only constants and IO; the binary also describes each op, and "
            "computing in bands or parts adds ops, so the binary may be larger: inspect the "
            "prepared binary"
        )


def find_obstacle(case: FixCase, best: JudgedChange) -> str:
    """Return a sentence about what prevents a smaller result; empty if nothing is known."""
    over = best.need.over
    others = [pool for pool in over if pool != "scratch"]
    if others and "scratch" not in over:
        how = "with the allowed changes" if case.allow else "without changing results"
        return f"{' and '.join(others)} cannot be reduced {how}"
    model = without_layout(best.change).model
    search = RegionSearch(TiledGraph.of(model), best.change.pool_options, seconds=1.0)
    sizes, obstacles = search.costs.at_node, dict(search.obstacles(case.limit or 0))
    if obstacles:
        largest = max(obstacles, key=lambda index: (sizes[index], -index))
        node = search.graph.nodes[largest]
        return (
            f"{quote(node.name or node.output[0])} needs {sizes[largest]:,} bytes and cannot be "
            f"computed in bands: {obstacles[largest]}"
        )
    plan = best.need.plan
    if plan is None or plan.peak is None or not 0 <= plan.peak.step < len(plan.model.ops):
        return ""
    largest_step = f"the step with the most bytes is {quote(plan.model.ops[plan.peak.step].name)}"
    if not case.seconds_left:
        return f"{largest_step}; the time limit ended the search for smaller bands"
    return f"{largest_step}; no other bands need less memory"
