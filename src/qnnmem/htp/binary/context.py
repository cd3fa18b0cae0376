"""What a QNN context binary of the HTP backend says about itself."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from qnnmem.qnn.enums import DataType, TensorMemType, TensorType

Version = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class HtpTensor:
    """An input, an output or a context tensor; the real value is `(integer + offset) * scale`."""

    id: int
    name: str
    type: TensorType
    data_type: DataType  # UNDEFINED for a type that is not known here
    dimensions: tuple[int, ...]
    mem_type: TensorMemType
    scale: float | None = None
    offset: int | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of the tensor itself; 0 when the data type is not known."""
        return self.data_type.nbytes(prod(self.dimensions))


@dataclass(frozen=True, slots=True)
class HtpGraph:
    """One compiled graph; sizes are bytes, None where the file does not say.

    Files of SDK 2.25 and before hold only spill/fill, those up to 2.34 nothing from `native_k` on.
    """

    name: str
    inputs: tuple[HtpTensor, ...]
    outputs: tuple[HtpTensor, ...]
    spill_fill: int | None = None
    vtcm: int | None = None  # as stored: 4 MiB also when nothing was set
    optimization_level: int | None = None
    dlbc: bool | None = None
    hvx_threads: int | None = None
    native_k: int | None = None
    native_v: int | None = None
    safe_share_io: bool | None = None
    io: int | None = None
    op_data: int | None = None
    const: int | None = None
    ddr_tensors: int | None = None
    shared_weights: int | None = None  # of the whole context, the same in each of its graphs

    @property
    def tensors(self) -> tuple[HtpTensor, ...]:
        """Inputs, then outputs."""
        return self.inputs + self.outputs

    @property
    def io_exact(self) -> int | None:
        """Bytes of inputs and outputs as they are; None where a data type is not known."""
        if any(tensor.data_type is DataType.UNDEFINED for tensor in self.tensors):
            return None
        return sum(tensor.nbytes for tensor in self.tensors)


@dataclass(frozen=True, slots=True)
class HtpContext:
    """A whole context binary except the compiled code and the weights."""

    format_version: tuple[int, int]  # of the container
    info_version: int  # of the metadata
    backend_id: int
    build_id: str
    core_api: Version
    backend_api: Version
    soc_model: int | None
    dsp_arch: int | None
    blob_version: Version
    blob_bytes: int
    graphs: tuple[HtpGraph, ...]
    context_tensors: tuple[HtpTensor, ...]
    file_bytes: int
    soc_version: str = ""
