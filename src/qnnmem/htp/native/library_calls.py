"""Graphs that Python code composed, made again call by call in libQnnHtp."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from ctypes import byref, c_char_p, c_uint32, c_uint64, c_void_p, cast
from pathlib import Path
from typing import Any

from qnnmem.errors import Refused
from qnnmem.qnn.abi import (
    UNDEFINED,
    COpConfig,
    CParam,
    CQuantParams,
    CScalar,
    CScaleOffset,
    CTensor,
)
from qnnmem.qnn.enums import DataType, TensorMemType
from qnnmem.qnn.graph import Quantization
from qnnmem.qnn.recorded import CallFile, GraphCalls, RecordedOp, RecordedTensor
from qnnmem.wire import read_frame

_CODE = 0xFFFF
_MOST = 1 << 40  # bytes of a file with graphs
_V1 = 1
_SCALAR, _TENSOR = range(2)
_SCALE_OFFSET, _AXIS = range(2)


class LibraryCalls:
    """Makes the calls of graphs in a file, in their order."""

    def __init__(self, calls: Mapping[str, Any], context: Any) -> None:
        self._calls, self._context = calls, context
        self._kept: list[Any] = []  # the library may read it until graphs are finalized
        self._data = b""
        self._graph = c_void_p()
        self._tensors: dict[int, CTensor] = {}

    def make(self, path: Path) -> None:
        """All graphs of a file, up to the first call that is refused."""
        try:
            with path.open("rb") as stream:
                frame = read_frame(stream, CallFile, _MOST)
        except ValueError as exc:
            raise Refused("read", f"holds no graphs: {exc}") from exc
        if frame is None:
            raise Refused("read", "holds no graphs")
        file, self._data = frame
        address = c_char_p(self._data)
        self._base = cast(address, c_void_p).value or 0
        for graph in file.graphs:
            self._tensors.clear()
            name = graph.name.encode()
            made = self._calls["graph_create"](self._context, name, None, byref(self._graph))
            if made & _CODE or not self._make_graph(graph):
                return

    def _make_graph(self, graph: GraphCalls) -> bool:
        for call in graph.calls:
            made = self._create(call) if isinstance(call, RecordedTensor) else self._add(call)
            if made & _CODE:
                return False
        return True

    def _create(self, call: RecordedTensor) -> int:
        tensor = self._tensor(call)
        code = int(self._calls["tensor_create_graph_tensor"](self._graph, byref(tensor)))
        self._tensors[call.id] = tensor
        return code

    def _add(self, call: RecordedOp) -> int:
        params = (CParam * (len(call.scalars) + len(call.arrays)))()
        for param, name in zip(params, (*call.scalars, *call.arrays), strict=True):
            param.name = self._text(name)
            if name in call.arrays:
                param.kind = _TENSOR
                param.of.tensor = self._known(call.arrays[name].id)
            else:
                kind = call.scalar_types[name]
                param.kind = _SCALAR
                param.of.scalar = CScalar(kind, _word(kind, call.scalars[name]))
        sides = []
        for side in (call.inputs, call.outputs):
            listed = [self._known(number) for number in side]
            sides.append((CTensor * len(listed))(*listed))
        inputs, outputs = sides
        self._kept += [params, inputs, outputs]
        op = COpConfig(_V1, *map(self._text, (call.name, call.package, call.type)))
        op.param_count, op.params = len(params), params
        op.input_count, op.inputs = len(inputs), inputs
        op.output_count, op.outputs = len(outputs), outputs
        return int(self._calls["graph_add_node"](self._graph, op))

    def _known(self, number: int) -> CTensor:
        if number not in self._tensors:
            raise Refused("read", f"uses tensor {number} before it is created")
        return self._tensors[number]

    def _tensor(self, call: RecordedTensor) -> CTensor:
        tensor = CTensor(_V1)
        body = tensor.of.v1
        body.name = self._text(call.name)
        body.type, body.data_type = call.type, call.data_type
        sizes = (c_uint32 * len(call.dimensions))(*call.dimensions)
        body.rank, body.dimensions = len(sizes), sizes
        body.mem_type = call.mem_type
        body.quant = self._quantization(call.quantization)
        self._kept.append(sizes)
        if call.place is not None and body.mem_type == TensorMemType.RAW:
            if call.place + call.stored > len(self._data):
                raise Refused("read", "has constants outside of its data")
            body.memory[0] = self._base + call.place
            body.memory[1] = call.stored
        return tensor

    def _quantization(self, quant: Quantization | None) -> CQuantParams:
        if quant is None:
            return CQuantParams(UNDEFINED, UNDEFINED)
        made = CQuantParams(1, quant.encoding)
        pairs = list(map(CScaleOffset, quant.scales, quant.offsets))
        if quant.encoding == _SCALE_OFFSET and pairs:
            made.scale_offset = pairs[0]
            return made
        if quant.encoding != _AXIS or quant.axis is None:
            raise Refused("read", f"has a quantization of kind {quant.encoding}")
        listed = (CScaleOffset * len(pairs))(*pairs)
        self._kept.append(listed)
        union = ctypes.addressof(made) + 8
        ctypes.c_int32.from_address(union).value = quant.axis
        c_uint32.from_address(union + 4).value = len(pairs)
        c_uint64.from_address(union + 8).value = ctypes.addressof(listed)
        return made

    def _text(self, text: str) -> bytes:
        made = text.encode()
        self._kept.append(made)
        return made


def _word(kind: DataType, number: float) -> int:
    """A scalar as the eight bytes of its union."""
    if kind == DataType.FLOAT_32:
        return c_uint32.from_buffer_copy(ctypes.c_float(number)).value
    if kind == DataType.FLOAT_64:
        return c_uint64.from_buffer_copy(ctypes.c_double(number)).value
    return int(number) & 0xFFFFFFFFFFFFFFFF
