"""A plan as the options ask for it: the one place that turns their values into arguments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from qnnmem.errors import UsageError
from qnnmem.planner.model_plan import plan_model
from qnnmem.planner.pools import TCM, Limits, MemoryPlan, Pool, PoolOptions
from qnnmem.units import Bytes

if TYPE_CHECKING:
    from qnnmem.ir import Model
    from qnnmem.options.plan import PlanOptions
    from qnnmem.planner.problem_plan import Watcher


def plan_with(
    model: Model,
    options: PlanOptions,
    *,
    budget: Mapping[Pool, Bytes] | Mapping[str, Bytes],
    watch: Watcher | None = None,
) -> MemoryPlan:
    """Plan a model with these options; `budget` replaces theirs, which may be of other pools."""
    chosen = PoolOptions(
        io=options.io,
        align=options.align,
        bits=options.bits,
        states=options.states,
        inplace=options.inplace,
        reorder=options.reorder,
    )
    return plan_model(
        model,
        chosen,
        budget=dict(budget),
        time_limit=options.time_limit,
        seed=options.seed,
        watch=watch,
    )


def limits_of(options: PlanOptions) -> Limits:
    """Return the budgets of pools, and that of TCM, which is no pool of a plan."""
    pools = {pool.value: pool for pool in Pool}
    chosen: dict[str, Bytes] = {}
    given = [(name.lower(), size) for name, size in options.budgets]
    if options.capacity is not None:
        given.append((Pool.SCRATCH.value, options.capacity))
    for name, size in given:
        if name not in pools and name != TCM:
            known = ", ".join(pools)
            raise UsageError(f"'{name}' is not a pool; pools are {known} and {TCM}")
        if name in chosen:
            raise UsageError("a pool has two budgets; give one")
        chosen[name] = size
    tcm = chosen.pop(TCM, None)
    return Limits({pools[name]: size for name, size in chosen.items()}, tcm)
