"""What a context binary holds, nested the way qnn-context-binary-utility nests it.

Readers of the vendor's JSON find what they know; everything of ours is under the key `qnnmem`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from qnnmem.ir import DType
from qnnmem.lpai.binary import pack
from qnnmem.lpai.binary.layout import MAJOR, MINOR
from qnnmem.lpai.compiled import CompiledContext, CompiledGraph, Place, Quant
from qnnmem.lpai.tcm import BinaryTcm, TcmVerdict, judge_binary
from qnnmem.planner import Io, PlacedBuffer, Pool
from qnnmem.qnn.enums import BackendId, DataType, TensorType

SCHEMA = "qnnmem.inspect/1"
# The interface this runtime follows: QNN headers of SDK 2.36.
CORE_API = "2.27.0"
LPAI_API = "2.19.0"
BLOB_VERSION = "1.0.0"

_PACKED = {DType.INT4: DataType.SFIXED_POINT_4, DType.UINT4: DataType.UFIXED_POINT_4}
_QNN_TYPES = {(data.numpy_name, data.is_quantized): data for data in DataType if data.bits >= 8}


def binary_info(
    context: CompiledContext, file_bytes: int | None = None, tcm: BinaryTcm | None = None
) -> dict[str, Any]:
    """Everything about a context but the bytes of programs and constants.

    `file_bytes` is the size of its binary, `tcm` what that takes of the TCM pool; both are
    computed when not given.
    """
    if file_bytes is None:
        file_bytes = sum(len(piece) for piece in pack(context))
    if tcm is None:
        tcm = judge_binary(context, file_bytes)
    info = {
        "backendId": int(BackendId.LPAI),
        "buildId": context.producer,
        "coreApiVersion": CORE_API,
        "backendApiVersion": LPAI_API,
        "socVersion": "",
        "contextBlobVersion": BLOB_VERSION,
        "contextBlobSize": file_bytes,
        "numContextTensors": 0,
        "contextTensors": [],
        "numGraphs": len(context.graphs),
        "graphs": [{"info": _graph(graph), "version": 1} for graph in context.graphs],
    }
    ours = {
        "schema": SCHEMA,
        "producer": context.producer,
        "hw_version": context.hw_version,
        "format_version": f"{MAJOR}.{MINOR}",
        "file_bytes": file_bytes,
        "constants_bytes": context.constants.nbytes,
        "tcm": _tcm(tcm.together),
        "graphs": [
            _plan(graph) | {"tcm": _tcm(alone)}
            for graph, alone in zip(context.graphs, tcm.graphs, strict=True)
        ],
    }
    return {"info": info, "version": 1, "qnnmem": ours}


def data_type(dtype: DType, quantized: bool) -> DataType:
    """QNN's type of a tensor: fixed point when its integers stand for real numbers."""
    if dtype in _PACKED:
        return _PACKED[dtype]
    plain = _QNN_TYPES.get((dtype.value, False), DataType.UNDEFINED)
    return _QNN_TYPES.get((dtype.value, True), plain) if quantized else plain


# --- The vendor's part ---------------------------------------------------------------------------


def _graph(graph: CompiledGraph) -> dict[str, Any]:
    inputs, outputs = graph.inputs, graph.outputs
    return {
        "graphName": graph.name,
        "numGraphInputs": len(inputs),
        "graphInputs": _tensors(graph, inputs, TensorType.APP_WRITE, 0),
        "numGraphOutputs": len(outputs),
        "graphOutputs": _tensors(graph, outputs, TensorType.APP_READ, len(inputs)),
    }


def _tensors(
    graph: CompiledGraph, names: Iterable[str], kind: TensorType, first: int
) -> list[dict[str, Any]]:
    return [
        {"info": _tensor(graph, name, kind, number), "version": 1}
        for number, name in enumerate(names, first)
    ]


