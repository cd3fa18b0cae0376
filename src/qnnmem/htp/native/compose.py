"""Composes graphs in libQnnHtp, finalizes them, and writes a context binary.

The graphs come from a DLC, a list of calls or a model library. All three call libQnnHtp's own
functions. Four of these functions are wrapped: the wrappers add the settings of a graph, give
inputs and outputs the Qmem hint, and record which call was refused.
"""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from ctypes import CFUNCTYPE, addressof, byref, c_char_p, c_uint32, c_uint64, c_void_p, cast
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qnnmem.errors import Refused
from qnnmem.htp.native.qnn_calls import ERROR, INFO, VERBOSE, check, opened_device, say
from qnnmem.htp.requests import CompileReply, ComposeRequest, HtpSettings
from qnnmem.loader.dlc.recorder import compose_library
from qnnmem.qnn.abi import (
    BACKEND_CALLS,
    SYSTEM_CALLS,
    UNDEFINED,
    BackendInterface,
    CConfig,
    CHtpGraphConfig,
    COpConfig,
    CParam,
    CQuantParams,
    CScalar,
    CScaleOffset,
    CTensor,
    SystemInterface,
    bind,
    first_provider,
)
from qnnmem.qnn.codes import code_of
from qnnmem.qnn.enums import DataType, TensorMemType, TensorType
from qnnmem.qnn.graph import CallFile, ComposedOp, ComposedTensor, GraphCalls
from qnnmem.qnn.tensor import AXIS_SCALE_OFFSET, SCALE_OFFSET, Quantization
from qnnmem.wire import read_frame

_LEVELS = {"verbose": VERBOSE, "info": INFO, "error": ERROR}
_OPTIMIZATION, _PRECISION, _VTCM_MB = 1, 2, 3  # options of a graph of HTP
_FINALIZE_LEVEL = 3  # the kind of optimization that sets the level
_FP16 = 1
_IO = frozenset({TensorType.APP_WRITE, TensorType.APP_READ, TensorType.APP_READWRITE})


_MOST = 1 << 40  # limit on the bytes of a file with graphs
_V1 = 1
_SCALAR, _TENSOR = range(2)


def compose(folder: Path, request: ComposeRequest) -> CompileReply:
    """Compose the graphs of `model`, a file of type `kind`, and return a compile reply."""
    settings = request.settings
    opened = opened_device(folder, settings.soc, _LEVELS[settings.log])
    with opened as (calls, backend, device), ExitStack() as kept:
        context = c_void_p()
        check(
            calls["context_create"](backend, device, None, byref(context)),
            "context_create",
            "compile",
        )
        kept.callback(calls["context_free"], context, None)
        table = ComposeTable(folder, settings, calls)
        started = time.perf_counter()
        say("composing")
        if request.kind == "dlc":
            _compose_dlc(folder, request.model, table, backend, context)
        elif request.kind == "calls":
            LibraryCalls(table.calls, context).make(request.model)
            table.check()
        else:
            _compose_library(request.model, table, backend, context)
        if not table.graphs:
            raise Refused("read", "contains no graph")
        say("composed")
        for graph in table.graphs:
            check(calls["graph_finalize"](graph.handle, None, None), "graph_finalize", "compile")
        request.output.write_bytes(_binary(calls, context))
        say("binary written")
    return CompileReply(
        [request.output],
        None,
        [],
        sum(graph.nodes for graph in table.graphs),
        time.perf_counter() - started,
        table.outputs,
    )


def _compose_dlc(
    folder: Path, model: Path, table: ComposeTable, backend: Any, context: Any
) -> None:
    library = ctypes.CDLL(str(folder / "libQnnSystem.so"))
    interface = first_provider(library, "QnnSystemInterface_getProviders", SystemInterface)
    calls = bind(interface.table, SYSTEM_CALLS)
    dlc, graphs, count = c_void_p(), c_void_p(), c_uint32()
    code = code_of(calls["dlc_create_from_file"](None, os.fsencode(model), byref(dlc)))
    if code:
        raise Refused("read", f"systemDlcCreateFromFile returned {code}", code)
    # Keep the reader alive: it owns the constants of the graphs until they are finalized.
    code = code_of(
        calls["dlc_compose_graphs"](
            *(dlc, None, 0, backend, context, table.interface, 1, byref(graphs), byref(count))
        )
    )
    table.check()
    if code:
        raise Refused("read", f"systemDlcComposeGraphs returned {code}", code)


