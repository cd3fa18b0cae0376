"""The plan of a file: its verdicts, options that would save memory, and the JSON result.

Options are planned before they are recommended:

    for each option that might help (reordering, in-place ops, IO outside scratch, 8 bits):
        plan the model with it, briefly; a bound could promise savings that no plan reaches
        keep the option if the pool shrinks
    if several options help and none suffices, plan with all of them together
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Literal

from qnnmem.errors import Setting
from qnnmem.flags import flag, with_flags
from qnnmem.ir.model import Model
from qnnmem.planner.model_plan import judge_plan, plan_model, pool_sizes
from qnnmem.planner.pools import (
    TCM,
    BudgetVerdict,
    Io,
    MemoryPlan,
    Pool,
    PoolOptions,
    held_types,
    joint_verdict,
)
from qnnmem.planner.problem_plan import DEFAULT_TIME_LIMIT_S
from qnnmem.planner.tcm_pool import TcmVerdict
from qnnmem.results.files import RefusedFile
from qnnmem.results.plan import (
    LiveBuffer,
    PlanBudget,
    PlanBuffer,
    PlanMap,
    PlanPeak,
    PlanReorder,
    PlanResult,
    PlanSaving,
    PlansResult,
)
from qnnmem.text import by_sizes, quote
from qnnmem.units import Bytes

# By verdict: the budgets hold, do not hold, or it is unknown.
EXIT_CODES: dict[bool | None, Literal[0, 1, 3]] = {True: 0, False: 1, None: 3}
_COMPUTED = ("scratch", "persistent", "io", "constant", "lower_bound")


@dataclass(frozen=True)
class PlannedFile:
    """A memory plan with its source and its budgets."""

    plan: MemoryPlan
    input: str
    seconds: float = 0.0
    given: tuple[str, ...] = ()  # options given by the user, for commands to paste
    tcm_budget: TcmVerdict | None = None  # against the user's budgets
    remedies: Remedies | None = None  # None if nothing is too large, or none were searched for
    time_limit: float = DEFAULT_TIME_LIMIT_S
    graph: str = ""  # name of the graph in a file with several graphs
    seen_as: str | None = None  # "qnn": the graph that QNN gets from the model

    @cached_property
    def tcm(self) -> TcmVerdict | None:
        """Verdict on constants and IO in the documented TCM pool; None for a buffer list."""
        return judge_plan(self.plan)

    @cached_property
    def computes_in_floats(self) -> bool:
        """True if any tensor other than a constant is floating-point."""
        return any(kind.is_float for kind in held_types(self.plan.model))

    @cached_property
    def result(self) -> PlanResult:
        """The plan as a result type for JSON, pages and comparisons."""
        plan, shown = self.plan, plan_map(self.plan)
        fits = self._fits()
        return PlanResult(
            input=self.input,
            graph=self.graph,
            scratch_bytes=shown.scratch_bytes,
            persistent_bytes=shown.persistent_bytes,
            io_bytes=plan.io_bytes,
            constant_bytes=plan.constant_bytes,
            lower_bound_bytes=shown.lower_bound_bytes,
            optimal=shown.optimal,
            proof=shown.proof,
            seconds=round(self.seconds, 6),
            align_bytes=plan.align,
            io=shown.io,
            bits=plan.options.bits,
            seen_as=self.seen_as,
            inputs=plan.model.inputs,
            outputs=plan.model.outputs,
            peak=shown.peak,
            tcm=None if self.tcm is None else self.tcm.answer,
            budgets=tuple(self._budgets()),
            fits=fits,
            exit_code=EXIT_CODES[fits],
            remedies=None if self.remedies is None else tuple(map(_remedy, self.remedies.found)),
            reorder=self._reorder(),
            likely_states=tuple(f"{old}={new}" for old, new in plan.likely_states),
            ops=shown.ops,
            op_types=shown.op_types,
            buffers=shown.buffers,
            holds_for=plan.model.holds_for,
            # Notes that make every number an estimate come first.
            notes=(*with_flags(plan.model.assumed).splitlines(), *self.notes),
            origins=self._origins(),
        )

    def _fits(self) -> bool | None:
        """Return whether every budget holds and TCM serves every allocation.

        Return None if the search ran out of time, or if a size in the file is only a placeholder.
        """
        answers = {budget.fits for budget in self.plan.budgets}
        answers |= set() if self.tcm_budget is None else {self.tcm_budget.fits}
        answers |= {False} if self.tcm is not None and self.tcm.is_crowded else set()
        answers |= {None} if answers and self.plan.model.assumed else set()
        return joint_verdict(answers)

    def _budgets(self) -> Iterator[PlanBudget]:
        for budget in self.plan.budgets:
            yield _budget(self.plan, budget)
        tcm = self.tcm_budget
        if tcm is not None:
            yield PlanBudget(TCM, tcm.need, tcm.need, tcm.limit.value, tcm.fits)

    def _reorder(self) -> PlanReorder | None:
        gain = self.plan.reordered
        if gain is None:
            return None
        order = tuple(op.name for op in self.plan.model.ops)
        return PlanReorder(gain.before, gain.after, gain.proven, order)

    def _origins(self) -> dict[str, str]:
        origins = {f"{name}_bytes": "computed" for name in _COMPUTED}
        if self.tcm is not None:
            limit = f"{self.tcm.limit.origin.value}: {self.tcm.limit.source}"
            origins["tcm.need_bytes"] = "computed"
            origins |= {"tcm.limit_bytes": limit, "tcm.max_buffers": limit}
        return origins

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes from the loader, about options without effect, and about limits of the proof."""
        return tuple(self._notes())

    def _notes(self) -> Iterator[str]:
        plan = self.plan
        yield from self._idle_options()
        yield from self._empty_io()
        yield from plan.model.notes
        if any(op.bodies for op in plan.model.ops):
            yield (
                "branch and loop bodies are planned separately; "
                "the total can be above the true minimum"
            )
        if plan.reordered is not None and plan.reordered.skipped is not None:
            yield f"reordering ops was skipped: {plan.reordered.skipped}"
        if plan.scratch.cut_by_clock and not plan.scratch.optimal:
            yield "the time limit ended the search, so another run might find another plan"
        if plan.search_missing:
            yield search_missing_note()

    def _idle_options(self) -> Iterator[str]:
        """Yield notes about options that have no effect on this model."""
        plan, bits = self.plan, self.plan.options.bits
        if bits is None or plan.model.format == "csv" or self.computes_in_floats:
            return
        kinds = ", ".join(sorted({kind.value for kind in held_types(plan.model)}))
        option = flag(Setting("bits", str(bits)))
        yield f"{option} has no effect: no buffer is floating-point ({kinds})"

    def _empty_io(self) -> Iterator[str]:
        """Yield notes about inputs and outputs that have no elements."""
        model = self.plan.model
        for kind, names in (("input", model.inputs), ("output", model.outputs)):
            for name in names:
                if not model.tensors[name].elements:
                    shape = by_sizes(model.tensors[name].shape)
                    yield f"{kind} {quote(name)} has no elements ({shape})"


