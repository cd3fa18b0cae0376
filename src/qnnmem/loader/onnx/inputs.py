"""Inputs of an ONNX model: open dimensions, fixed sizes and values, indices into tables."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from msgspec import Struct, field

from qnnmem.bounded_file import read_bytes
from qnnmem.calibration import read_npy
from qnnmem.deadline import ask_deadline
from qnnmem.errors import FreeDimensions, LoadError, Setting, UsageError
from qnnmem.loader.onnx.graph import OnnxGraph, all_names, bodies, integer
from qnnmem.loader.onnx.tensor import DTYPES, STRING, check_shape, type_of
from qnnmem.text import by_sizes, counted, listed, nearest, plain_or_quoted, quote

if TYPE_CHECKING:
    import numpy
    import onnx
    from numpy.typing import NDArray

# A number, a boolean, several of them, an array, or a .npy or .raw file.
InputValue: TypeAlias = "bool | int | float | Path | Sequence[Any] | NDArray[Any]"

MAX_VALUE_BYTES = 256 << 20  # for one value; anything larger is a weight, not an input


class Fixed(Struct, frozen=True):
    """Sizes of named dimensions, shapes of tensors and values of inputs, each by name."""

    dims: Mapping[str, int] = field(default_factory=dict)
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    values: Mapping[str, InputValue] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.dims or self.shapes or self.values)


def settings_of(fixed: Fixed) -> tuple[Setting, ...]:
    """Return the fixed sizes and values as `Setting` objects."""
    return (
        *(Setting("dims", f"{name}={size}") for name, size in fixed.dims.items()),
        *(Setting("shapes", f"{name}={by_sizes(shape)}") for name, shape in fixed.shapes.items()),
        *(Setting("values", f"{name}={value_text(value)}") for name, value in fixed.values.items()),
    )


def value_text(value: object) -> str:
    """Return a value in the syntax of the command line."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Path):
        return f"@{value}"
    flat = isinstance(value, list | tuple) and not any(isinstance(v, list | tuple) for v in value)
    if flat:
        return ",".join(map(value_text, value))  # type: ignore[call-overload]  # a list, as just seen
    return str(value) if isinstance(value, int | float) else "@FILE.npy"


def constant_input(item: onnx.ValueInfoProto, value: InputValue) -> onnx.TensorProto:
    """Return the constant tensor that replaces an input.

    One number fills a known shape, or is one element if the shape is unknown. Several numbers are
    the elements in order. A .npy file or an array keeps its own shape.
    """
    from onnx import helper, numpy_helper

    elem = item.type.tensor_type.elem_type
    if elem == STRING or elem not in DTYPES:
        content = "strings" if elem == STRING else f"element type {quote(elem)}"
        raise UsageError(f"input {quote(item.name)} has {content}; no value can be set for it")
    dtype = helper.tensor_dtype_to_np_dtype(elem)
    array = _array(item.name, value, dtype)
    shaped = _shaped(item.name, array, _sizes(item), keeps_shape=_has_shape(value))
    tensor: onnx.TensorProto = numpy_helper.from_array(_converted(item.name, shaped, dtype))
    tensor.name = item.name
    return tensor


def _sizes(item: onnx.ValueInfoProto) -> list[int | None] | None:
    """Return the sizes of an input, with None for an open size; None if the shape is unknown."""
    tensor = item.type.tensor_type
    if not tensor.HasField("shape"):
        return None
    known = (dim.dim_value if dim.HasField("dim_value") else -1 for dim in tensor.shape.dim)
    return [size if size >= 0 else None for size in known]


def _has_shape(value: InputValue) -> bool:
    """Return whether a value has its own shape; a flat list has none."""
    if isinstance(value, Path):
        return value.suffix.lower() == ".npy"
    if isinstance(value, Sequence):
        return any(isinstance(part, Sequence) for part in value)
    return getattr(value, "ndim", 0) > 0


def _array(name: str, value: InputValue, dtype: numpy.dtype[Any]) -> NDArray[Any]:
    import numpy

    if isinstance(value, Path):
        if value.suffix.lower() == ".npy":
            return read_npy(value, MAX_VALUE_BYTES)
        blob = read_bytes(value, MAX_VALUE_BYTES)
        if not blob or len(blob) % dtype.itemsize:
            raise UsageError(
                f"{value}: {len(blob):,} bytes is not a multiple of the {dtype.name} "
                f"element size of input {quote(name)}"
            )
        return numpy.frombuffer(blob, dtype)
    try:
        array = numpy.asarray(value)
    except (ValueError, OverflowError):  # rows of different lengths
        array = numpy.asarray(None)
    if array.dtype.kind not in "biuf" and array.dtype != dtype:
        raise UsageError(
            f"the value of {quote(name)} is {quote(value)}, which is not a number of a known type"
        )
    if array.nbytes > MAX_VALUE_BYTES:
        raise UsageError(f"the value of {quote(name)} takes more than {MAX_VALUE_BYTES:,} bytes")
    return array


