"""Fixing what a model leaves open: initialisers among inputs, free dimensions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from qnnmem.errors import FreeDimensions, LoadError, Setting, UsageError
from qnnmem.load.onnx.graph import bodies, defined, reads
from qnnmem.load.onnx.tensor import DTYPES, STRING, check_shape, type_of
from qnnmem.text import plain_or_quoted, quote

if TYPE_CHECKING:
    import onnx

# From this version on, initialisers need not be inputs; older files mean the same once cleaned.
MIN_IR_VERSION = 8
_SHOWN = 12


def drop_unused(model: onnx.ModelProto) -> None:
    """Drop initialisers from the inputs, unread initialisers and everything merely declared."""
    graph = model.graph
    stored = {item.name for item in graph.initializer}
    inputs = [item for item in graph.input if item.name not in stored]
    _replace(graph.input, inputs)
    read = {name for node in graph.node for name in reads(node)}
    read.update(item.name for item in graph.output)
    if not stored <= read:
        _replace(graph.initializer, [item for item in graph.initializer if item.name in read])
    model.ir_version = max(model.ir_version, MIN_IR_VERSION)
    _forget_declared(graph)


def _replace(field: object, items: Iterable[object]) -> None:
    copies = []
    for item in items:
        copy = type(item)()
        copy.CopyFrom(item)  # type: ignore[attr-defined]  # protobuf message
        copies.append(copy)
    del field[:]  # type: ignore[attr-defined]  # protobuf repeated field
    field.extend(copies)  # type: ignore[attr-defined]  # as above


def _forget_declared(graph: onnx.GraphProto) -> None:
    # Declared shapes may be wrong (seen in the wild); what we compute ourselves is used instead.
    del graph.value_info[:]
    del graph.quantization_annotation[:]
    for out in graph.output:
        if out.type.HasField("tensor_type"):
            out.type.tensor_type.ClearField("shape")
    for node in graph.node:
        for body in bodies(node):
            _forget_declared(body)


def fix_inputs(
    path: Path,
    model: onnx.ModelProto,
    dims: Mapping[str, int],
    shapes: Mapping[str, tuple[int, ...]],
) -> None:
    """Give every input a static shape, or say which dimensions are still free."""
    graph = model.graph
    _check_options(graph, dims, shapes)
    for item in graph.input:
        if not item.type.HasField("tensor_type"):
            kind = item.type.WhichOneof("value") or "no"
            what = f"{kind.removesuffix('_type')} type"
            raise LoadError(path, f"input {quote(item.name)} has {what}; only tensors are handled")
        _check_elem(path, item)
        _set_dims(item, dims)
        if item.name in shapes:
            _set_shape(item, shapes[item.name])
    free = {item.name: _free(item) for item in graph.input}
    if any(free.values()):
        raise FreeDimensions(path, _free_words(graph, free), _options(graph, free, (dims, shapes)))
    for item in graph.input:
        kind = type_of(item)
        if kind is None or kind.shape is None:
            raise LoadError(path, f"input {quote(item.name)} has no usable shape")
        check_shape(path, item.name, kind.shape, DTYPES[kind.elem])


def _check_elem(path: Path, item: onnx.ValueInfoProto) -> None:
    elem = item.type.tensor_type.elem_type
    if elem == STRING:
        raise LoadError(path, f"input {quote(item.name)} holds strings; only numbers are handled")
    if elem not in DTYPES:
        kind = quote(elem)
        raise LoadError(path, f"input {quote(item.name)} has element type {kind}, not handled")


def _check_options(
    graph: onnx.GraphProto, dims: Mapping[str, int], shapes: Mapping[str, tuple[int, ...]]
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


def all_names(graph: onnx.GraphProto) -> Iterable[str]:
    """Every tensor name defined in a graph or its bodies."""
    yield from defined(graph)
    for node in graph.node:
        for body in bodies(node):
            yield from all_names(body)


def _listed(names: list[str]) -> str:
    shown = ", ".join(quote(name) for name in names[:_SHOWN]) or "none"
    return f"{shown} and {len(names) - _SHOWN} more" if len(names) > _SHOWN else shown


def _dims(item: onnx.ValueInfoProto) -> list[onnx.TensorShapeProto.Dimension]:
    return list(item.type.tensor_type.shape.dim)


def _set_dims(item: onnx.ValueInfoProto, dims: Mapping[str, int]) -> None:
    for dim in _dims(item):
        if dim.dim_param in dims:
            dim.dim_value = dims[dim.dim_param]


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


def _free_words(graph: onnx.GraphProto, free: Mapping[str, list[int]]) -> list[str]:
    words = []
    for item in graph.input:
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


def _options(
    graph: onnx.GraphProto,
    free: Mapping[str, list[int]],
    given: tuple[Mapping[str, int], Mapping[str, tuple[int, ...]]],
) -> tuple[Setting, ...]:
    """Settings that fix everything; sizes not given are guesses the user replaces."""
    sizes = dict(given[0])
    shapes = [Setting("shapes", _assignment(name, shape)) for name, shape in given[1].items()]
    for item in graph.input:
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
