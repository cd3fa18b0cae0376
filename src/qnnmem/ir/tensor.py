"""Element types and tensors."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum

from qnnmem.arguments import as_whole, expect, expect_items
from qnnmem.errors import UsageError
from qnnmem.text import quote
from qnnmem.units import Bytes


class DType(Enum):
    """An element type; `bits` is its width in memory."""

    BOOL = "bool"
    INT4 = "int4"
    UINT4 = "uint4"
    INT8 = "int8"
    UINT8 = "uint8"
    INT16 = "int16"
    UINT16 = "uint16"
    INT32 = "int32"
    UINT32 = "uint32"
    INT64 = "int64"
    UINT64 = "uint64"
    FLOAT8 = "float8"
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"
    FLOAT32 = "float32"
    FLOAT64 = "float64"
    COMPLEX64 = "complex64"
    COMPLEX128 = "complex128"

    @property
    def bits(self) -> int:
        """Width of one element in bits."""
        return _BITS[self]

    @property
    def is_float(self) -> bool:
        """Whether elements are real or complex floating-point numbers."""
        return "float" in self.value or "complex" in self.value


_BITS = {
    dtype: 8 if dtype is DType.BOOL else int("".join(filter(str.isdigit, dtype.value)))
    for dtype in DType
}


_SHAPE = "a shape is a list of whole numbers"


@dataclass(frozen=True, slots=True)
class Tensor:
    """A value of fixed shape; elements below one byte are packed."""

    name: str
    dtype: DType
    shape: tuple[int, ...]

    def __post_init__(self) -> None:
        if type(self.name) is not str:
            expect(self.name, str, "a tensor's name is a text")
        if type(self.dtype) is not DType:
            raise UsageError(f"the type of a tensor is a DType, not {quote(self.dtype)}")
        if type(self.shape) is not tuple or {*map(type, self.shape)} - {int}:
            shape = expect_items(self.shape, object, _SHAPE)
            object.__setattr__(self, "shape", tuple(as_whole(size, _SHAPE) for size in shape))
        if self.shape and min(self.shape) < 0:
            raise UsageError("a shape has no numbers below 0")

    @property
    def elements(self) -> int:
        """Number of elements; a scalar has one."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> Bytes:
        """Bytes at the tensor's own width."""
        return self.nbytes_at(self.dtype.bits)

    def nbytes_at(self, bits: int) -> Bytes:
        """Bytes if every element took `bits` bits."""
        return Bytes(-(-self.elements * bits // 8))
