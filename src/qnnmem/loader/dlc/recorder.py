"""A QNN backend that records composed graphs, for a child process.

The library's memory is only valid during a call, so everything is copied immediately: graphs into
messages for the pipe, and the bytes of constants one after another. The graphs are composed by the
vendor's reader of DLC files, or by a model library (native code) of the vendor's tools.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from ctypes import (
    CFUNCTYPE,
    POINTER,
    Structure,
    byref,
    c_bool,
    c_char_p,
    c_uint32,
    c_uint64,
    c_void_p,
)
from pathlib import Path
from typing import Any, NamedTuple

from qnnmem.errors import Refused
from qnnmem.qnn.abi import UNDEFINED, BackendInterface, COpConfig, CScaleOffset, CTensor, CVersion
from qnnmem.qnn.enums import DataType, TensorType
from qnnmem.qnn.graph import STATIC, ComposedGraph, ComposedOp, ComposedTensor
from qnnmem.qnn.tensor import (
    AXIS_SCALE_OFFSET,
    BITS_AXIS_SCALE_OFFSET,
    BITS_SCALE_OFFSET,
    SCALE_OFFSET,
    Quantization,
)
from qnnmem.units import MAX_RANK

OK, NOT_SUPPORTED, INVALID = 0, 1000, 1004
MOST_TENSORS = 1_000_000
MOST_OPS = 1_000_000
MOST_SCALES = 1 << 20
_NAME_BYTES = 4096
_DEFINED = 1
_SCALAR, _TENSOR = range(2)
_LPAI = 12
_MAPPING_VERSION, _SOURCE_OP = 1, 1
# Position in the table and types of the arguments.
GRAPH_CREATE = (15, (c_void_p, c_char_p, c_void_p, POINTER(c_void_p)))
ADD_NODE = (18, (c_void_p, COpConfig))
CONTEXT_TENSOR = (23, (c_void_p, POINTER(CTensor)))
GRAPH_TENSOR = (24, (c_void_p, POINTER(CTensor)))


class TooMuch(Exception):
    """The graph is larger than any real graph."""


class _OpenGraph(NamedTuple):
    """A graph whose tensors and operators are still being added."""

    name: str
    tensors: list[ComposedTensor]
    ops: list[ComposedOp]


class Composition:
    """The recorded graphs, tensors and operators, and the bytes of constants."""

    def __init__(self, *, with_data: bool) -> None:
        self.shared: list[ComposedTensor] = []  # tensors of the context, shared by all graphs
        self.data = bytearray()
        self.failure = ""
        self._with_data = with_data
        self._of: dict[int, _OpenGraph] = {}  # by graph handle

    @property
    def graphs(self) -> list[ComposedGraph]:
        """All graphs recorded so far."""
        return [
            ComposedGraph(graph.name, tuple(graph.tensors), tuple(graph.ops))
            for graph in self._of.values()
        ]

    def add_graph(self, handle: int, name: bytes) -> None:
        """Record a new graph."""
        self._of[handle] = _OpenGraph(_text(name), [], [])

    def add_tensor(self, graph: int | None, tensor: CTensor) -> None:
        """Record a new tensor, in a graph or in the context."""
        listed = self.shared if graph is None else self._of[graph].tensors
        if len(listed) >= MOST_TENSORS:
            raise TooMuch(f"the graph has more than {MOST_TENSORS:,} tensors")
        listed.append(self._tensor(tensor))

    def add_op(self, graph: int, op: COpConfig) -> None:
        """Record a new operator."""
        ops = self._of[graph].ops
        if len(ops) >= MOST_OPS:
            raise TooMuch(f"the graph has more than {MOST_OPS:,} operators")
        scalars: dict[str, bool | int | float] = {}
        arrays: dict[str, ComposedTensor] = {}
        for param in op.params[: _count(op.param_count)]:
            if param.kind == _SCALAR:
                scalars[_text(param.name)] = _scalar(param.of.scalar)
            elif param.kind == _TENSOR:
                arrays[_text(param.name)] = self._tensor(param.of.tensor)
        ops.append(
            ComposedOp(
                _text(op.name),
                _text(op.package),
                _text(op.type),
                tuple(tensor.of.v1.id for tensor in op.inputs[: _count(op.input_count)]),
                tuple(tensor.of.v1.id for tensor in op.outputs[: _count(op.output_count)]),
                scalars,
                arrays,
            )
        )

    def _tensor(self, tensor: CTensor) -> ComposedTensor:
        body = tensor.of.v1
        if body.rank > MAX_RANK:
            raise TooMuch(f"a tensor has more than {MAX_RANK} dimensions")
        size, position = 0, None
        if body.type in STATIC and body.memory[0]:
            size = body.memory[1] & 0xFFFFFFFF  # the upper half is padding
            if self._with_data:
                position = len(self.data)
                self.data += ctypes.string_at(body.memory[0], size)
        return ComposedTensor(
            body.id,
            _text(body.name),
            TensorType(body.type),
            DataType(body.data_type),
            tuple(body.dimensions[: body.rank]),
            _quantization(body.quant),
            stored_bytes=size,
            place=position,
        )


class FunctionTable:
    """Table of recording functions for the library; none of them raises an exception."""

    def __init__(self, table: Any, composition: Composition) -> None:
        self._table, self._composition = table, composition
        self._kept: list[Any] = []  # functions must live as long as the table

    def put(self, position: int, kinds: tuple[Any, ...], call: Callable[..., int]) -> None:
        """Put a function into the table."""
        seen = self._composition

        def answer(*arguments: Any) -> int:
            try:
                return call(*arguments)
            except Exception as exc:
                seen.failure = seen.failure or str(exc) or type(exc).__name__
                return INVALID

        function = CFUNCTYPE(c_uint64, *kinds)(answer)
        self._kept.append(function)
        self._table[position] = ctypes.cast(function, c_void_p).value


class Recorder:
    """A backend that accepts every call and records the composed graphs."""

    def __init__(self, *, with_data: bool) -> None:
        self.seen = Composition(with_data=with_data)
        self._next = 0
        self.interface = BackendInterface(_LPAI, b"recorder", CVersion(2, 40, 0), CVersion(1, 0, 0))
        self._functions = functions = FunctionTable(self.interface.table, self.seen)
        functions.put(0, (c_uint32,), lambda _key: NOT_SUPPORTED)
        functions.put(7, (c_void_p, COpConfig), lambda _backend, _op: OK)
        functions.put(*GRAPH_CREATE, self._create_graph)
        functions.put(17, (c_void_p, c_void_p), lambda _graph, _config: OK)
        functions.put(*ADD_NODE, self._add_node)
        functions.put(*CONTEXT_TENSOR, lambda _context, tensor: self._create(None, tensor))
        functions.put(*GRAPH_TENSOR, lambda graph, tensor: self._create(graph or 0, tensor))
        for position in range(len(self.interface.table)):
            if not self.interface.table[position]:
                functions.put(position, (), self._unknown(position))

    def _unknown(self, position: int) -> Callable[..., int]:
        function = f"function {position} of the interface"

        def refuse() -> int:
            self.seen.failure = self.seen.failure or (
                f"the model library called {function}, which is not supported"
            )
            return NOT_SUPPORTED

        return refuse

    def _create_graph(self, _context: int, name: bytes, _config: int, out: Any) -> int:
        out[0] = len(self.seen.graphs) + 1
        self.seen.add_graph(out[0], name)
        return OK

    def _create(self, graph: int | None, tensor: Any) -> int:
        self._next += 1
        tensor.contents.of.v1.id = self._next
        self.seen.add_tensor(graph, tensor.contents)
        return OK

    def _add_node(self, graph: int | None, op: COpConfig) -> int:
        self.seen.add_op(graph or 0, op)
        return OK


def origins(mappings: Any, count: int) -> dict[str, dict[str, list[str]]]:
    """Return the names of each operator's source nodes, by graph and operator."""
    graphs: dict[str, dict[str, list[str]]] = {}
    for mapping in mappings[: _count(count)]:
        if mapping.version != _MAPPING_VERSION or not mapping.v1:
            continue
        body = mapping.v1.contents
        ops = graphs.setdefault(_text(body.graph), {})
        for op in body.ops[: _count(body.op_count)]:
            pairs = op.pairs[: _count(op.pair_count)]
            ops[_text(op.name)] = [_text(pair.name) for pair in pairs if pair.type == _SOURCE_OP]
    return graphs


