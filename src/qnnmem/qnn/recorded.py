"""Composed graphs as they cross a pipe: constants are places in the payload of a frame."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

from msgspec import Meta, Struct, field

from qnnmem.qnn.enums import DataType, TensorMemType, TensorType
from qnnmem.qnn.graph import ComposedGraph, ComposedOp, ComposedTensor, Quantization
from qnnmem.units import MAX_RANK
from qnnmem.wire import ByteCount, WireMessage

_ALIGN = 64  # of constants, as a compiler would align them
Size = Annotated[int, Meta(ge=0, lt=1 << 32)]
Shape = Annotated[tuple[Size, ...], Meta(max_length=MAX_RANK)]


class RecordedTensor(Struct, frozen=True, tag="tensor", tag_field="call"):
    """A `ComposedTensor` without its bytes."""

    id: int
    name: str
    type: TensorType
    data_type: DataType
    dimensions: Shape
    quantization: Quantization | None = None
    stored: ByteCount = 0  # bytes of a constant
    place: ByteCount | None = None  # where they are in the payload, if they were sent
    mem_type: TensorMemType = TensorMemType.RAW


class RecordedOp(Struct, frozen=True, tag="node", tag_field="call"):
    """A `ComposedOp`."""

    name: str
    package: str
    type: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    scalars: dict[str, bool | int | float]
    arrays: dict[str, RecordedTensor]
    scalar_types: dict[str, DataType] = field(default_factory=dict)


class RecordedGraph(Struct, frozen=True):
    """A graph in the order in which it was composed."""

    name: str
    tensors: list[RecordedTensor] = field(default_factory=list)
    ops: list[RecordedOp] = field(default_factory=list)


class GraphCalls(Struct, frozen=True):
    """The calls that make a graph, in their order."""

    name: str
    calls: list[RecordedTensor | RecordedOp]


class CallFile(WireMessage, frozen=True):
    """Graphs to be made again call by call."""

    graphs: list[GraphCalls]


def recorded_calls(
    name: str, calls: Sequence[ComposedTensor | ComposedOp], data: bytearray
) -> GraphCalls:
    """The calls of a graph; the bytes of its constants are appended to `data`."""
    return GraphCalls(
        name,
        [_tensor(one, data) if isinstance(one, ComposedTensor) else _op(one) for one in calls],
    )


def _tensor(tensor: ComposedTensor, data: bytearray | None) -> RecordedTensor:
    place = None
    if tensor.data is not None and data is not None:
        data += bytes(-len(data) % _ALIGN)
        place = len(data)
        data += tensor.data
    return RecordedTensor(
        tensor.id,
        tensor.name,
        tensor.type,
        tensor.data_type,
        tensor.dimensions,
        tensor.quantization,
        tensor.stored_bytes,
        place,
        tensor.mem_type,
    )


def _op(op: ComposedOp) -> RecordedOp:
    return RecordedOp(
        op.name,
        op.package,
        op.type,
        op.inputs,
        op.outputs,
        dict(op.scalars),
        {name: _tensor(tensor, None) for name, tensor in op.arrays.items()},
        dict(op.scalar_types),
    )


def composed_graphs(
    graphs: Sequence[RecordedGraph],
    shared: Sequence[RecordedTensor],
    data: bytes,
    origins: Mapping[str, Mapping[str, Sequence[str]]],
) -> tuple[ComposedGraph, ...]:
    """Graphs with the bytes of their constants; `shared` tensors belong to all of them.

    `origins` are the nodes of the source of each operator of each graph. ValueError if a constant
    is not in `data`.
    """
    return tuple(
        ComposedGraph(
            graph.name,
            tuple(_composed_tensor(tensor, data) for tensor in (*shared, *graph.tensors)),
            tuple(
                _composed_op(op, data, origins.get(graph.name, {}).get(op.name, ()))
                for op in graph.ops
            ),
        )
        for graph in graphs
    )


def _composed_tensor(tensor: RecordedTensor, data: bytes) -> ComposedTensor:
    place, size = tensor.place, tensor.stored
    if place is not None and place + size > len(data):
        raise ValueError("a constant is missing")
    return ComposedTensor(
        tensor.id,
        tensor.name,
        tensor.type,
        tensor.data_type,
        tensor.dimensions,
        tensor.quantization,
        size,
        None if place is None else data[place : place + size],
        tensor.mem_type,
    )


def _composed_op(op: RecordedOp, data: bytes, origins: Sequence[str]) -> ComposedOp:
    arrays = {name: _composed_tensor(tensor, data) for name, tensor in op.arrays.items()}
    return ComposedOp(
        op.name,
        op.package,
        op.type,
        op.inputs,
        op.outputs,
        op.scalars,
        arrays,
        op.scalar_types,
        tuple(origins),
    )
