"""The result of offline preparation: graphs, offsets, constants.

A compiled context is the content of a context binary. It depends neither on the bytes of the file
(see `binary`) nor on the memory of a run (see `runtime`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType

from qnnmem.ir import Model
from qnnmem.planner import Io, PlacedBuffer
from qnnmem.results.inspect import FrameWindow
from qnnmem.units import Align, Bytes, Offset

# Constants start at multiples of this number, which suits every LPAI version known from public
# sources (clients align the whole binary to 256).
CONSTANT_ALIGN = Align(256)


@dataclass(frozen=True, slots=True)
class Quant:
    """Quantization of a tensor: the real value is `scale * (integer - zero_point)`."""

    scale: float
    zero_point: int


@dataclass(frozen=True, slots=True)
class Constant:
    """A stored constant that the program reads."""

    name: str
    element: int  # ONNX element type
    shape: tuple[int, ...]
    offset: Offset  # within the constants of the binary
    size: Bytes
    folded: bool  # computed during preparation, an input of the program


@dataclass(frozen=True)
class CompiledGraph:
    """A graph with every offset fixed.

    `Op.sources` of its model are indexes in the node list of `program`, an ONNX model without the
    bytes of its constants. Without a program the graph is a layout: its memory calls can be tested,
    but it cannot be executed.
    """

    name: str
    model: Model
    buffers: tuple[PlacedBuffer, ...]
    scratch_bytes: Bytes
    persistent_bytes: Bytes
    align: Align
    io: Io = Io.INSIDE
    states: tuple[tuple[str, str], ...] = ()
    windows: tuple[FrameWindow, ...] = ()
    quants: Mapping[str, Quant] = field(default_factory=dict)
    constants: tuple[Constant, ...] = ()
    program: bytes = b""
    in_order: bool = False  # a trial run confirmed that onnxruntime executes the planned order
    notes: tuple[str, ...] = ()
    float_ops: int = 0  # number of floating-point ops, which LPAI cannot execute

    def __post_init__(self) -> None:
        object.__setattr__(self, "quants", MappingProxyType(dict(self.quants)))

    @cached_property
    def inputs(self) -> tuple[str, ...]:
        """Tensors that the application writes: inputs that are not state."""
        state = {old for old, _ in self.states}
        return tuple(name for name in self.model.inputs if name not in state)

    @cached_property
    def outputs(self) -> tuple[str, ...]:
        """Tensors that the application reads: outputs that are not state."""
        state = {new for _, new in self.states}
        return tuple(name for name in self.model.outputs if name not in state)

    @property
    def io_bytes(self) -> int:
        """Total size of the inputs and outputs that are outside scratch, in bytes."""
        names = () if self.io is Io.INSIDE else (*self.inputs, *self.outputs)
        return sum(self.model.tensors[name].nbytes for name in names)

    @cached_property
    def buffer_of(self) -> Mapping[str, PlacedBuffer]:
        """Buffers by name of tensor or view; a buffer's own name has priority over an alias."""
        shared = {name: buffer for buffer in self.buffers for name in buffer.aliases}
        return shared | {buffer.name: buffer for buffer in self.buffers}


@dataclass(frozen=True)
class CompiledContext:
    """The graphs of a context binary, its producer and its hardware version."""

    graphs: tuple[CompiledGraph, ...]
    hw_version: str  # e.g. "v6"
    producer: str  # e.g. "qnnmem 0.1.0"
    # The bytes that all `Constant.offset` refer to: a view of the binary, or its later content.
    constants: memoryview = field(default_factory=lambda: memoryview(b""), repr=False)

    def graph(self, name: str) -> CompiledGraph | None:
        """Return the graph with this name; None if no graph has it."""
        return next((graph for graph in self.graphs if graph.name == name), None)
