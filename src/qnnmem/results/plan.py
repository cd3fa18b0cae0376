"""Memory plans: of one file, of several, and the part that a memory map shows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType, field

from qnnmem.results.files import SeveralFiles
from qnnmem.results.proof import ProofScope, proof_words
from qnnmem.results.result import Count, Difference, Positive, Result, describe

BufferPool = Annotated[str, Meta(pattern="^(scratch|persistent|io)$")]
BudgetPool = Annotated[str, Meta(pattern="^(scratch|persistent|io|constants|tcm)$")]
Origin = Annotated[str, Meta(pattern="^(measured|computed|documented|reported)(: .+)?$")]


class LiveBuffer(Struct, frozen=True):
    """A buffer alive at the peak."""

    name: Annotated[str, describe("Name of the buffer.")]
    bytes: Annotated[Count, describe("Size of the buffer in bytes, rounded to the alignment.")]


class PlanPeak(Struct, frozen=True):
    """The first step with the most scratch bytes alive."""

    step: Annotated[
        Difference,
        describe(
            "Position of the op in execution order, counted from 0; -1 is before the first op, "
            "the number of ops is after the last op."
        ),
    ]
    op: Annotated[str | None, describe("Name and type of the op at this step; null if no op runs.")]
    bytes: Annotated[Count, describe("Bytes alive at this step.")]
    live: Annotated[tuple[LiveBuffer, ...], describe("Buffers alive at this step, largest first.")]


def too_many(buffers: int, limit: int) -> str:
    """Return a clause that states that there are more allocations than TCM allows."""
    return f"{buffers} allocations, but TCM allows only {limit}, which is fatal on the device"


class TcmAnswer(Struct, frozen=True):
    """Verdict on whether a model's binary (or constants) and IO fit the TCM of aDSP direct mode."""

    fits: Annotated[
        bool,
        describe("Whether both the bytes and the number of allocations fit the pool."),
    ]
    need_bytes: Annotated[
        Count,
        describe(
            "Bytes of the constants (or of the whole binary), inputs and outputs, each rounded to "
            "the alignment."
        ),
    ]
    limit_bytes: Annotated[Count, describe("Size of the TCM pool in bytes.")]
    buffers: Annotated[
        Count,
        describe("Number of allocations: one for the constants, one for each input and output."),
    ]
    max_buffers: Annotated[
        Count, describe("Largest number of allocations that the TCM pool allows.")
    ]

    @property
    def is_crowded(self) -> bool:
        """True if there are more allocations than the pool allows, whatever their sizes."""
        return self.buffers > self.max_buffers

    @property
    def spare(self) -> int:
        """Bytes left in the pool; negative if it is too small."""
        return self.limit_bytes - self.need_bytes


class PlanBudget(Struct, frozen=True):
    """The need of a pool compared with its budget."""

    pool: Annotated[BudgetPool, describe("Pool that the budget is for.")]
    need_bytes: Annotated[Count, describe("Bytes of the pool in this plan.")]
    at_least_bytes: Annotated[Count, describe("Proven lower bound in bytes for any plan.")]
    have_bytes: Annotated[Count, describe("Budget in bytes.")]
    fits: Annotated[
        bool | None,
        describe("Whether the pool stays within its budget; null if the search ran out of time."),
    ]
    blockers: Annotated[
        tuple[str, ...],
        describe("Names of buffers or tensors that prevent a fit; empty if the pool fits."),
    ] = ()
    blocker_bytes: Annotated[
        tuple[Count, ...], describe("Bytes of each item of `blockers`, in the same order.")
    ] = ()


class PlanSaving(Struct, frozen=True):
    """Options, and the bytes that they save."""

    options: Annotated[tuple[str, ...], describe("Options to add to the command, all together.")]
    pool: Annotated[BudgetPool, describe("Pool that becomes smaller.")]
    saved_bytes: Annotated[Positive, describe("Bytes saved.")]
    need_bytes: Annotated[Count, describe("Bytes of the pool with these options.")]
    fits: Annotated[bool, describe("Whether these options bring the pool within its budget.")]


class PlanReorder(Struct, frozen=True):
    """The effect of another operator order."""

    before_bytes: Annotated[Count, describe("Peak bytes alive in the order of the file.")]
    after_bytes: Annotated[Count, describe("Peak bytes alive in the planned order.")]
    proven: Annotated[
        bool, describe("Whether the planned order is proven to have the lowest peak of all orders.")
    ]
    order: Annotated[tuple[str, ...], describe("Names of the ops in the planned order.")]


