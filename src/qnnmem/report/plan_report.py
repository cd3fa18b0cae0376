"""Everything a plan's renderers show."""

from __future__ import annotations

from dataclasses import dataclass

from qnnmem.lpai.tcm import TcmVerdict
from qnnmem.plan import MemoryPlan, Pool
from qnnmem.units import Bytes


@dataclass(frozen=True, slots=True)
class PlanReport:
    """A memory plan with its verdicts, where it came from and how long it took."""

    plan: MemoryPlan
    tcm: TcmVerdict | None  # None for a bare list of buffers
    input: str
    tool: str
    seconds: float
    given: tuple[str, ...] = ()  # options the user gave, for commands to paste

    @property
    def op_at_peak(self) -> str | None:
        """The op that runs at the fullest step; None before the first and after the last."""
        peak, ops = self.plan.peak, self.plan.model.ops
        if peak is None or not 0 <= peak.step < len(ops):
            return None
        return f"{ops[peak.step].name} ({ops[peak.step].type})"

    @property
    def notes(self) -> tuple[str, ...]:
        """What the reader of the file said, and how far the proof goes."""
        notes = list(self.plan.model.notes)
        if any(op.bodies for op in self.plan.model.ops):
            notes.append(
                "the bodies of control-flow ops are planned apart and take one block while the op "
                "runs; the minimum is one of this arrangement"
            )
        if self.plan.scratch.cut_by_clock and not self.plan.scratch.optimal:
            notes.append("the clock ended the search, so another run may find another plan")
        return tuple(notes)

    @property
    def pools(self) -> tuple[tuple[Pool, Bytes], ...]:
        """Pools and their sizes, in the order they are shown."""
        return tuple((pool, self.plan.pool_bytes(pool)) for pool in Pool)
