"""Tensors of ONNX files: element types, shapes, stored values and external data."""

from __future__ import annotations

import math
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from qnnmem.bounded_file import file_below, read_range
from qnnmem.deadline import ask_deadline
from qnnmem.errors import Damaged, LoadError
from qnnmem.ir import DType, Tensor
from qnnmem.loader.onnx.graph import attribute_graphs
from qnnmem.text import quote
from qnnmem.units import MAX_BYTES, MAX_RANK

if TYPE_CHECKING:
    import onnx

STRING = 8
EXTERNAL = 1
MAX_DIM = 1 << 40

# Element types by TensorProto.DataType.
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
    """The ONNX number of an element type (0 if unknown), and a shape (None unless static)."""

    elem: int
    shape: tuple[int, ...] | None

    @property
    def is_static(self) -> bool:
        """True if the size of a tensor of this type is known."""
        return self.elem != 0 and self.shape is not None


UNKNOWN = OnnxType(0, None)


def type_of(info: onnx.ValueInfoProto) -> OnnxType | None:
    """Return the type of a value info; None for sequences, maps and optionals."""
    ask_deadline()  # here, because every loop over the inputs of a file calls it
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
    """Return a value info with this type; the inverse of `type_of`."""
    import onnx

    info = onnx.ValueInfoProto(name=name)
    info.type.tensor_type.elem_type = kind.elem
    if kind.shape is not None:
        info.type.tensor_type.shape.SetInParent()
        for size in kind.shape:
            info.type.tensor_type.shape.dim.add().dim_value = size
    return info


def stored_type(tensor: onnx.TensorProto) -> OnnxType:
    """Return the type of a stored tensor."""
    return OnnxType(tensor.data_type, tuple(tensor.dims))


def check_shape(path: Path, name: str, shape: tuple[int, ...], dtype: DType) -> None:
    """Raise LoadError unless every dimension and the size are within bounds."""
    if len(shape) > MAX_RANK:
        raise LoadError(path, f"tensor {quote(name)} has more than {MAX_RANK} dimensions")
    for dim in shape:
        if not 0 <= dim < MAX_DIM:
            raise LoadError(path, f"tensor {quote(name)} has an invalid dimension: {quote(dim)}")
    if Tensor(name, dtype, shape).nbytes > MAX_BYTES:
        raise LoadError(path, f"tensor {quote(name)} takes more than {MAX_BYTES:,} bytes")


# Types whose values in int32_data are bit patterns, not numbers.
_PATTERNS = frozenset({DType.FLOAT16, DType.BFLOAT16, DType.FLOAT8})
_TYPED = ("float_data", "int32_data", "string_data", "int64_data", "double_data", "uint64_data")
_ENTRIES = frozenset({"location", "offset", "length", "checksum"})
# A location that denotes an address in the memory of onnxruntime's process.
_ADDRESS = "_ORT_MEM_ADDR_"


def _attributes(model: onnx.ModelProto) -> Iterator[onnx.AttributeProto]:
    """Yield every attribute in a model: those of nodes at any depth, and function defaults."""
    yield from _with_inner(node.attribute for node in model.graph.node)
    for function in model.functions:
        yield from _with_inner(node.attribute for node in function.node)
        yield from _with_inner([function.attribute_proto])


def _with_inner(
    groups: Iterable[Iterable[onnx.AttributeProto]],
) -> Iterator[onnx.AttributeProto]:
    """Yield attributes, each before the attributes of the nodes in its graphs."""
    # The wire check bounded the depth, so plain recursion is safe.
    for group in groups:
        for item in group:
            yield item
            for graph in attribute_graphs(item):
                yield from _with_inner(node.attribute for node in graph.node)


def count_tensors(graph: onnx.GraphProto) -> int:
    """Return the number of values in a graph: inputs, weights and node outputs."""
    names = {item.name for item in (*graph.input, *graph.initializer)}
    names |= {name for node in graph.node for name in node.output if name}
    return len(names)


