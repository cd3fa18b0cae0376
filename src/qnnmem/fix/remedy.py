"""The types of a fix: the case, a change, and the interface of a remedy.

    FixCase        the unchanged model, its options and the allowed remedies
    Change         a changed model or other settings, as a remedy proposes it
    Need           the verdict of a judge: the planner for LPAI, the real library for HTP
    JudgedChange   both, with the proof that results are unchanged

A remedy proposes; a saving counts only after the judge confirmed it and results were compared.
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
    from qnnmem.fix.proof.program import Proof
    from qnnmem.htp.compile import CompileOptions
    from qnnmem.loader.onnx.passes.shape import ShapedModel

_LARGEST_MODEL = (2 << 30) - 1  # protobuf's own limit
# Remedies that may change results where that is allowed, and measure by how much.
MAY_LOSE = frozenset(("fusion", "operators", "batch", "precision", "resolution"))
Step = Mapping[str, Any]  # of a recipe: the remedy's name and its numbers, as JSON has them
Rounds = tuple[tuple[str, ...], ...]  # contexts that are loaded at the same time, in order


@dataclass(frozen=True)
class FixCase:
    """A model to fix, the options it is planned or compiled with, and the allowed changes."""

    path: Path
    model: ShapedModel
    options: PoolOptions | CompileOptions
    limit: int | None = None  # goal in bytes; None: as few as possible
    budget: Budget | None = None  # of the pools of LPAI
    allow: frozenset[str] = frozenset()  # remedies that change results
    keep: frozenset[str] = frozenset()  # properties that must stay unchanged
    samples: Sequence[Sample] = ()
    seed: int = 0
    ends_at: float = field(default_factory=lambda: monotonic() + 120.0)
    notes: tuple[str, ...] = ()  # notes for the user about the model as it was read

    @property
    def seconds_left(self) -> float:
        """Seconds until the time limit."""
        return max(0.0, self.ends_at - monotonic())


@dataclass(frozen=True)
class Change:
    """A changed model, or other options for the same model; not judged yet."""

    remedy: str
    what: str
    model: ShapedModel
    options: PoolOptions | CompileOptions
    steps: tuple[Step, ...] = ()  # from the original model, in order
    of: Change | None = None  # the change before the last step
    parts: Partition | None = None  # where it is cut
    rounds: Rounds = ()
    macs: int = 0  # multiply-adds of the original model, if known
    extra_macs: int = 0
    is_lossy: bool = False  # results differ; the proof measures how far
    notes: tuple[str, ...] = ()  # notes for the user

    def then(self, remedy: str, what: str, step: Step, **changed: Any) -> Change:
        """Return the change with one more step."""
        words = what if self.remedy == "none" else f"{self.what}, {what}"
        steps = (*self.steps, {"remedy": remedy, **step})
        return replace(self, remedy=remedy, what=words, steps=steps, of=self, **changed)

    @property
    def pool_options(self) -> PoolOptions:
        """Options with which LPAI plans it."""
        if not isinstance(self.options, PoolOptions):
            raise TypeError("only LPAI has these")
        return self.options

    @property
    def compile_options(self) -> CompileOptions:
        """Options with which HTP compiles it."""
        if isinstance(self.options, PoolOptions):
            raise TypeError("only HTP has these")
        return self.options


@dataclass(frozen=True)
class Need:
    """Memory that a change needs according to a judge, compared with the limits."""

    size: int | None  # bytes to reduce; None: unknown to the judge
    fits: bool | None  # within all limits; None: no limits, or unknown
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
    """A change with its need and the proof of its results."""

    change: Change
    before: Need
    need: Need
    proof: Proof | None = None  # None if the computation is unchanged
    seconds: float = 0.0

    @property
    def holds(self) -> bool:
        """True if results are equal bit by bit, or are allowed to differ."""
        return self.proof is None or self.proof.identical or self.change.is_lossy

    @property
    def fits(self) -> bool | None:
        """True if every limit holds; None without limits or if unknown."""
        return self.need.fits

    @property
    def is_enough(self) -> bool:
        """True if the search can end with this change."""
        return bool(self.need.fits) and self.holds

    @property
    def plan(self) -> MemoryPlan:
        """Plan of the change for LPAI."""
        if self.need.plan is None:
            raise TypeError("only LPAI has a plan")
        return self.need.plan


@dataclass(frozen=True, slots=True)
class LossyHint:
    """A lossy remedy that would fit if allowed, judged by a plan alone."""

    allow: str
    need: Need


class FixBench(Protocol):
    """Judge and prover for changes of one case."""

    @property
    def case(self) -> FixCase:
        """The case to fix."""
        ...

    def judge(self, change: Change) -> Need:
        """Plan or compile a change without comparing results."""
        ...

    def prove(self, change: Change) -> Proof:
        """Compare the results of a change with those of the original model."""
        ...

    def judged(self, change: Change) -> JudgedChange:
        """Return need and proof; results of an unchanged model are not compared."""
        ...

    def remembered(self, what: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """Return the answer of an earlier run about this model, if any."""
        ...

    def remember(self, what: Mapping[str, Any], found: Mapping[str, Any]) -> None:
        """Keep an answer for later runs, as JSON values."""
        ...


class ModelRemedy(Protocol):
    """A way to make a model need less memory."""

    @property
    def name(self) -> str:
        """Name in reports and recipes."""
        ...

    def changes(self, bench: FixBench, base: JudgedChange) -> Iterator[JudgedChange]:
        """Yield judged changes on top of a base change, the mildest first."""
        ...

    def again(self, case: FixCase, base: Change, step: Step) -> Change:
        """Repeat a step of a recipe; raise UsageError if the model differs.

        A step with something missing or wrong in it may raise KeyError, TypeError or ValueError.
        """
        ...


def has_floats(plan: MemoryPlan | None) -> bool:
    """True if an op planned for LPAI outputs floats."""
    if plan is None:
        return False
    tensors = plan.model.tensors
    made = (name for op in plan.model.ops for name in op.outputs if name in tensors)
    return any(tensors[name].dtype.is_float for name in made)


def self_contained(model: ShapedModel) -> onnx.ModelProto:
    """Return the model as one message with all data embedded."""
    from qnnmem.loader.onnx.passes.shape import write_typed

    return with_data(write_typed(model), model.resolved.path)


def with_data(made: onnx.ModelProto, path: Path) -> onnx.ModelProto:
    """Embed external data files into a message and return it."""
    from qnnmem.loader.onnx.tensor import EXTERNAL, embed, stored_bytes, tensors

    outside = (tensor for tensor in tensors(made) if tensor.data_location == EXTERNAL)
    if made.ByteSize() + sum(map(stored_bytes, outside)) > _LARGEST_MODEL:
        raise LoadError(path, "holds more than 2 GiB, the limit of one file")
    for tensor in tensors(made):
        embed(path, tensor)
    return made


def read_again(model: onnx.ModelProto) -> ShapedModel:
    """Return a model made by another tool with every tensor typed; its data must be embedded."""
    from qnnmem.loader.onnx import read_shaped
    from qnnmem.temporary_folder import temporary_folder

    with temporary_folder() as folder:
        path = Path(folder, "changed.onnx")
        path.write_bytes(model.SerializeToString())
        return read_shaped(path)
