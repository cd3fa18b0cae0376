"""Tensors of QNN, and the descriptors that clients fill in."""

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
# Members of both enums as JSON names them.
TensorTypeName = Annotated[str, Meta(pattern="^QNN_TENSOR_TYPE_[A-Z_]+$")]
DataTypeName = Annotated[str, Meta(pattern="^QNN_DATATYPE_[A-Z0-9_]+$")]


class ScaleOffset(Struct, frozen=True):
    """`Qnn_ScaleOffset_t`: the real value is `(integer + offset) * scale`."""

    scale: float
    offset: int


class Quantization(Struct, frozen=True):
    """`Qnn_QuantizeParams_t`: real = (stored + offset) * scale, for the tensor or along an axis.

    Encodings that are not read have no scales.
    """

    encoding: Annotated[Size, Meta(description="QNN's number of the encoding.")]
    scales: tuple[float, ...] = ()
    offsets: tuple[int, ...] = ()
    axis: Annotated[int | None, Meta(description="Axis of the scales; null: one for all.")] = None
    bits: Annotated[
        Size | None, Meta(description="Bits that count, where fewer than the type has.")
    ] = None

    @property
    def scale_offset(self) -> ScaleOffset | None:
        """The encoding of the whole tensor, if one pair is."""
        if len(self.scales) == len(self.offsets) == 1:
            return ScaleOffset(self.scales[0], self.offsets[0])
        return None


class TensorDescription(Struct, Generic[Kind, Type]):
    """What every description of a tensor has; in JSON both types are their names in C.

    Descriptions are frozen, but for the one that clients fill in. msgspec allows that, while mypy
    takes it for a mistake.
    """

    id: Size
    name: str
    type: Kind
    data_type: Type
    dimensions: Annotated[tuple[Size, ...], Meta(max_length=MAX_RANK)]

    @property
    def nbytes(self: TensorDescription[Any, DataType]) -> int:
        """Bytes of the tensor itself; 0 when the data type is not known."""
        return self.data_type.nbytes(prod(self.dimensions))


class TensorInfo(TensorDescription[TensorType, DataType], frozen=True):  # type: ignore[misc]
    """A tensor of a graph or of a context, as a file or a client describes it."""

    quantization: Quantization | None = None
    mem_type: TensorMemType = TensorMemType.RAW

    @property
    def scale_offset(self) -> ScaleOffset | None:
        """Scale and offset of all elements; None where there are none, or several."""
        return None if self.quantization is None else self.quantization.scale_offset


class QnnTensor(TensorDescription[TensorType, DataType]):
    """`Qnn_Tensor_t`: what a tensor is, and where its bytes are in the next execution.

    The client fills in the second part, as in C: `client_buf` with anything that has the buffer
    protocol (None is NULL) or, with `mem_type` MEMHANDLE, `mem_handle`.
    """

    quantize_params: ScaleOffset | None = None
    mem_type: TensorMemType = TensorMemType.RAW
    client_buf: Any = None
    data_size: int | None = None  # None: all of `client_buf`
    mem_handle: Any = None

    @classmethod
    def of(cls, tensor: TensorInfo) -> QnnTensor:
        """Return the descriptor of a tensor, without memory."""
        return cls(
            *(tensor.id, tensor.name, tensor.type, tensor.data_type, tensor.dimensions),
            quantize_params=tensor.scale_offset,
            mem_type=tensor.mem_type,
        )
