"""Graphs in the form that clients compose and QNN compiles: tensors, ops, parameters.

These types are sent through pipes. The bytes of constants are sent separately, as the payload of a
frame: `without_data` takes them out of a tensor, and `whole_graphs` puts them back. `GraphDraft` is
a graph that a client is composing, call by call, as with `QnnTensor` and `QnnGraph` in C.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from typing import Any, Generic, NoReturn, TypeVar

from msgspec import Struct, field
from msgspec.structs import replace

from qnnmem.arguments import as_whole, expect, expect_items, expect_mapping
from qnnmem.errors import UsageError
from qnnmem.qnn.enums import DataType, TensorMemType, TensorType
from qnnmem.qnn.tensor import AXIS_SCALE_OFFSET, SCALE_OFFSET, Quantization, ScaleOffset, TensorInfo
from qnnmem.text import counted, quote
from qnnmem.wire import ByteCount, WireMessage

# Types of tensors with constant values.
STATIC = frozenset({TensorType.STATIC, TensorType.UPDATEABLE_STATIC})
PACKAGE = "qti.aisw"  # package of the operators that every backend has
_ALIGN = 64  # alignment of constants, as in compilers

E = TypeVar("E", bound=IntEnum)
T = TypeVar("T")


class ComposedTensor(TensorInfo, frozen=True, tag="tensor", tag_field="call"):  # type: ignore[misc]
    """A tensor that a client created in a graph."""

    stored_bytes: ByteCount = 0  # of a tensor whose values are stored in the file
    data: bytes | None = None  # the values, if requested
    place: ByteCount | None = None  # offset of the values in a frame's payload


class OpDescription(Struct, Generic[T], frozen=True):
    """`Qnn_OpConfig_t`: an operator with its parameters; inputs and outputs are tensor ids."""

    name: str
    package: str
    type: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    scalars: Mapping[str, bool | int | float]
    arrays: Mapping[str, T]  # tensor parameters


class ComposedOp(OpDescription[ComposedTensor], frozen=True, tag="node", tag_field="call"):
    """An operator that a client added to a graph."""

    scalar_types: Mapping[str, DataType] = field(default_factory=dict)  # for known types
    origins: tuple[str, ...] = ()  # source nodes that the op stands for, if known


class ComposedGraph(Struct, frozen=True):
    """A graph, with tensors and ops in the order of composition."""

    name: str
    tensors: tuple[ComposedTensor, ...]
    ops: tuple[ComposedOp, ...]


class GraphCalls(Struct, frozen=True):
    """The calls that compose a graph, in order."""

    name: str
    calls: tuple[ComposedTensor | ComposedOp, ...]


class CallFile(WireMessage, frozen=True):
    """Recorded graphs, to be composed again call by call."""

    graphs: list[GraphCalls]


def recorded_calls(
    name: str, calls: Sequence[ComposedTensor | ComposedOp], data: bytearray
) -> GraphCalls:
    """Return the calls of a graph without the bytes of constants; append these bytes to `data`."""

    def recorded(call: ComposedTensor | ComposedOp) -> ComposedTensor | ComposedOp:
        if isinstance(call, ComposedTensor):
            return without_data(call, data)
        # The arrays of an op were created before it, so their bytes are in `data` already.
        arrays = {name: replace(array, data=None) for name, array in call.arrays.items()}
        return replace(call, arrays=arrays)

    return GraphCalls(name, tuple(map(recorded, calls)))


def without_data(tensor: ComposedTensor, data: bytearray) -> ComposedTensor:
    """Return the tensor without its bytes, which are appended to `data`."""
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
    """Return graphs with the bytes of their constants.

    `shared` tensors belong to all graphs. `origins` lists the source nodes of each operator of each
    graph. Raise ValueError if a constant is not in `data`.
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


# --- A graph while a client composes it -----------------------------------------------------------

Fail = Callable[[int, str, str], NoReturn]  # takes a code, a sentence and the call

_CREATE, _ADD = "QnnTensor_createGraphTensor", "QnnGraph_addNode"
_CREATE_GRAPH, _FINALIZE, _BINARY = "QnnGraph_create", "QnnGraph_finalize", "QnnContext_getBinary"
_NOT_FINALIZED, _INVALID_NAME, _NO_NODE = 5003, 6003, 6022
_EXISTS, _BAD_TENSOR = 7003, 7004
_INVALID_TENSOR, _BAD_OP, _FINALIZED = 6004, 6005, 6024
_LARGEST = 0xFFFFFFFF


