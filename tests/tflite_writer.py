"""TFLite files for tests, written field by field."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import flatbuffers
from tflite.BuiltinOperator import BuiltinOperator

FLOAT32, FLOAT16, INT32, STRING, INT8, RESOURCE, INT4 = 0, 1, 2, 5, 9, 13, 17


@dataclass(frozen=True)
class T:
    """A tensor to write."""

    name: str
    shape: tuple[int, ...] = (4,)
    type: int = FLOAT32
    data: bytes = b""
    signature: tuple[int, ...] = ()
    variable: bool = False
    sparse: bool = False
    segments: tuple[int, ...] = ()  # of a sparse tensor: the row starts, 32 bits each
    indices: tuple[int, ...] = ()  # and its columns with a value, 8 bits each
    has_rank: bool = False
    shares: int = 0  # the earlier tensor whose buffer this one shares; 1 is the first
    scales: tuple[float, ...] = ()  # the scales, for the whole tensor or along an axis
    zeros: tuple[int, ...] = ()
    axis: int = 0


@dataclass(frozen=True)
class O:  # noqa: E742 - short, for the many graphs below
    """An operator to write; `options` are its option fields by slot."""

    type: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    options: Mapping[int, int | float | str | tuple[int, ...]] = field(default_factory=dict)
    custom: str = ""
    table: int = 0  # number of the options table in the schema, which TFLite requires


@dataclass(frozen=True)
class G:
    """A graph to write."""

    tensors: tuple[T, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    ops: tuple[O, ...]


class TfliteWriter:
    """Writes graphs as a flatbuffer; slots are field numbers of the TFLite schema."""

    def __init__(self) -> None:
        self.builder = flatbuffers.Builder(1024)
        self.codes: list[int] = []
        self.buffers: list[int] = [self.table({})]

    def table(self, fields: Mapping[int, tuple[str, Any]]) -> int:
        """Write a table with these fields by slot."""
        self.builder.StartObject(max(fields, default=0) + 1)
        for slot, (kind, value) in fields.items():
            if kind == "ref":
                self.builder.PrependUOffsetTRelativeSlot(slot, value, 0)
            else:
                getattr(self.builder, f"Prepend{kind}Slot")(slot, value, 0)
        return int(self.builder.EndObject())

    def numbers(self, values: Iterable[int]) -> tuple[str, int]:
        """Write a vector of numbers."""
        items = tuple(values)
        self.builder.StartVector(4, len(items), 4)
        for value in reversed(items):
            self.builder.PrependInt32(value)
        return "ref", self.builder.EndVector()

    def tables(self, offsets: Iterable[int]) -> tuple[str, int]:
        """Write a vector of tables."""
        items = tuple(offsets)
        self.builder.StartVector(4, len(items), 4)
        for offset in reversed(items):
            self.builder.PrependUOffsetTRelative(offset)
        return "ref", self.builder.EndVector()

    def text(self, value: str) -> tuple[str, int]:
        """Write a string."""
        return "ref", self.builder.CreateString(value)

    def tensor(self, tensor: T) -> int:
        """Write a tensor and its buffer."""
        place = tensor.shares
        if tensor.data:
            data = ("ref", self.builder.CreateByteVector(tensor.data))
            place = len(self.buffers)
            self.buffers.append(self.table({0: data}))
        fields = {
            0: self.numbers(tensor.shape),
            1: ("Int8", tensor.type),
            2: ("Uint32", place),
            3: self.text(tensor.name),
            5: ("Bool", tensor.variable),
            8: ("Bool", tensor.has_rank),
        }
        if tensor.sparse:
            fields[6] = ("ref", self.sparsity(tensor))
        if tensor.scales:
            fields[4] = ("ref", self.quantization(tensor))
        if tensor.signature:
            fields[7] = self.numbers(tensor.signature)
        return self.table(fields)

    def quantization(self, tensor: T) -> int:
        """Write scales and zero points."""
        vectors = {}
        kinds = ((2, "Float32", 4, tensor.scales), (3, "Int64", 8, tensor.zeros))
        for slot, kind, size, values in kinds:
            self.builder.StartVector(size, len(values), size)
            for value in reversed(values):
                getattr(self.builder, f"Prepend{kind}")(value)
            vectors[slot] = ("ref", self.builder.EndVector())
        return self.table({**vectors, 6: ("Int32", tensor.axis)})

    def sparsity(self, tensor: T) -> int:
        """Write the sparsity: dense rows, and columns as compressed sparse rows."""
        if not tensor.indices:
            return self.table({})
        starts = self.table({0: self.numbers(tensor.segments)})
        columns = self.table({0: ("ref", self.builder.CreateByteVector(bytes(tensor.indices)))})
        csr = {2: ("Uint8", 1), 3: ("ref", starts), 4: ("Uint8", 3), 5: ("ref", columns)}
        rows = self.table({1: ("Int32", tensor.shape[0])})
        return self.table({2: self.tables([rows, self.table({0: ("Int8", 1), **csr})])})

    def code(self, op: O) -> int:
        """Write the code of an operator and return its index."""
        number = getattr(BuiltinOperator, op.type)
        fields = {0: ("Int8", min(number, 127)), 3: ("Int32", number)}
        if op.custom:
            fields[1] = self.text(op.custom)
        self.codes.append(self.table(fields))
        return len(self.codes) - 1

    def op(self, op: O) -> int:
        """Write an operator."""
        fields = {
            0: ("Uint32", self.code(op)),
            1: self.numbers(op.inputs),
            2: self.numbers(op.outputs),
        }
        if op.table:
            fields[3] = ("Uint8", op.table)
        if op.options:
            options = {slot: self.option(value) for slot, value in op.options.items()}
            fields[4] = ("ref", self.table(options))
        return self.table(fields)

    def option(self, value: int | float | str | tuple[int, ...]) -> tuple[str, Any]:
        """Return a field of an operator's options."""
        if isinstance(value, int | float):
            return ("Int32" if isinstance(value, int) else "Float32"), value
        return self.text(value) if isinstance(value, str) else self.numbers(value)

    def graph(self, graph: G) -> int:
        """Write a subgraph."""
        return self.table(
            {
                0: self.tables([self.tensor(tensor) for tensor in graph.tensors]),
                1: self.numbers(graph.inputs),
                2: self.numbers(graph.outputs),
                3: self.tables([self.op(op) for op in graph.ops]),
            }
        )

    def file(self, graphs: Iterable[G]) -> bytes:
        """Return the whole file."""
        tables = [self.graph(graph) for graph in graphs]
        model = self.table(
            {
                0: ("Uint32", 3),
                1: self.tables(self.codes),
                2: self.tables(tables),
                4: self.tables(self.buffers),
            }
        )
        self.builder.Finish(model, b"TFL3")
        return bytes(self.builder.Output())


def write_tflite(path: Path, *graphs: G) -> Path:
    """Write graphs to a file, the main graph first, and return the path."""
    path.write_bytes(tflite_bytes(*graphs))
    return path


def tflite_bytes(*graphs: G) -> bytes:
    """Return graphs as a TFLite file, the main graph first."""
    return TfliteWriter().file(graphs)
