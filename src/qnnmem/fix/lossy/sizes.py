"""The model of the file with other sizes of its inputs, where every op takes them."""

from __future__ import annotations

from collections.abc import Mapping

from qnnmem.errors import ChildFailed, LoadError, join_words
from qnnmem.fix.remedy import Change, read_again, with_data
from qnnmem.loader.onnx.passes.shape import ShapedModel
from qnnmem.text import quote

Shapes = Mapping[str, tuple[int, ...]]


def input_shapes(model: ShapedModel) -> dict[str, tuple[int, ...]]:
    """Shapes of all inputs."""
    scope = model.scope
    return {item.name: tuple(scope.types[item.name].shape or ()) for item in scope.graph.input}


def with_sizes(model: ShapedModel, shapes: Shapes) -> ShapedModel:
    """The model as its file has it, read anew with other inputs; ChildFailed where none is."""
    resolved = model.resolved
    inside = sorted(resolved.stated.keys() - input_shapes(model).keys())
    if inside:
        raise ChildFailed(f"the shape of {quote(inside[0])} depends on data")
    proto = resolved.proto()
    for item in proto.graph.input:
        sizes = item.type.tensor_type.shape.dim
        for one, size in zip(sizes, shapes.get(item.name, ()), strict=False):
            one.dim_value = size
    try:
        return read_again(with_data(proto, resolved.path))
    except LoadError as exc:
        raise ChildFailed(join_words(exc.what)) from exc


def first_of(change: Change) -> Change:
    """The model as it is, which all steps of a change were done to."""
    while change.of is not None:
        change = change.of
    return change
