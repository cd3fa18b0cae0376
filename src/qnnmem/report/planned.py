"""A memory plan with its verdicts, where it came from and how long it took."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from qnnmem.lpai.tcm import TcmVerdict
from qnnmem.planner import MemoryPlan, Pool
from qnnmem.planner.pools import held_types
from qnnmem.planner.problem_plan import DEFAULT_TIME_LIMIT_S
from qnnmem.planner.remedies import Remedies
from qnnmem.text import quote
from qnnmem.units import Bytes


def search_missing() -> str:
    """That compiled code may find a better plan, and why there is none."""
    from qnnmem.planner.compiled_packing import why_not_compiled

    return f"the search ran in plain Python and did not finish; {why_not_compiled()}"


@dataclass(frozen=True, slots=True)
class PlanReport:
    """A memory plan with its verdicts, where it came from and how long it took."""

    plan: MemoryPlan
    tcm: TcmVerdict | None  # None for a bare list of buffers
    input: str
    tool: str
    seconds: float
    given: tuple[str, ...] = ()  # options the user gave, for commands to paste
    tcm_budget: TcmVerdict | None = None  # against what the user can spare
    remedies: Remedies | None = None  # None where nothing is too large, or none were looked for
    time_limit: float = DEFAULT_TIME_LIMIT_S
    graph: str = ""  # of a file with several
    seen_as: str | None = None  # "qnn": the graph that QNN is given of the model in the file

    @property
    def fits(self) -> bool | None:
        """Whether every budget holds and TCM serves every allocation; None: that cannot be told.

        The search had no time to tell, or a size in the file only stands in for the true one.
        """
        answers = {budget.fits for budget in self.plan.budgets}
        answers |= set() if self.tcm_budget is None else {self.tcm_budget.fits}
        answers |= {False} if self._is_crowded else set()
        answers |= {None} if answers and self.plan.model.assumed else set()
        return False if False in answers else None if None in answers else True

    @property
    def exit_code(self) -> int:
        """0 it fits, 1 it does not, 3 it cannot be told."""
        return {True: 0, False: 1, None: 3}[self.fits]

    @property
    def has_verdict(self) -> bool:
        """Whether there is a budget to hold, or allocations that no TCM serves."""
        return bool(self.plan.budgets) or self.tcm_budget is not None or self._is_crowded

    @property
    def _is_crowded(self) -> bool:
        return self.tcm is not None and self.tcm.is_crowded

    @property
    def lacking(self) -> tuple[str, ...]:
        """The pools that are over their budgets."""
        pools = tuple(b.pool.value for b in self.plan.budgets if b.fits is False)
        short = self.tcm_budget is not None and not self.tcm_budget.fits
        return (*pools, "tcm") if short else pools

    @property
    def op_at_peak(self) -> str | None:
        """The op that runs at the fullest step; None before the first and after the last."""
        return op_at_peak(self.plan)

    @property
    def notes(self) -> tuple[str, ...]:
        """What the reader of the file said, and how far the proof goes."""
        notes = [*self._idle_options(), *self._empty_io(), *self.plan.model.notes]
        if any(op.bodies for op in self.plan.model.ops):
            notes.append(
                "branch and loop bodies are planned separately; "
                "the total may be above the true minimum"
            )
        if self.plan.reordered is not None and self.plan.reordered.skipped is not None:
            notes.append(f"reordering ops was skipped: {self.plan.reordered.skipped}")
        if self.plan.scratch.cut_by_clock and not self.plan.scratch.optimal:
            notes.append("the clock ended the search, so another run may find another plan")
        if self.plan.search_missing:
            notes.append(search_missing())
        return tuple(notes)

    @property
    def computes_in_floats(self) -> bool:
        """Whether any tensor but constants, such as scales, is floating-point."""
        return any(kind.is_float for kind in held_types(self.plan.model))

    def _idle_options(self) -> Iterator[str]:
        """Options that change nothing for this model."""
        plan = self.plan
        if plan.options.bits is None or plan.model.format == "csv" or self.computes_in_floats:
            return
        kinds = ", ".join(sorted({kind.value for kind in held_types(plan.model)}))
        yield f"--bits {plan.options.bits} changes no buffer: none is floating-point ({kinds})"

    def _empty_io(self) -> Iterator[str]:
        """Inputs and outputs without a single element."""
        model = self.plan.model
        for kind, names in (("input", model.inputs), ("output", model.outputs)):
            for name in names:
                if not model.tensors[name].elements:
                    shape = "x".join(map(str, model.tensors[name].shape))
                    yield f"{kind} {quote(name)} has no elements ({shape})"

    @property
    def pools(self) -> tuple[tuple[Pool, Bytes], ...]:
        """Pools and their sizes, in the order they are shown."""
        return tuple((pool, self.plan.pool_bytes(pool)) for pool in Pool)


def op_at_peak(plan: MemoryPlan) -> str | None:
    """The op that runs at the fullest step; None before the first and after the last."""
    peak, ops = plan.peak, plan.model.ops
    if peak is None or not 0 <= peak.step < len(ops):
        return None
    return f"{ops[peak.step].name} ({ops[peak.step].type})"