def tensors(model: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """Yield every stored tensor in a model, without the parts of sparse tensors."""
    yield from model.graph.initializer
    for item in _attributes(model):
        if item.HasField("t"):
            yield item.t
        yield from item.tensors
        for body in attribute_graphs(item):
            yield from body.initializer


def check_data(path: Path, model: onnx.ModelProto) -> None:
    """Check every stored tensor of a decoded model, and remove fields that do not apply to it.

    Raise LoadError unless the data of a tensor agrees with its shape, and is in the model's file or
    below the model's folder.
    """
    _refuse_sparse(path, model)
    for tensor in tensors(model):
        check_stored(path, tensor)


def _refuse_sparse(path: Path, model: onnx.ModelProto) -> None:
    if model.graph.sparse_initializer or any(map(_is_sparse, _attributes(model))):
        raise LoadError(path, "contains sparse tensors, which are not supported")


def _is_sparse(item: onnx.AttributeProto) -> bool:
    if item.HasField("sparse_tensor") or item.sparse_tensors:
        return True
    return any(body.sparse_initializer for body in attribute_graphs(item))


def check_stored(path: Path, tensor: onnx.TensorProto) -> None:
    """Raise LoadError if a tensor's data is ambiguous or contradicts its shape.

    Fields that do not apply to the tensor are removed from the message.
    """
    name = quote(tensor.name)
    dtype = DType.UINT8 if tensor.data_type == STRING else DTYPES.get(tensor.data_type)
    if dtype is None:
        kind = quote(tensor.data_type)
        raise LoadError(path, f"tensor {name} has element type {kind}, which is not supported")
    if tensor.HasField("segment"):
        raise LoadError(path, f"tensor {name} is stored in segments, which are not supported")
    check_shape(path, tensor.name, tuple(tensor.dims), dtype)
    kept = [field for field in ("raw_data", *_TYPED) if _is_set(tensor, field)]
    kept += ["external_data"] * (tensor.data_location == EXTERNAL)
    if len(kept) > 1:
        raise LoadError(path, f"tensor {name} is stored twice, as {kept[0]} and as {kept[-1]}")
    if tensor.data_location == EXTERNAL:
        _check_external(path, tensor)
        return
    tensor.ClearField("external_data")
    tensor.ClearField("data_location")
    if tensor.HasField("raw_data") and tensor.data_type != STRING:
        _expect(path, tensor.name, "bytes", len(tensor.raw_data), stored_bytes(tensor))
    else:
        field, count = _typed_field(tensor)
        noun = "strings" if tensor.data_type == STRING else "values"
        _expect(path, tensor.name, noun, len(getattr(tensor, field)), count)
        if dtype in _PATTERNS and not all(
            0 <= bits < 1 << dtype.bits for bits in tensor.int32_data
        ):
            raise LoadError(path, f"tensor {name} contains numbers too large for {dtype.value}")


def _is_set(tensor: onnx.TensorProto, field: str) -> bool:
    return tensor.HasField(field) if field == "raw_data" else bool(getattr(tensor, field))


def stored_bytes(tensor: onnx.TensorProto) -> int:
    """Return the size of a tensor's data in bytes, embedded or external."""
    return Tensor(tensor.name, DTYPES[tensor.data_type], tuple(tensor.dims)).nbytes


def _expect(path: Path, name: str, noun: str, have: int, want: int) -> None:
    if have != want:
        raise LoadError(
            path, f"tensor {quote(name)} stores {have:,} {noun}, but its shape needs {want:,}"
        )


def _typed_field(tensor: onnx.TensorProto) -> tuple[str, int]:
    """Return the field that stores the tensor's element type, and how many entries it must have."""
    from onnx import helper

    count, dtype = math.prod(tensor.dims), DTYPES.get(tensor.data_type)
    if dtype in (DType.COMPLEX64, DType.COMPLEX128):
        count *= 2
    elif dtype is not None and dtype.bits == 4:
        count = -(-count // 2)
    return helper.tensor_dtype_to_field(tensor.data_type), count


def _check_external(path: Path, tensor: onnx.TensorProto) -> None:
    who = _external(tensor)
    if tensor.data_type == STRING:
        raise LoadError(path, f"{who} would contain strings, which an external file cannot store")
    need, entries = stored_bytes(tensor), _entries(path, tensor)
    location, file = entries.get("location", ""), _file_of(path, tensor, entries)
    offset = _count(path, entries, "offset", who) or 0
    length = _count(path, entries, "length", who)
    if length is not None:
        _expect(path, tensor.name, "external bytes", length, need)
    size, end = _size_of(path, file, who), offset + need
    if end > size:
        raise LoadError(
            path, f"{who} ends at byte {end:,}, but {quote(location)} has only {size:,}"
        )
    del tensor.external_data[:]
    for key, value in (("location", location), ("offset", offset), ("length", need)):
        tensor.external_data.add(key=key, value=str(value))


def _entries(path: Path, tensor: onnx.TensorProto) -> dict[str, str]:
    entries: dict[str, str] = {}
    for entry in tensor.external_data:
        if not (isinstance(entry.key, str) and isinstance(entry.value, str)):
            # protobuf returns bytes for text that is not valid UTF-8
            raise LoadError(path, "contains names that are not text; the file is damaged")
        if entry.key in entries:
            raise LoadError(path, f"{_external(tensor)} has entry {quote(entry.key)} twice")
        if entry.key not in _ENTRIES:
            raise LoadError(
                path, f"{_external(tensor)} has entry {quote(entry.key)}, which is not supported"
            )
        entries[entry.key] = entry.value
    return entries


def _external(tensor: onnx.TensorProto) -> str:
    return f"external data of tensor {quote(tensor.name)}"


def _file_of(path: Path, tensor: onnx.TensorProto, entries: dict[str, str]) -> Path:
    location = entries.get("location", "")
    if _ADDRESS in location:
        raise LoadError(path, f"{_external(tensor)} is a memory address, which is not allowed")
    try:
        return file_below(path.parent, location)
    except Damaged as exc:
        raise LoadError(path, f"{_external(tensor)} {exc}") from None


def _size_of(path: Path, file: Path, who: str) -> int:
    try:
        status = file.stat()
    except (OSError, ValueError) as exc:
        raise LoadError(
            path, f"{who} is missing: {quote(file.name)} could not be opened next to the model"
        ) from exc
    if not stat.S_ISREG(status.st_mode):
        raise LoadError(path, f"{who} is in {quote(file.name)}, which is not a regular file")
    return status.st_size


def _count(path: Path, entries: dict[str, str], key: str, who: str) -> int | None:
    text = entries.get(key)
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise LoadError(
            path, f"{who} has {key} {quote(text)}, which is not a whole number of bytes"
        )
    return int(text)


def embed(path: Path, tensor: onnx.TensorProto) -> None:
    """Embed the external data of a checked tensor; `path` is the model's file."""
    if tensor.data_location != EXTERNAL:
        return
    entries = _entries(path, tensor)
    file, need = _file_of(path, tensor, entries), stored_bytes(tensor)
    try:
        data = read_range(file, int(entries.get("offset", "0")), need)
    except LoadError as exc:
        raise LoadError(path, f"{_external(tensor)} cannot be read; {exc.reason}") from exc
    if len(data) != need:
        raise LoadError(path, f"{_external(tensor)} is truncated")
    tensor.ClearField("external_data")
    tensor.ClearField("data_location")
    tensor.raw_data = data
