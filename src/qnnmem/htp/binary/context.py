"""The content of a QNN context binary of the HTP backend.

`describe_context` nests the content the way qnn-context-binary-utility does, and adds fields that
only qnnmem has.
"""

from __future__ import annotations

from typing import Final, Literal

from msgspec import UNSET, Struct

from qnnmem.qnn.enums import DataType
from qnnmem.qnn.tensor import TensorInfo
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

Version = tuple[int, int, int]
HTP_BACKEND: Final = 6  # backend id in the metadata
LPAI_BACKEND: Final = 12  # backend id; only the description of LPAI binaries has a public format
_MIB = 1 << 20


class GraphRam(Struct, frozen=True, kw_only=True):
    """The memory needs of one graph, as the compiler logs them and stores them in the binary.

    Sizes are in bytes; None for sizes that the file does not state. Files of SDK
    2.34 and older state only spill/fill.
    """

    spill_fill: int | None = None
    native_k: int | None = None
    native_v: int | None = None
    safe_share_io: bool | None = None
    io: int | None = None
    op_data: int | None = None
    const: int | None = None
    ddr_tensors: int | None = None
    shared_weights: int | None = None  # of the whole context, equal in all its graphs


class HtpGraph(GraphRam, frozen=True):
    """A compiled graph."""

    name: str
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    vtcm: int | None = None  # bytes as stored; 4 MiB is also the value of an unset option
    optimization_level: int | None = None
    dlbc: bool | None = None
    hvx_threads: int | None = None

    @property
    def tensors(self) -> tuple[TensorInfo, ...]:
        """All inputs, then all outputs."""
        return self.inputs + self.outputs

    @property
    def io_exact(self) -> int | None:
        """Bytes of inputs and outputs without rounding; None if a data type is unknown."""
        if any(tensor.data_type is DataType.UNDEFINED for tensor in self.tensors):
            return None
        return sum(tensor.nbytes for tensor in self.tensors)


class ContainerFacts(Struct, frozen=True):
    """The facts stored in the container of a context binary."""

    format_version: tuple[int, int]
    blob_version: Version
    blob_bytes: int
    file_bytes: int


class HtpContext(ContainerFacts, frozen=True):
    """A whole context binary except the compiled code and the weights."""

    info_version: int  # version of the metadata
    build_id: str
    core_api: Version
    backend_api: Version
    soc_model: int | None
    dsp_arch: int | None
    graphs: tuple[HtpGraph, ...]
    context_tensors: tuple[TensorInfo, ...]
    soc_version: str = ""
    backend_id: Literal[6, 12] = HTP_BACKEND


# --- The same as qnn-context-binary-utility describes it ------------------------------------------


def describe_context(context: HtpContext) -> ContextDocument:
    """Return a description of a context without compiled code and weights."""
    arch = context.dsp_arch
    info = VendorBinaryInfo(
        backend_id=context.backend_id,
        build_id=context.build_id,
        core_api_version=dotted(context.core_api),
        backend_api_version=dotted(context.backend_api),
        soc_version=context.soc_version,
        context_blob_version=dotted(context.blob_version),
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
        format_version=dotted(context.format_version),
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


def dotted(version: tuple[int, ...]) -> str:
    """Return a version as text: `2.3`."""
    return ".".join(map(str, version))
