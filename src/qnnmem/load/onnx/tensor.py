"""Element types, stored tensors and external data of ONNX files."""

from __future__ import annotations

import math
import os
import stat
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import TYPE_CHECKING, NamedTuple

from qnnmem.errors import LoadError
from qnnmem.ir import DType, Tensor
from qnnmem.text import quote
from qnnmem.units import MAX_BYTES

if TYPE_CHECKING:
    import onnx

STRING = 8
EXTERNAL = 1
MAX_DIM = 1 << 40
_MAX_RANK = 64

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
_INT64, _UINT32, _UINT64, _FLOAT64 = 7, 12, 13, 11
_COMPLEX64, _COMPLEX128 = 14, 15


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


def check_shape(path: Path, name: str, shape: tuple[int, ...], dtype: DType) -> None:
    """Raise LoadError unless every dimension and the size are within bounds."""
    if len(shape) > _MAX_RANK:
        raise LoadError(path, f"tensor {quote(name)} has {len(shape)} dimensions, too many")
    for dim in shape:
        if not 0 <= dim < MAX_DIM:
            raise LoadError(path, f"tensor {quote(name)} has dimension {quote(dim)}, out of range")
    if Tensor(name, dtype, shape).nbytes > MAX_BYTES:
        raise LoadError(path, f"tensor {quote(name)} takes more than {MAX_BYTES:,} bytes")


def check_stored(path: Path, tensor: onnx.TensorProto) -> None:
    """Raise LoadError unless a stored tensor's data agrees with its shape."""
    if tensor.data_type == STRING:
        _check_strings(path, tensor)
        return
    dtype = DTYPES.get(tensor.data_type)
    if dtype is None:
        kind = quote(tensor.data_type)
        raise LoadError(path, f"tensor {quote(tensor.name)} has element type {kind}, not handled")
    if tensor.HasField("segment"):
        raise LoadError(path, f"tensor {quote(tensor.name)} is stored in segments, not handled")
    shape = tuple(tensor.dims)
    check_shape(path, tensor.name, shape, dtype)
    need = Tensor(tensor.name, dtype, shape).nbytes
    if tensor.data_location == EXTERNAL:
        _check_external(path, tensor, need)
    elif tensor.HasField("raw_data"):
        _expect(path, tensor.name, "bytes", len(tensor.raw_data), need)
    else:
        have, want = _typed_count(tensor, math.prod(shape))
        _expect(path, tensor.name, "values", have, want)


def _expect(path: Path, name: str, what: str, have: int, want: int) -> None:
    if have != want:
        raise LoadError(
            path, f"tensor {quote(name)} stores {have:,} {what}, its shape asks for {want:,}"
        )


def _check_strings(path: Path, tensor: onnx.TensorProto) -> None:
    shape = tuple(tensor.dims)
    check_shape(path, tensor.name, shape, DType.UINT8)
    _expect(path, tensor.name, "strings", len(tensor.string_data), math.prod(shape))


def _typed_count(tensor: onnx.TensorProto, elements: int) -> tuple[int, int]:
    kind = tensor.data_type
    if kind in (1, _COMPLEX64):
        return len(tensor.float_data), elements * (2 if kind == _COMPLEX64 else 1)
    if kind in (_FLOAT64, _COMPLEX128):
        return len(tensor.double_data), elements * (2 if kind == _COMPLEX128 else 1)
    if kind == _INT64:
        return len(tensor.int64_data), elements
    if kind in (_UINT32, _UINT64):
        return len(tensor.uint64_data), elements
    if DTYPES[kind].bits == 4:
        return len(tensor.int32_data), -(-elements // 2)
    return len(tensor.int32_data), elements


def _check_external(path: Path, tensor: onnx.TensorProto, need: int) -> None:
    entries = {entry.key: entry.value for entry in tensor.external_data}
    what = f"external data of tensor {quote(tensor.name)}"
    file = _inside(path, entries.get("location", ""), what)
    offset, length = (_count(path, entries, key, what) for key in ("offset", "length"))
    if length is not None:
        _expect(path, tensor.name, "external bytes", length, need)
    size = _regular_size(path, file, what)
    if (offset or 0) + need > size:
        short = quote(entries["location"])
        raise LoadError(
            path, f"{what} ends at byte {(offset or 0) + need:,}, but {short} holds {size:,}"
        )


def _count(path: Path, entries: dict[str, str], key: str, what: str) -> int | None:
    text = entries.get(key)
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise LoadError(path, f"{what} has {key} {quote(text)}, not a number of bytes")
    return int(text)


def _inside(path: Path, location: str, what: str) -> Path:
    if not location or "\0" in location or len(location) > 4096:
        raise LoadError(path, f"{what} names no usable file")
    # Absolute on either system: the same model file must be judged alike everywhere.
    if PurePosixPath(location).is_absolute() or PureWindowsPath(location).anchor:
        raise LoadError(path, f"{what} is at {quote(location)}, an absolute path, which is refused")
    try:
        folder = path.parent.resolve()
        file = (folder / location).resolve()
    except (OSError, RuntimeError) as exc:
        raise LoadError(path, f"{what} at {quote(location)} cannot be resolved") from exc
    if not file.is_relative_to(folder):
        raise LoadError(
            path, f"{what} is at {quote(location)}, outside the model's folder, which is refused"
        )
    return file


def _regular_size(path: Path, file: Path, what: str) -> int:
    try:
        status = os.stat(file)  # noqa: PTH116  one call gives both kind and size
    except (OSError, ValueError) as exc:
        name = quote(file.name)
        raise LoadError(
            path, f"{what} is missing: no file {name} could be opened next to the model"
        ) from exc
    if not stat.S_ISREG(status.st_mode):
        raise LoadError(path, f"{what} is in {quote(file.name)}, which is not an ordinary file")
    return status.st_size
