"""A context binary as qnn-context-binary-utility describes it, with ours inside."""

from __future__ import annotations

from msgspec import UNSET

from qnnmem.htp.binary.context import HtpContext, HtpGraph, Version
from qnnmem.results.context import (
    Blob,
    BlobInfo,
    BlobInfoV2,
    BlobV2,
    ContextDocument,
    ContextGraph,
    ContextMetadata,
    ContextMetadataInfo,
    InspectedContext,
    VendorBinaryInfo,
    VendorGraph,
    VendorGraphInfo,
    VendorTensor,
)

_MIB = 1 << 20


def describe_context(context: HtpContext) -> ContextDocument:
    """Everything about a context except compiled code and weights."""
    arch = context.dsp_arch
    info = VendorBinaryInfo(
        backend_id=context.backend_id,  # type: ignore[arg-type]  # readers refuse others
        build_id=context.build_id,
        core_api_version=_dots(context.core_api),
        backend_api_version=_dots(context.backend_api),
        soc_version=context.soc_version,
        context_blob_version=_dots(context.blob_version),
        context_blob_size=context.blob_bytes,
        num_context_tensors=len(context.context_tensors),
        context_tensors=tuple(
            VendorTensor.of(tensor, with_mem_type=True) for tensor in context.context_tensors
        ),
        num_graphs=len(context.graphs),
        graphs=tuple(map(_graph, context.graphs)),
        context_metadata=UNSET if arch is None else ContextMetadata(ContextMetadataInfo(arch)),
        soc_model=UNSET if context.soc_model is None else context.soc_model,
    )
    ours = InspectedContext(
        format_version=".".join(map(str, context.format_version)),
        file_bytes=context.file_bytes,
        graphs=tuple(map(_our_graph, context.graphs)),
    )
    return ContextDocument(info=info, version=3 if context.info_version == 3 else 1, qnnmem=ours)


def _graph(graph: HtpGraph) -> VendorGraph:
    info = VendorGraphInfo.of(
        graph.name,
        graph.inputs,
        graph.outputs,
        UNSET if graph.vtcm is None else Blob(_first_record(graph)),
        UNSET
        if graph.vtcm is None or graph.const is None
        else BlobV2(_second_record(graph, graph.const)),
        with_mem_type=True,
    )
    return VendorGraph(info, 1 if graph.vtcm is None else 3)


def _first_record(graph: HtpGraph) -> BlobInfo:
    return BlobInfo(
        spill_fill_buffer_size=graph.spill_fill,
        vtcm_size=(graph.vtcm or 0) // _MIB,  # the vendor's tool prints it in MB
        optimization_level=graph.optimization_level,
        htp_dlbc=1 if graph.dlbc else 0,
        num_hvx_threads=graph.hvx_threads,
    )


def _second_record(graph: HtpGraph, const: int) -> BlobInfoV2:
    return BlobInfoV2(
        native_k_channel_size=graph.native_k,
        native_v_channel_size=graph.native_v,
        is_safe_share_io=1 if graph.safe_share_io else 0,
        io_tensor_size=graph.io,
        op_data_size=graph.op_data,
        const_size=const,
        ddr_tensor_size=graph.ddr_tensors,
        shared_weights_size=graph.shared_weights,
    )


def _our_graph(graph: HtpGraph) -> ContextGraph:
    return ContextGraph(
        name=graph.name,
        vtcm_stored_bytes=graph.vtcm,
        io_exact_bytes=graph.io_exact,
        mem_types=tuple(sorted({tensor.mem_type.name.lower() for tensor in graph.tensors})),
    )


def _dots(version: Version) -> str:
    return ".".join(map(str, version))
