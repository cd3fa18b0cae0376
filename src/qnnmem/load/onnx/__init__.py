"""ONNX files into the IR."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from qnnmem.errors import LoadError
from qnnmem.text import quote

if TYPE_CHECKING:
    import onnx

    from qnnmem.ir import Model
    from qnnmem.load.onnx.child import Child
    from qnnmem.load.onnx.resolve import Scope
    from qnnmem.load.onnx.tensor import TensorType

_NOTHING: Mapping[str, int] = MappingProxyType({})
_NO_SHAPES: Mapping[str, tuple[int, ...]] = MappingProxyType({})


def read(
    path: Path,
    *,
    dims: Mapping[str, int] = _NOTHING,
    shapes: Mapping[str, tuple[int, ...]] = _NO_SHAPES,
    time_limit_s: float = 60.0,
) -> Model:
    """Model in an ONNX file, every shape fixed.

    `dims` sets named dimensions. `shapes` sets whole inputs, and the largest shape of tensors
    inside whose shape depends on data.
    """
    from qnnmem.load.onnx.build import build

    path = Path(path)
    _, scope = _prepare(path, dims, shapes, time_limit_s)
    return build(path.stem, scope, _notes(scope, shapes))


def executable(
    path: Path,
    *,
    dims: Mapping[str, int] = _NOTHING,
    shapes: Mapping[str, tuple[int, ...]] = _NO_SHAPES,
    time_limit_s: float = 60.0,
) -> onnx.ModelProto:
    """Graph whose node list `Op.sources` of `read` with the same options point into.

    Its value infos carry the types of all tensors. External data stays where it is: locations
    were checked and are relative to the model's folder.
    """
    return _typed(*_prepare(Path(path), dims, shapes, time_limit_s))


def read_with_graph(
    path: Path,
    *,
    dims: Mapping[str, int] = _NOTHING,
    shapes: Mapping[str, tuple[int, ...]] = _NO_SHAPES,
    time_limit_s: float = 60.0,
) -> tuple[Model, onnx.ModelProto]:
    """What `read` and `executable` give, for the time of one."""
    from qnnmem.load.onnx.build import build

    path = Path(path)
    proto, scope = _prepare(path, dims, shapes, time_limit_s)
    return build(path.stem, scope, _notes(scope, shapes)), _typed(proto, scope)


def _typed(model: onnx.ModelProto, scope: Scope) -> onnx.ModelProto:
    from qnnmem.load.onnx.trial import value_info

    outer = {item.name for item in (*model.graph.input, *model.graph.initializer)}
    outputs = {item.name for item in model.graph.output}
    for name, kind in scope.types.items():
        if kind.is_static and name not in outer and name not in outputs:
            model.graph.value_info.append(value_info(name, kind))
    for item in model.graph.output:
        item.CopyFrom(value_info(item.name, scope.types[item.name]))
    return model


def _prepare(
    path: Path,
    dims: Mapping[str, int],
    shapes: Mapping[str, tuple[int, ...]],
    time_limit_s: float,
) -> tuple[onnx.ModelProto, Scope]:
    from qnnmem.load.onnx.child import Child
    from qnnmem.load.onnx.guard import read_checked, unpack
    from qnnmem.load.onnx.inputs import drop_unused, fix_inputs

    blob = read_checked(path)  # first: most damaged files end here, before a process is started
    with Child(path, time_limit_s) as child:
        model = unpack(path, blob)
        del blob
        if model.functions:
            _inline(path, model, child)
        declared = _declared(model.graph)
        drop_unused(model)
        fix_inputs(path, model, dims, shapes)
        return model, _resolve(path, model, child, (shapes, declared))


def _resolve(
    path: Path,
    model: onnx.ModelProto,
    child: Child,
    told: tuple[Mapping[str, tuple[int, ...]], Mapping[str, TensorType]],
) -> Scope:
    import onnx

    from qnnmem.load.onnx.resolve import resolve
    from qnnmem.load.onnx.trial import Bench

    head = onnx.ModelProto(ir_version=model.ir_version, opset_import=model.opset_import)
    return resolve(Bench(path, child, head, *told), model.graph)


def _inline(path: Path, model: onnx.ModelProto, child: Child) -> None:
    """Replace calls of the model's own functions; weights do not travel for that."""
    import onnx

    from qnnmem.errors import ChildFailed
    from qnnmem.load.onnx.guard import check_graphs

    light = onnx.ModelProto()
    light.CopyFrom(model)
    for tensor in light.graph.initializer:
        tensor.ClearField("raw_data")
    try:
        inlined = child.inline(light)
    except ChildFailed as exc:
        raise LoadError(path, f"the model's functions cannot be inlined: {exc}") from exc
    del model.graph.node[:]
    model.graph.node.extend(inlined.graph.node)
    del model.functions[:], model.opset_import[:]
    model.opset_import.extend(inlined.opset_import)
    check_graphs(path, model)


def _declared(graph: onnx.GraphProto) -> dict[str, TensorType]:
    """Types the file states about outputs of ops outside of the ONNX standard."""
    from qnnmem.load.onnx.graph import ONNX_DOMAINS
    from qnnmem.load.onnx.tensor import type_of

    foreign = {
        name for node in graph.node if node.domain not in ONNX_DOMAINS for name in node.output
    }
    kinds = {
        item.name: type_of(item)
        for item in (*graph.value_info, *graph.output)
        if item.name in foreign
    }
    return {name: kind for name, kind in kinds.items() if kind is not None and kind.is_static}


def _notes(scope: Scope, shapes: Mapping[str, tuple[int, ...]]) -> Iterator[str]:
    scopes = list(_scopes(scope))
    measured = sum(len(one.measured.keys() - shapes.keys()) for one in scopes)
    if measured:
        yield f"tensor shapes measured by running the model: {measured}"
    declared = [name for one in scopes for name in sorted(one.declared)]
    if declared:
        yield (
            f"tensor shapes as the file declares them, not verified: {len(declared)} "
            f"({', '.join(quote(name) for name in declared[:5])})"
        )
    inputs = {item.name for item in scope.graph.input}
    for name in sorted(shapes.keys() - inputs):
        yield f"the shape of {quote(name)} is the stated one"


def _scopes(scope: Scope) -> Iterator[Scope]:
    yield scope
    for inner in scope.bodies.values():
        for body in inner:
            yield from _scopes(body)
