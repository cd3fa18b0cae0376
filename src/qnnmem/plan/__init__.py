"""Packing: problem, bounds, heuristics, exact search, pools, verify."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from types import ModuleType
from typing import overload

from qnnmem.ir.model import Model
from qnnmem.plan.memory import plan_model
from qnnmem.plan.planner import DEFAULT_TIME_LIMIT_S, Progress, Watcher, plan_problem
from qnnmem.plan.pools import Io, MemoryPlan, PlacedBuffer, Pool, PoolOptions
from qnnmem.plan.problem import Buffer, Infeasible, Peak, Plan, Problem, find_peak
from qnnmem.plan.verify import verify
from qnnmem.units import Bytes

__all__ = [
    "Buffer",
    "Infeasible",
    "Io",
    "MemoryPlan",
    "Peak",
    "PlacedBuffer",
    "Plan",
    "Pool",
    "PoolOptions",
    "Problem",
    "Progress",
    "find_peak",
    "plan",
    "plan_model",
    "plan_problem",
    "verify",
]


@overload
def plan(
    what: Problem,
    time_limit: float = ...,
    *,
    seed: int = ...,
    watch: Watcher | None = ...,
) -> Plan | Infeasible: ...


@overload
def plan(
    what: Model,
    time_limit: float = ...,
    *,
    options: PoolOptions | None = ...,
    budget: Mapping[Pool, Bytes] | None = ...,
    seed: int = ...,
    watch: Watcher | None = ...,
) -> MemoryPlan: ...


def plan(
    what: Problem | Model,
    time_limit: float = DEFAULT_TIME_LIMIT_S,
    *,
    options: PoolOptions | None = None,
    budget: Mapping[Pool, Bytes] | None = None,
    seed: int = 0,
    watch: Watcher | None = None,
) -> Plan | Infeasible | MemoryPlan:
    """Plans memory: for a `Problem` its offsets or why it cannot fit, for a `Model` all its pools.

    Every plan has been verified, carries a proven lower bound, and is the same for the same input
    and seed whatever the order of the buffers.
    """
    if isinstance(what, Problem):
        return plan_problem(what, time_limit, seed=seed, watch=watch)
    return plan_model(what, options, budget=budget, time_limit=time_limit, seed=seed, watch=watch)


class _Folder(ModuleType):
    """The folder as a function: `qnnmem.plan(…)` is `qnnmem.plan.plan(…)`."""

    __call__ = staticmethod(plan)


# The attribute `plan` of the package `qnnmem` is this folder as soon as anything in it is imported.
sys.modules[__name__].__class__ = _Folder
