"""Plans all pools of a model and checks them against budgets."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from qnnmem.collector import collector_paused
from qnnmem.errors import Setting, UsageError
from qnnmem.ir.lifetime import Lifetime, Role, lifetimes, stored_bytes
from qnnmem.ir.model import Buffer, Model, Op, Span
from qnnmem.planner.effort import Effort
from qnnmem.planner.instance import arrange
from qnnmem.planner.pools import (
    Budget,
    BudgetVerdict,
    Io,
    Limits,
    MemoryPlan,
    PlacedBuffer,
    Pool,
    PoolOptions,
    Reordered,
    as_limits,
    as_options,
    check_states,
    suggest_states,
)
from qnnmem.planner.problem import Infeasible, Plan, Problem, find_peak
from qnnmem.planner.problem_plan import DEFAULT_TIME_LIMIT_S, Watcher, find_blockers, plan_within
from qnnmem.planner.tcm_pool import TcmAlignment, TcmTensor, TcmVerdict, judge, request_tcm
from qnnmem.provenance import Origin, Sourced
from qnnmem.units import Align, Bytes, Offset, Step, round_up

if TYPE_CHECKING:
    from qnnmem.options.plan import PlanOptions
    from qnnmem.planner.order_graph import ScratchRule

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
    """Return the plan of all pools of a model; see `PoolOptions` for the options.

    Budgets are judged after planning. For a buffer list, a scratch budget is the capacity: the
    search stops at the first plan that fits.
    """
    options, wanted = as_options(options), as_limits(budget)
    limits = dict(wanted.pools)
    effort = Effort.of_seconds(time_limit)
    if wanted.tcm is not None and model.format == "csv":
        raise UsageError("a tcm budget needs a model: a buffer list has no constants and no IO")
    capacity = limits.pop(Pool.SCRATCH, None) if model.format == "csv" else None
    layout, buffers, reordered = _lay_out(model, options, effort, seed)
    # A scratch budget needs a separate search, for which half of the time is reserved.
    with effort.part(effort.left // 2 if Pool.SCRATCH in limits else effort.left) as part:
        answer = plan_within(Problem(buffers, capacity), part, seed=seed, watch=watch)
    scratch = answer.best if isinstance(answer, Infeasible) else answer
    placed = [
        PlacedBuffer(
            b.name,
            b.size,
            b.live,
            layout.aliases.get(b.name, ()),
            pool=Pool.SCRATCH,
            offset=offset,
        )
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
    """Return the TCM verdict on a plan, as if the model binary contained only constants.

    Return None for a buffer list. The default limit is the documented one.
    """
    if plan.model.format == "csv":
        return None
    alignment = TcmAlignment(plan.align, plan.align)
    request = request_tcm(plan.constant_bytes, tcm_tensors(plan), alignment)
    return judge(request if limit is None else replace(request, limit=limit))


def tcm_tensors(plan: MemoryPlan) -> tuple[TcmTensor, ...]:
    """Return the inputs and outputs of a plan; each is one allocation."""
    model, sizes = plan.model, dict(plan.io_sizes)
    return tuple(
        TcmTensor(name, sizes[name], kind)
        for kind, names in (("input", model.inputs), ("output", model.outputs))
        for name in names
        if name in sizes  # state is not allocated with IO
    )


def _lay_out(
    model: Model, options: PoolOptions, effort: Effort, seed: int
) -> tuple[Layout, tuple[Buffer, ...], Reordered | None]:
    """Return the layout of a model's pools, the scratch buffers, and what reordering saves.

    The layout fills all pools except scratch. Without reordering, the last value is None.
    """
    if model.format == "csv":
        if options != PoolOptions(align=options.align):
            raise UsageError(_MODELS_ONLY)
        layout = Layout(model, options, options.align or Align(1))
        return layout, _listed(model, options.align), None
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


def _listed(model: Model, align: Align | None) -> tuple[Buffer, ...]:
    """Return the buffers of a buffer list, each aligned to its own alignment and to `align`."""
    if align is None:
        return model.buffers
    return tuple(
        Buffer(b.name, Bytes(round_up(b.size, align)), b.live, Align(math.lcm(b.align, align)))
        for b in model.buffers
    )


def _reorder(
    layout: Layout, buffers: tuple[Buffer, ...], effort: Effort, seed: int
) -> tuple[Layout, tuple[Buffer, ...], Reordered]:
    """Return the layout in the op order with the fewest live bytes found."""
    from qnnmem.planner.order import EFFORT, WORK_PER_LOOK, reorder

    before = after = _live_bytes(buffers)
    best, at_least, skipped = (layout, buffers), Bytes(0), None
    for number, rule in enumerate(_scratch_rules(layout)):
        looks = min(EFFORT, effort.at_once // WORK_PER_LOOK)
        reordering = reorder(layout.model, rule, effort=looks)
        if number == 0:
            at_least, skipped = reordering.at_least, reordering.skipped
        if reordering.model is not layout.model:
            other = Layout(reordering.model, layout.options, layout.align)
            moved = other.sort_into_pools(effort, seed)
            if _live_bytes(moved) < after:
                best, after = (other, moved), _live_bytes(moved)
        if after == at_least:
            break
    # The block of a branch or loop body may be larger than needed, so this minimum is not proven.
    proven = skipped is None and after == at_least and not layout.workspaces
    return *best, Reordered(before, after, proven, skipped)


def _scratch_rules(layout: Layout) -> Iterator[ScratchRule]:
    """Yield two rules about which tensors are in scratch: for a lower and for an upper bound.

    The order of ops decides where new state is written: either directly to persistent memory, over
    the old state, or to scratch, to be copied later. If the op that writes new state reads the old
    state, the new state is in scratch in every order.
    """
    from qnnmem.planner.order_graph import ScratchRule

    options = layout.options
    outside = {name for name, _ in layout.io_sizes()} if options.io is Io.OUTSIDE else set()
    never = outside | {old for old, _ in options.states}
    steps = [(set(op.inputs), set(op.outputs)) for op in layout.model.ops]
    always = {new for old, new in options.states if any(old in r and new in w for r, w in steps)}
    maybe = {new for _, new in options.states} - always
    for elsewhere in (never | maybe, never) if maybe else (never,):
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
    if plan.scratch.lower_bound > have:  # no search is needed: only the blockers are missing
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
    """Return how many scratch buffers are large enough to be blockers but are not listed."""
    if verdict.fits is not False or verdict.pool is not Pool.SCRATCH or not verdict.blockers:
        return 0
    sizes = pool_sizes(plan, verdict.pool)
    least = min(sizes[name] for name in verdict.blockers)
    if len(verdict.blockers) == 1:
        least = min(least, verdict.have + 1)
    return sum(size >= least for size in sizes.values()) - len(verdict.blockers)


def pool_sizes(plan: MemoryPlan, pool: Pool) -> dict[str, int]:
    """Return the size of each buffer in a pool; constants in control-flow bodies are left out."""
    if pool is Pool.CONSTANTS:
        tensors, bits = plan.model.tensors, plan.options.bits
        return {name: stored_bytes(tensors[name], bits) for name in plan.model.constants}
    return {b.name: b.size for b in plan.buffers if b.pool is pool}


class Layout:
    """The pools of a model; all except scratch are filled in order."""

    def __init__(self, model: Model, options: PoolOptions, align: Align) -> None:
        self.model, self.options, self.align = model, options, align
        self.placed: list[PlacedBuffer] = []
        self.aliases: dict[str, tuple[str, ...]] = {}
        self.ends = dict.fromkeys(Pool, 0)  # of the pools that are filled in order
        self.whole = Span(Step(-1), Step(len(model.ops) + 1))
        self.workspaces: dict[str, int] = {}  # bytes for the bodies of each control-flow op
        self.search_missing = False  # whether a body was planned without the compiled search

    def rounded(self, size: int) -> Bytes:
        """Return a size rounded up to the alignment."""
        return Bytes(round_up(size, self.align))

    def bytes_of(self, name: str) -> Bytes:
        """Return the stored size of a tensor in bytes."""
        return stored_bytes(self.model.tensors[name], self.options.bits)

    def used(self, pool: Pool) -> Bytes:
        """Return how many bytes are used in a pool that is filled in order."""
        return Bytes(self.ends[pool])

    def io_sizes(self) -> Iterable[tuple[str, Bytes]]:
        """Yield the inputs and outputs that are not state, with their sizes."""
        state_names = {name for pair in self.options.states for name in pair}
        for name in dict.fromkeys((*self.model.inputs, *self.model.outputs)):
            if name not in state_names:
                yield name, self.bytes_of(name)

    def sort_into_pools(self, effort: Effort, seed: int) -> tuple[Buffer, ...]:
        """Place persistent and IO buffers; return the buffers that remain for scratch."""
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
                buffers.append(self._workspace(step, op, effort, seed))
        return tuple(buffers)

    def _lifetimes(self) -> tuple[Lifetime, ...]:
        return lifetimes(self.model, bits=self.options.bits, inplace=self.options.inplace)

    def _append(
        self, pool: Pool, name: str, size: Bytes, live: Span, aliases: tuple[str, ...]
    ) -> None:
        offset, size = Offset(self.used(pool)), self.rounded(size)
        self.ends[pool] += size
        self.placed.append(PlacedBuffer(name, size, live, aliases, pool=pool, offset=offset))

    def _place_state_pairs(self, lives: dict[str, Lifetime]) -> None:
        """Place old state in persistent memory, and new state too if it can be written in place.

        New state may overwrite old state only if nothing reads the old state later. Otherwise
        new state stays in scratch until the end and is then copied.
        """
        owner = {alias: life for life in lives.values() for alias in (life.name, *life.aliases)}
        for old, new in self.options.states:
            before, after = owner[old], owner[new]
            aliases, size = before.aliases, before.size
            lives.pop(before.name, None)
            # New state is not written in place if another pair has its tensor, or if the
            # application also reads it under another name.
            io = {*self.model.inputs, *self.model.outputs}
            io -= {new, *(name for pair in self.options.states for name in pair)}
            is_io = not io.isdisjoint((after.name, *after.aliases))
            movable = after.name in lives and Role.INPUT not in after.roles and not is_io
            if movable and before.live.upper <= after.live.lower:
                del lives[after.name]
                aliases += (after.name, *after.aliases)
                size = Bytes(max(size, after.size))  # a view may be smaller than its source
            self._append(Pool.PERSISTENT, before.name, size, self.whole, aliases)

    def _place_io(self, lives: dict[str, Lifetime]) -> None:
        """Move every input and output from scratch into a separate buffer.

        A tensor and its views share a buffer. If several inputs or outputs are views of each other,
        each of them still gets its own buffer, and the runtime must copy.
        """
        sizes = dict(self.io_sizes())
        for life in list(lives.values()):
            group = (life.name, *life.aliases)
            if not any(name in sizes for name in group):  # a temporary, or state to be copied
                continue
            del lives[life.name]
            views = tuple(name for name in group if name not in sizes)
            for name in group:
                if name in sizes:
                    size = Bytes(max(sizes[name], life.size)) if views else sizes[name]
                    self._append(Pool.IO, name, size, life.live, views)
                    views = ()
                    del sizes[name]
        for name, size in sizes.items():  # outputs that no op writes: constants returned as outputs
            self._append(Pool.IO, name, size, self.whole, ())

    def _workspace(self, step: int, op: Op, effort: Effort, seed: int) -> Buffer:
        """Return a buffer for the largest body of a control-flow op, live while the op runs."""
        need = max(_body_bytes(body, op, self, effort, seed) for body in op.bodies)
        self.workspaces[op.name] = need
        name = f"{op.name} (body)"
        while name in self.model.tensors or name in self.aliases:
            name += "'"
        self.aliases[name] = ()
        return Buffer(name, Bytes(need), Span(Step(step), Step(step + 1)), self.align)


def _body_bytes(body: Model, op: Op, outer: Layout, effort: Effort, seed: int) -> int:
    """Return the scratch size of a control-flow body, without tensors captured from outside."""
    layout = Layout(body, PoolOptions(bits=outer.options.bits), outer.align)
    buffers = layout.sort_into_pools(effort, seed)
    if op.repeats:
        # Results of one iteration are copied to the inputs of the next: neither may overwrite the
        # other.
        inputs = set(body.inputs)
        buffers = tuple(
            Buffer(b.name, b.size, layout.whole, b.align) if b.name in inputs else b
            for b in buffers
        )
    with effort.part(effort.left // 4) as part:
        plan = plan_within(Problem(buffers), part, seed=seed)
    best = plan.best if isinstance(plan, Infeasible) else plan
    outer.search_missing |= layout.search_missing or best.search_missing
    return best.peak


def _states(model: Model, bits: int | None) -> dict[str, Bytes]:
    """Return the stored size of each state variable in a model and its control-flow bodies."""
    sizes = {name: stored_bytes(model.tensors[name], bits) for name in model.states}
    for op in model.ops:
        for body in op.bodies:
            sizes = _states(body, bits) | sizes
    return sizes


def constant_bytes(model: Model, bits: int | None) -> Bytes:
    """Return the total size of the constants in a model and its control-flow bodies."""
    own = sum(stored_bytes(model.tensors[name], bits) for name in model.constants)
    return Bytes(own + sum(constant_bytes(b, bits) for op in model.ops for b in op.bodies))


def plan_with(
    model: Model,
    options: PlanOptions,
    *,
    budget: Mapping[Pool, Bytes] | Mapping[str, Bytes],
    watch: Watcher | None = None,
) -> MemoryPlan:
    """Return the plan of a model with the user's options; `budget` replaces the user's budgets."""
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
    """Return the user's budgets; `capacity` is another name for the scratch budget."""
    budgets = [(name.lower(), size) for name, size in options.budgets]
    if options.capacity is not None:
        budgets.append((Pool.SCRATCH.value, options.capacity))
    if len(dict(budgets)) < len(budgets):
        raise UsageError("a pool has two budgets; set only one")
    return as_limits(dict(budgets))