def _count(number: int) -> int:
    if number > MOST_TENSORS:
        raise TooMuch(f"an operator has {number:,} tensors or parameters, over the limit")
    return number


def _scalar(scalar: Any) -> int | float | bool:
    """Return the value of a scalar parameter, read from a union according to the scalar's type."""
    kind, raw = scalar.data_type, int(scalar.value).to_bytes(8, "little")
    if kind == DataType.BOOL_8:
        return raw[0] != 0
    if kind == DataType.FLOAT_32:
        return float(ctypes.c_float.from_buffer_copy(raw).value)
    if kind == DataType.FLOAT_64:
        return float(ctypes.c_double.from_buffer_copy(raw).value)
    if kind == DataType.STRING:
        raise TooMuch("an operator has a text parameter, which is not supported")
    width = int(f"{kind & 0xFF:x}") // 8
    return int.from_bytes(raw[:width], "little", signed=kind < DataType.UINT_8)


def _quantization(quant: Any) -> Quantization | None:
    if quant.definition != _DEFINED or quant.encoding == UNDEFINED:
        return None
    union, encoding = ctypes.addressof(quant) + 8, quant.encoding
    if encoding == SCALE_OFFSET:
        return Quantization(encoding, *_pairs([quant.scale_offset]))
    if encoding == BITS_SCALE_OFFSET:
        bits = c_uint32.from_address(union).value
        return Quantization(encoding, *_pairs([CScaleOffset.from_address(union + 4)]), bits=bits)
    if encoding == AXIS_SCALE_OFFSET:
        count = _scales(c_uint32.from_address(union + 4).value)
        first = c_uint64.from_address(union + 8).value
        pairs = (CScaleOffset * count).from_address(first) if first else ()
        return Quantization(encoding, *_pairs(pairs), ctypes.c_int32.from_address(union).value)
    if encoding == BITS_AXIS_SCALE_OFFSET:
        count = _scales(c_uint32.from_address(union + 8).value)
        scales = c_uint64.from_address(union + 16).value
        offsets = c_uint64.from_address(union + 24).value
        return Quantization(
            encoding,
            tuple((ctypes.c_float * count).from_address(scales)) if scales else (),
            tuple((ctypes.c_int32 * count).from_address(offsets)) if offsets else (0,) * count,
            ctypes.c_int32.from_address(union + 4).value,
            c_uint32.from_address(union).value,
        )
    return Quantization(encoding)