class GraphDraft:
    """A graph while a client composes it: tensors and nodes in call order.

    `fail` raises the error of a refused call.
    """

    def __init__(self, name: str, fail: Fail) -> None:
        self.name, self.calls = name, list[ComposedTensor | ComposedOp]()
        self.is_finalized = False
        self._fail = fail
        self._tensors: dict[str, ComposedTensor] = {}
        self._nodes: set[str] = set()

    @property
    def composed(self) -> ComposedGraph:
        """The graph composed so far."""
        tensors = tuple(call for call in self.calls if isinstance(call, ComposedTensor))
        ops = tuple(call for call in self.calls if isinstance(call, ComposedOp))
        return ComposedGraph(self.name, tensors, ops)

    def create_tensor(
        self,
        name: str,
        data_type: DataType,
        dimensions: Sequence[int],
        type: TensorType = TensorType.NATIVE,
        *,
        quantize_params: ScaleOffset | Quantization | None = None,
        data: Any = None,
        mem_type: TensorMemType = TensorMemType.RAW,
        mem_handle: None = None,
    ) -> ComposedTensor:
        """Create a tensor of the graph and return it (`QnnTensor_createGraphTensor`).

        `data` holds the values of a static tensor. With `mem_type` MEMHANDLE, executions pass the
        input or output in registered memory, and the handle is NULL until then.
        """
        self._check_open(_CREATE)
        expect(name, str, "a tensor needs a name")
        shape = _dimensions(dimensions)
        if name in self._tensors:
            known = f"graph {quote(self.name)} already has a tensor {quote(name)}"
            self._fail(_EXISTS, known, _CREATE)
        type, data_type = _member(TensorType, type), _member(DataType, data_type)
        mem_type = _member(TensorMemType, mem_type)
        if mem_handle is not None:
            problem = f"tensor {quote(name)} has a memory handle; only an execution takes handles"
            self._fail(_BAD_TENSOR, problem, _CREATE)
        tensor = ComposedTensor(
            *(len(self._tensors) + 1, name, type, data_type, shape, _quantization(quantize_params)),
            mem_type=mem_type,
        )
        tensor = self._with_data(tensor, data)
        self._tensors[name] = tensor
        self.calls.append(tensor)
        return tensor

    def add_node(
        self,
        package: str,
        type: str,
        params: Mapping[str, Any] | None,
        inputs: Sequence[ComposedTensor],
        outputs: Sequence[ComposedTensor],
        *,
        name: str = "",
    ) -> ComposedOp:
        """Add a node to the graph and return it (`QnnGraph_addNode`).

        A parameter is a number or an array. Python numbers become BOOL_8, UINT_32 and FLOAT_32;
        NumPy numbers and arrays keep their type.
        """
        self._check_open(_ADD)
        for text, owner in ((package, "a package"), (type, "an operator"), (name, "a node")):
            expect(text, str, f"{owner} must be given by its name")
        self._check_operator(package, type)
        values = expect_mapping(params, "parameters must be a mapping from names to values")
        name = name or self._fresh(type)
        if name in self._nodes:
            self._fail(_BAD_OP, f"graph {quote(self.name)} already has a node {quote(name)}", _ADD)
        sides = [self._known(side, name) for side in (inputs, outputs)]
        scalars: dict[str, Any] = {}
        types: dict[str, DataType] = {}
        arrays: dict[str, ComposedTensor] = {}
        for param, value in values.items():
            if getattr(value, "ndim", 0) or isinstance(value, list | tuple):
                arrays[param] = self._array(f"{name}.{param}", value)
            else:
                scalars[param], types[param] = _scalar(param, value)
        node = ComposedOp(name, package, type, sides[0], sides[1], scalars, arrays, types)
        self._nodes.add(name)
        self.calls.append(node)
        return node

    def check_complete(self) -> None:
        """Fail with a QNN code if the graph is already finalized or has no nodes."""
        self._check_open(_FINALIZE)
        if not self._nodes:
            self._fail(_NO_NODE, f"graph {quote(self.name)} has no nodes", _FINALIZE)

    def _check_operator(self, package: str, type: str) -> None:
        """Fail for an unsupported operator; the default leaves this check to the real library."""

    def _check_open(self, call: str) -> None:
        if self.is_finalized:
            self._fail(_FINALIZED, f"graph {quote(self.name)} is already finalized", call)

    def _with_data(self, tensor: ComposedTensor, data: Any) -> ComposedTensor:
        """Return a tensor, with its data if it is static; fail if the data does not fit."""
        if tensor.type not in STATIC:
            if data is not None:
                problem = f"tensor {quote(tensor.name)} is not static, so it cannot have data"
                self._fail(_BAD_TENSOR, problem, _CREATE)
            return tensor
        if data is None:
            self._fail(_BAD_TENSOR, f"static tensor {quote(tensor.name)} has no data", _CREATE)
        try:
            content = bytes(memoryview(data).cast("B")) if not isinstance(data, bytes) else data
        except (TypeError, ValueError):
            raise UsageError(f"the data of tensor {quote(tensor.name)} is not contiguous") from None
        if len(content) != tensor.nbytes:
            need, have = counted(tensor.nbytes, "byte"), len(content)
            problem = f"static tensor {quote(tensor.name)} has {need}, but its data has {have:,}"
            self._fail(_BAD_TENSOR, problem, _CREATE)
        return replace(tensor, data=content, stored_bytes=len(content))

    def _known(self, tensors: Sequence[ComposedTensor], node: str) -> tuple[int, ...]:
        listed = expect_items(
            tensors, ComposedTensor, "the tensors of a node must belong to its graph"
        )
        for tensor in listed:
            if self._tensors.get(tensor.name) is not tensor:
                foreign = f"tensor {quote(tensor.name)}, which belongs to another graph"
                self._fail(_INVALID_TENSOR, f"node {quote(node)} uses {foreign}", _ADD)
        return tuple(tensor.id for tensor in listed)

    def _array(self, name: str, value: Any) -> ComposedTensor:
        import numpy

        array = numpy.asarray(value)
        if isinstance(value, list | tuple) and array.dtype.kind == "i":
            array = array.astype("uint32")
        if array.dtype == "float64":
            array = array.astype("float32")
        kind = DataType.from_numpy(array.dtype.name)
        shape = array.shape or (1,)
        content = numpy.ascontiguousarray(array).tobytes()
        return self.create_tensor(name, kind, shape, TensorType.STATIC, data=content)

    def _fresh(self, type: str) -> str:
        number = len(self._nodes)
        while f"{type}_{number}" in self._nodes:
            number += 1
        return f"{type}_{number}"


