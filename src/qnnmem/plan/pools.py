"""From a model to its pools, as LPAI has them: scratch, persistent, IO, constants.

Scratch holds temporaries and, unless told otherwise, inputs and outputs; persistent holds state; IO
holds inputs and outputs that the application brings; constants are the model binary's.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum

from qnnmem.errors import UsageError
from qnnmem.ir.lifetime import Lifetime, Role, lifetimes, stored_bytes
from qnnmem.ir.model import Model, Op
from qnnmem.ir.span import Span
from qnnmem.plan.blockers import find_blockers
from qnnmem.plan.instance import arrange
from qnnmem.plan.planner import DEFAULT_TIME_LIMIT_S, Watcher, plan_problem
from qnnmem.plan.problem import Buffer, Infeasible, Peak, Plan, Problem, find_peak
from qnnmem.plan.states import StatePair, check_states, suggest_states
from qnnmem.units import MAX_BYTES, Align, Bytes, Offset, Step, round_up

DEFAULT_ALIGN = Align(64)


class Pool(Enum):
    """A memory that LPAI tells apart."""

    SCRATCH = "scratch"
    PERSISTENT = "persistent"
    IO = "io"
    CONSTANTS = "constants"


class Io(Enum):
    """Where inputs and outputs live."""

    INSIDE = "inside"  # in scratch, the default of the LPAI compiler
    OUTSIDE = "outside"  # in buffers the application brings (`exclude_io`)


@dataclass(frozen=True, slots=True)
class PoolOptions:
    """How a model is laid out in pools; the defaults are those of the LPAI documentation."""

    io: Io = Io.INSIDE
    align: Align | None = None  # of start and size; None: 64, for a buffer CSV as the file says
    bits: int | None = None  # width of floating-point elements; None: as in the model
    states: tuple[StatePair, ...] = ()
    inplace: bool = False
    reorder: bool = False


@dataclass(frozen=True, slots=True)
class PlacedBuffer:
    """A stretch of a pool that one tensor and its views hold for a while."""

    name: str
    pool: Pool
    size: Bytes
    live: Span
    offset: Offset
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class BudgetVerdict:
    """A pool against what the user can spare."""

    pool: Pool
    need: Bytes  # of the plan at hand
    at_least: Bytes  # of any plan: proven
    have: Bytes
    blockers: tuple[str, ...] = ()

    @property
    def fits(self) -> bool | None:
        """Whether the pool stays within its budget; None when the search could not tell in time."""
        if self.need <= self.have:
            return True
        return False if self.at_least > self.have else None


@dataclass(frozen=True, slots=True)
class Reordered:
    """What another operator order brought, in bytes of scratch alive at the fullest step."""

    before: Bytes
    after: Bytes
    proven: bool  # no order has fewer


@dataclass(frozen=True)
class MemoryPlan:
    """Every byte a model needs: pools, offsets, proof and peak."""

    model: Model  # in the order that was planned
    options: PoolOptions
    align: Align
    scratch: Plan
    buffers: tuple[PlacedBuffer, ...]
    io_sizes: tuple[tuple[str, Bytes], ...]  # inputs and outputs, wherever they live
    persistent_bytes: Bytes
    io_bytes: Bytes
    constant_bytes: Bytes
    peak: Peak | None
    budgets: tuple[BudgetVerdict, ...] = ()
    reordered: Reordered | None = None
    likely_states: tuple[StatePair, ...] = ()

    @property
    def scratch_bytes(self) -> Bytes:
        """Size of the scratch pool, rounded to the size alignment."""
        return self.scratch.peak

    def pool_bytes(self, pool: Pool) -> Bytes:
        """Size of a pool."""
        return {
            Pool.SCRATCH: self.scratch_bytes,
            Pool.PERSISTENT: self.persistent_bytes,
            Pool.IO: self.io_bytes,
            Pool.CONSTANTS: self.constant_bytes,
        }[pool]

    @property
    def fits(self) -> bool:
        """Whether every budget is known to hold."""
        return all(budget.fits for budget in self.budgets)


def plan_model(
    model: Model,
    options: PoolOptions | None = None,
    *,
    budget: Mapping[Pool, Bytes] | None = None,
    time_limit: float = DEFAULT_TIME_LIMIT_S,
    seed: int = 0,
    watch: Watcher | None = None,
) -> MemoryPlan:
    """Plans all pools of a model; see `PoolOptions` for what can be chosen.

    Budgets are judged after planning. For a buffer list a scratch budget is the question itself:
    the search stops at the first plan that fits.
    """
    options, budget = options or PoolOptions(), dict(budget or {})
    if any(not 0 <= have <= MAX_BYTES for have in budget.values()):
        raise UsageError(f"a budget must lie between 0 and {MAX_BYTES:,} bytes")
    capacity = None
    if model.format == "csv":
        if options != PoolOptions(align=options.align):
            raise UsageError(
                "a buffer list is one pool of fixed buffers; "
                "--state, --io, --bits, --inplace and --reorder are for models"
            )
        capacity = budget.pop(Pool.SCRATCH, None)
        layout = _Layout(model, options, options.align or Align(1))
        buffers = tuple(
            Buffer(b.name, layout.rounded(b.size), b.live, _common(b.align, layout.align))
            for b in model.buffers
        )
        reordered = None
    else:
        check_states(model, options.states)
        layout = _Layout(model, options, options.align or DEFAULT_ALIGN)
        buffers = layout.sort_into_pools(time_limit, seed)
        reordered = None
        if options.reorder:
            layout, buffers, reordered = _reorder(layout, buffers, time_limit, seed)
            model = layout.model
    answer = plan_problem(Problem(buffers, capacity), time_limit, seed=seed, watch=watch)
    scratch = answer.best if isinstance(answer, Infeasible) else answer
    placed = [
        PlacedBuffer(b.name, Pool.SCRATCH, b.size, b.live, offset, layout.aliases.get(b.name, ()))
        for b, offset in zip(buffers, scratch.offsets, strict=True)
    ]
    result = MemoryPlan(
        model=model,
        options=options,
        align=layout.align,
        scratch=scratch,
        buffers=(*placed, *layout.placed),
        io_sizes=tuple(layout.io_sizes()),
        persistent_bytes=layout.used(Pool.PERSISTENT),
        io_bytes=layout.used(Pool.IO),
        constant_bytes=_constant_bytes(model, options.bits),
        peak=find_peak(buffers),
        reordered=reordered,
        likely_states=() if options.states else suggest_states(model),
    )
    if capacity is not None:
        result = replace(result, budgets=(_judge_capacity(answer, capacity),))
    return _with_budgets(result, budget, time_limit, seed)


def _judge_capacity(answer: Plan | Infeasible, capacity: Bytes) -> BudgetVerdict:
    if isinstance(answer, Plan):
        return BudgetVerdict(Pool.SCRATCH, answer.peak, answer.lower_bound, capacity)
    need = answer.best.peak
    return BudgetVerdict(Pool.SCRATCH, need, answer.lower_bound, capacity, answer.blockers)


class _Layout:
    """Sorts the lifetimes of a model into pools; all but scratch are filled in order."""

    def __init__(self, model: Model, options: PoolOptions, align: Align) -> None:
        self.model, self.options, self.align = model, options, align
        self.placed: list[PlacedBuffer] = []
        self.aliases: dict[str, tuple[str, ...]] = {}
        self.ends = dict.fromkeys(Pool, 0)  # of the pools that are filled in order
        self.whole = Span(Step(-1), Step(len(model.ops) + 1))

    def rounded(self, size: int) -> Bytes:
        return Bytes(round_up(size, self.align))

    def bytes_of(self, name: str) -> Bytes:
        return stored_bytes(self.model.tensors[name], self.options.bits)

    def used(self, pool: Pool) -> Bytes:
        """End of the last buffer of a pool that is filled in order."""
        return Bytes(self.ends[pool])

    def io_sizes(self) -> Iterable[tuple[str, Bytes]]:
        kept = {name for pair in self.options.states for name in pair}
        for name in dict.fromkeys((*self.model.inputs, *self.model.outputs)):
            if name not in kept:
                yield name, self.bytes_of(name)

    def sort_into_pools(self, time_limit: float, seed: int) -> tuple[Buffer, ...]:
        """Places persistent and IO, returns what remains for scratch."""
        lives = {life.name: life for life in self._lifetimes()}
        for name, size in _states(self.model, self.options.bits).items():
            self._append(Pool.PERSISTENT, name, size, self.whole, ())
        self._place_state_pairs(lives)
        if self.options.io is Io.OUTSIDE:
            self._place_io(lives)
        buffers = []
        for life in lives.values():
            self.aliases[life.name] = life.aliases
            buffers.append(Buffer(life.name, self.rounded(life.size), life.live, self.align))
        for step, op in enumerate(self.model.ops):
            if op.bodies:
                buffers.append(self._workspace(step, op, time_limit, seed))
        return tuple(buffers)

    def _lifetimes(self) -> tuple[Lifetime, ...]:
        return lifetimes(self.model, bits=self.options.bits, inplace=self.options.inplace)

    def _append(
        self, pool: Pool, name: str, size: Bytes, live: Span, aliases: tuple[str, ...]
    ) -> None:
        offset, size = Offset(self.used(pool)), self.rounded(size)
        self.ends[pool] += size
        self.placed.append(PlacedBuffer(name, pool, size, live, offset, aliases))

    def _place_state_pairs(self, lives: dict[str, Lifetime]) -> None:
        """Puts old state into persistent, and the new one too where it can be written in place.

        The new state may take the place of the old one only if that is not read any more when it is
        written; otherwise it stays in scratch until the end, to be copied over.
        """
        owner = {alias: life for life in lives.values() for alias in (life.name, *life.aliases)}
        for old, new in self.options.states:
            before, after = owner[old], owner[new]
            aliases, size = before.aliases, before.size
            lives.pop(before.name, None)
            # Not if another pair has it, nor if the application reads it under another name too.
            shown = {new, *(n for pair in self.options.states for n in pair)}
            others = {after.name, *after.aliases} & {
                *self.model.inputs,
                *self.model.outputs,
            } - shown
            free = after.name in lives and Role.INPUT not in after.roles and not others
            if free and before.live.upper <= after.live.lower:
                del lives[after.name]
                aliases += (after.name, *after.aliases)
                size = Bytes(max(size, after.size))  # a view may be smaller than what it shows
            self._append(Pool.PERSISTENT, before.name, size, self.whole, aliases)

    def _place_io(self, lives: dict[str, Lifetime]) -> None:
        """Gives every input and output a buffer of its own and takes them out of scratch.

        Views stay with the first of them they belong to; where several inputs or outputs are views
        of each other, the application's buffers differ and the runtime must copy.
        """
        sizes = dict(self.io_sizes())
        for life in list(lives.values()):
            group = (life.name, *life.aliases)
            if not any(name in sizes for name in group):  # a temporary, or state on its way out
                continue
            del lives[life.name]
            views = tuple(name for name in group if name not in sizes)
            for name in group:
                if name in sizes:
                    size = Bytes(max(sizes[name], life.size)) if views else sizes[name]
                    self._append(Pool.IO, name, size, life.live, views)
                    views = ()
                    del sizes[name]
        for name, size in sizes.items():  # outputs that no op writes: constants handed out
            self._append(Pool.IO, name, size, self.whole, ())

    def _workspace(self, step: int, op: Op, time_limit: float, seed: int) -> Buffer:
        """Memory for whichever body of a control-flow op needs most, while that op runs."""
        need = max(_body_bytes(body, op, self, time_limit, seed) for body in op.bodies)
        name = f"{op.name} (body)"
        while name in self.model.tensors or name in self.aliases:
            name += "'"
        self.aliases[name] = ()
        return Buffer(name, Bytes(need), Span(Step(step), Step(step + 1)), self.align)


def _body_bytes(body: Model, op: Op, outer: _Layout, time_limit: float, seed: int) -> int:
    """Scratch a body needs; tensors it captures live outside and cost nothing here."""
    layout = _Layout(body, PoolOptions(bits=outer.options.bits), outer.align)
    buffers = layout.sort_into_pools(time_limit, seed)
    if op.repeats:
        # Results of one turn are copied to the inputs of the next: neither may overwrite the other.
        inputs = set(body.inputs)
        buffers = tuple(
            Buffer(b.name, b.size, layout.whole, b.align) if b.name in inputs else b
            for b in buffers
        )
    plan = plan_problem(Problem(buffers), time_limit / 4, seed=seed)
    best = plan.best if isinstance(plan, Infeasible) else plan
    return best.peak


def _states(model: Model, bits: int | None) -> dict[str, Bytes]:
    """State variables of a model and of the bodies in it, under their names."""
    found = {name: stored_bytes(model.tensors[name], bits) for name in model.states}
    for op in model.ops:
        for body in op.bodies:
            found = _states(body, bits) | found
    return found


def _common(a: int, b: int) -> Align:
    """Least alignment that satisfies both."""
    return Align(math.lcm(a, b))


def _constant_bytes(model: Model, bits: int | None) -> Bytes:
    """Bytes of all constants, those of bodies included."""
    own = sum(stored_bytes(model.tensors[name], bits) for name in model.constants)
    return Bytes(own + sum(_constant_bytes(b, bits) for op in model.ops for b in op.bodies))


def _reorder(
    given: _Layout, buffers: tuple[Buffer, ...], time_limit: float, seed: int
) -> tuple[_Layout, tuple[Buffer, ...], Reordered]:
    """The layout in an operator order with fewer bytes of scratch alive, if there is one."""
    from qnnmem.plan.order import reorder

    options = given.options
    found = reorder(given.model, bits=options.bits, inplace=options.inplace, align=given.align)
    # Reordering looks at all live tensors, whatever their pool; what counts here is scratch.
    same = options.io is Io.INSIDE and not options.states
    proven = found.proven and same and not any(op.bodies for op in given.model.ops)
    other = _Layout(found.model, options, given.align)
    moved = other.sort_into_pools(time_limit, seed)
    before, after = _live_bytes(buffers), _live_bytes(moved)
    if after < before:
        return other, moved, Reordered(before, after, proven)
    return given, buffers, Reordered(before, before, proven)


def _live_bytes(buffers: tuple[Buffer, ...]) -> Bytes:
    peak = find_peak(buffers)
    return peak.size if peak else Bytes(0)


def _with_budgets(
    plan: MemoryPlan, budget: Mapping[Pool, Bytes], time_limit: float, seed: int
) -> MemoryPlan:
    verdicts = list(plan.budgets)
    for pool, have in budget.items():
        need = plan.pool_bytes(pool)
        if pool is not Pool.SCRATCH or need <= have:
            blockers = () if need <= have else _largest(plan, pool)
            verdicts.append(BudgetVerdict(pool, need, need, have, blockers))
            continue
        answer = _explain_scratch(plan, have, time_limit, seed)
        if isinstance(answer, Plan):
            plan = _with_scratch(plan, answer)
        verdicts.append(_judge_capacity(answer, have))
    return replace(plan, budgets=tuple(verdicts))


def _explain_scratch(
    plan: MemoryPlan, have: Bytes, time_limit: float, seed: int
) -> Plan | Infeasible:
    problem = Problem(plan.scratch.problem.buffers, have)
    if plan.scratch.lower_bound > have:  # nothing to search for: only the culprits are wanted
        blockers = find_blockers(problem, arrange(problem), proven=True)
        return Infeasible(problem, blockers, plan.scratch.lower_bound, True, plan.scratch)
    return plan_problem(problem, time_limit, seed=seed)


def _with_scratch(plan: MemoryPlan, scratch: Plan) -> MemoryPlan:
    rest = tuple(b for b in plan.buffers if b.pool is not Pool.SCRATCH)
    moved = tuple(
        replace(b, offset=scratch.offset_of[b.name]) for b in plan.buffers if b.pool is Pool.SCRATCH
    )
    better = Plan(plan.scratch.problem, scratch.offsets, plan.scratch.lower_bound)
    return replace(plan, scratch=better, buffers=(*moved, *rest))


def _largest(plan: MemoryPlan, pool: Pool) -> tuple[str, ...]:
    if pool is Pool.CONSTANTS:
        tensors = plan.model.tensors
        names = sorted(plan.model.constants, key=lambda n: (-tensors[n].nbytes, n))
        return tuple(names[:5])
    members = sorted((b for b in plan.buffers if b.pool is pool), key=lambda b: (-b.size, b.name))
    return tuple(b.name for b in members[:5])
