"""Which inputs of a model are indices into a table, and how many rows the table has."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import onnx

# Ops whose first input is a table and whose second input holds indices into it.
_LOOKUPS = ("Gather", "GatherElements", "GatherND", "ScatterElements", "ScatterND", "Scatter")
_BY_AXIS = ("Gather", "GatherElements", "ScatterElements", "Scatter")
# Ops that pass integers on unchanged.
_CARRIERS = (
    *("Cast", "Identity", "Unsqueeze", "Squeeze", "Reshape", "Flatten", "Expand", "Transpose"),
    *("Tile", "Slice", "Split", "Concat", "Clip", "Gather"),
)
_SAME_SHAPE = ("DequantizeLinear", "Cast", "Identity")
_GRAPH = 5  # AttributeProto.GRAPH


def index_limits(
    graph: onnx.GraphProto, shapes: Mapping[str, Sequence[int]] | None = None
) -> dict[str, int]:
    """Return the inputs that are indices, each with the number of rows of its table.

    `shapes` has the shapes of tables that the graph does not state.
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
            found = {origin for name in carried for origin in origins.get(name, ())}
            origins.update((name, found) for name in node.output)
        if node.op_type in _SAME_SHAPE and node.input[0] in known:
            known[node.output[0]] = known[node.input[0]]
    return limits


def limits_of_program(program: bytes, shapes: Mapping[str, Sequence[int]]) -> dict[str, int]:
    """Return the index limits of a prepared program, whose tables are stored elsewhere."""
    import onnx

    return index_limits(onnx.ModelProto.FromString(program).graph, shapes)


def _rows(node: onnx.NodeProto, shape: Sequence[int] | None) -> int:
    """Return the number of rows an index can select; 0 if unknown."""
    if not shape:
        return 0
    if node.op_type not in _BY_AXIS:
        return min(shape)
    axis = next((item.i for item in node.attribute if item.name == "axis"), 0)
    return shape[axis] if -len(shape) <= axis < len(shape) else 0


def _nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    """All nodes in order, those of bodies before the node that has them."""
    for node in graph.node:
        for item in node.attribute:
            if item.type == _GRAPH:
                yield from _nodes(item.g)
        yield node


def _stated(graph: onnx.GraphProto) -> dict[str, Sequence[int]]:
    found: dict[str, Sequence[int]] = {}
    for item in (*graph.input, *graph.value_info):
        found[item.name] = [size.dim_value for size in item.type.tensor_type.shape.dim]
    found |= {tensor.name: list(tensor.dims) for tensor in graph.initializer}
    for node in graph.node:
        if node.op_type == "Constant" and node.attribute and node.attribute[0].name == "value":
            found[node.output[0]] = list(node.attribute[0].t.dims)
    return found
