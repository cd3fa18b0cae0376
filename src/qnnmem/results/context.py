"""A context binary for HTP: nested the way qnn-context-binary-utility nests it, ours inside.

Readers of the vendor's JSON find what they know; everything of ours is under the key `qnnmem`.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType, field

from qnnmem.results.inspect import VendorEncoding
from qnnmem.results.result import Count, Result, describe
from qnnmem.text import counted

Version = Annotated[str, Meta(pattern=r"^[0-9]+\.[0-9]+\.[0-9]+$")]
Flag = Literal[0, 1]


class ContextGraph(Struct, frozen=True, kw_only=True):
    """What is ours about a graph."""

    name: str
    vtcm_stored_bytes: Annotated[
        Count | None, describe("VTCM as the file states it; null where it does not.")
    ] = None
    io_exact_bytes: Annotated[
        Count | None, describe("Inputs and outputs as they are; null for an unknown data type.")
    ] = None
    mem_types: Annotated[
        tuple[str, ...], describe("raw, memhandle, retrieve_raw or undefined, of all tensors.")
    ] = ()


class InspectedContext(Result, frozen=True, kw_only=True, tag="qnnmem.inspect-htp/1"):
    """What is ours about a context binary for HTP."""

    format_version: Annotated[str, describe("Version of the container.")] = ""
    file_bytes: Annotated[Count, describe("Size of the file in bytes.")]
    graphs: tuple[ContextGraph, ...]

    @property
    def summary(self) -> str:
        """One line for a history of results."""
        return counted(len(self.graphs), "graph")


# --- The vendor's part ---------------------------------------------------------------------------


class ContextTensorInfo(Struct, frozen=True, kw_only=True, rename="camel"):
    """A tensor as the vendor's tool describes it."""

    id: Count = 0
    name: str
    type: Annotated[str, Meta(pattern="^QNN_TENSOR_TYPE_[A-Z_]+$")] = "QNN_TENSOR_TYPE_UNDEFINED"
    data_format: Literal[0] = 0  # QNN_TENSOR_DATA_FORMAT_FLAT_BUFFER
    data_type: Annotated[str, Meta(pattern="^QNN_DATATYPE_[A-Z0-9_]+$")]
    quantize_params: VendorEncoding | None = None
    rank: Count = 0
    dimensions: tuple[Count, ...] = ()
    mem_type: Annotated[str, Meta(pattern="^QNN_TENSORMEMTYPE_[A-Z_]+$")] = (
        "QNN_TENSORMEMTYPE_UNDEFINED"
    )


class ContextTensor(Struct, frozen=True):
    """A tensor and the version of its struct."""

    info: ContextTensorInfo
    version: Literal[1] = 1


class BlobInfo(Struct, frozen=True, kw_only=True, rename="camel"):
    """The first record of a graph's blob; null where the file does not say."""

    spill_fill_buffer_size: Count | None
    vtcm_size: Annotated[Count, describe("In MB, as the vendor's tool prints it.")]
    optimization_level: Count | None
    htp_dlbc: Flag
    num_hvx_threads: Count | None


class Blob(Struct, frozen=True):
    """The first record and its version."""

    info: BlobInfo
    version: Literal[1] = 1


class BlobInfoV2(Struct, frozen=True, kw_only=True, rename="camel"):
    """The second record, which files of SDK 2.34 and before lack."""

    native_k_channel_size: Count | None
    native_v_channel_size: Count | None
    is_safe_share_io: Flag = field(name="isSafeShareIO")
    io_tensor_size: Count | None
    op_data_size: Count | None
    const_size: Count
    ddr_tensor_size: Count | None
    shared_weights_size: Count | None


class BlobV2(Struct, frozen=True):
    """The second record and its version."""

    info: BlobInfoV2
    version: Literal[2] = 2


class ContextGraphInfo(Struct, frozen=True, kw_only=True, rename="camel"):
    """A graph as the vendor's tool describes it."""

    graph_name: str
    num_graph_inputs: Count = 0
    graph_inputs: tuple[ContextTensor, ...] = ()
    num_graph_outputs: Count = 0
    graph_outputs: tuple[ContextTensor, ...] = ()
    graph_blob_info: Blob | UnsetType = UNSET
    graph_blob_info_v2: BlobV2 | UnsetType = field(default=UNSET, name="graphBlobInfoV2")


class GraphEntry(Struct, frozen=True):
    """A graph and the version of its struct: 3 with a record of its blob."""

    info: ContextGraphInfo
    version: Literal[1, 3] = 1


class ContextMetadataInfo(Struct, frozen=True, rename="camel"):
    """What the context was compiled for."""

    dsp_arch: Count


class ContextMetadata(Struct, frozen=True):
    """Metadata and their version."""

    info: ContextMetadataInfo
    version: Literal[1] = 1


class ContextInfo(Struct, frozen=True, kw_only=True, rename="camel"):
    """A context as the vendor's tool describes it."""

    backend_id: Literal[6] = 6  # HTP
    build_id: str = ""
    core_api_version: Version = "0.0.0"
    backend_api_version: Version = "0.0.0"
    soc_version: str = ""
    context_blob_version: Version = "0.0.0"
    context_blob_size: Count = 0
    num_context_tensors: Count = 0
    context_tensors: tuple[ContextTensor, ...] = ()
    num_graphs: Count = 0
    graphs: tuple[GraphEntry, ...] = ()
    context_metadata: ContextMetadata | UnsetType = UNSET
    soc_model: Count | UnsetType = UNSET


class ContextDocument(Struct, frozen=True, kw_only=True):
    """A context binary for HTP with the vendor's nesting around what is ours."""

    info: ContextInfo = field(default_factory=ContextInfo)
    version: Literal[1, 3] = 1
    qnnmem: InspectedContext
