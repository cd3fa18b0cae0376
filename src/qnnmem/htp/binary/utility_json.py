"""A context binary of the HTP backend, nested the way qnn-context-binary-utility nests it.

Everything of ours is under the key `qnnmem`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from qnnmem.htp.binary.context import HtpContext, HtpGraph, HtpTensor, Version
from qnnmem.qnn.enums import DataType

SCHEMA = "qnnmem.inspect-htp/1"
_MIB = 1 << 20


def context_info(context: HtpContext) -> dict[str, Any]:
    """Everything about a context but compiled code and weights."""
    info: dict[str, Any] = {
        "backendId": context.backend_id,
        "buildId": context.build_id,
        "coreApiVersion": _dots(context.core_api),
        "backendApiVersion": _dots(context.backend_api),
        "socVersion": context.soc_version,
        "contextBlobVersion": _dots(context.blob_version),
        "contextBlobSize": context.blob_bytes,
        "numContextTensors": len(context.context_tensors),
        "contextTensors": _tensors(context.context_tensors),
        "numGraphs": len(context.graphs),
        "graphs": [_graph(graph) for graph in context.graphs],
    }
    if context.dsp_arch is not None:
        info["contextMetadata"] = {"info": {"dspArch": context.dsp_arch}, "version": 1}
    if context.soc_model is not None:
        info["socModel"] = context.soc_model
    ours = {
        "schema": SCHEMA,
        "format_version": ".".join(map(str, context.format_version)),
        "file_bytes": context.file_bytes,
        "graphs": [_ours(graph) for graph in context.graphs],
    }
    return {"info": info, "version": context.info_version, "qnnmem": ours}


def _graph(graph: HtpGraph) -> dict[str, Any]:
    info: dict[str, Any] = {
        "graphName": graph.name,
        "numGraphInputs": len(graph.inputs),
        "graphInputs": _tensors(graph.inputs),
        "numGraphOutputs": len(graph.outputs),
        "graphOutputs": _tensors(graph.outputs),
    }
    if graph.vtcm is None:
        return {"info": info, "version": 1}
    info["graphBlobInfo"] = {"info": _first_record(graph), "version": 1}
    if graph.const is not None:
        info["graphBlobInfoV2"] = {"info": _second_record(graph), "version": 2}
    return {"info": info, "version": 3}


def _first_record(graph: HtpGraph) -> dict[str, Any]:
    return {
        "spillFillBufferSize": graph.spill_fill,
        "vtcmSize": (graph.vtcm or 0) // _MIB,  # the vendor's tool prints it in MB
        "optimizationLevel": graph.optimization_level,
        "htpDlbc": int(bool(graph.dlbc)),
        "numHvxThreads": graph.hvx_threads,
    }


def _second_record(graph: HtpGraph) -> dict[str, Any]:
    return {
        "nativeKChannelSize": graph.native_k,
        "nativeVChannelSize": graph.native_v,
        "isSafeShareIO": int(bool(graph.safe_share_io)),
        "ioTensorSize": graph.io,
        "opDataSize": graph.op_data,
        "constSize": graph.const,
        "ddrTensorSize": graph.ddr_tensors,
        "sharedWeightsSize": graph.shared_weights,
    }


def _tensors(tensors: Iterable[HtpTensor]) -> list[dict[str, Any]]:
    return [{"info": _tensor(tensor), "version": 1} for tensor in tensors]


def _tensor(tensor: HtpTensor) -> dict[str, Any]:
    return {
        "id": tensor.id,
        "name": tensor.name,
        "type": f"QNN_TENSOR_TYPE_{tensor.type.name}",
        "dataFormat": 0,  # QNN_TENSOR_DATA_FORMAT_FLAT_BUFFER
        "dataType": f"QNN_DATATYPE_{tensor.data_type.name}",
        "quantizeParams": _encoding(tensor),
        "rank": len(tensor.dimensions),
        "dimensions": list(tensor.dimensions),
        "memType": f"QNN_TENSORMEMTYPE_{tensor.mem_type.name}",
    }


def _encoding(tensor: HtpTensor) -> dict[str, Any]:
    """Public readers look into `scaleOffset` without asking whether it is defined."""
    known = tensor.scale is not None
    definition, encoding = ("DEFINED", "SCALE_OFFSET") if known else ("UNDEFINED", "UNDEFINED")
    return {
        "definition": f"QNN_DEFINITION_{definition}",
        "quantizationEncoding": f"QNN_QUANTIZATION_ENCODING_{encoding}",
        "scaleOffset": {"scale": tensor.scale or 0.0, "offset": tensor.offset or 0},
    }


def _ours(graph: HtpGraph) -> dict[str, Any]:
    known = all(tensor.data_type is not DataType.UNDEFINED for tensor in graph.tensors)
    return {
        "name": graph.name,
        "vtcm_stored_bytes": graph.vtcm,
        "io_exact_bytes": sum(t.nbytes for t in graph.tensors) if known else None,
        "mem_types": sorted({tensor.mem_type.name.lower() for tensor in graph.tensors}),
    }


def _dots(version: Version) -> str:
    return ".".join(map(str, version))
