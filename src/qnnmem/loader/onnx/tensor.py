"""Element types and shapes of ONNX files."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from qnnmem.deadline import ask_deadline
from qnnmem.errors import LoadError
from qnnmem.ir import DType, Tensor
from qnnmem.text import quote
from qnnmem.units import MAX_BYTES, MAX_RANK

if TYPE_CHECKING:
    import onnx

STRING = 8
EXTERNAL = 1
MAX_DIM = 1 << 40

# TensorProto.DataType to ours.
DTYPES = {
    1: DType.FLOAT32,
    2: DType.UINT8,
    3: DType.INT8,
    4: DType.UINT16,
    5: DType.INT16,
    6: DType.INT32,
    7: DType.INT64,
    9: DType.BOOL,
    10: DType.FLOAT16,
    11: DType.FLOAT64,
    12: DType.UINT32,
    13: DType.UINT64,
    14: DType.COMPLEX64,
    15: DType.COMPLEX128,
    16: DType.BFLOAT16,
    **dict.fromkeys((17, 18, 19, 20, 24), DType.FLOAT8),
    21: DType.UINT4,
    22: DType.INT4,
}


class OnnxType(NamedTuple):
    """ONNX's number of an element type (0 when unknown) and, once static, a shape."""

    elem: int
    shape: tuple[int, ...] | None

    @property
    def is_static(self) -> bool:
        """Whether a buffer of this type has a size."""
        return self.elem != 0 and self.shape is not None


UNKNOWN = OnnxType(0, None)


def type_of(info: onnx.ValueInfoProto) -> OnnxType | None:
    """Type a value info states; None for sequences, maps and optionals."""
    ask_deadline()  # here because every walk over the inputs of a file comes by
    kind = info.type.WhichOneof("value")
    if kind is None:
        return UNKNOWN
    if kind != "tensor_type":
        return None
    tensor = info.type.tensor_type
    if not tensor.HasField("shape"):
        return OnnxType(tensor.elem_type, None)
    sizes = [dim.dim_value if dim.HasField("dim_value") else -1 for dim in tensor.shape.dim]
    return OnnxType(tensor.elem_type, tuple(sizes) if min(sizes, default=0) >= 0 else None)


def value_info(name: str, kind: OnnxType) -> onnx.ValueInfoProto:
    """Value info that states a type; the opposite of `type_of`."""
    import onnx

    info = onnx.ValueInfoProto(name=name)
    info.type.tensor_type.elem_type = kind.elem
    if kind.shape is not None:
        info.type.tensor_type.shape.SetInParent()
        for size in kind.shape:
            info.type.tensor_type.shape.dim.add().dim_value = size
    return info


def by_sizes(shape: Iterable[int | str]) -> str:
    """A shape as a caller writes it."""
    return "x".join(map(str, shape)) or "scalar"


def check_shape(path: Path, name: str, shape: tuple[int, ...], dtype: DType) -> None:
    """Raise LoadError unless every dimension and the size are within bounds."""
    if len(shape) > MAX_RANK:
        raise LoadError(path, f"tensor {quote(name)} has more than {MAX_RANK} dimensions")
    for dim in shape:
        if not 0 <= dim < MAX_DIM:
            raise LoadError(path, f"tensor {quote(name)} has dimension {quote(dim)}, out of range")
    if Tensor(name, dtype, shape).nbytes > MAX_BYTES:
        raise LoadError(path, f"tensor {quote(name)} takes more than {MAX_BYTES:,} bytes")