def _shaped(
    name: str, array: NDArray[Any], sizes: list[int | None] | None, *, keeps_shape: bool
) -> NDArray[Any]:
    """Return the elements in a shape that the input accepts; raise UsageError if they fit none."""
    import numpy

    if sizes is None:
        return array
    declared = by_sizes("?" if size is None else size for size in sizes)
    if array.ndim == 0:
        shape = [1 if size is None else size for size in sizes]
        if math.prod(shape) * array.itemsize > MAX_VALUE_BYTES:
            raise UsageError(
                f"the value of {quote(name)}, repeated for shape {declared}, takes more than "
                f"{MAX_VALUE_BYTES:,} bytes"
            )
        return numpy.full(shape, array)
    if len(sizes) == array.ndim and all(
        size in (None, own) for size, own in zip(sizes, array.shape, strict=True)
    ):
        return array
    filled = _filled(sizes, array.size)
    if filled is None or keeps_shape:
        form = f"shape {by_sizes(array.shape)}" if keeps_shape else counted(array.size, "element")
        raise UsageError(
            f"the value of {quote(name)} has {form}, but the input's shape is {declared}"
        )
    return array.reshape(filled)


def _filled(sizes: Sequence[int | None], count: int) -> list[int] | None:
    """Return the sizes with the open size computed from `count` elements; None if impossible."""
    known = math.prod(size for size in sizes if size is not None)
    free = sum(size is None for size in sizes)
    if free > 1 or (free == 0 and known != count) or (free and (not known or count % known)):
        return None
    return [count // known if size is None else size for size in sizes]


def _converted(name: str, array: NDArray[Any], dtype: numpy.dtype[Any]) -> NDArray[Any]:
    """Return the numbers in the input's type; raise UsageError if the type cannot hold them."""
    import numpy

    is_bool = dtype.kind == "b"
    if array.dtype.kind == "b" and not is_bool:
        raise UsageError(
            f"input {quote(name)} has type {dtype.name}, but its value is true or false"
        )
    with numpy.errstate(invalid="ignore", over="ignore"):
        converted = numpy.ascontiguousarray(array.astype(dtype))
    if not is_bool and "int" not in dtype.name:
        if (numpy.isinf(converted) & ~numpy.isinf(array)).any():
            raise UsageError(f"the value of {quote(name)} is too large for {dtype.name}")
        return converted
    same = converted == array
    if not same.all() or (array.dtype.kind == "f" and not numpy.isfinite(array).all()):
        need = "true or false" if is_bool else f"whole numbers ({dtype.name})"
        wrong = array.reshape(-1)[~same.reshape(-1)][:1]
        shown = f", not {wrong[0]!s}" if wrong.size else ""
        raise UsageError(f"input {quote(name)} needs {need}{shown}")
    return converted


_SHOWN = 12


class FixedInputs(NamedTuple):
    """Inputs with static shapes, and constants in place of the inputs whose value is given."""

    inputs: tuple[onnx.ValueInfoProto, ...]
    constants: tuple[onnx.TensorProto, ...]


def fix_inputs(path: Path, graph: OnnxGraph, fixed: Fixed) -> FixedInputs:
    """Return the inputs with every size fixed.

    Raise an error that names the open dimensions if sizes are missing.
    """
    _check_settings(graph, fixed)
    sized = _sized(path, graph.input, fixed)
    valued = [item for item in sized if item.name in fixed.values]
    constants = tuple(constant_input(item, fixed.values[item.name]) for item in valued)
    dims = _implied(graph.input, {t.name: tuple(t.dims) for t in constants}, fixed.dims)
    rest = tuple(item for item in graph.input if item.name not in fixed.values)
    inputs = _sized(path, rest, Fixed(dims, fixed.shapes))
    free = {item.name: free_axes(item) for item in inputs}
    if any(free.values()):
        raise FreeDimensions(path, _free_words(inputs, free))
    for item in inputs:
        kind = type_of(item)
        if kind is None or kind.shape is None:
            raise LoadError(path, f"input {quote(item.name)} has no usable shape")
        check_shape(path, item.name, kind.shape, DTYPES[kind.elem])
    return FixedInputs(inputs, constants)


def _sized(
    path: Path, items: Sequence[onnx.ValueInfoProto], fixed: Fixed
) -> tuple[onnx.ValueInfoProto, ...]:
    """Return copies of the inputs with all sizes that are given or follow from given sizes."""
    dims = _implied(items, fixed.shapes, fixed.dims)
    return tuple(_fixed(path, item, dims, fixed.shapes) for item in items)


def _implied(
    items: Iterable[onnx.ValueInfoProto],
    shapes: Mapping[str, tuple[int, ...]],
    fixed: Mapping[str, int],
) -> dict[str, int]:
    """Return the sizes of named dimensions, fixed or implied by an input's shape."""
    dims = dict(fixed)
    for item in items:
        shape = shapes.get(item.name, ())
        for dim, size in zip(dims_of(item), shape, strict=False):
            name = dim.dim_param
            if name and fixed.get(name, size) != size:
                raise UsageError(
                    f"dimension {quote(name)} is {fixed[name]}, but the shape of "
                    f"{quote(item.name)} gives {size}"
                )
            if name:
                dims.setdefault(name, size)
    return dims


def _fixed(
    path: Path,
    item: onnx.ValueInfoProto,
    dims: Mapping[str, int],
    shapes: Mapping[str, tuple[int, ...]],
) -> onnx.ValueInfoProto:
    """Return a copy of an input with the sizes that the caller gives for this input."""
    if not item.type.HasField("tensor_type"):
        kind = (item.type.WhichOneof("value") or "no").removesuffix("_type")
        raise LoadError(
            path, f"input {quote(item.name)} has {kind} type; only tensors are supported"
        )
    _check_elem(path, item)
    copy = type(item)()
    copy.CopyFrom(item)
    for dim in dims_of(copy):
        if dim.dim_param in dims:
            dim.dim_value = dims[dim.dim_param]
    if item.name in shapes:
        _set_shape(copy, shapes[item.name])
    return copy


def _check_elem(path: Path, item: onnx.ValueInfoProto) -> None:
    elem = item.type.tensor_type.elem_type
    if elem == STRING:
        raise LoadError(path, f"input {quote(item.name)} holds strings; only numbers are supported")
    if elem not in DTYPES:
        raise LoadError(
            path,
            f"input {quote(item.name)} has element type {quote(elem)}, which is not supported",
        )


def _check_settings(graph: OnnxGraph, fixed: Fixed) -> None:
    known = named_dims(graph)
    inputs = [item.name for item in graph.input]
    for name, size in fixed.dims.items():
        if name not in known:
            raise _unknown("dimension", name, sorted(known), "the model has")
        if size < 0:
            raise UsageError(f"dimension {quote(name)} cannot be {quote(size)}")
    for name in fixed.values:
        if name not in inputs:
            raise _unknown("input", name, inputs, "the inputs are")
    # A preliminary check: inlining branches adds tensors, which are checked later.
    tensors = set(all_names(graph))
    for name, shape in fixed.shapes.items():
        if name not in tensors:
            raise _unknown("tensor", name, inputs, "the inputs are")
        if any(size < 0 for size in shape):
            raise UsageError(f"the shape given for {quote(name)} contains a negative size")


def _unknown(noun: str, name: str, known: Collection[str], have: str) -> UsageError:
    near = nearest(name, known)
    meant = "" if near is None else f"did you mean {quote(near)}? "
    names = listed([*map(quote, known)], _SHOWN) or "none"
    return UsageError(f"no {noun} {quote(name)}; {meant}{have} {names}")


def named_dims(graph: OnnxGraph | onnx.GraphProto) -> set[str]:
    """Return the names of all named dimensions of inputs."""
    return {dim.dim_param for item in graph.input for dim in dims_of(item) if dim.dim_param}


def dims_of(item: onnx.ValueInfoProto) -> list[onnx.TensorShapeProto.Dimension]:
    """Return the dimensions of a value info."""
    ask_deadline()
    return list(item.type.tensor_type.shape.dim)


def _set_shape(item: onnx.ValueInfoProto, shape: tuple[int, ...]) -> None:
    tensor = item.type.tensor_type
    rank = len(tensor.shape.dim)
    if tensor.HasField("shape") and rank != len(shape):
        raise UsageError(
            f"input {quote(item.name)} has {rank} dimensions, but its given shape has {len(shape)}"
        )
    tensor.shape.ClearField("dim")
    tensor.shape.SetInParent()  # a scalar has a shape too, an empty one
    for size in shape:
        tensor.shape.dim.add().dim_value = size


def free_axes(item: onnx.ValueInfoProto) -> list[int]:
    """Return the axes of open dimensions; [-1] for an unknown shape."""
    if not item.type.tensor_type.HasField("shape"):
        return [-1]
    return [
        axis
        for axis, dim in enumerate(dims_of(item))
        if not dim.HasField("dim_value") or dim.dim_value < 0
    ]


def _free_words(inputs: Sequence[onnx.ValueInfoProto], free: Mapping[str, list[int]]) -> list[str]:
    words = []
    for item in inputs:
        dims = dims_of(item)
        for axis in free[item.name]:
            name = "all axes"
            if axis >= 0:
                name = plain_or_quoted(dims[axis].dim_param, 40) or f"axis {axis}"
            words.append(f"{name} (input {quote(item.name)})")
    if len(words) > _SHOWN:
        words[_SHOWN:] = [f"{len(words) - _SHOWN} more"]
    return words


# Ops whose first input is a table and whose second input holds indices into it.
_LOOKUPS = ("Gather", "GatherElements", "GatherND", "ScatterElements", "ScatterND", "Scatter")
_BY_AXIS = ("Gather", "GatherElements", "ScatterElements", "Scatter")
# Ops that pass integers through unchanged.
_CARRIERS = (
    *("Cast", "Identity", "Unsqueeze", "Squeeze", "Reshape", "Flatten", "Expand", "Transpose"),
    *("Tile", "Slice", "Split", "Concat", "Clip", "Gather"),
)
_SAME_SHAPE = ("DequantizeLinear", "Cast", "Identity")


def index_limits(
    graph: onnx.GraphProto, shapes: Mapping[str, Sequence[int]] | None = None
) -> dict[str, int]:
    """Return the inputs that hold indices, each with the number of rows in the indexed table.

    `shapes` has the shapes of tables for which the graph states no shape.
    """
    known = {**_stated(graph), **(shapes or {})}
    origins: dict[str, set[str]] = {item.name: {item.name} for item in graph.input}
    limits: dict[str, int] = {}
    for node in _nodes(graph):
        if node.op_type in _LOOKUPS and len(node.input) > 1:
            rows = _rows(node, known.get(node.input[0]))
            for name in origins.get(node.input[1], ()) if rows else ():
                limits[name] = min(rows, limits.get(name, rows))
        if node.op_type in _CARRIERS:
            carried = node.input if node.op_type == "Concat" else node.input[:1]
            sources = {origin for name in carried for origin in origins.get(name, ())}
            origins.update((name, sources) for name in node.output)
        if node.op_type in _SAME_SHAPE and node.input[0] in known:
            known[node.output[0]] = known[node.input[0]]
    return limits


def limits_of_program(program: bytes, shapes: Mapping[str, Sequence[int]]) -> dict[str, int]:
    """Return the index limits of a prepared program; `shapes` has the shapes of its tables."""
    import onnx

    return index_limits(onnx.ModelProto.FromString(program).graph, shapes)


def _rows(node: onnx.NodeProto, shape: Sequence[int] | None) -> int:
    """Return the number of rows from which a node's indices can select; 0 if it is unknown."""
    if not shape:
        return 0
    if node.op_type not in _BY_AXIS:
        return min(shape)
    axis = integer(node, "axis", 0)
    return shape[axis] if -len(shape) <= axis < len(shape) else 0


def _nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    """Yield all nodes in order; nodes of bodies come before the node that owns them."""
    for node in graph.node:
        for body in bodies(node):
            yield from _nodes(body)
        yield node


def _stated(graph: onnx.GraphProto) -> dict[str, Sequence[int]]:
    """Return the shapes of tensors, as far as the graph states them."""
    shapes: dict[str, Sequence[int]] = {
        item.name: [size.dim_value for size in item.type.tensor_type.shape.dim]
        for item in (*graph.input, *graph.value_info)
    }
    shapes |= {tensor.name: list(tensor.dims) for tensor in graph.initializer}
    for node in graph.node:
        if node.op_type == "Constant" and node.attribute and node.attribute[0].name == "value":
            shapes[node.output[0]] = list(node.attribute[0].t.dims)
    return shapes
