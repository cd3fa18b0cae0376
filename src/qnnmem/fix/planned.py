"""The judge for LPAI: the planner says what a change needs, against the budgets of the user."""

from __future__ import annotations

from dataclasses import dataclass

from qnnmem.fix.parts.partition import Partition, plan_part
from qnnmem.fix.remedy import Change, Need
from qnnmem.load.onnx.passes.build import build
from qnnmem.plan.memory import plan_model
from qnnmem.plan.pools import Budget, MemoryPlan, Pool, PoolOptions, as_limits


@dataclass(frozen=True)
class PlanJudge:
    """Plans a changed model, or each of its parts.

    With the usual effort, however little time is left: whoever plans the result later, or on a
    machine that is less busy, is to find the same.
    """

    budget: Budget | None = None
    seed: int = 0

    @property
    def limit(self) -> int | None:
        """Bytes that scratch may have; None where as few as possible are wanted."""
        return as_limits(self.budget).pools.get(Pool.SCRATCH)

    def __call__(self, change: Change) -> Need:
        """What it needs."""
        options = change.pool_options
        if change.parts is not None:
            return self._of_parts(change.parts, options)
        plan = plan_model(build(change.model), options, budget=self.budget, seed=self.seed)
        return self._need(plan)

    def _of_parts(self, parts: Partition, options: PoolOptions) -> Need:
        """The neediest part: one is loaded, run and freed before the next."""
        plans = (plan_part(part, options, self.budget, seed=self.seed) for part in parts.parts)
        return max((self._need(plan) for plan in plans), key=lambda need: need.rank)

    def _need(self, plan: MemoryPlan) -> Need:
        over = [one for one in plan.budgets if one.fits is False]
        answers = {one.fits for one in plan.budgets}
        missing = sum(max(0, one.need - one.have) for one in plan.budgets)
        pools = [one.pool.value for one in over]
        if plan.tcm is not None:
            answers.add(plan.tcm.fits)
            if not plan.tcm.fits:
                pools.append("tcm")
                missing += max(1, plan.tcm.missing)
        fits = False if False in answers else None if None in answers or not answers else True
        return Need(plan.scratch_bytes, fits, missing, tuple(pools), self.limit, plan=plan)
