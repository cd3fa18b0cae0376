"""A QNN context binary of the HTP backend as text and as JSON, schema `qnnmem.inspect-htp/1`.

The JSON is nested the way qnn-context-binary-utility nests it, so that its readers can read it;
everything of ours, the schema too, is under the key `qnnmem`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from qnnmem.htp.binary.context import HtpContext, HtpGraph, HtpTensor, Version
from qnnmem.report.shell import file_word, next_line
from qnnmem.results.schema import write_json
from qnnmem.text import counted, shorten
from qnnmem.units import format_size

SCHEMA = "qnnmem.inspect-htp/1"
SHOWN = 20  # tensors of one kind; --json has them all
_MIB = 1 << 20


def render_text(context: HtpContext, path: str) -> str:
    """The whole text; names are made safe to print."""
    return "\n".join(_lines(context, path)) + "\n"


def _lines(context: HtpContext, path: str) -> Iterator[str]:
    count = len(context.graphs)
    what = f"{count} graph{'' if count == 1 else 's'}"
    soc = "no SoC named" if context.soc_model is None else f"soc_model {context.soc_model}"
    arch = "" if context.dsp_arch is None else f", Hexagon v{context.dsp_arch}"
    yield f"QNN context binary: {what}, {soc}{arch}, by QAIRT {shorten(context.build_id)}"
    size = f"{counted(context.file_bytes, 'byte')} ({format_size(context.file_bytes)})"
    core = ".".join(map(str, context.core_api))
    yield f"{shorten(path, 200)}: {size}, backend {context.backend_id}, core API {core}"
    for graph in context.graphs:
        yield ""
        yield from _graph_lines(graph)
    yield ""
    yield next_line("the memory bill", ["qnnmem", "footprint", file_word(path)])


def _graph_lines(graph: HtpGraph) -> Iterator[str]:
    yield f"graph {shorten(graph.name)}"
    sizes = (
        *(("weights", graph.const), ("shared weights", graph.shared_weights), ("IO", graph.io)),
        *(("op data", graph.op_data), ("DDR tensors", graph.ddr_tensors)),
        *(("spill/fill", graph.spill_fill), ("VTCM as stored", graph.vtcm)),
    )
    for name, size in sizes:
        shown = "not in the file" if size is None else counted(size, "byte")
        yield f"  {name:<15}{shown:>22}"
    for kind, tensors in (("inputs", graph.inputs), ("outputs", graph.outputs)):
        yield f"  {kind}:" if tensors else f"  {kind}: none"
        yield from (f"    {_tensor_line(tensor)}" for tensor in tensors[:SHOWN])
        if len(tensors) > SHOWN:
            yield f"    and {len(tensors) - SHOWN} more; --json has them all"


def _tensor_line(tensor: HtpTensor) -> str:
    shape = "x".join(map(str, tensor.dimensions)) or "scalar"
    quant = ""
    if tensor.scale is not None and tensor.offset is not None:
        quant = f", scale {tensor.scale:.6g} offset {tensor.offset}"
    what = f"{tensor.data_type.name} {shape}, {counted(tensor.nbytes, 'byte')}{quant}"
    return f"{shorten(tensor.name)}  {what}, {tensor.mem_type.name.lower()}"


def render_json(context: HtpContext) -> str:
    """One JSON object."""
    return write_json(as_values(context))


def as_values(context: HtpContext) -> dict[str, Any]:
    """Everything about a context except compiled code and weights."""
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
    return {
        "name": graph.name,
        "vtcm_stored_bytes": graph.vtcm,
        "io_exact_bytes": graph.io_exact,
        "mem_types": sorted({tensor.mem_type.name.lower() for tensor in graph.tensors}),
    }


def _dots(version: Version) -> str:
    return ".".join(map(str, version))