def _tensor(graph: CompiledGraph, name: str, kind: TensorType, number: int) -> dict[str, Any]:
    tensor, quant = graph.model.tensors[name], graph.quants.get(name)
    return {
        "id": number,
        "name": name,
        "type": f"QNN_TENSOR_TYPE_{kind.name}",
        "dataFormat": 0,  # QNN_TENSOR_DATA_FORMAT_FLAT_BUFFER
        "dataType": f"QNN_DATATYPE_{data_type(tensor.dtype, quant is not None).name}",
        "quantizeParams": _encoding(quant),
        "rank": len(tensor.shape),
        "dimensions": list(tensor.shape),
    }


def _encoding(quant: Quant | None) -> dict[str, Any]:
    """QNN's offset is added where ONNX's zero point is subtracted.

    Public readers look into `scaleOffset` without asking whether it is defined, so it is there.
    """
    known, encoding = ("UNDEFINED", "UNDEFINED") if quant is None else ("DEFINED", "SCALE_OFFSET")
    scale, offset = (0.0, 0) if quant is None else (quant.scale, -quant.zero_point)
    return {
        "definition": f"QNN_DEFINITION_{known}",
        "quantizationEncoding": f"QNN_QUANTIZATION_ENCODING_{encoding}",
        "scaleOffset": {"scale": scale, "offset": offset},
    }


# --- Our part ------------------------------------------------------------------------------------


def _plan(graph: CompiledGraph) -> dict[str, Any]:
    places = graph.places()

    def rows(names: Iterable[str]) -> list[dict[str, Any]]:
        return [_tensor_row(graph, name, places.get(name)) for name in names]

    return {
        "name": graph.name,
        "ops": len(graph.model.ops),
        "float_ops": graph.float_ops,
        "program_bytes": len(graph.program),
        "in_order": graph.in_order,
        "align": graph.align,
        "io": graph.io.value,
        "pools": _pools(graph),
        "inputs": rows(graph.inputs),
        "outputs": rows(graph.outputs),
        "states": [dict(zip(("old", "new"), rows(pair), strict=True)) for pair in graph.states],
        "windows": [asdict(window) for window in graph.windows],
        "constants": len(graph.constants),
        "buffers": [_buffer(buffer) for buffer in graph.buffers],
        "notes": list(graph.notes),
    }


def _pools(graph: CompiledGraph) -> dict[str, int]:
    ends = [buffer.offset + buffer.size for buffer in graph.buffers if buffer.pool is Pool.IO]
    pools = {"scratch": int(graph.scratch_bytes), "persistent": int(graph.persistent_bytes)}
    if graph.io is Io.OUTSIDE:
        pools["io"] = max(ends, default=0)
    # Graphs may share constants, so a stretch that several name counts once.
    stored = {(constant.offset, constant.size) for constant in graph.constants}
    return pools | {"constants": sum(size for _, size in stored)}


def _tcm(verdict: TcmVerdict | None) -> dict[str, Any] | None:
    if verdict is None:
        return None
    return {
        "fits": verdict.fits,
        "need_bytes": verdict.need,
        "limit_bytes": verdict.limit.value,
        "buffers": verdict.buffers,
        "max_buffers": verdict.max_buffers.value,
    }


def _tensor_row(graph: CompiledGraph, name: str, place: Place | None) -> dict[str, Any]:
    tensor, quant = graph.model.tensors[name], graph.quants.get(name)
    return {
        "name": name,
        "data_type": data_type(tensor.dtype, quant is not None).name,
        "shape": list(tensor.shape),
        "bytes": tensor.nbytes,
        "scale": quant.scale if quant else None,
        "zero_point": quant.zero_point if quant else None,
        "pool": place.pool.value if place else Pool.CONSTANTS.value,
        "offset": place.offset if place else None,
    }


def _buffer(buffer: PlacedBuffer) -> dict[str, Any]:
    return {
        "name": buffer.name,
        "pool": buffer.pool.value,
        "offset": buffer.offset,
        "size": buffer.size,
        "first_step": buffer.live.lower,
        "end_step": buffer.live.upper,
        "aliases": list(buffer.aliases),
    }
