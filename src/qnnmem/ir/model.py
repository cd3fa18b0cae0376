"""The data types of a model: tensors, ops in execution order, inputs, outputs, state."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType

from qnnmem.arguments import as_whole, expect, expect_items, expect_mapping
from qnnmem.errors import UsageError, Words
from qnnmem.text import counted, quote
from qnnmem.units import Align, Bytes, Offset, Size, Step, as_align, as_bytes, as_step


@dataclass(frozen=True, slots=True, order=True, init=False)
class Span:
    """The half-open range of steps `lower <= t < upper`."""

    lower: Step
    upper: Step

    def __init__(self, lower: int, upper: int) -> None:
        object.__setattr__(self, "lower", lower if type(lower) is int else as_step(lower))
        object.__setattr__(self, "upper", upper if type(upper) is int else as_step(upper))
        if self.upper <= self.lower:
            raise UsageError(f"empty span [{quote(self.lower)}, {quote(self.upper)})")

    def overlaps(self, other: Span) -> bool:
        """Return whether two spans share a step; adjacent spans do not."""
        return self.lower < other.upper and other.lower < self.upper

    def covers(self, step: int) -> bool:
        """Return whether `step` is in the span."""
        return self.lower <= step < self.upper

    def __len__(self) -> int:
        return self.upper - self.lower


def as_span(life: Span | tuple[int, int]) -> Span:
    """Return a span unchanged, or the span for a pair of steps."""
    if isinstance(life, Span):
        return life
    if isinstance(life, tuple | list) and len(life) == 2:
        return Span(*life)
    raise UsageError(f"a lifetime must be a pair of steps such as (0, 2), not {quote(life)}")


class DType(Enum):
    """An element type; `bits` is its width in memory."""

    BOOL = "bool"
    INT4 = "int4"
    UINT4 = "uint4"
    INT8 = "int8"
    UINT8 = "uint8"
    INT16 = "int16"
    UINT16 = "uint16"
    INT32 = "int32"
    UINT32 = "uint32"
    INT64 = "int64"
    UINT64 = "uint64"
    FLOAT8 = "float8"
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"
    FLOAT32 = "float32"
    FLOAT64 = "float64"
    COMPLEX64 = "complex64"
    COMPLEX128 = "complex128"

    @property
    def bits(self) -> int:
        """Width of one element in bits."""
        return _BITS[self]

    @property
    def is_float(self) -> bool:
        """True if elements are real or complex floating-point numbers."""
        return "float" in self.value or "complex" in self.value


_BITS = {
    dtype: 8 if dtype is DType.BOOL else int("".join(filter(str.isdigit, dtype.value)))
    for dtype in DType
}


_SHAPE = "a shape must be a list of whole numbers"


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor of fixed shape; elements smaller than one byte are packed."""

    name: str
    dtype: DType
    shape: tuple[int, ...]

    def __post_init__(self) -> None:
        if type(self.name) is not str:
            expect(self.name, str, "a tensor's name must be a string")
        if type(self.dtype) is not DType:
            raise UsageError(f"the type of a tensor must be a DType, not {quote(self.dtype)}")
        if type(self.shape) is not tuple or {*map(type, self.shape)} - {int}:
            shape = expect_items(self.shape, object, _SHAPE)
            object.__setattr__(self, "shape", tuple(as_whole(size, _SHAPE) for size in shape))
        if self.shape and min(self.shape) < 0:
            raise UsageError("a shape must not contain negative numbers")

    @property
    def elements(self) -> int:
        """Number of elements; a scalar has one."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> Bytes:
        """Size in bytes with the element width of the tensor's type."""
        return self.nbytes_at(self.dtype.bits)

    def nbytes_at(self, bits: int) -> Bytes:
        """Return the size in bytes if every element takes `bits` bits."""
        return Bytes(-(-self.elements * bits // 8))


class Effect(Enum):
    """How an op's outputs can share memory with its inputs."""

    COMPUTE = "compute"  # reads inputs while writing outputs, so they must not share bytes
    VIEW = "view"  # output 0 is input 0 under another name or shape
    ELEMENTWISE = "elementwise"  # output 0 may overwrite an input of its size read last here


@dataclass(frozen=True, slots=True)
class Op:
    """A step of a model.

    `inputs` lists every tensor that the step reads, including outer tensors that its bodies
    capture; absent optional inputs are left out. `sources` are the indexes of the file's nodes that
    this op represents. There are several if quantize and dequantize nodes are folded into it.
    """

    name: str
    type: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    effect: Effect = Effect.COMPUTE
    sources: tuple[int, ...] = ()
    bodies: tuple[Model, ...] = ()  # branches of an If, the body of a Loop or Scan
    repeats: bool = False  # bodies may run more than once (Loop, Scan)

    def __post_init__(self) -> None:
        if type(self.name) is not str or type(self.type) is not str:
            expect(self.name, str, "an op's name must be a string")
            expect(self.type, str, "an op's type must be a string")
        _keep_items(self, "inputs", str, "an op's inputs must be names of tensors")
        _keep_items(self, "outputs", str, "an op's outputs must be names of tensors")
        if type(self.effect) is not Effect:
            raise UsageError(f"an op's effect must be an Effect, not {quote(self.effect)}")
        if self.sources != ():
            _keep_items(self, "sources", int, "an op's sources must be indexes of nodes")
        if self.bodies != ():
            _keep_items(self, "bodies", Model, "an op's bodies must be models")


@dataclass(frozen=True, slots=True)
class LiveBytes:
    """A number of bytes that are in use during part of a run."""

    name: str
    size: Bytes
    live: Span


@dataclass(frozen=True, slots=True, init=False)
class Buffer(LiveBytes):
    """The memory that one tensor occupies during part of a run.

    A size can be given as `4096` or `"4K"`. A lifetime can be given as a pair of steps: the first
    step, and the step after the last.
    """

    align: Align

    def __init__(
        self, name: str, size: Size, live: Span | tuple[int, int], align: Size = 1
    ) -> None:
        if type(name) is not str:  # a planner creates many buffers: skip the call if possible
            expect(name, str, "a buffer's name must be a string")
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "size", as_bytes(size))
        object.__setattr__(self, "live", as_span(live))
        object.__setattr__(self, "align", as_align(align))


@dataclass(frozen=True, slots=True, init=False)
class FixedBuffer(Buffer):
    """A buffer whose lifetime comes from the file (buffer CSV)."""

    offset: Offset | None

    def __init__(
        self,
        name: str,
        size: Size,
        live: Span | tuple[int, int],
        align: Size = 1,
        offset: int | None = None,
    ) -> None:
        Buffer.__init__(self, name, size, live, align)
        object.__setattr__(self, "offset", None if offset is None else Offset(as_bytes(offset)))


@dataclass(frozen=True, slots=True, repr=False)
class Model:
    """A model with every shape fixed, ops in execution order.

    A model has either `ops`, or `buffers` if it comes from a buffer CSV.
    """

    name: str
    format: str  # "onnx", "tflite", "eaix", "csv"
    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    ops: tuple[Op, ...] = ()
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    constants: tuple[str, ...] = ()  # stored in the model binary, never in scratch
    states: tuple[str, ...] = ()  # variables that persist from one execution to the next
    buffers: tuple[FixedBuffer, ...] = ()
    notes: tuple[str, ...] = ()  # messages of the reader for the user
    # Scale and zero point of tensors, if the file states them outside of nodes.
    encodings: Mapping[str, tuple[float, int]] = field(default_factory=dict)
    assumed: Words = ""  # the reason why all numbers are guesses; reports print it first
    holds_for: tuple[str, ...] = ()  # conditions on the inputs under which numbers hold

    def __post_init__(self) -> None:
        expect(self.name, str, "a model's name must be a string")
        expect(self.format, str, "a model's format must be a string")
        tensors = dict(
            expect_mapping(self.tensors, "tensors must be a mapping from names to tensors")
        )
        expect_items(tensors.values(), Tensor, "tensors must be a mapping from names to tensors")
        object.__setattr__(self, "tensors", MappingProxyType(tensors))
        stated = "encodings must be a mapping from names to a scale and a zero point"
        encodings = dict(expect_mapping(self.encodings, stated))
        expect_items(encodings.values(), tuple, stated)
        object.__setattr__(self, "encodings", MappingProxyType(encodings))
        _keep_items(self, "ops", Op, "the ops of a model must be a list of Op objects")
        for group in ("inputs", "outputs", "constants", "states"):
            _keep_items(self, group, str, f"the {group} of a model must be names of tensors")
        _keep_items(self, "buffers", FixedBuffer, "a model's buffers must be FixedBuffer objects")
        _keep_items(self, "notes", str, "the notes of a model must be strings")
        _keep_items(self, "holds_for", str, "the items of holds_for must be strings")

    def __repr__(self) -> str:
        """Return a one-line summary, however large the model is."""
        parts = (
            counted(len(self.buffers), "buffer") if self.buffers else counted(len(self.ops), "op")
        )
        return f"<Model {quote(self.name)}, {self.format}: {parts}>"


def _keep_items(value: Op | Model, field_name: str, kind: type, what: str) -> None:
    value_items = getattr(value, field_name)
    items = expect_items(value_items, kind, what)
    if items is not value_items:
        object.__setattr__(value, field_name, items)


def find_missing(model: Model) -> str | None:
    """Return the first name that is used but is not a tensor of the model, or None."""
    groups = (model.inputs, model.outputs, model.constants, model.states)
    used = (*groups, *(names for op in model.ops for names in (op.inputs, op.outputs)))
    return next((name for names in used for name in names if name not in model.tensors), None)
