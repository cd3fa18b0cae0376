"""Results of planning several models that share the LPAI pools."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Struct, field

from qnnmem.results.plan import PlanBudget, PlanBuffer, PlanMap, PlanResult, TcmAnswer
from qnnmem.results.proof import ProofScope
from qnnmem.results.result import Count, Positive, Result, describe


class ArrangedModel(Struct, frozen=True):
    """A model and its offsets in the shared pools."""

    name: Annotated[str, describe("Name of the model: its file name without the suffix.")]
    scratch_bytes: Annotated[Count, describe("Scratch of the model alone, in bytes.")]
    scratch_offset: Annotated[Count, describe("Offset of the model's scratch in the shared pool.")]
    persistent_bytes: Annotated[Count, describe("Persistent memory of the model, in bytes.")]
    persistent_offset: Annotated[
        Count, describe("Offset of the model's persistent memory in the shared pool.")
    ]
    io_bytes: Annotated[Count, describe("Inputs and outputs outside scratch, in bytes.")]
    constant_bytes: Annotated[Count, describe("Constants in bytes.")]


class TogetherResult(Result, frozen=True, kw_only=True, tag="qnnmem.together/1"):
    """Memory of several models together: one scratch, one persistent pool, one TCM pool."""

    models: Annotated[tuple[ArrangedModel, ...], describe("Every model with its offsets.")]
    concurrent: Annotated[
        tuple[tuple[str, ...], ...],
        describe(
            "Sets of models that may execute at the same time; all other sets are assumed never to."
        ),
    ] = ()
    busiest: Annotated[
        tuple[str, ...],
        describe("Models that execute at the same time and need the most scratch together."),
    ] = ()
    scratch_bytes: Annotated[Count, describe("Bytes of the shared scratch pool.")]
    lower_bound_bytes: Annotated[
        Count, describe("Proven lower bound in bytes for any arrangement of these plans.")
    ]
    persistent_bytes: Annotated[
        Count, describe("Bytes of the shared persistent pool: the sum over all models.")
    ]
    io_bytes: Annotated[
        Count, describe("Inputs and outputs outside scratch, in bytes: the sum over all models.")
    ]
    constant_bytes: Annotated[Count, describe("Constants in bytes: the sum over all models.")]
    align_bytes: Annotated[Positive, describe("Alignment of both pools in bytes.")]
    tcm: Annotated[
        TcmAnswer | None,
        describe("Verdict on TCM if one binary contains all models; null with a buffer list."),
    ] = None
    budgets: Annotated[
        tuple[PlanBudget, ...], describe("Verdicts on budgets for all models together.")
    ] = ()
    fits: Annotated[bool | None, describe("Whether every budget is met; null if unknown.")] = None
    exit_code: Annotated[
        Literal[0, 1, 3],
        describe(
            "Exit code of the command: 0 if every budget is met, 1 if one is not, 3 if undecided."
        ),
    ] = 0
    origins: Annotated[dict[str, str], describe("Origin of each number, by key.")] = field(
        default_factory=dict
    )
    plans: Annotated[tuple[PlanResult, ...], describe("Plan of each model alone.")]

    @property
    def assumed(self) -> str:
        """The sentence about the unchecked assumption: which models execute at the same time."""
        if not self.concurrent:
            return "assumed, not checked: no two models execute at the same time"
        sets = "; ".join(" + ".join(names) for names in self.concurrent)
        return f"assumed, not checked: only these execute at the same time: {sets}"

    @property
    def pools(self) -> dict[str, int]:
        """Bytes by pool, in the order shown."""
        return {
            "scratch": self.scratch_bytes,
            "persistent": self.persistent_bytes,
            "io": self.io_bytes,
            "constants": self.constant_bytes,
        }

    @property
    def map(self) -> PlanMap:
        """Scratch and persistent pool as a memory map; each step of the map is a model."""
        is_least = self.scratch_bytes == self.lower_bound_bytes
        buffers = [
            PlanBuffer(model.name, pool, size, lower, upper, offset)
            for index, model in enumerate(self.models)
            for pool, size, offset, lower, upper in (
                ("scratch", model.scratch_bytes, model.scratch_offset, index, index + 1),
                (
                    *("persistent", model.persistent_bytes, model.persistent_offset),
                    *(0, len(self.models)),
                ),
            )
            if size
        ]
        return PlanMap(
            scratch_bytes=self.scratch_bytes,
            persistent_bytes=self.persistent_bytes,
            lower_bound_bytes=self.lower_bound_bytes,
            optimal=is_least,
            proof=ProofScope.LIFETIMES if is_least else ProofScope.NONE,
            io="outside" if self.io_bytes else "inside",
            ops=tuple(model.name for model in self.models),
            buffers=tuple(buffers),
        )

    @property
    def summary(self) -> str:
        """The result in one line."""
        answer = {True: "fits, ", False: "does not fit, ", None: ""}[self.fits]
        size = f"scratch {self.scratch_bytes:,} bytes, persistent {self.persistent_bytes:,}"
        return f"{answer if self.budgets else ''}{len(self.models)} models together: {size}"
