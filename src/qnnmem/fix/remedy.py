"""The types of a fix: the case, a change, and the interface of a remedy.

    FixCase        the unchanged model, its options and the allowed remedies
    Change         a changed model or other settings, proposed by a remedy
    Need           the verdict of a judge: the planner for LPAI, the real library for HTP
    JudgedChange   change and need, with the proof that results are unchanged

A remedy proposes a change. A saving counts only after the judge confirmed it and results were
compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, Protocol

from qnnmem.errors import LoadError, UsageError, Words
from qnnmem.planner.pools import Budget, MemoryPlan, PoolOptions
from qnnmem.text import quote

if TYPE_CHECKING:
    import onnx

    from qnnmem.calibration import Sample
    from qnnmem.fix.parts.deployment import Deployment
    from qnnmem.fix.parts.partition import Partition
    from qnnmem.fix.proof.program import Proof
    from qnnmem.htp.compile import CompileOptions
    from qnnmem.loader.onnx.passes.shape import ShapedModel

LARGEST_MODEL = (2 << 30) - 1  # bytes; protobuf's own limit
# Remedies that may change results if allowed; the proof measures the difference.
MAY_LOSE = frozenset(("fusion", "operators", "batch", "precision", "resolution"))
Step = Mapping[str, Any]  # step of a recipe: the remedy's name and its numbers, as JSON values
Rounds = tuple[tuple[str, ...], ...]  # contexts that are loaded at the same time, in order


@dataclass(frozen=True)
class FixCase:
    """Model to fix, its plan or compile options, and the allowed changes."""

    path: Path
    model: ShapedModel
    options: PoolOptions | CompileOptions
    limit: int | None = None  # goal in bytes; None: minimise
    budget: Budget | None = None  # limits of the LPAI pools
    allow: frozenset[str] = frozenset()  # remedies that change results
    keep: frozenset[str] = frozenset()  # properties that must not change
    samples: Sequence[Sample] = ()
    seed: int = 0
    ends_at: float = field(default_factory=lambda: monotonic() + 120.0)
    notes: tuple[str, ...] = ()  # notes for the user about reading the original model

    @property
    def seconds_left(self) -> float:
        """Seconds until the time limit."""
        return max(0.0, self.ends_at - monotonic())


@dataclass(frozen=True)
class Change:
    """Changed model, or other options for the same model; not judged yet."""

    remedy: str
    what: str
    model: ShapedModel
    options: PoolOptions | CompileOptions
    steps: tuple[Step, ...] = ()  # steps from the original model, in order
    of: Change | None = None  # the change before the last step
    parts: Partition | None = None  # the parts of the model, if it is cut
    rounds: Rounds = ()
    macs: int = 0  # multiply-adds of the original model, if known
    extra_macs: int = 0
    is_lossy: bool = False  # results differ; the proof measures the difference
    notes: tuple[str, ...] = ()  # notes for the user

    def then(self, remedy: str, what: str, step: Step, **fields: Any) -> Change:
        """Return the change with one more recipe step and with these `fields` replaced."""
        what = what if self.remedy == "none" else f"{self.what}, {what}"
        steps = (*self.steps, {"remedy": remedy, **step})
        return replace(self, remedy=remedy, what=what, steps=steps, of=self, **fields)

    @property
    def pool_options(self) -> PoolOptions:
        """Options of a plan for LPAI; raises TypeError for HTP."""
        if not isinstance(self.options, PoolOptions):
            raise TypeError("only LPAI has plan options")
        return self.options

    @property
    def compile_options(self) -> CompileOptions:
        """Options of a compile for HTP; raises TypeError for LPAI."""
        if isinstance(self.options, PoolOptions):
            raise TypeError("only HTP has compile options")
        return self.options


@dataclass(frozen=True)
class Need:
    """Verdict on the memory of a change: the bytes, and whether they are within the limits."""

    size: int | None  # bytes to reduce; None if the judge does not know
    fits: bool | None  # True: within all limits; None: no limits, or unknown
    missing: int = 0  # bytes over all limits together
    over: tuple[str, ...] = ()  # pools over their limits
    limit: int | None = None  # limit for `size`
    what: str = "scratch"  # what `size` measures
    why: Words = ""  # reason why it does not fit
    plan: MemoryPlan | None = None  # LPAI plan; the worst part's plan for a model in parts
    total: int | None = None  # peak bytes of all memory
    pools: Mapping[str, tuple[int, int]] = field(default_factory=dict)  # need and limit by pool
    deployment: Deployment | None = None  # arrangement of the parts

    @property
    def rank(self) -> tuple[bool, int, int]:
        """Sort key of a memory need; lower is better."""
        return self.size is None, self.missing, self.size or 0


@dataclass(frozen=True)
class JudgedChange:
    """Change with its memory need and the proof of its results."""

    change: Change
    before: Need
    need: Need
    proof: Proof | None = None  # None if the computation is unchanged
    seconds: float = 0.0

    @property
    def holds(self) -> bool:
        """True if results are equal bit for bit, or are allowed to differ."""
        return self.proof is None or self.proof.identical or self.change.is_lossy

    @property
    def fits(self) -> bool | None:
        """True if every limit holds; None if there are no limits or the need is unknown."""
        return self.need.fits

    @property
    def is_enough(self) -> bool:
        """True if the search can end with this change."""
        return bool(self.need.fits) and self.holds

    @property
    def plan(self) -> MemoryPlan:
        """Plan of the change for LPAI; raises TypeError for HTP."""
        if self.need.plan is None:
            raise TypeError("only LPAI has a plan")
        return self.need.plan


@dataclass(frozen=True, slots=True)
class LossyHint:
    """Lossy remedy that is not allowed, but with which the model fits according to a plan."""

    allow: str
    need: Need


class FixBench(Protocol):
    """Interface that judges changes of one case and proves their results."""

    @property
    def case(self) -> FixCase:
        """The case to fix."""
        ...

    def judge(self, change: Change) -> Need:
        """Return the memory that a change needs, without comparing results."""
        ...

    def prove(self, change: Change) -> Proof:
        """Compare the results of a change with those of the original model."""
        ...

    def judged(self, change: Change) -> JudgedChange:
        """Return the change with its memory need and proof; an unchanged model has no proof."""
        ...

    def remembered(self, question: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """Return an earlier run's cached answer about this model; None if there is none."""
        ...

    def remember(self, question: Mapping[str, Any], answer: Mapping[str, Any]) -> None:
        """Cache the answer to a question for later runs; both are JSON values."""
        ...