def _compose_library(model: Path, table: ComposeTable, backend: Any, context: Any) -> None:
    code = compose_library(model, table.interface, backend, context)
    table.check()
    if code:
        raise Refused("read", f"QnnModel_composeGraphs returned {code}")


def _binary(calls: dict[str, Any], context: Any) -> bytes:
    size, written = c_uint64(), c_uint64()
    check(
        calls["context_get_binary_size"](context, byref(size)), "context_get_binary_size", "compile"
    )
    room = ctypes.create_string_buffer(size.value)
    code = calls["context_get_binary"](context, room, size.value, byref(written))
    check(code, "context_get_binary", "compile")
    return bytes(memoryview(room)[: written.value])


@dataclass(slots=True)
class _Graph:
    """A created graph and its number of nodes."""

    handle: int
    nodes: int = 0


class ComposeTable:
    """The library's own interface with wrappers around four of its functions."""

    def __init__(self, folder: Path, settings: HtpSettings, calls: dict[str, Any]) -> None:
        self.graphs: list[_Graph] = []
        self.outputs: list[str] = []
        self._library, self._memhandle = calls, settings.memhandle
        self._refusal: Refused | None = None
        self._kept: list[Any] = []  # functions and settings must live as long as the table
        library = ctypes.CDLL(str(folder / "libQnnHtp.so"), mode=ctypes.RTLD_GLOBAL)
        real = first_provider(library, "QnnInterface_getProviders", BackendInterface)
        self.interface = BackendInterface.from_buffer_copy(real)
        self._configs = self._graph_configs(settings)
        for name, call in (
            ("graph_create", self._create_graph),
            ("tensor_create_graph_tensor", self._create_tensor),
            ("graph_add_node", self._add_node),
            ("backend_validate_op_config", self._validate),
        ):
            self._put(name, call)
        self.calls = bind(self.interface.table, BACKEND_CALLS)

    def check(self) -> None:
        """Raise the error of the first refused call, if any."""
        if self._refusal is not None:
            raise self._refusal

    def _put(self, name: str, call: Callable[..., int]) -> None:
        place, kinds = BACKEND_CALLS[name]

        def answer(*arguments: Any) -> int:
            try:
                return call(*arguments)
            except Exception as exc:  # no exception may reach the calling library
                self._refuse(str(exc) or type(exc).__name__, 0)
                return 1004

        function = CFUNCTYPE(c_uint64, *kinds)(answer)
        self._kept.append(function)
        self.interface.table[place] = ctypes.cast(function, c_void_p).value

    def _graph_configs(self, settings: HtpSettings) -> int:
        """Return the address of a graph config list, as ONNX Runtime would pass it."""
        wanted = [CHtpGraphConfig(_PRECISION, 0, _FP16)]
        if settings.vtcm_mb is not None:
            wanted.append(CHtpGraphConfig(_VTCM_MB, 0, settings.vtcm_mb))
        if settings.opt_level is not None:
            level = c_uint32.from_buffer_copy(ctypes.c_float(settings.opt_level))
            wanted.append(CHtpGraphConfig(_OPTIMIZATION, 0, _FINALIZE_LEVEL, level.value))
        outer = [CConfig(0, addressof(config)) for config in wanted]
        listed = (c_uint64 * (len(outer) + 1))(*map(addressof, outer), 0)
        self._kept += [*wanted, *outer, listed]
        return addressof(listed)

    def _create_graph(self, context: Any, name: bytes, _configs: Any, out: Any) -> int:
        # Ignore `_configs`: a DLC and a client pass none, or settings for another device.
        handle = self._library["graph_create"](context, name, self._configs, out)
        if self._fine(handle, "QnnGraph_create", name):
            self.graphs.append(_Graph(int(out[0])))
        return int(handle)

    def _create_tensor(self, graph: Any, tensor: Any) -> int:
        body = tensor.contents.of.v1
        if self._memhandle and body.type in _IO:
            body.mem_type = TensorMemType.MEMHANDLE
            body.memory[0] = body.memory[1] = 0
        handle = self._library["tensor_create_graph_tensor"](graph, tensor)
        fine = self._fine(handle, "QnnTensor_createGraphTensor", body.name)
        if fine and body.type == TensorType.APP_READ:
            self.outputs.append((body.name or b"").decode("utf-8", "replace"))
        return int(handle)

    def _add_node(self, graph: Any, op: Any) -> int:
        handle = self._library["graph_add_node"](graph, op)
        if self._fine(handle, "QnnGraph_addNode", op.name, op.type):
            next(created for created in self.graphs if created.handle == graph).nodes += 1
        return int(handle)

    def _validate(self, backend: Any, op: Any) -> int:
        handle = self._library["backend_validate_op_config"](backend, op)
        self._fine(handle, "QnnBackend_validateOpConfig", op.name, op.type)
        return int(handle)

    def _fine(self, handle: int, call: str, name: bytes | None, kind: bytes | None = None) -> bool:
        code = code_of(int(handle))
        if code:
            shown = (name or b"").decode("utf-8", "replace")[:200]
            of = "" if kind is None else f" ({kind.decode('utf-8', 'replace')[:100]})"
            self._refuse(f"{call} of {shown!r}{of} returned {code}", code)
        return not code

    def _refuse(self, sentence: str, code: int) -> None:
        if self._refusal is None:
            self._refusal = Refused("compose", sentence, code or None)


