"""Offsets for every buffer of a model, with a proven lower bound: `plan`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, overload

from qnnmem.arguments import expect
from qnnmem.errors import UsageError
from qnnmem.ir.model import Buffer, Model, find_missing
from qnnmem.planner.model_plan import plan_model
from qnnmem.planner.pools import Budget, Io, MemoryPlan, PlacedBuffer, Pool, PoolOptions
from qnnmem.planner.problem import Infeasible, Peak, Plan, Problem, find_peak
from qnnmem.planner.problem_plan import DEFAULT_TIME_LIMIT_S, Progress, Watcher, plan_problem
from qnnmem.planner.verify import verify
from qnnmem.text import a_kind, quote

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
    options: PoolOptions | Mapping[str, Any] | None = ...,
    budget: Budget | None = ...,
    seed: int = ...,
    watch: Watcher | None = ...,
) -> MemoryPlan: ...


def plan(
    what: Problem | Model,
    time_limit: float = DEFAULT_TIME_LIMIT_S,
    *,
    options: PoolOptions | Mapping[str, Any] | None = None,
    budget: Budget | None = None,
    seed: int = 0,
    watch: Watcher | None = None,
) -> Plan | Infeasible | MemoryPlan:
    """Return verified offsets for a model's pools or for a problem's buffers.

    For a model, as `qnnmem.load(path)` returns it, the result is a `MemoryPlan` of all its pools.
    For a `Problem` it is a `Plan`, or `Infeasible` if the buffers do not fit the capacity.

        model = qnnmem.load("model.onnx", dims={"batch": 1})
        plan = qnnmem.plan(model, budget={"scratch": "256K", "persistent": 2048})
        plan.fits, plan.scratch_bytes, plan.proof
        for buffer in plan.buffers:
            print(buffer.pool.value, buffer.name, buffer.offset, buffer.size)

    `options` is a `PoolOptions`, or a mapping of its fields: placement of inputs and outputs,
    alignment, bits, state, order. `budget` maps pools to bytes; a single size is for scratch, and
    `tcm` is for model binary, inputs and outputs together. `options` and `budget` apply only to
    models. The search takes at most `time_limit` seconds. The same input and seed give the same
    plan; the order of the buffers does not matter.
    """
    expect(time_limit, (int, float), "a time limit must be a number of seconds")
    expect(seed, int, "a seed must be a whole number")
    if watch is not None and not callable(watch):
        raise UsageError(f"watch must be a function that takes a Progress, not {quote(watch)}")
    if isinstance(what, Problem):
        if options is not None or budget is not None:
            raise UsageError(
                "options and budget apply only to models; a Problem has its own capacity"
            )
        return plan_problem(what, time_limit, seed=seed, watch=watch)
    if not isinstance(what, Model):
        raise UsageError(f"{a_kind(type(what))} cannot be planned; load(path) returns a model")
    missing = find_missing(what)
    if missing is not None:
        raise UsageError(f"{quote(missing)} is used but is not a tensor of the model")
    return plan_model(what, options, budget=budget, time_limit=time_limit, seed=seed, watch=watch)