class ModelRemedy(Protocol):
    """A way to make a model need less memory."""

    @property
    def name(self) -> str:
        """Name of the remedy in reports and recipes."""
        ...

    def changes(self, bench: FixBench, base: JudgedChange) -> Iterator[JudgedChange]:
        """Yield judged changes on top of a base change, the mildest first."""
        ...

    def replay(self, case: FixCase, base: Change, step: Step) -> Change:
        """Return `base` with a recipe step applied; raise UsageError for a step of another model.

        A malformed step can raise KeyError, TypeError or ValueError.
        """
        ...


def recipe_flag(value: object) -> bool:
    """Return a boolean from a recipe; raise ValueError if the value is not a boolean."""
    if not isinstance(value, bool):
        raise ValueError("inplace and reorder must be true or false")
    return value


def recipe_count(value: object) -> int:
    """Return a count from a recipe; raise ValueError for a negative, huge or non-integer value."""
    if type(value) is not int or not 0 <= value < 1 << 40:
        raise ValueError(f"{quote(value)} is not a valid count")
    return value


def check_node_count(step: Step, nodes: int) -> None:
    """Raise UsageError if a recipe step is for a model with another number of nodes."""
    expected = recipe_count(step["nodes"])
    if expected != nodes:
        raise UsageError(
            f"the recipe is for a model with {expected} nodes, but this one has {nodes}"
        )


def has_floats(plan: MemoryPlan | None) -> bool:
    """Return True if an op planned for LPAI outputs floats."""
    if plan is None:
        return False
    tensors = plan.model.tensors
    results = (name for op in plan.model.ops for name in op.outputs if name in tensors)
    return any(tensors[name].dtype.is_float for name in results)


def models_of(change: Change) -> tuple[bytes, ...]:
    """Return the models of a change as bytes, in the order they run."""
    if change.parts is not None:
        return change.parts.models()
    return (self_contained(change.model).SerializeToString(deterministic=True),)


def self_contained(model: ShapedModel) -> onnx.ModelProto:
    """Return the model as one protobuf message with all data embedded."""
    from qnnmem.loader.onnx.passes.shape import write_typed

    return with_data(write_typed(model), model.resolved.path)


def with_data(model: onnx.ModelProto, path: Path) -> onnx.ModelProto:
    """Embed external data files into an ONNX model and return the model."""
    from qnnmem.loader.onnx.tensor import EXTERNAL, embed, stored_bytes, tensors

    outside = (tensor for tensor in tensors(model) if tensor.data_location == EXTERNAL)
    if model.ByteSize() + sum(map(stored_bytes, outside)) > LARGEST_MODEL:
        raise LoadError(path, "is over 2 GiB, the limit of one file")
    for tensor in tensors(model):
        embed(path, tensor)
    return model


def read_again(model: onnx.ModelProto) -> ShapedModel:
    """Return another tool's model with inferred types and shapes; its data must be embedded."""
    from qnnmem.loader.onnx import read_shaped
    from qnnmem.temporary_folder import temporary_folder

    with temporary_folder() as folder:
        path = Path(folder, "changed.onnx")
        path.write_bytes(model.SerializeToString())
        return read_shaped(path)
