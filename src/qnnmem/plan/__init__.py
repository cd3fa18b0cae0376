"""Plan memory: offsets for every buffer of a model, and what they are proven minimal for.

plan(what, time_limit=10.0, *, options=None, budget=None, seed=0)

`what` is a model from `qnnmem.load(path)`, or a `Problem` of buffers of your own. For a model the
answer is a `MemoryPlan` of all its pools, for a problem a `Plan`, or `Infeasible` when its buffers
do not fit the capacity. A budget names pools and their bytes; a size alone is scratch's, and
`tcm` is what model binary, inputs and outputs take together if they lie there:

    model = qnnmem.load("model.onnx", dims={"batch": 1})
    plan = qnnmem.plan(model, budget={"scratch": "256K", "persistent": 2048})
    plan.fits, plan.scratch_bytes, plan.proof
    for buffer in plan.buffers:
        print(buffer.pool.value, buffer.name, buffer.offset, buffer.size)

`options` is a `PoolOptions`, or a mapping of its fields: where inputs and outputs lie, alignment,
bits, state, order. The search takes `time_limit` seconds at most, and the same `seed` gives the
same plan.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any, overload

from qnnmem.arguments import expect
from qnnmem.errors import UsageError
from qnnmem.ir.model import Model, find_missing
from qnnmem.plan.memory import plan_model
from qnnmem.plan.planner import DEFAULT_TIME_LIMIT_S, Progress, Watcher, plan_problem
from qnnmem.plan.pools import Budget, Io, MemoryPlan, PlacedBuffer, Pool, PoolOptions
from qnnmem.plan.problem import Buffer, Infeasible, Peak, Plan, Problem, find_peak
from qnnmem.plan.verify import verify
from qnnmem.text import a_kind, quote

if TYPE_CHECKING:
    from inspect import Signature

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
    """Plans memory: for a `Problem` its offsets or why it cannot fit, for a `Model` all its pools.

    Every plan has been verified, carries a proven lower bound, and is the same for the same input
    and seed whatever the order of the buffers. `time_limit` is in seconds. `options` and `budget`
    are for models; a budget is a size of scratch, or maps pools to bytes: `{"scratch": "256K"}`.
    """
    expect(time_limit, (int, float), "a time limit is a number of seconds")
    expect(seed, int, "a seed is a whole number")
    if watch is not None and not callable(watch):
        raise UsageError(f"watch is a function that takes a Progress, not {quote(watch)}")
    if isinstance(what, Problem):
        if options is not None or budget is not None:
            raise UsageError("options and budget are for models; a Problem has a capacity")
        return plan_problem(what, time_limit, seed=seed, watch=watch)
    if not isinstance(what, Model):
        raise UsageError(f"{a_kind(type(what))} cannot be planned; load(path) gives a model")
    missing = find_missing(what)
    if missing is not None:
        raise UsageError(f"{quote(missing)} is used, but is no tensor of the model")
    return plan_model(what, options, budget=budget, time_limit=time_limit, seed=seed, watch=watch)


class _Folder(ModuleType):
    """The folder as a function: `qnnmem.plan(…)` is `qnnmem.plan.plan(…)`."""

    __call__ = staticmethod(plan)

    @property
    def __signature__(self) -> Signature:
        """What `inspect.signature` and editors show."""
        from inspect import signature

        return signature(plan)


# The attribute `plan` of the package `qnnmem` is this folder as soon as anything in it is imported.
sys.modules[__name__].__class__ = _Folder
