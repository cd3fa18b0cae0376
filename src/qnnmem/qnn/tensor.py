"""Tensor descriptors as QNN hands them out and takes them back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from qnnmem.qnn.enums import DataType, TensorMemType, TensorType


@dataclass(frozen=True, slots=True)
class ScaleOffset:
    """`Qnn_ScaleOffset_t`: the real value is `(integer + offset) * scale`."""

    scale: float
    offset: int


@dataclass(slots=True)
class QnnTensor:
    """`Qnn_Tensor_t`: what a tensor is, and where its bytes are in the next execution.

    The client fills in the second part, as in C: `client_buf` with anything that has the buffer
    protocol (None is NULL) or, with `mem_type` MEMHANDLE, `mem_handle`.
    """

    id: int
    name: str
    type: TensorType
    data_type: DataType
    dimensions: tuple[int, ...]
    quantize_params: ScaleOffset | None = None
    mem_type: TensorMemType = TensorMemType.RAW
    client_buf: Any = None
    data_size: int | None = None  # None: all of `client_buf`
    mem_handle: Any = None

    @property
    def nbytes(self) -> int:
        """Bytes of the tensor itself: product of dimensions times element size."""
        elements = 1
        for dimension in self.dimensions:
            elements *= dimension
        return self.data_type.nbytes(elements)