def check_graph_name(name: object, drafts: Mapping[str, GraphDraft], fail: Fail) -> None:
    """Fail with a QNN code if the name of a new graph is missing or already used."""
    known = isinstance(name, str) and name in drafts
    if not isinstance(name, str) or not name or known:
        why = f"a graph {quote(name)} already exists" if known else "a graph needs a name"
        fail(_INVALID_NAME, why, _CREATE_GRAPH)


def check_finalized(drafts: Mapping[str, GraphDraft], fail: Fail) -> None:
    """Fail with a QNN code if a context has no graph, or a graph that is not finalized."""
    waits = [name for name, draft in drafts.items() if not draft.is_finalized]
    if waits or not drafts:
        why = f"graph {quote(waits[0])} is not finalized" if waits else "the context has no graph"
        fail(_NOT_FINALIZED, why, _BINARY)


def _member(kind: type[E], value: int) -> E:
    try:
        return kind(value)
    except ValueError:
        raise UsageError(f"{quote(value)} is not a {kind.__name__}") from None


def _dimensions(dimensions: Sequence[int]) -> tuple[int, ...]:
    rule = "dimensions must be whole numbers"
    sizes = tuple(as_whole(size, rule) for size in expect_items(dimensions, object, rule))
    for size in sizes:
        if not 0 <= size <= _LARGEST:
            raise UsageError(f"{rule} from 0 to {_LARGEST:,}, not {size}")
    return sizes


def _quantization(given: ScaleOffset | Quantization | None) -> Quantization | None:
    expect(given, (ScaleOffset, Quantization, type(None)), "quantize_params must be a ScaleOffset")
    if isinstance(given, ScaleOffset):
        return Quantization(SCALE_OFFSET, (float(given.scale),), (int(given.offset),))
    if given is not None and (
        given.encoding not in (SCALE_OFFSET, AXIS_SCALE_OFFSET)
        or len(given.scales) != len(given.offsets)
        or not given.scales
        or (given.axis is None) == (given.encoding == AXIS_SCALE_OFFSET)
    ):
        raise UsageError("a quantization is one scale and offset, or several along an axis")
    return given


def _scalar(name: str, value: Any) -> tuple[int | float | bool, DataType]:
    if isinstance(value, bool):
        return value, DataType.BOOL_8
    if isinstance(value, float) and not hasattr(value, "dtype"):
        return value, DataType.FLOAT_32
    if isinstance(value, int):
        if not 0 <= value <= _LARGEST:
            cure = "pass a NumPy number, which has a type"
            raise UsageError(f"parameter {quote(name)} is not an unsigned 32-bit number", cure=cure)
        return value, DataType.UINT_32
    if hasattr(value, "dtype"):
        return value.item(), DataType.from_numpy(value.dtype.name)
    raise UsageError(f"parameter {quote(name)} must be a number or an array, not {quote(value)}")
