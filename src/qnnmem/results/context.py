"""A context binary, nested as in qnn-context-binary-utility, with qnnmem's own fields added.

Readers of the vendor's JSON find the fields they know. The fields of qnnmem are under the key
`qnnmem`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Literal, Self

from msgspec import UNSET, Meta, Struct, UnsetType, field

from qnnmem.qnn.tensor import (
    DataTypeName,
    ScaleOffset,
    TensorDescription,
    TensorInfo,
    TensorTypeName,
)
from qnnmem.results.result import Count, Result, describe
from qnnmem.text import counted

Version = Annotated[str, Meta(pattern=r"^[0-9]+\.[0-9]+\.[0-9]+$")]
Flag = Literal[0, 1]


class ContextGraph(Struct, frozen=True, kw_only=True):
    """Fields that qnnmem adds to the description of a graph."""

    name: str
    vtcm_stored_bytes: Annotated[
        Count | None, describe("VTCM stated in the file; null if absent.")
    ] = None
    io_exact_bytes: Annotated[
        Count | None,
        describe("Bytes of inputs and outputs without padding; null for an unknown data type."),
    ] = None
    mem_types: Annotated[
        tuple[str, ...],
        describe(
            "Memory types of all inputs and outputs: raw, memhandle, retrieve_raw or undefined."
        ),
    ] = ()


class InspectedContext(Result, frozen=True, kw_only=True, tag="qnnmem.inspect-htp/1"):
    """Fields that qnnmem adds to the description of an HTP context binary."""

    format_version: Annotated[str, describe("Version of the file format.")] = ""
    file_bytes: Annotated[Count, describe("Size of the file in bytes.")]
    graphs: tuple[ContextGraph, ...]

    @property
    def summary(self) -> str:
        """Result in one line, for a history of results."""
        return counted(len(self.graphs), "graph")


# --- The vendor's part: names from qnn-context-binary-utility -------------------------------------


class VendorEncoding(Struct, frozen=True, rename="camel"):
    """The quantization encoding of a tensor; QNN adds the offset, ONNX subtracts the zero point."""

    definition: Literal["QNN_DEFINITION_DEFINED", "QNN_DEFINITION_UNDEFINED"]
    quantization_encoding: Literal[
        "QNN_QUANTIZATION_ENCODING_SCALE_OFFSET", "QNN_QUANTIZATION_ENCODING_UNDEFINED"
    ]
    # Public readers access this field without checking that it is defined.
    scale_offset: ScaleOffset

    @classmethod
    def of(cls, pair: ScaleOffset | None) -> Self:
        """Return the encoding with this scale and offset; the undefined encoding for None."""
        if pair is None:
            nothing = ScaleOffset(0.0, 0)
            return cls("QNN_DEFINITION_UNDEFINED", "QNN_QUANTIZATION_ENCODING_UNDEFINED", nothing)
        return cls("QNN_DEFINITION_DEFINED", "QNN_QUANTIZATION_ENCODING_SCALE_OFFSET", pair)


class VendorTensorInfo(  # type: ignore[misc]
    TensorDescription[TensorTypeName, DataTypeName], frozen=True, kw_only=True, rename="camel"
):
    """A tensor in the form that the vendor's tool prints."""

    data_type: DataTypeName = field(name="dataType")  # inherited fields keep their names in JSON
    data_format: Literal[0] = 0  # QNN_TENSOR_DATA_FORMAT_FLAT_BUFFER
    quantize_params: VendorEncoding | None = None
    rank: Count = 0
    mem_type: Annotated[str, Meta(pattern="^QNN_TENSORMEMTYPE_[A-Z_]+$")] | UnsetType = UNSET


class VendorTensor(Struct, frozen=True):
    """A tensor and the version of its struct."""

    info: VendorTensorInfo
    version: Literal[1] = 1

    @classmethod
    def of(cls, tensor: TensorInfo, *, with_mem_type: bool) -> Self:
        """Return a tensor as the vendor's tool prints it; LPAI binaries have no memory types."""
        return cls(
            VendorTensorInfo(
                id=tensor.id,
                name=tensor.name,
                type=tensor.type.c_name,
                data_type=tensor.data_type.c_name,
                quantize_params=VendorEncoding.of(tensor.scale_offset),
                rank=len(tensor.dimensions),
                dimensions=tensor.dimensions,
                mem_type=tensor.mem_type.c_name if with_mem_type else UNSET,
            )
        )


