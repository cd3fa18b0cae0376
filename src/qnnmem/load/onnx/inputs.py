"""Inputs of a model with fixed shapes, and what to say about dimensions that are still free."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from qnnmem.errors import FreeDimensions, LoadError, Setting, UsageError
from qnnmem.load.onnx.graph import OnnxGraph, all_names
from qnnmem.load.onnx.tensor import DTYPES, STRING, check_shape, type_of
from qnnmem.text import plain_or_quoted, quote

if TYPE_CHECKING:
    import onnx

_SHOWN = 12


def fix_inputs(
    path: Path,
    graph: OnnxGraph,
    dims: Mapping[str, int],
    shapes: Mapping[str, tuple[int, ...]],
) -> tuple[onnx.ValueInfoProto, ...]:
    """Inputs of a graph with static shapes, or an error that says which dimensions are free."""
    _check_settings(graph, dims, shapes)
    inputs = tuple(_fixed(path, item, dims, shapes) for item in graph.input)
    free = {item.name: _free(item) for item in inputs}
    if any(free.values()):
        raise FreeDimensions(
            path, _free_words(inputs, free), _settings(inputs, free, (dims, shapes))
        )
    for item in inputs:
        kind = type_of(item)
        if kind is None or kind.shape is None:
            raise LoadError(path, f"input {quote(item.name)} has no usable shape")
        check_shape(path, item.name, kind.shape, DTYPES[kind.elem])
    return inputs


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
    for dim in _dims(copy):
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


def _check_settings(
    graph: OnnxGraph, dims: Mapping[str, int], shapes: Mapping[str, tuple[int, ...]]
) -> None:
    known = {dim.dim_param for item in graph.input for dim in _dims(item) if dim.dim_param}
    for name, size in dims.items():
        if name not in known:
            raise UsageError(f"no dimension {quote(name)}; the model has {_listed(sorted(known))}")
        if size < 0:
            raise UsageError(f"dimension {quote(name)} cannot be {quote(size)}")
    # Only a first look: tensors that appear when branches are inlined are checked later.
    tensors = set(all_names(graph))
    for name, shape in shapes.items():
        if name not in tensors:
            inputs = _listed([item.name for item in graph.input])
            raise UsageError(f"no tensor {quote(name)}; the inputs are {inputs}")
        if any(size < 0 for size in shape):
            raise UsageError(f"the shape given for {quote(name)} has a negative size")


def _listed(names: list[str]) -> str:
    shown = ", ".join(quote(name) for name in names[:_SHOWN]) or "none"
    return f"{shown} and {len(names) - _SHOWN} more" if len(names) > _SHOWN else shown


def _dims(item: onnx.ValueInfoProto) -> list[onnx.TensorShapeProto.Dimension]:
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


def _free(item: onnx.ValueInfoProto) -> list[int]:
    """Positions of free dimensions; -1 stands for a wholly unknown shape."""
    if not item.type.tensor_type.HasField("shape"):
        return [-1]
    return [
        at
        for at, dim in enumerate(_dims(item))
        if not dim.HasField("dim_value") or dim.dim_value < 0
    ]


def _free_words(inputs: Sequence[onnx.ValueInfoProto], free: Mapping[str, list[int]]) -> list[str]:
    words = []
    for item in inputs:
        dims = _dims(item)
        for at in free[item.name]:
            if at < 0:
                words.append(f"all (input {quote(item.name)})")
            else:
                name = plain_or_quoted(dims[at].dim_param, 40) or f"number {at}"
                words.append(f"{name} (input {quote(item.name)})")
    if len(words) > _SHOWN:
        words[_SHOWN:] = [f"{len(words) - _SHOWN} more"]
    return words


def _settings(
    inputs: Sequence[onnx.ValueInfoProto],
    free: Mapping[str, list[int]],
    given: tuple[Mapping[str, int], Mapping[str, tuple[int, ...]]],
) -> tuple[Setting, ...]:
    """Settings that fix everything; sizes not given are guesses the user replaces."""
    sizes = dict(given[0])
    shapes = [Setting("shapes", _assignment(name, shape)) for name, shape in given[1].items()]
    for item in inputs:
        dims = _dims(item)
        if all(at >= 0 and dims[at].dim_param for at in free[item.name]):
            for at in free[item.name]:
                sizes.setdefault(dims[at].dim_param, _guess(at, len(dims), dims[at].dim_param))
        else:
            shapes.append(Setting("shapes", _assignment(item.name, _guessed_shape(item))))
    named = [Setting("dims", f"{name}={size}") for name, size in sizes.items()]
    return (*named, *shapes)


def _assignment(name: str, shape: Iterable[int]) -> str:
    return f"{name}={'x'.join(map(str, shape))}"


def _guessed_shape(item: onnx.ValueInfoProto) -> list[int]:
    if not item.type.tensor_type.HasField("shape"):
        return [1]
    dims = _dims(item)
    return [
        dim.dim_value
        if dim.HasField("dim_value") and dim.dim_value >= 0
        else _guess(at, len(dims), dim.dim_param)
        for at, dim in enumerate(dims)
    ]


def _guess(at: int, rank: int, name: str) -> int:
    if at == 0 or "batch" in name.lower():
        return 1
    if rank == 4:
        return 3 if at == 1 else 224
    return 128
