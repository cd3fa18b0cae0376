"""What a QNN context binary of the HTP backend says about itself."""

from __future__ import annotations

from dataclasses import dataclass

from qnnmem.qnn.enums import DataType
from qnnmem.qnn.tensor import TensorInfo

Version = tuple[int, int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphRam:
    """What the compiler says one graph needs, in its log and in the binary.

    Sizes are bytes, None where the file does not say: files of SDK 2.25 and before hold only
    spill/fill, those up to 2.34 nothing else here.
    """

    spill_fill: int | None = None
    native_k: int | None = None
    native_v: int | None = None
    safe_share_io: bool | None = None
    io: int | None = None
    op_data: int | None = None
    const: int | None = None
    ddr_tensors: int | None = None
    shared_weights: int | None = None  # of the whole context, the same in each of its graphs


@dataclass(frozen=True, slots=True)
class HtpGraph(GraphRam):
    """One compiled graph."""

    name: str
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    vtcm: int | None = None  # bytes as stored: 4 MiB also when nothing was set
    optimization_level: int | None = None
    dlbc: bool | None = None
    hvx_threads: int | None = None

    @property
    def tensors(self) -> tuple[TensorInfo, ...]:
        """Inputs, then outputs."""
        return self.inputs + self.outputs

    @property
    def io_exact(self) -> int | None:
        """Bytes of inputs and outputs as they are; None where a data type is not known."""
        if any(tensor.data_type is DataType.UNDEFINED for tensor in self.tensors):
            return None
        return sum(tensor.nbytes for tensor in self.tensors)


@dataclass(frozen=True, slots=True)
class ContainerFacts:
    """What the container of a context binary says."""

    format_version: tuple[int, int]
    blob_version: Version
    blob_bytes: int
    file_bytes: int


@dataclass(frozen=True, slots=True)
class HtpContext(ContainerFacts):
    """A whole context binary except the compiled code and the weights."""

    info_version: int  # of the metadata
    backend_id: int
    build_id: str
    core_api: Version
    backend_api: Version
    soc_model: int | None
    dsp_arch: int | None
    graphs: tuple[HtpGraph, ...]
    context_tensors: tuple[TensorInfo, ...]
    soc_version: str = ""
