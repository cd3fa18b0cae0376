"""What a model is: tensors, ops in execution order, inputs, outputs, constants, state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType

from qnnmem.errors import Words
from qnnmem.ir.span import Span
from qnnmem.ir.tensor import Tensor
from qnnmem.text import counted, quote
from qnnmem.units import Align, Bytes, Offset, Size, as_align, as_bytes


class Effect(Enum):
    """What an op does to memory."""

    COMPUTE = "compute"  # reads its inputs while writing its outputs: they must not share bytes
    VIEW = "view"  # output 0 is input 0 under another name or shape
    ELEMENTWISE = "elementwise"  # output 0 may overwrite an input of the same size that dies here


@dataclass(frozen=True, slots=True)
class Op:
    """One step of a model.

    `inputs` holds every tensor the step reads, captured outer tensors of its bodies included;
    absent optional inputs are left out. `sources` are the positions in the file's own node list
    that this op stands for (several when quantize and dequantize nodes are folded into it).
    """

    name: str
    type: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    effect: Effect = Effect.COMPUTE
    sources: tuple[int, ...] = ()
    bodies: tuple[Model, ...] = ()  # branches of an If, the body of a Loop or Scan
    repeats: bool = False  # bodies may run more than once (Loop, Scan)


@dataclass(frozen=True, slots=True, init=False)
class FixedBuffer:
    """A buffer whose lifetime the file itself states (buffer CSV)."""

    name: str
    size: Bytes
    live: Span
    align: Align
    offset: Offset | None

    def __init__(
        self, name: str, size: Size, live: Span, align: Size = 1, offset: int | None = None
    ) -> None:
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "size", as_bytes(size))
        object.__setattr__(self, "live", live)
        object.__setattr__(self, "align", as_align(align))
        object.__setattr__(self, "offset", None if offset is None else Offset(as_bytes(offset)))


@dataclass(frozen=True, slots=True, repr=False)
class Model:
    """A model with every shape fixed, ops in execution order.

    Either `ops` describe it, or `buffers` do (a buffer CSV has no ops).
    """

    name: str
    format: str  # "onnx", "tflite", "eaix", "csv"
    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    ops: tuple[Op, ...] = ()
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    constants: tuple[str, ...] = ()  # stored in the model binary, never in scratch
    states: tuple[str, ...] = ()  # variables that survive from one execution to the next
    buffers: tuple[FixedBuffer, ...] = ()
    notes: tuple[str, ...] = ()  # what the reader wants the user to know
    assumed: Words = ""  # what makes every number below a guess, to be said first

    def __post_init__(self) -> None:
        object.__setattr__(self, "tensors", MappingProxyType(dict(self.tensors)))

    def __repr__(self) -> str:
        """One line, however large the model is."""
        parts = (
            counted(len(self.buffers), "buffer") if self.buffers else counted(len(self.ops), "op")
        )
        return f"<Model {quote(self.name)}, {self.format}: {parts}>"