class BlobInfo(Struct, frozen=True, kw_only=True, rename="camel"):
    """The first record of a graph's blob; null for values that the file does not state."""

    spill_fill_buffer_size: Count | None
    vtcm_size: Annotated[Count, describe("VTCM in MB, as the vendor's tool prints it.")]
    optimization_level: Count | None
    htp_dlbc: Flag
    num_hvx_threads: Count | None


class Blob(Struct, frozen=True):
    """The first record of a graph's blob, with its version."""

    info: BlobInfo
    version: Literal[1] = 1


class BlobInfoV2(Struct, frozen=True, kw_only=True, rename="camel"):
    """The second record of a graph's blob; files of SDK 2.34 and earlier do not have it."""

    native_k_channel_size: Count | None
    native_v_channel_size: Count | None
    is_safe_share_io: Flag = field(name="isSafeShareIO")
    io_tensor_size: Count | None
    op_data_size: Count | None
    const_size: Count
    ddr_tensor_size: Count | None
    shared_weights_size: Count | None


class BlobV2(Struct, frozen=True):
    """The second record of a graph's blob, with its version."""

    info: BlobInfoV2
    version: Literal[2] = 2


class VendorGraphInfo(Struct, frozen=True, kw_only=True, rename="camel"):
    """A graph in the form that the vendor's tool prints."""

    graph_name: str
    num_graph_inputs: Count = 0
    graph_inputs: tuple[VendorTensor, ...] = ()
    num_graph_outputs: Count = 0
    graph_outputs: tuple[VendorTensor, ...] = ()
    graph_blob_info: Blob | UnsetType = UNSET
    graph_blob_info_v2: BlobV2 | UnsetType = field(default=UNSET, name="graphBlobInfoV2")

    @classmethod
    def of(
        cls,
        name: str,
        inputs: Iterable[TensorInfo],
        outputs: Iterable[TensorInfo],
        blob: Blob | UnsetType = UNSET,
        second_blob: BlobV2 | UnsetType = UNSET,
        *,
        with_mem_type: bool,
    ) -> Self:
        """Return a graph in the form that the vendor's tool prints."""
        sides = [
            tuple(VendorTensor.of(tensor, with_mem_type=with_mem_type) for tensor in side)
            for side in (inputs, outputs)
        ]
        return cls(
            graph_name=name,
            num_graph_inputs=len(sides[0]),
            graph_inputs=sides[0],
            num_graph_outputs=len(sides[1]),
            graph_outputs=sides[1],
            graph_blob_info=blob,
            graph_blob_info_v2=second_blob,
        )


class VendorGraph(Struct, frozen=True):
    """A graph and the version of its struct, which is 3 if the graph has a blob record."""

    info: VendorGraphInfo
    version: Literal[1, 3] = 1


class ContextMetadataInfo(Struct, frozen=True, rename="camel"):
    """The DSP architecture that the context was compiled for."""

    dsp_arch: Count


class ContextMetadata(Struct, frozen=True):
    """Metadata of a context, and the version of its struct."""

    info: ContextMetadataInfo
    version: Literal[1] = 1


class VendorBinaryInfo(Struct, frozen=True, kw_only=True, rename="camel"):
    """A context binary in the form that the vendor's tool prints."""

    backend_id: Annotated[Literal[6, 12], describe("Id of the backend: 6 is HTP, 12 is LPAI.")] = 6
    build_id: str = ""
    core_api_version: Version = "0.0.0"
    backend_api_version: Version = "0.0.0"
    soc_version: str = ""
    context_blob_version: Version = "0.0.0"
    context_blob_size: Count = 0
    num_context_tensors: Count = 0
    context_tensors: tuple[VendorTensor, ...] = ()
    num_graphs: Count = 0
    graphs: tuple[VendorGraph, ...] = ()
    context_metadata: ContextMetadata | UnsetType = UNSET
    soc_model: Count | UnsetType = UNSET


class ContextDocument(Struct, frozen=True, kw_only=True):
    """An HTP context binary in the vendor's nesting, with the fields of qnnmem."""

    info: VendorBinaryInfo = field(default_factory=VendorBinaryInfo)
    version: Literal[1, 3] = 1
    qnnmem: InspectedContext