class LibraryCalls:
    """Composes graphs by repeating the calls recorded in a file, in order."""

    def __init__(self, calls: Mapping[str, Any], context: Any) -> None:
        self._calls, self._context = calls, context
        self._kept: list[Any] = []  # the library may read these objects until graphs are finalized
        self._data = b""
        self._graph = c_void_p()
        self._tensors: dict[int, CTensor] = {}

    def make(self, path: Path) -> None:
        """Repeat the calls of all graphs, up to the first refused call."""
        try:
            with path.open("rb") as stream:
                frame = read_frame(stream, CallFile, _MOST)
        except ValueError as exc:
            raise Refused("read", f"contains no graphs: {exc}") from exc
        if frame is None:
            raise Refused("read", "contains no graphs")
        file, self._data = frame
        address = c_char_p(self._data)
        self._base = cast(address, c_void_p).value or 0
        for graph in file.graphs:
            self._tensors.clear()
            name = graph.name.encode()
            handle = self._calls["graph_create"](self._context, name, None, byref(self._graph))
            if code_of(handle) or not self._make_graph(graph):
                return

    def _make_graph(self, graph: GraphCalls) -> bool:
        for call in graph.calls:
            handle = self._create(call) if isinstance(call, ComposedTensor) else self._add(call)
            if code_of(handle):
                return False
        return True

    def _create(self, call: ComposedTensor) -> int:
        tensor = self._tensor(call)
        handle = int(self._calls["tensor_create_graph_tensor"](self._graph, byref(tensor)))
        self._tensors[call.id] = tensor
        return handle

    def _add(self, call: ComposedOp) -> int:
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

    def _tensor(self, call: ComposedTensor) -> CTensor:
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
            if call.place + call.stored_bytes > len(self._data):
                raise Refused("read", "has constants outside its data")
            body.memory[0] = self._base + call.place
            body.memory[1] = call.stored_bytes
        return tensor

    def _quantization(self, quant: Quantization | None) -> CQuantParams:
        if quant is None:
            return CQuantParams(UNDEFINED, UNDEFINED)
        params = CQuantParams(1, quant.encoding)
        pairs = list(map(CScaleOffset, quant.scales, quant.offsets))
        if quant.encoding == SCALE_OFFSET and pairs:
            params.scale_offset = pairs[0]
            return params
        if quant.encoding != AXIS_SCALE_OFFSET or quant.axis is None:
            raise Refused("read", f"has a quantization of kind {quant.encoding}")
        listed = (CScaleOffset * len(pairs))(*pairs)
        self._kept.append(listed)
        union = ctypes.addressof(params) + 8
        ctypes.c_int32.from_address(union).value = quant.axis
        c_uint32.from_address(union + 4).value = len(pairs)
        c_uint64.from_address(union + 8).value = ctypes.addressof(listed)
        return params

    def _text(self, text: str) -> bytes:
        encoded = text.encode()
        self._kept.append(encoded)
        return encoded


def _word(kind: DataType, number: float) -> int:
    """Return the eight bytes of a QNN scalar's union as an integer."""
    if kind == DataType.FLOAT_32:
        return c_uint32.from_buffer_copy(ctypes.c_float(number)).value
    if kind == DataType.FLOAT_64:
        return c_uint64.from_buffer_copy(ctypes.c_double(number)).value
    return int(number) & 0xFFFFFFFFFFFFFFFF