def search_missing_note() -> str:
    """Return a note that the search ran in plain Python, with the reason."""
    from qnnmem.planner.packing import why_not_compiled

    return f"the search ran in plain Python and did not finish; {why_not_compiled()}"


def plan_map(plan: MemoryPlan) -> PlanMap:
    """Return the part of a plan that a memory map shows."""
    return PlanMap(
        scratch_bytes=plan.scratch_bytes,
        persistent_bytes=plan.persistent_bytes,
        lower_bound_bytes=plan.scratch.lower_bound,
        optimal=plan.scratch.optimal,
        proof=plan.proof,
        io=plan.options.io.value,
        peak=_peak(plan),
        ops=tuple(op.name for op in plan.model.ops),
        op_types=tuple(op.type for op in plan.model.ops),
        buffers=tuple(_buffers(plan)),
    )


def _peak(plan: MemoryPlan) -> PlanPeak | None:
    peak = plan.peak
    if peak is None:
        return None
    live = tuple(LiveBuffer(buffer.name, buffer.size) for buffer in peak.live)
    return PlanPeak(peak.step, op_at_peak(plan), peak.size, live)


def op_at_peak(plan: MemoryPlan) -> str | None:
    """Return the op at the fullest step; None if that step is before or after all ops."""
    peak, ops = plan.peak, plan.model.ops
    if peak is None or not 0 <= peak.step < len(ops):
        return None
    return f"{ops[peak.step].name} ({ops[peak.step].type})"


def _buffers(plan: MemoryPlan) -> Iterator[PlanBuffer]:
    tensors = plan.model.tensors
    reads = _reads(plan)
    for buffer in plan.buffers:
        tensor = tensors.get(buffer.name)
        yield PlanBuffer(
            name=buffer.name,
            pool=buffer.pool.value,
            size_bytes=buffer.size,
            lower=buffer.live.lower,
            upper=buffer.live.upper,
            offset_bytes=buffer.offset,
            aliases=buffer.aliases,
            shape="" if tensor is None else f"{by_sizes(tensor.shape)} {tensor.dtype.value}",
            reads=tuple(reads.get(buffer.name, ())),
        )


