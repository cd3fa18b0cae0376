"""Graphs as clients compose them and QNN's compilers see them: tensors, ops, parameters.

They cross pipes as they are, but for the bytes of constants, which are the payload of a frame:
`without_data` takes them out of a tensor, `whole_graphs` puts them back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Generic, TypeVar

from msgspec import Struct, field
from msgspec.structs import replace

from qnnmem.qnn.enums import DataType, TensorType
from qnnmem.qnn.tensor import TensorInfo
from qnnmem.wire import ByteCount, WireMessage

# Types of tensors whose bytes are given with them.
STATIC = frozenset({TensorType.STATIC, TensorType.UPDATEABLE_STATIC})
_ALIGN = 64  # of constants, as a compiler would align them

T = TypeVar("T")


class ComposedTensor(TensorInfo, frozen=True, tag="tensor", tag_field="call"):  # type: ignore[misc]
    """A tensor that a client created in a graph."""

    stored_bytes: ByteCount = 0  # of one whose values are in the file
    data: bytes | None = None  # the values, if they were asked for
    place: ByteCount | None = None  # where they are in the payload of a frame


class OpDescription(Struct, Generic[T], frozen=True):
    """`Qnn_OpConfig_t`: an operator with its parameters; tensors are named by their ids."""

    name: str
    package: str
    type: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    scalars: Mapping[str, bool | int | float]
    arrays: Mapping[str, T]  # parameters that are tensors


class ComposedOp(OpDescription[ComposedTensor], frozen=True, tag="node", tag_field="call"):
    """An operator that a client added to a graph."""

    scalar_types: Mapping[str, DataType] = field(default_factory=dict)  # where they are known
    origins: tuple[str, ...] = ()  # nodes of the source that it stands for, where that is known


class ComposedGraph(Struct, frozen=True):
    """A graph in the order in which it was composed."""

    name: str
    tensors: tuple[ComposedTensor, ...]
    ops: tuple[ComposedOp, ...]


class GraphCalls(Struct, frozen=True):
    """The calls that make a graph, in their order."""

    name: str
    calls: tuple[ComposedTensor | ComposedOp, ...]


class CallFile(WireMessage, frozen=True):
    """Graphs to be made again call by call."""

    graphs: list[GraphCalls]


def recorded_calls(
    name: str, calls: Sequence[ComposedTensor | ComposedOp], data: bytearray
) -> GraphCalls:
    """The calls of a graph; the bytes of its constants are appended to `data`."""

    def recorded(call: ComposedTensor | ComposedOp) -> ComposedTensor | ComposedOp:
        if isinstance(call, ComposedTensor):
            return without_data(call, data)
        # The arrays of an op were created before it, so their bytes are there.
        arrays = {name: replace(array, data=None) for name, array in call.arrays.items()}
        return replace(call, arrays=arrays)

    return GraphCalls(name, tuple(map(recorded, calls)))


def without_data(tensor: ComposedTensor, data: bytearray) -> ComposedTensor:
    """The tensor with its bytes appended to `data`."""
    if tensor.data is None:
        return tensor
    data += bytes(-len(data) % _ALIGN)
    place = len(data)
    data += tensor.data
    return replace(tensor, data=None, place=place)


def whole_graphs(
    graphs: Sequence[ComposedGraph],
    shared: Sequence[ComposedTensor],
    data: bytes,
    origins: Mapping[str, Mapping[str, Sequence[str]]],
) -> tuple[ComposedGraph, ...]:
    """Graphs with the bytes of their constants; `shared` tensors belong to all of them.

    `origins` are the nodes of the source of each operator of each graph. ValueError if a constant
    is not in `data`.
    """

    def whole_tensor(tensor: ComposedTensor) -> ComposedTensor:
        place, size = tensor.place, tensor.stored_bytes
        if place is None:
            return replace(tensor, data=None)
        if place + size > len(data):
            raise ValueError("a constant is missing")
        return replace(tensor, data=data[place : place + size], place=None)

    def whole_op(op: ComposedOp, graph: str) -> ComposedOp:
        sources = tuple(origins.get(graph, {}).get(op.name, ()))
        arrays = {name: whole_tensor(array) for name, array in op.arrays.items()}
        return replace(op, arrays=arrays, origins=sources)

    return tuple(
        ComposedGraph(
            graph.name,
            tuple(map(whole_tensor, (*shared, *graph.tensors))),
            tuple(whole_op(op, graph.name) for op in graph.ops),
        )
        for graph in graphs
    )
