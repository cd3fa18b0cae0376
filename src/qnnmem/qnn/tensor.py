"""QNN tensors: their descriptions, and the descriptors that clients fill in."""

from __future__ import annotations

from math import prod
from typing import Annotated, Any, Generic, TypeVar

from msgspec import Meta, Struct

from qnnmem.qnn.enums import DataType, TensorMemType, TensorType
from qnnmem.units import MAX_RANK

SCALE_OFFSET, AXIS_SCALE_OFFSET, BITS_SCALE_OFFSET, BITS_AXIS_SCALE_OFFSET = range(4)  # encodings

Size = Annotated[int, Meta(ge=0, lt=1 << 32)]
Kind = TypeVar("Kind")
Type = TypeVar("Type")
# Names of enum members in JSON.
TensorTypeName = Annotated[str, Meta(pattern="^QNN_TENSOR_TYPE_[A-Z_]+$")]
DataTypeName = Annotated[str, Meta(pattern="^QNN_DATATYPE_[A-Z0-9_]+$")]


class ScaleOffset(Struct, frozen=True):
    """`Qnn_ScaleOffset_t`: the real value is `(integer + offset) * scale`."""

    scale: float
    offset: int


class Quantization(Struct, frozen=True):
    """`Qnn_QuantizeParams_t`: real = (stored + offset) * scale, for the tensor or along an axis.

    Unsupported encodings have no scales.
    """

    encoding: Annotated[Size, Meta(description="QNN's number for the encoding.")]
    scales: tuple[float, ...] = ()
    offsets: tuple[int, ...] = ()
    axis: Annotated[
        int | None,
        Meta(description="Axis of the scales; null if one scale applies to all elements."),
    ] = None
    bits: Annotated[
        Size | None, Meta(description="Number of bits that are used, if fewer than the type has.")
    ] = None

    @property
    def scale_offset(self) -> ScaleOffset | None:
        """The scale and offset if there is exactly one pair; else None."""
        if len(self.scales) == len(self.offsets) == 1:
            return ScaleOffset(self.scales[0], self.offsets[0])
        return None


class TensorDescription(Struct, Generic[Kind, Type]):
    """Base of tensor descriptions; JSON shows the tensor type and the data type by their C names.

    Descriptions are frozen, except for `QnnTensor`, which clients fill in. msgspec allows frozen
    and mutable classes in one hierarchy, but mypy reports an error.
    """

    id: Size
    name: str
    type: Kind
    data_type: Type
    dimensions: Annotated[tuple[Size, ...], Meta(max_length=MAX_RANK)]

    @property
    def nbytes(self: TensorDescription[Any, DataType]) -> int:
        """Size of the tensor in bytes; 0 for an unknown data type."""
        return self.data_type.nbytes(prod(self.dimensions))


class TensorInfo(TensorDescription[TensorType, DataType], frozen=True):  # type: ignore[misc]
    """A tensor of a graph or of a context, as a file or a client describes it."""

    quantization: Quantization | None = None
    mem_type: TensorMemType = TensorMemType.RAW

    @property
    def scale_offset(self) -> ScaleOffset | None:
        """The scale and offset if there is exactly one pair; else None."""
        return None if self.quantization is None else self.quantization.scale_offset


class QnnTensor(TensorDescription[TensorType, DataType]):
    """`Qnn_Tensor_t`: the description of a tensor, and its memory in the next execution.

    The client fills in the memory, as in C: `client_buf` with any object that has the buffer
    protocol (None is NULL) or, with `mem_type` MEMHANDLE, `mem_handle`.
    """

    quantize_params: ScaleOffset | None = None
    mem_type: TensorMemType = TensorMemType.RAW
    client_buf: Any = None
    data_size: int | None = None  # None: all of `client_buf`
    mem_handle: Any = None

    @classmethod
    def of(cls, tensor: TensorInfo) -> QnnTensor:
        """Return a descriptor for a tensor, without memory."""
        return cls(
            *(tensor.id, tensor.name, tensor.type, tensor.data_type, tensor.dimensions),
            quantize_params=tensor.scale_offset,
            mem_type=tensor.mem_type,
        )
