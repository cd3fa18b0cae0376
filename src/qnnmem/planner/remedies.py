"""What makes a pool smaller that is too large: other options, each planned before it is named.

for each option that may help     reorder, in place, IO outside, 8 bits
    plan the model with it        briefly; a bound would promise what no plan keeps
    keep it if the pool shrinks
if several help and none suffices, plan with all of them together
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from qnnmem.errors import Setting
from qnnmem.ir.model import Model
from qnnmem.planner.model_plan import plan_model
from qnnmem.planner.pools import Io, MemoryPlan, Pool, PoolOptions
from qnnmem.planner.problem_plan import DEFAULT_TIME_LIMIT_S
from qnnmem.units import Bytes

# For one option: whether it helps shows early, and there are several.
LONGEST_S = 1.0

_Change = tuple[Setting, Callable[[PoolOptions], PoolOptions]]


@dataclass(frozen=True, slots=True)
class Shortage:
    """A pool that is too large for what it may have."""

    pool: str
    have: Bytes
    need: Callable[[MemoryPlan], int]


@dataclass(frozen=True, slots=True)
class Remedy:
    """Options that make a pool smaller, and by how much: planned, not guessed."""

    settings: tuple[Setting, ...]
    pool: str
    before: int
    after: int
    have: int
    moved: int = 0  # bytes of IO that are then in buffers of the application

    @property
    def saved(self) -> int:
        """Bytes that the pool is smaller."""
        return self.before - self.after

    @property
    def fits(self) -> bool:
        """Whether that is enough."""
        return self.after <= self.have


@dataclass(frozen=True, slots=True)
class Remedies:
    """What was planned for the pools that are too large, and what of it helps, best first."""

    tried: tuple[Setting, ...]
    found: tuple[Remedy, ...]


def shortages(plan: MemoryPlan) -> tuple[Shortage, ...]:
    """The pools of a plan that are proven to be over their budgets."""
    return tuple(
        Shortage(budget.pool.value, budget.have, _need(budget.pool))
        for budget in plan.budgets
        if budget.fits is False
    )


def _need(pool: Pool) -> Callable[[MemoryPlan], int]:
    return lambda plan: plan.pool_bytes(pool)


def find_remedies(
    model: Model,
    plan: MemoryPlan,
    lacking: tuple[Shortage, ...],
    *,
    time_limit: float = DEFAULT_TIME_LIMIT_S,
    seed: int = 0,
) -> Remedies:
    """Options that were not chosen and make one of the pools smaller; `model` as it was loaded."""
    limit = min(time_limit, LONGEST_S)

    def planned(changes: tuple[_Change, ...]) -> Iterator[Remedy]:
        options = plan.options
        for _setting, change in changes:
            options = change(options)
        other = plan_model(model, options, time_limit=limit, seed=seed)
        settings = tuple(setting for setting, _change in changes)
        moved = other.io_bytes - plan.io_bytes if options.io is not plan.options.io else 0
        for short in lacking:
            before, after = short.need(plan), short.need(other)
            if after < before:
                yield Remedy(settings, short.pool, before, after, short.have, moved)

    changes = tuple(_changes(model, plan.options, {short.pool for short in lacking}))
    found = [remedy for change in changes for remedy in planned((change,))]
    helpful = tuple(
        change for change in changes if any(change[0] in remedy.settings for remedy in found)
    )
    if len(helpful) > 1 and {one.pool for one in found} - {one.pool for one in found if one.fits}:
        found += planned(helpful)
    return Remedies(tuple(setting for setting, _change in changes), tuple(sorted(found, key=_rank)))


def _changes(model: Model, options: PoolOptions, pools: set[str]) -> Iterator[_Change]:
    """Options that were not chosen, those first that cost nothing."""
    if not model.ops or not pools:
        return
    if Pool.SCRATCH.value in pools:
        if not options.reorder:
            yield Setting("reorder"), lambda chosen: replace(chosen, reorder=True)
        if not options.inplace:
            yield Setting("inplace"), lambda chosen: replace(chosen, inplace=True)
        if options.io is Io.INSIDE:
            yield Setting("io", "outside"), lambda chosen: replace(chosen, io=Io.OUTSIDE)
    if options.bits != 8 and any(tensor.dtype.is_float for tensor in model.tensors.values()):
        yield Setting("bits", "8"), lambda chosen: replace(chosen, bits=8)


def _rank(remedy: Remedy) -> tuple[bool, bool, int, int]:
    """What suffices first, with the fewest changes; quantizing changes results, so it comes last.

    Of what does not suffice the largest saving comes first.
    """
    quantizes = any(setting.name == "bits" for setting in remedy.settings)
    if remedy.fits:
        return False, quantizes, len(remedy.settings), -remedy.saved
    return True, False, 0, -remedy.saved
