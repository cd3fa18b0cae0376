"""What is to be fixed, what a change is, and what a remedy must be able to do.

    FixCase        the model as it is, and what there is for it
    Change         a changed model or other settings, as a remedy proposes it
    Need           what a judge says of it: the planner for LPAI, the real library for HTP
    JudgedChange   both, with the proof that results are what they were

A remedy proposes; what it brings counts only after the judge said so and results were compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, Protocol

from qnnmem.errors import LoadError, Words
from qnnmem.planner.pools import Budget, MemoryPlan, PoolOptions

if TYPE_CHECKING:
    import onnx

    from qnnmem.calibration import Sample
    from qnnmem.fix.parts.deployment import Deployment
    from qnnmem.fix.parts.partition import Partition
    from qnnmem.fix.proof.prove import Proof
    from qnnmem.htp.compile import CompileOptions
    from qnnmem.loader.onnx.passes.shape import ShapedModel

_LARGEST_MODEL = (2 << 30) - 1  # protobuf's own limit
# Remedies that may change results where that is allowed, and measure by how much.
MAY_LOSE = frozenset(("fusion", "operators", "batch", "precision", "resolution"))
Step = Mapping[str, Any]  # of a recipe: the remedy's name and its numbers, as JSON has them


@dataclass(frozen=True)
class FixCase:
    """A model that is to need less, how it is planned or compiled, and what may be done to it."""

    path: Path
    model: ShapedModel
    options: PoolOptions | CompileOptions
    limit: int | None = None  # bytes that a remedy is to reach; None: as few as possible
    budget: Budget | None = None  # of the pools of LPAI
    allow: frozenset[str] = frozenset()  # remedies that change results
    keep: frozenset[str] = frozenset()  # what is not to be touched
    samples: Sequence[Sample] = ()
    seed: int = 0
    ends_at: float = field(default_factory=lambda: monotonic() + 120.0)

    @property
    def seconds_left(self) -> float:
        """Until the work is to end."""
        return max(0.0, self.ends_at - monotonic())


@dataclass(frozen=True)
class Change:
    """A model that was changed, or is planned or compiled otherwise; nobody has judged it yet."""

    remedy: str
    what: str
    model: ShapedModel
    options: PoolOptions | CompileOptions
    steps: tuple[Step, ...] = ()  # from the model as it was, in order
    of: Change | None = None  # what the last step was done to
    parts: Partition | None = None  # where it is cut
    rounds: tuple[tuple[str, ...], ...] = ()  # contexts that are loaded at the same time, in order
    macs: int = 0  # multiply-adds of the model as it was, where they are known
    extra_macs: int = 0
    is_lossy: bool = False  # results are others, how far is measured
    notes: tuple[str, ...] = ()  # what the user must know

    def then(self, remedy: str, what: str, step: Step, **changed: Any) -> Change:
        """The same with another step on top of it."""
        words = what if self.remedy == "none" else f"{self.what}, {what}"
        steps = (*self.steps, {"remedy": remedy, **step})
        return replace(self, remedy=remedy, what=words, steps=steps, of=self, **changed)

    @property
    def pool_options(self) -> PoolOptions:
        """How LPAI plans it."""
        if not isinstance(self.options, PoolOptions):
            raise TypeError("only what is planned for LPAI has these")
        return self.options

    @property
    def compile_options(self) -> CompileOptions:
        """How HTP compiles it."""
        if isinstance(self.options, PoolOptions):
            raise TypeError("only what is compiled for HTP has these")
        return self.options


@dataclass(frozen=True)
class Need:
    """What a change needs by the word of a judge, and whether that is there."""

    size: int | None  # bytes that are to become fewer; None: the judge could not say
    fits: bool | None  # all limits; None: there is none, or that cannot be told
    missing: int = 0  # bytes over limits, all together
    over: tuple[str, ...] = ()  # pools
    limit: int | None = None  # of `size`
    what: str = "scratch"  # `size` is of
    why: Words = ""  # it does not fit
    plan: MemoryPlan | None = None  # of LPAI; of the worst part where there are parts
    total: int | None = None  # bytes of everything in memory at the worst moment
    pools: Mapping[str, tuple[int, int]] = field(default_factory=dict)  # need and limit
    deployment: Deployment | None = None  # of parts

    @property
    def rank(self) -> tuple[bool, int, int]:
        """Less is better."""
        return self.size is None, self.missing, self.size or 0


@dataclass(frozen=True)
class JudgedChange:
    """A change, what it needs, and how far results differ."""

    change: Change
    before: Need
    need: Need
    proof: Proof | None = None  # None where nothing is computed otherwise
    seconds: float = 0.0

    @property
    def holds(self) -> bool:
        """Whether the results are the same bit by bit, or may differ."""
        return self.proof is None or self.proof.identical or self.change.is_lossy

    @property
    def fits(self) -> bool | None:
        """Whether every limit holds; None where there is none, or that cannot be told."""
        return self.need.fits

    @property
    def is_enough(self) -> bool:
        """Whether the search can end with it."""
        return bool(self.need.fits) and self.holds

    @property
    def plan(self) -> MemoryPlan:
        """How LPAI plans it."""
        if self.need.plan is None:
            raise TypeError("only what is planned for LPAI has a plan")
        return self.need.plan


@dataclass(frozen=True, slots=True)
class LossyHint:
    """What would fit if it were allowed, by the plan of a model that was not made yet."""

    allow: str
    need: Need


class FixBench(Protocol):
    """Where changes of one case are judged."""

    @property
    def case(self) -> FixCase:
        """What is to be fixed."""
        ...

    def judge(self, change: Change) -> Need:
        """Plan or compile a change, whatever it computes."""
        ...

    def prove(self, change: Change) -> Proof:
        """Compare what it computes with what the model computes as it is."""
        ...

    def judged(self, change: Change) -> JudgedChange:
        """Both; results are not compared where the model is that of the case."""
        ...

    def remembered(self, what: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """What an earlier run found for this question about this model."""
        ...

    def remember(self, what: Mapping[str, Any], found: Mapping[str, Any]) -> None:
        """Keep an answer for later runs, values as JSON has them."""
        ...


class ModelRemedy(Protocol):
    """A way to make a model need less memory."""

    @property
    def name(self) -> str:
        """How reports and recipes call it."""
        ...

    def changes(self, bench: FixBench, base: JudgedChange) -> Iterator[JudgedChange]:
        """What it brings on top of a change, the mildest first; each is judged when it comes."""
        ...

    def again(self, case: FixCase, base: Change, step: Step) -> Change:
        """Do again what a recipe says; UsageError where the model is another one.

        A step with something missing or wrong in it may raise KeyError, TypeError or ValueError.
        """
        ...


def has_floats(plan: MemoryPlan | None) -> bool:
    """Whether an op that is planned for LPAI makes floats."""
    if plan is None:
        return False
    tensors = plan.model.tensors
    made = (name for op in plan.model.ops for name in op.outputs if name in tensors)
    return any(tensors[name].dtype.is_float for name in made)


def self_contained(model: ShapedModel) -> onnx.ModelProto:
    """The model as a message that holds all its data."""
    from qnnmem.loader.onnx.passes.shape import write_typed

    return with_data(write_typed(model), model.resolved.path)


def with_data(made: onnx.ModelProto, path: Path) -> onnx.ModelProto:
    """The same message, which now holds what lies in files beside the model's own."""
    from qnnmem.loader.onnx.tensor import EXTERNAL, embed, stored_bytes, tensors

    outside = (tensor for tensor in tensors(made) if tensor.data_location == EXTERNAL)
    if made.ByteSize() + sum(map(stored_bytes, outside)) > _LARGEST_MODEL:
        raise LoadError(path, "holds more than 2 GiB, which no single file can")
    for tensor in tensors(made):
        embed(path, tensor)
    return made


def read_again(model: onnx.ModelProto, time_limit_s: float = 60.0) -> ShapedModel:
    """A model that another tool made, with a type for every tensor; its data must be inside."""
    from qnnmem.loader.onnx import read_shaped
    from qnnmem.temporary_folder import temporary_folder

    with temporary_folder() as folder:
        path = Path(folder, "changed.onnx")
        path.write_bytes(model.SerializeToString())
        return read_shaped(path, time_limit_s=time_limit_s)