def _reads(plan: MemoryPlan) -> dict[str, list[int]]:
    """Return, by buffer name, the steps that read the buffer; creating a view is not a read."""
    buffer_of = {name: b.name for b in plan.buffers for name in (b.name, *b.aliases)}
    steps: dict[str, list[int]] = {}
    for step, op in enumerate(plan.model.ops):
        written = {buffer_of.get(name) for name in op.outputs}
        for buffer in dict.fromkeys(buffer_of[name] for name in op.inputs if name in buffer_of):
            if buffer not in written:
                steps.setdefault(buffer, []).append(step)
    return steps


def _budget(plan: MemoryPlan, budget: BudgetVerdict) -> PlanBudget:
    sizes = pool_sizes(plan, budget.pool) if budget.blockers else {}
    return PlanBudget(
        pool=budget.pool.value,
        need_bytes=budget.need,
        at_least_bytes=budget.at_least,
        have_bytes=budget.have,
        fits=budget.fits,
        blockers=budget.blockers,
        blocker_bytes=tuple(sizes[name] for name in budget.blockers),
    )


def _remedy(remedy: Remedy) -> PlanSaving:
    return PlanSaving(
        options=tuple(map(flag, remedy.settings)),
        pool=remedy.pool,
        saved_bytes=remedy.saved,
        need_bytes=remedy.after,
        fits=remedy.fits,
    )


PlanRow = PlannedFile | RefusedFile


def plans_result(rows: Sequence[PlanRow]) -> PlansResult:
    """Return the plans of several files as one result."""
    return PlansResult.of(row.result if isinstance(row, PlannedFile) else row for row in rows)


# Seconds to plan one option: its effect shows early, and there are several options.
LONGEST_S = 1.0

_Change = tuple[Setting, Callable[[PoolOptions], PoolOptions]]


@dataclass(frozen=True, slots=True)
class Shortage:
    """A pool that exceeds its budget."""

    pool: str
    have: Bytes
    need: Callable[[MemoryPlan], int]


@dataclass(frozen=True, slots=True)
class Remedy:
    """Options that shrink a pool, with the planned sizes before and after."""

    settings: tuple[Setting, ...]
    pool: str
    before: int
    after: int
    have: int
    moved: int = 0  # bytes of IO that move to buffers of the application

    @property
    def saved(self) -> int:
        """Number of bytes by which the pool becomes smaller."""
        return self.before - self.after

    @property
    def fits(self) -> bool:
        """True if the smaller pool fits its budget."""
        return self.after <= self.have


@dataclass(frozen=True, slots=True)
class Remedies:
    """The options tried for oversized pools, and the helpful ones, best first."""

    tried: tuple[Setting, ...]
    found: tuple[Remedy, ...]


def shortages(plan: MemoryPlan) -> tuple[Shortage, ...]:
    """Return the pools of a plan that are proven to be over their budgets."""
    return tuple(
        Shortage(budget.pool.value, budget.have, partial(MemoryPlan.pool_bytes, pool=budget.pool))
        for budget in plan.budgets
        if budget.fits is False
    )


def find_remedies(
    model: Model,
    plan: MemoryPlan,
    lacking: tuple[Shortage, ...],
    *,
    time_limit: float = DEFAULT_TIME_LIMIT_S,
    seed: int = 0,
) -> Remedies:
    """Return unused options that shrink an oversized pool; `model` has its original op order."""
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
    remedies = [remedy for change in changes for remedy in planned((change,))]
    useful = {setting for remedy in remedies for setting in remedy.settings}
    helpful = tuple(change for change in changes if change[0] in useful)
    still_over = {r.pool for r in remedies} - {r.pool for r in remedies if r.fits}
    if len(helpful) > 1 and still_over:
        remedies += planned(helpful)
    tried = tuple(setting for setting, _change in changes)
    return Remedies(tried, tuple(sorted(remedies, key=_rank)))


def _changes(model: Model, options: PoolOptions, pools: set[str]) -> Iterator[_Change]:
    """Yield options that the user has not chosen and that can shrink one of the pools.

    Options that change no results come first.
    """
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
    """Return a sort key: sufficient remedies come first, then the other remedies by savings.

    Among sufficient remedies, those that quantize come last, because quantizing changes results.
    Among equals, fewer changes come before more changes.
    """
    quantizes = any(setting.name == "bits" for setting in remedy.settings)
    if remedy.fits:
        return False, quantizes, len(remedy.settings), -remedy.saved
    return True, False, 0, -remedy.saved
