"""What is to be fixed, what a remedy must be able to do, and what came of it.

A remedy changes a model or how it is planned. What it brings counts only after the planner said so
and the results were compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Protocol

from qnnmem.errors import LoadError
from qnnmem.plan.memory import plan_model
from qnnmem.plan.pools import Budget, MemoryPlan, Pool, PoolOptions, as_limits

if TYPE_CHECKING:
    import onnx

    from qnnmem.calibration import Sample
    from qnnmem.fix.prove import Proof
    from qnnmem.fix.tiling.bands import TileRegion
    from qnnmem.load.onnx.passes.shape import ShapedModel

_LARGEST_MODEL = (2 << 30) - 1  # protobuf's own limit


@dataclass(frozen=True)
class FixCase:
    """A model that is to need less, how it is planned, and what there is for it."""

    path: Path
    model: ShapedModel
    options: PoolOptions
    budget: Budget | None = None
    samples: Sequence[Sample] = ()
    seed: int = 0
    ends_at: float = field(default_factory=lambda: monotonic() + 120.0)

    @property
    def limit(self) -> int | None:
        """Bytes that scratch may have; None where as few as possible are wanted."""
        return as_limits(self.budget).pools.get(Pool.SCRATCH)

    @property
    def seconds_left(self) -> float:
        """Until the work is to end."""
        return max(0.0, self.ends_at - monotonic())

    def plan(self, model: ShapedModel, options: PoolOptions) -> MemoryPlan:
        """The plan of a model that was changed, or was not."""
        from qnnmem.load.onnx.passes.build import build

        # With the usual effort, however little time is left: whoever plans the result later, or on
        # a machine that is less busy, is to find the same.
        return plan_model(build(model), options, budget=self.budget, seed=self.seed)


@dataclass(frozen=True)
class JudgedChange:
    """A change with its plan, and how far results differ."""

    remedy: str
    what: str
    before: int  # bytes of scratch
    plan: MemoryPlan
    model: ShapedModel | None = None  # that was changed; None where only planning is another
    regions: tuple[TileRegion, ...] = ()
    proof: Proof | None = None  # None where nothing is computed otherwise
    macs: int = 0  # multiply-adds of the model as it was
    extra_macs: int = 0
    reordered: bool = False  # on top of what the remedy does
    seconds: float = 0.0

    @property
    def after(self) -> int:
        """Bytes of scratch that are needed now."""
        return self.plan.scratch_bytes

    @property
    def holds(self) -> bool:
        """Whether the results are the same bit by bit."""
        return self.proof is None or self.proof.identical

    @property
    def fits(self) -> bool | None:
        """Whether every budget holds; None where there is none, or that cannot be told."""
        answers = {budget.fits for budget in self.plan.budgets}
        answers |= set() if self.plan.tcm is None else {self.plan.tcm.fits}
        return False if False in answers else None if None in answers or not answers else True


class ModelRemedy(Protocol):
    """A way to make a model need less memory."""

    @property
    def name(self) -> str:
        """How reports and recipes call it."""
        ...

    def changes(self, case: FixCase, before: int) -> Iterator[JudgedChange]:
        """What it brings, the mildest first; each is judged when it comes."""
        ...


def self_contained(model: ShapedModel) -> onnx.ModelProto:
    """The model as a message that holds all its data."""
    from qnnmem.load.onnx.stored import embed, stored_bytes, tensors
    from qnnmem.load.onnx.tensor import EXTERNAL
    from qnnmem.load.onnx.typed import write_typed

    made = write_typed(model)
    path = model.resolved.path
    outside = (tensor for tensor in tensors(made) if tensor.data_location == EXTERNAL)
    if made.ByteSize() + sum(map(stored_bytes, outside)) > _LARGEST_MODEL:
        raise LoadError(path, "holds more than 2 GiB, which no single file can")
    for tensor in tensors(made):
        embed(path, tensor)
    return made
