"""Graphs that Python code composed, made again call by call in libQnnHtp."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from ctypes import byref, c_char_p, c_uint32, c_uint64, c_void_p, cast
from pathlib import Path
from typing import Any

from qnnmem.child import read_frame
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
        with path.open("rb") as stream:
            frame = read_frame(stream, _MOST)
        if frame is None:
            raise Refused("read", "holds no graphs")
        header, self._data = frame
        address = c_char_p(self._data)
        self._base = cast(address, c_void_p).value or 0
        for graph in header["graphs"]:
            self._tensors.clear()
            name = graph["name"].encode()
            made = self._calls["graph_create"](self._context, name, None, byref(self._graph))
            if made & _CODE or not self._make_graph(graph):
                return

    def _make_graph(self, graph: Mapping[str, Any]) -> bool:
        for call in graph["calls"]:
            made = self._create(call) if "data_type" in call else self._add(call)
            if made & _CODE:
                return False
        return True

    def _create(self, found: Mapping[str, Any]) -> int:
        tensor = self._tensor(found)
        code = int(self._calls["tensor_create_graph_tensor"](self._graph, byref(tensor)))
        self._tensors[found["id"]] = tensor
        return code

    def _add(self, found: Mapping[str, Any]) -> int:
        params = (CParam * len(found["params"]))()
        for place, (name, value) in enumerate(found["params"].items()):
            params[place].name = self._text(name)
            if "tensor" in value:
                params[place].kind = _TENSOR
                params[place].of.tensor = self._tensors[value["tensor"]]
            else:
                params[place].kind = _SCALAR
                params[place].of.scalar = CScalar(value["data_type"], _word(value))
        sides = []
        for side in ("inputs", "outputs"):
            listed = [self._tensors[one] for one in found[side]]
            sides.append((CTensor * len(listed))(*listed))
        inputs, outputs = sides
        self._kept += [params, inputs, outputs]
        op = COpConfig(_V1, *map(self._text, (found["name"], found["package"], found["type"])))
        op.param_count, op.params = len(params), params
        op.input_count, op.inputs = len(inputs), inputs
        op.output_count, op.outputs = len(outputs), outputs
        return int(self._calls["graph_add_node"](self._graph, op))

    def _tensor(self, found: Mapping[str, Any]) -> CTensor:
        tensor = CTensor(_V1)
        body = tensor.of.v1
        body.name = self._text(found["name"])
        body.type, body.data_type = found["type"], found["data_type"]
        sizes = (c_uint32 * len(found["dimensions"]))(*found["dimensions"])
        body.rank, body.dimensions = len(sizes), sizes
        body.mem_type = found["mem_type"]
        body.quant = self._quantization(found["quantization"])
        self._kept.append(sizes)
        if found.get("place") is not None and body.mem_type == TensorMemType.RAW:
            if not 0 <= found["place"] <= found["place"] + found["stored"] <= len(self._data):
                raise Refused("read", "has constants outside of its data")
            body.memory[0] = self._base + found["place"]
            body.memory[1] = found["stored"]
        return tensor

    def _quantization(self, found: Mapping[str, Any] | None) -> CQuantParams:
        if found is None:
            return CQuantParams(UNDEFINED, UNDEFINED)
        made = CQuantParams(1, found["encoding"])
        pairs = list(map(CScaleOffset, found["scales"], found["offsets"]))
        if found["encoding"] == _SCALE_OFFSET:
            made.scale_offset = pairs[0]
            return made
        if found["encoding"] != _AXIS:
            raise Refused("read", f"has a quantization of kind {found['encoding']}")
        listed = (CScaleOffset * len(pairs))(*pairs)
        self._kept.append(listed)
        union = ctypes.addressof(made) + 8
        ctypes.c_int32.from_address(union).value = found["axis"]
        c_uint32.from_address(union + 4).value = len(pairs)
        c_uint64.from_address(union + 8).value = ctypes.addressof(listed)
        return made

    def _text(self, text: str) -> bytes:
        made = text.encode()
        self._kept.append(made)
        return made


def _word(value: Mapping[str, Any]) -> int:
    """A scalar as the eight bytes of its union."""
    kind, number = value["data_type"], value["value"]
    if kind == DataType.FLOAT_32:
        return c_uint32.from_buffer_copy(ctypes.c_float(number)).value
    if kind == DataType.FLOAT_64:
        return c_uint64.from_buffer_copy(ctypes.c_double(number)).value
    return int(number) & 0xFFFFFFFFFFFFFFFF
