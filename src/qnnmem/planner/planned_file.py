"""The plan of a file with its verdicts, and the result that is made of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from qnnmem.errors import Setting
from qnnmem.flags import flag, with_flags
from qnnmem.planner.model_plan import judge_plan, pool_sizes
from qnnmem.planner.pools import TCM, BudgetVerdict, MemoryPlan, PlacedBuffer, held_types
from qnnmem.planner.problem_plan import DEFAULT_TIME_LIMIT_S
from qnnmem.planner.remedies import Remedies, Remedy
from qnnmem.planner.tcm import TcmVerdict
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
from qnnmem.text import quote

# Exit code by whether every budget holds.
_CODES: dict[bool | None, Literal[0, 1, 3]] = {True: 0, False: 1, None: 3}
_COMPUTED = ("scratch", "persistent", "io", "constant", "lower_bound")


@dataclass(frozen=True)
class PlannedFile:
    """A memory plan, where it came from, and what was asked about it."""

    plan: MemoryPlan
    input: str
    seconds: float = 0.0
    given: tuple[str, ...] = ()  # options the user gave, for commands to paste
    tcm_budget: TcmVerdict | None = None  # against what the user can spare
    remedies: Remedies | None = None  # None where nothing is too large, or none were looked for
    time_limit: float = DEFAULT_TIME_LIMIT_S
    graph: str = ""  # of a file with several
    seen_as: str | None = None  # "qnn": the graph that QNN is given of the model

    @cached_property
    def tcm(self) -> TcmVerdict | None:
        """Whether constants and IO fit the documented TCM pool; None for a list of buffers."""
        return judge_plan(self.plan)

    @cached_property
    def computes_in_floats(self) -> bool:
        """Whether any tensor but constants, such as scales, is floating-point."""
        return any(kind.is_float for kind in held_types(self.plan.model))

    @cached_property
    def result(self) -> PlanResult:
        """The plan as programs, pages and comparisons read it."""
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
            exit_code=_CODES[fits],
            remedies=None if self.remedies is None else tuple(map(_remedy, self.remedies.found)),
            reorder=self._reorder(),
            likely_states=tuple(f"{old}={new}" for old, new in plan.likely_states),
            ops=shown.ops,
            buffers=shown.buffers,
            holds_for=plan.model.holds_for,
            # What makes every number a guess comes first.
            notes=(*with_flags(plan.model.assumed).splitlines(), *self.notes),
            origins=self._origins(),
        )

    def _fits(self) -> bool | None:
        """Whether every budget holds and TCM serves every allocation.

        None: the search had no time to tell, or a size in the file only stands in for the true one.
        """
        answers = {budget.fits for budget in self.plan.budgets}
        answers |= set() if self.tcm_budget is None else {self.tcm_budget.fits}
        answers |= {False} if self.tcm is not None and self.tcm.is_crowded else set()
        answers |= {None} if answers and self.plan.model.assumed else set()
        return False if False in answers else None if None in answers else True

    def _budgets(self) -> Iterator[PlanBudget]:
        for budget in self.plan.budgets:
            yield _budget(self.plan, budget)
        tcm = self.tcm_budget
        if tcm is not None:
            yield PlanBudget(TCM, tcm.need, tcm.need, tcm.limit.value, tcm.fits)

    def _reorder(self) -> PlanReorder | None:
        found = self.plan.reordered
        if found is None:
            return None
        order = tuple(op.name for op in self.plan.model.ops)
        return PlanReorder(found.before, found.after, found.proven, order)

    def _origins(self) -> dict[str, str]:
        origins = {f"{name}_bytes": "computed" for name in _COMPUTED}
        if self.tcm is not None:
            limit = f"{self.tcm.limit.origin.value}: {self.tcm.limit.source}"
            origins["tcm.need_bytes"] = "computed"
            origins |= {"tcm.limit_bytes": limit, "tcm.max_buffers": limit}
        return origins

    @property
    def notes(self) -> tuple[str, ...]:
        """What the reader of the file said, and how far the proof goes."""
        return tuple(self._notes())

    def _notes(self) -> Iterator[str]:
        plan = self.plan
        yield from self._idle_options()
        yield from self._empty_io()
        yield from plan.model.notes
        if any(op.bodies for op in plan.model.ops):
            yield (
                "branch and loop bodies are planned separately; "
                "the total may be above the true minimum"
            )
        if plan.reordered is not None and plan.reordered.skipped is not None:
            yield f"reordering ops was skipped: {plan.reordered.skipped}"
        if plan.scratch.cut_by_clock and not plan.scratch.optimal:
            yield "the clock ended the search, so another run may find another plan"
        if plan.search_missing:
            yield search_missing_note()

    def _idle_options(self) -> Iterator[str]:
        """Options that change nothing for this model."""
        plan, bits = self.plan, self.plan.options.bits
        if bits is None or plan.model.format == "csv" or self.computes_in_floats:
            return
        kinds = ", ".join(sorted({kind.value for kind in held_types(plan.model)}))
        option = flag(Setting("bits", str(bits)))
        yield f"{option} changes no buffer: none is floating-point ({kinds})"

    def _empty_io(self) -> Iterator[str]:
        """Inputs and outputs without a single element."""
        model = self.plan.model
        for kind, names in (("input", model.inputs), ("output", model.outputs)):
            for name in names:
                if not model.tensors[name].elements:
                    shape = "x".join(map(str, model.tensors[name].shape))
                    yield f"{kind} {quote(name)} has no elements ({shape})"


def search_missing_note() -> str:
    """That compiled code may find a better plan, and why there is none."""
    from qnnmem.planner.compiled_packing import why_not_compiled

    return f"the search ran in plain Python and did not finish; {why_not_compiled()}"


def plan_map(plan: MemoryPlan) -> PlanMap:
    """What a memory map shows of a plan."""
    return PlanMap(
        scratch_bytes=plan.scratch_bytes,
        persistent_bytes=plan.persistent_bytes,
        lower_bound_bytes=plan.scratch.lower_bound,
        optimal=plan.scratch.optimal,
        proof=plan.proof,
        io=plan.options.io.value,
        peak=_peak(plan),
        ops=tuple(op.name for op in plan.model.ops),
        buffers=tuple(map(_buffer, plan.buffers)),
    )


def _peak(plan: MemoryPlan) -> PlanPeak | None:
    peak = plan.peak
    if peak is None:
        return None
    live = tuple(LiveBuffer(buffer.name, buffer.size) for buffer in peak.live)
    return PlanPeak(peak.step, op_at_peak(plan), peak.size, live)


def op_at_peak(plan: MemoryPlan) -> str | None:
    """The op that runs at the fullest step; None before the first and after the last."""
    peak, ops = plan.peak, plan.model.ops
    if peak is None or not 0 <= peak.step < len(ops):
        return None
    return f"{ops[peak.step].name} ({ops[peak.step].type})"


def _buffer(buffer: PlacedBuffer) -> PlanBuffer:
    return PlanBuffer(
        name=buffer.name,
        pool=buffer.pool.value,
        size_bytes=buffer.size,
        lower=buffer.live.lower,
        upper=buffer.live.upper,
        offset_bytes=buffer.offset,
        aliases=buffer.aliases,
    )


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
    """The plans of several files as one result."""
    return PlansResult.of(row.result if isinstance(row, PlannedFile) else row for row in rows)
