"""Inputs of a model with fixed shapes, and which dimensions are still free."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from qnnmem.deadline import ask_deadline
from qnnmem.errors import FreeDimensions, LoadError, UsageError
from qnnmem.loader.onnx.fixed import Fixed
from qnnmem.loader.onnx.graph import OnnxGraph, all_names
from qnnmem.loader.onnx.tensor import DTYPES, STRING, check_shape, type_of
from qnnmem.loader.onnx.values import constant_input
from qnnmem.text import nearest, plain_or_quoted, quote

if TYPE_CHECKING:
    import onnx

_SHOWN = 12


class FixedInputs(NamedTuple):
    """Inputs with static shapes, and constants in the place of those with a given value."""

    inputs: tuple[onnx.ValueInfoProto, ...]
    constants: tuple[onnx.TensorProto, ...]


def fix_inputs(path: Path, graph: OnnxGraph, fixed: Fixed) -> FixedInputs:
    """Inputs of a graph with nothing left open, or an error that says which dimensions are free."""
    _check_settings(graph, fixed)
    open_ones = _sized(path, graph.input, fixed)
    valued = [item for item in open_ones if item.name in fixed.values]
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
    """Copies of inputs with the sizes that are given for them, or follow from what is given."""
    dims = _implied(items, fixed.shapes, fixed.dims)
    return tuple(_fixed(path, item, dims, fixed.shapes) for item in items)


def _implied(
    items: Iterable[onnx.ValueInfoProto],
    shapes: Mapping[str, tuple[int, ...]],
    given: Mapping[str, int],
) -> dict[str, int]:
    """Sizes of named dimensions: those given, and those that the shape of an input tells."""
    found = dict(given)
    for item in items:
        shape = shapes.get(item.name, ())
        for dim, size in zip(dims_of(item), shape, strict=False):
            if dim.dim_param and given.get(dim.dim_param, size) != size:
                told = f"{quote(dim.dim_param)} is {given[dim.dim_param]}"
                raise UsageError(
                    f"dimension {told}, but {size} in the shape given for {quote(item.name)}"
                )
            if dim.dim_param:
                found.setdefault(dim.dim_param, size)
    return found


def _fixed(
    path: Path,
    item: onnx.ValueInfoProto,
    dims: Mapping[str, int],
    shapes: Mapping[str, tuple[int, ...]],
) -> onnx.ValueInfoProto:
    """Copy of an input with the sizes that are given for it."""
    if not item.type.HasField("tensor_type"):
        kind = item.type.WhichOneof("value") or "no"
        what = f"{kind.removesuffix('_type')} type"
        raise LoadError(path, f"input {quote(item.name)} has {what}; only tensors are handled")
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
        raise LoadError(path, f"input {quote(item.name)} holds strings; only numbers are handled")
    if elem not in DTYPES:
        kind = quote(elem)
        raise LoadError(path, f"input {quote(item.name)} has element type {kind}, not handled")


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
    # Only a first look: tensors that appear when branches are inlined are checked later.
    tensors = set(all_names(graph))
    for name, shape in fixed.shapes.items():
        if name not in tensors:
            raise _unknown("tensor", name, inputs, "the inputs are")
        if any(size < 0 for size in shape):
            raise UsageError(f"the shape given for {quote(name)} has a negative size")


def _unknown(what: str, name: str, known: Collection[str], have: str) -> UsageError:
    near = nearest(name, known)
    meant = "" if near is None else f"did you mean {quote(near)}? "
    return UsageError(f"no {what} {quote(name)}; {meant}{have} {_listed(list(known))}")


def _listed(names: list[str]) -> str:
    shown = ", ".join(quote(name) for name in names[:_SHOWN]) or "none"
    return f"{shown} and {len(names) - _SHOWN} more" if len(names) > _SHOWN else shown


def named_dims(graph: OnnxGraph | onnx.GraphProto) -> set[str]:
    """Names of the dimensions that inputs have."""
    return {dim.dim_param for item in graph.input for dim in dims_of(item) if dim.dim_param}


def dims_of(item: onnx.ValueInfoProto) -> list[onnx.TensorShapeProto.Dimension]:
    """Dimensions that a value info states."""
    ask_deadline()
    return list(item.type.tensor_type.shape.dim)


def _set_shape(item: onnx.ValueInfoProto, shape: tuple[int, ...]) -> None:
    tensor = item.type.tensor_type
    rank = len(tensor.shape.dim)
    if tensor.HasField("shape") and rank != len(shape):
        raise UsageError(
            f"input {quote(item.name)} has {rank} dimensions, the shape given has {len(shape)}"
        )
    tensor.shape.ClearField("dim")
    tensor.shape.SetInParent()  # a scalar has a shape too, an empty one
    for size in shape:
        tensor.shape.dim.add().dim_value = size


def free_axes(item: onnx.ValueInfoProto) -> list[int]:
    """Positions of free dimensions; -1 stands for a wholly unknown shape."""
    if not item.type.tensor_type.HasField("shape"):
        return [-1]
    return [
        at
        for at, dim in enumerate(dims_of(item))
        if not dim.HasField("dim_value") or dim.dim_value < 0
    ]


def _free_words(inputs: Sequence[onnx.ValueInfoProto], free: Mapping[str, list[int]]) -> list[str]:
    words = []
    for item in inputs:
        dims = dims_of(item)
        for at in free[item.name]:
            if at < 0:
                words.append(f"all (input {quote(item.name)})")
            else:
                name = plain_or_quoted(dims[at].dim_param, 40) or f"number {at}"
                words.append(f"{name} (input {quote(item.name)})")
    if len(words) > _SHOWN:
        words[_SHOWN:] = [f"{len(words) - _SHOWN} more"]
    return words