class PlanBuffer(Struct, frozen=True):
    """A range of a pool that one tensor and its views occupy for an interval of steps."""

    name: Annotated[
        str,
        describe(
            "Name of the tensor that is written to the buffer first, or of the buffer in the file."
        ),
    ]
    pool: Annotated[BufferPool, describe("The pool that holds the buffer.")]
    size_bytes: Annotated[Count, describe("Size in bytes, rounded to the alignment.")]
    lower: Annotated[
        Difference,
        describe("First step at which the buffer is in use; -1 is before the first op."),
    ]
    upper: Annotated[Difference, describe("One past the last step at which the buffer is in use.")]
    offset_bytes: Annotated[
        Count, describe("Start of the buffer in bytes from the start of its pool.")
    ]
    aliases: Annotated[tuple[str, ...], describe("Other tensors that use the same bytes.")] = ()
    shape: Annotated[
        str, describe("Shape and type of the tensor in the file, such as 1x3x224x224 float32.")
    ] = ""
    reads: Annotated[
        tuple[Difference, ...], describe("Steps of the ops that read the buffer.")
    ] = ()


def _scope(proof: ProofScope | UnsetType, optimal: bool) -> ProofScope:
    if isinstance(proof, ProofScope):
        return proof
    return ProofScope.LIFETIMES if optimal else ProofScope.NONE


class PlanMap(Struct, frozen=True, kw_only=True):
    """The part of a plan that a memory map shows."""

    scratch_bytes: Annotated[Count, describe("Size of the scratch pool in bytes.")]
    persistent_bytes: Annotated[Count, describe("Size of the persistent pool in bytes.")]
    lower_bound_bytes: Annotated[Count, describe("Proven lower bound in bytes for these buffers.")]
    optimal: Annotated[bool, describe("Whether scratch_bytes equals lower_bound_bytes.")]
    proof: Annotated[ProofScope | UnsetType, describe("What is proven about scratch_bytes.")] = (
        UNSET
    )
    io: Annotated[
        Literal["inside", "outside"], describe("Where inputs and outputs are, relative to scratch.")
    ]
    peak: Annotated[PlanPeak | None, describe("Peak step of scratch; null without buffers.")] = None
    ops: Annotated[tuple[str, ...], describe("Names of the ops in execution order.")] = ()
    op_types: Annotated[tuple[str, ...], describe("Type of each op, in execution order.")] = ()
    buffers: Annotated[
        tuple[PlanBuffer, ...], describe("Every planned buffer with its pool and offset.")
    ]

    @property
    def scope(self) -> ProofScope:
        """The scope of the proof; for results of version 0.1.0, it is derived from `optimal`."""
        return _scope(self.proof, self.optimal)

    @property
    def proof_words(self) -> str:
        """The proof as a phrase for a sentence."""
        return proof_words(self.scope, self.scratch_bytes, self.lower_bound_bytes)


