"""The judge for LPAI: the planner says what a change needs, against the budgets of the user."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from qnnmem.fix.parts.deployment import Deployment, chosen, deployments
from qnnmem.fix.parts.part_needs import limits_of, planned_need, state_names
from qnnmem.fix.parts.partition import Partition, plan_part
from qnnmem.fix.remedy import Change, Need
from qnnmem.loader.onnx.passes.build import build
from qnnmem.planner.layout import constant_bytes
from qnnmem.planner.model_plan import plan_model
from qnnmem.planner.pools import Budget, MemoryPlan, Pool, PoolOptions, as_limits


@dataclass(frozen=True)
class PlanJudge:
    """Plan a changed model, or all of its parts together.

    The effort does not depend on the time left, so that a later plan of the result, or one on
    an idle machine, finds the same.
    """

    budget: Budget | None = None
    seed: int = 0

    @property
    def limit(self) -> int | None:
        """Limit of scratch in bytes; None for as few as possible."""
        return as_limits(self.budget).pools.get(Pool.SCRATCH)

    def __call__(self, change: Change) -> Need:
        """Return the memory that the change needs."""
        options = change.pool_options
        if change.parts is not None:
            return self._of_parts(change.parts, options)
        plan = plan_model(build(change.model), options, budget=self.budget, seed=self.seed)
        return self._need(plan)

    def _of_parts(self, parts: Partition, options: PoolOptions) -> Need:
        """Return the most bytes in memory while the parts run, in the best arrangement."""
        plans = [plan_part(part, options, seed=self.seed) for part in parts.parts]
        found = deployed(parts, plans, options)
        limits = limits_of(self.budget)
        best = chosen(found, limits)
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
        over = [one for one in plan.budgets if one.fits is False]
        answers = {one.fits for one in plan.budgets}
        missing = sum(max(0, one.need - one.have) for one in plan.budgets)
        pools = [one.pool.value for one in over]
        sizes: dict[str, tuple[int, int]] = {
            one.pool.value: (one.need, one.have) for one in plan.budgets
        }
        if plan.tcm is not None:
            answers.add(plan.tcm.fits)
            sizes["tcm"] = (plan.tcm.need, plan.tcm.limit.value)
            if not plan.tcm.fits:
                pools.append("tcm")
                missing += max(1, plan.tcm.missing)
        fits = False if False in answers else None if None in answers or not answers else True
        return Need(
            plan.scratch_bytes,
            fits,
            missing,
            tuple(pools),
            self.limit,
            plan=plan,
            total=sum(plan.pool_bytes(pool) for pool in Pool),
            pools=sizes,
        )


def deployed(
    parts: Partition, plans: Sequence[MemoryPlan], options: PoolOptions
) -> tuple[Deployment, ...]:
    """Return every arrangement of planned parts."""
    sequence, state = parts.sequence, state_names(parts.parts, options.states)
    needs = [
        planned_need(sequence, part, plan, state)
        for part, plan in zip(parts.parts, plans, strict=True)
    ]
    plain = constant_bytes(sequence.model, options.bits)
    return deployments(sequence, parts.parts, needs, plain, options.bits)
