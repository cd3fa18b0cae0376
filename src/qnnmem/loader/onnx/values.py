"""Inputs that become constants: what a caller gives, as a tensor of the input's own type."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qnnmem.bounded_file import read_bytes
from qnnmem.calibration import read_npy
from qnnmem.errors import UsageError
from qnnmem.loader.onnx.fixed import MAX_VALUE_BYTES, InputValue
from qnnmem.loader.onnx.tensor import DTYPES, STRING
from qnnmem.text import quote

if TYPE_CHECKING:
    import numpy
    import onnx
    from numpy.typing import NDArray


def constant_input(item: onnx.ValueInfoProto, value: InputValue) -> onnx.TensorProto:
    """Tensor in the place of an input.

    One number fills a shape that is known and is one element where it is not; several numbers are
    the elements in order; a .npy file and an array bring their shape.
    """
    from onnx import helper, numpy_helper

    elem = item.type.tensor_type.elem_type
    if elem == STRING or elem not in DTYPES:
        what = "strings" if elem == STRING else f"element type {quote(elem)}"
        raise UsageError(f"input {quote(item.name)} holds {what}; it cannot be given a value")
    dtype = helper.tensor_dtype_to_np_dtype(elem)
    sizes = _sizes(item)
    given = _array(item.name, value, dtype)
    shaped = _shaped(item.name, given, sizes, keeps_shape=_has_shape(value))
    tensor: onnx.TensorProto = numpy_helper.from_array(_converted(item.name, shaped, dtype))
    tensor.name = item.name
    return tensor


def _sizes(item: onnx.ValueInfoProto) -> list[int | None] | None:
    """Sizes that the input has, None for a free one; None for a wholly unknown shape."""
    tensor = item.type.tensor_type
    if not tensor.HasField("shape"):
        return None
    known = (dim.dim_value if dim.HasField("dim_value") else -1 for dim in tensor.shape.dim)
    return [size if size >= 0 else None for size in known]


def _has_shape(value: InputValue) -> bool:
    """Whether a value says itself what shape it has; a flat list does not."""
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
                f"{value}: {len(blob):,} bytes are no whole number of {dtype.name} values "
                f"for input {quote(name)}"
            )
        return numpy.frombuffer(blob, dtype)
    try:
        found = numpy.asarray(value)
    except (ValueError, OverflowError):  # rows of different lengths
        found = numpy.asarray(None)
    if found.dtype.kind not in "biuf" and found.dtype != dtype:
        raise UsageError(
            f"the value of {quote(name)} is {quote(value)}, not numbers of a known type"
        )
    if found.nbytes > MAX_VALUE_BYTES:
        raise UsageError(f"the value of {quote(name)} takes more than {MAX_VALUE_BYTES:,} bytes")
    return found


def _shaped(
    name: str, given: NDArray[Any], sizes: list[int | None] | None, *, keeps_shape: bool
) -> NDArray[Any]:
    """The elements in a shape that the input can have."""
    import numpy

    if sizes is None:
        return given
    words = "x".join("?" if size is None else str(size) for size in sizes) or "scalar"
    if given.ndim == 0:
        shape = [1 if size is None else size for size in sizes]
        if math.prod(shape) * given.itemsize > MAX_VALUE_BYTES:
            raise UsageError(f"the value of {quote(name)} in {words} elements is too large")
        return numpy.full(shape, given)
    fits = len(sizes) == given.ndim and all(
        size in (None, own) for size, own in zip(sizes, given.shape, strict=True)
    )
    if fits:
        return given
    filled = _filled(sizes, given.size)
    if filled is None or keeps_shape:
        what = "x".join(map(str, given.shape)) if keeps_shape else f"{given.size:,} elements"
        raise UsageError(f"the value of {quote(name)} is {what}; the input is {words}")
    return given.reshape(filled)


def _filled(sizes: Sequence[int | None], count: int) -> list[int] | None:
    """The shape with this many elements, if at most one size is open."""
    known = math.prod(size for size in sizes if size is not None)
    free = sum(size is None for size in sizes)
    if free > 1 or (free == 0 and known != count) or (free and (not known or count % known)):
        return None
    return [count // known if size is None else size for size in sizes]


def _converted(name: str, given: NDArray[Any], dtype: numpy.dtype[Any]) -> NDArray[Any]:
    """The same numbers in the input's type; refused where they would not be the same."""
    import numpy

    kind, wanted = given.dtype.kind, _kind(dtype)
    if kind == "b" and wanted != "bool":
        raise UsageError(f"input {quote(name)} holds {dtype.name}, its value is true or false")
    if wanted == "float":
        with numpy.errstate(over="ignore"):
            narrow = numpy.ascontiguousarray(given.astype(dtype))
        if bool((numpy.isinf(narrow) & ~numpy.isinf(given)).any()):
            raise UsageError(f"the value of {quote(name)} is too large for {dtype.name}")
        return narrow
    with numpy.errstate(invalid="ignore", over="ignore"):
        made = given.astype(dtype)
        same = bool((made == given).all()) and not (kind == "f" and not numpy.isfinite(given).all())
    if not same:
        what = "true or false" if wanted == "bool" else f"whole numbers ({dtype.name})"
        odd = given.reshape(-1)[~(made == given).reshape(-1)][:1]
        shown = f", not {odd[0]!s}" if odd.size else ""
        raise UsageError(f"input {quote(name)} holds {what}{shown}")
    return numpy.ascontiguousarray(made)


def _kind(dtype: numpy.dtype[Any]) -> str:
    """Which numbers a type holds: bool, int or float; narrow floats have names of their own."""
    if dtype.kind == "b":
        return "bool"
    return "int" if "int" in dtype.name else "float"