class PlanResult(Result, frozen=True, kw_only=True, tag="qnnmem.plan/1"):
    """A memory plan: pools, the proof of the minimum, the peak and the location of every buffer.

    Sizes are integers in bytes; intervals of steps are half-open.
    """

    input: Annotated[str, describe("Path of the planned file as given.")]
    graph: Annotated[
        str, describe("Name of the graph if the file has several, otherwise empty.")
    ] = ""
    scratch_bytes: Annotated[
        Count,
        describe(
            "Size in bytes of the scratch pool of this plan, or of the pool of a buffer list."
        ),
    ]
    persistent_bytes: Annotated[
        Count,
        describe("Size of the persistent pool, which holds state between runs, in bytes."),
    ]
    io_bytes: Annotated[
        Count,
        describe("Size of the IO pool in bytes; 0 if inputs and outputs are inside scratch."),
    ]
    constant_bytes: Annotated[Count, describe("Bytes of all constants stored in the model binary.")]
    lower_bound_bytes: Annotated[
        Count,
        describe(
            "Proven lower bound in bytes: no plan of the same buffers has a smaller scratch pool."
        ),
    ]
    optimal: Annotated[
        bool,
        describe(
            "Whether scratch_bytes equals lower_bound_bytes; if so, these buffers cannot be "
            "placed in fewer bytes. `proof` states what this means for the model."
        ),
    ]
    proof: Annotated[
        ProofScope | UnsetType,
        describe(
            "What is proven about scratch_bytes. Estimate before quantization: the ops of a float "
            "model were planned with `bits`, and quantizing fuses some ops and adds others. Upper "
            "bound: branch and loop bodies are planned separately, so the total can be above the "
            "true minimum."
        ),
    ] = UNSET
    seconds: Annotated[
        float,
        Meta(ge=0),
        describe("Time spent on planning, in seconds; reading the file is not included."),
    ] = 0.0
    align_bytes: Annotated[
        Positive,
        describe(
            "Alignment of starts and sizes in bytes; a buffer of a buffer list can require more."
        ),
    ]
    io: Annotated[
        Literal["inside", "outside"],
        describe("Whether inputs and outputs are inside scratch or in buffers of the application."),
    ]
    bits: Annotated[
        Literal[8, 16, 32] | None,
        describe("Width of stored floating-point elements in bits; null: as in the model."),
    ] = None
    seen_as: Annotated[
        Annotated[str, Meta(pattern="^qnn$")] | None,
        describe(
            "Graph that was planned: `qnn` is the graph that QNN gets; null is the graph of "
            "the file."
        ),
    ] = field(default=None, name="as")
    inputs: Annotated[
        tuple[str, ...], describe("Names of the graph's inputs; empty for a buffer list.")
    ] = ()
    outputs: Annotated[
        tuple[str, ...], describe("Names of the graph's outputs; empty for a buffer list.")
    ] = ()
    peak: Annotated[
        PlanPeak | None,
        describe("First step with the most scratch bytes alive; null without buffers."),
    ] = None
    tcm: Annotated[
        TcmAnswer | None,
        describe("Verdict on the TCM of aDSP direct mode; null for a buffer list."),
    ] = None
    budgets: Annotated[tuple[PlanBudget, ...], describe("Verdicts on the given budgets.")] = ()
    fits: Annotated[
        bool | None,
        describe(
            "Whether every budget is met; true without a budget, null if the search ran out of "
            "time."
        ),
    ] = None
    exit_code: Annotated[
        Literal[0, 1, 3],
        describe(
            "Exit code of the command: 0 if every budget is met, 1 if one is not, 3 if undecided."
        ),
    ] = 0
    remedies: Annotated[
        tuple[PlanSaving, ...] | None,
        describe(
            "Options that shrink a pool over its budget, each planned, best first; null if "
            "none were tried."
        ),
    ] = None
    reorder: Annotated[
        PlanReorder | None,
        describe("Effect of reordering ops; null if not requested."),
    ] = None
    likely_states: Annotated[
        tuple[str, ...],
        describe(
            "Pairs of input and output that look like state kept between runs, each written "
            "input=output."
        ),
    ] = ()
    ops: Annotated[
        tuple[str, ...],
        describe("Names of the ops in execution order: step 0 is the first."),
    ] = ()
    op_types: Annotated[tuple[str, ...], describe("Type of each op, in execution order.")] = ()
    buffers: Annotated[
        tuple[PlanBuffer, ...],
        describe("Every planned buffer with its pool and offset; constants are not listed."),
    ]
    holds_for: Annotated[
        tuple[str, ...],
        describe(
            "Conditions under which the plan holds, each with its node: a given value, or a "
            "stated, stored or measured shape. Empty if the plan holds for every input."
        ),
    ] = ()
    notes: Annotated[tuple[str, ...], describe("Notes from reading the file.")] = ()
    origins: Annotated[
        dict[str, Origin],
        describe("Origin of each number, by key: `computed`, or another origin and its source."),
    ] = field(default_factory=dict)

    @property
    def map(self) -> PlanMap:
        """The part of the plan that a memory map shows."""
        return PlanMap(
            scratch_bytes=self.scratch_bytes,
            persistent_bytes=self.persistent_bytes,
            lower_bound_bytes=self.lower_bound_bytes,
            optimal=self.optimal,
            proof=self.proof,
            io=self.io,
            peak=self.peak,
            ops=self.ops,
            op_types=self.op_types,
            buffers=self.buffers,
        )

    @property
    def scope(self) -> ProofScope:
        """The scope of the proof; for results of version 0.1.0, it is derived from `optimal`."""
        return _scope(self.proof, self.optimal)

    @property
    def proof_words(self) -> str:
        """The proof as a phrase for a sentence."""
        return proof_words(self.scope, self.scratch_bytes, self.lower_bound_bytes)

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
    def has_verdict(self) -> bool:
        """True if there is a budget to check, or more allocations than TCM allows."""
        return bool(self.budgets) or (self.tcm is not None and self.tcm.is_crowded)

    @property
    def lacking(self) -> tuple[str, ...]:
        """The pools that exceed their budgets."""
        return tuple(budget.pool for budget in self.budgets if budget.fits is False)

    @property
    def limits(self) -> Mapping[str, int]:
        """Budgets by pool."""
        return {budget.pool: budget.have_bytes for budget in self.budgets}

    @property
    def summary(self) -> str:
        """The result in one line."""
        answer = {True: "fits, ", False: "does not fit, ", None: ""}[self.fits]
        kept = f", persistent {self.persistent_bytes:,}" if self.persistent_bytes else ""
        return f"{answer if self.budgets else ''}scratch {self.scratch_bytes:,} bytes{kept}"


class PlansResult(SeveralFiles, frozen=True, kw_only=True, tag="qnnmem.plans/1"):
    """The memory plans of several files."""

    listed = "plans"
    plans: Annotated[tuple[PlanResult, ...], describe("Plans, one for each file.")]