def _scales(count: int) -> int:
    if count > MOST_SCALES:
        raise TooMuch(f"a tensor has {count:,} scales, over the limit")
    return count


def _pairs(pairs: Any) -> tuple[tuple[float, ...], tuple[int, ...]]:
    return tuple(pair.scale for pair in pairs), tuple(pair.offset for pair in pairs)


def _text(value: bytes | None) -> str:
    return "" if value is None else value[:_NAME_BYTES].decode("utf-8", "replace")


# --- Model libraries ------------------------------------------------------------------------------

_COMPOSE = "QnnModel_composeGraphs"
# The first 25 functions are enough to compose a graph. The table is passed by value: a library that
# was built for a shorter table reads its last arguments from the memory after these functions, so
# no other function may be there.
_FIRST = 25


class _BareTable(Structure):
    """The function table of an interface; a model library takes it by value."""

    _fields_ = (("table", c_void_p * 75),)


def compose_library(
    path: Path, interface: BackendInterface, backend: c_void_p, context: c_void_p
) -> int:
    """Return the code of a library's `QnnModel_composeGraphs`; 0 is success."""
    try:
        library = ctypes.CDLL(str(path))
    except OSError as exc:
        raise Refused("read", f"cannot be loaded: {exc}") from exc
    try:
        compose = library[_COMPOSE]
    except AttributeError:
        raise Refused("read", f"is not a model library: it has no {_COMPOSE}") from None
    compose.restype = c_uint32
    compose.argtypes = (
        *(c_void_p, _BareTable, c_void_p, c_void_p, c_uint32),
        *(POINTER(c_void_p), POINTER(c_uint32), c_bool, c_void_p, c_uint32),
    )
    infos, count = c_void_p(), c_uint32()
    table = _BareTable()
    table.table[:_FIRST] = interface.table[:_FIRST]
    return int(
        compose(backend, table, context, None, 0, byref(infos), byref(count), False, None, 1)
    )
