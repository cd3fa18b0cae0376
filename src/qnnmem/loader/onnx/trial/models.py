"""Models made for the child: a light one for shape inference, small ones for trial runs."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING

from qnnmem.loader.onnx.graph import AnyGraph, is_op, reads
from qnnmem.loader.onnx.scope import CONTROL
from qnnmem.loader.onnx.tensor import OnnxType, value_info

if TYPE_CHECKING:
    import onnx

# Shape operands are far smaller; weights above this only slow inference down.
_HEAVY = 4096
_INT64 = 7


def light_graph(graph: AnyGraph, known: Mapping[str, OnnxType]) -> onnx.GraphProto:
    """Graph for shape inference: types of some tensors given, no control flow, no weights."""
    import onnx

    light = onnx.GraphProto(name="light")
    light.input.extend(graph.input)
    for item in graph.output:  # without types: the file's own may contradict what is inferred
        light.output.add(name=item.name)
    light.initializer.extend(_bare(item) for item in graph.initializer)
    made = set()
    for node in graph.node:
        if is_op(node, *CONTROL):
            made.update(node.output)
        elif is_op(node, "Constant") and node.ByteSize() > _HEAVY:
            light.node.append(_bare_constant(node))
        else:
            light.node.append(node)
    for name, kind in known.items():
        (light.input if name in made else light.value_info).append(value_info(name, kind))
    return light


def _bare(tensor: onnx.TensorProto) -> onnx.TensorProto:
    import onnx

    if tensor.ByteSize() <= _HEAVY and tensor.data_location == 0:
        return tensor
    return onnx.TensorProto(name=tensor.name, dims=tensor.dims, data_type=tensor.data_type)


def _bare_constant(node: onnx.NodeProto) -> onnx.NodeProto:
    import onnx

    bare = onnx.NodeProto(op_type="Constant", output=node.output)
    for found in node.attribute:
        if found.HasField("t"):
            bare.attribute.add(name=found.name, type=found.type).t.CopyFrom(_bare(found.t))
        else:
            bare.attribute.append(found)
    return bare


def cone(
    graph: AnyGraph,
    names: Iterable[str],
    types: Mapping[str, OnnxType],
    const: Collection[str],
) -> onnx.GraphProto:
    """Part of a graph that computes `names`; shapes already settled become numbers."""
    import onnx

    needed, nodes = set(names), []
    for node in reversed(graph.node):
        if needed.isdisjoint(node.output):
            continue
        if is_op(node, "Shape", "Size") and node.output[0] in const:
            settled = shape_as_number(node, types)
            if settled is not None:
                nodes.append(settled)
                continue
        nodes.append(node)
        needed.update(reads(node))
    part = onnx.GraphProto(name="cone", node=reversed(nodes))
    part.initializer.extend(item for item in graph.initializer if item.name in needed)
    part.input.extend(item for item in graph.input if item.name in needed)
    return part


def shape_as_number(node: onnx.NodeProto, types: Mapping[str, OnnxType]) -> onnx.NodeProto | None:
    """Constant node in place of a Shape or Size node of a tensor whose shape is known."""
    import onnx
    from onnx import helper

    kind = types.get(node.input[0])
    if kind is None or kind.shape is None:
        return None
    if node.op_type == "Size":
        tensor = helper.make_tensor("", _INT64, [], [math.prod(kind.shape)])
    else:
        bounds = {found.name: found.i for found in node.attribute}
        dims = kind.shape[bounds.get("start", 0) : bounds.get("end")]
        tensor = helper.make_tensor("", _INT64, [len(dims)], dims)
    constant = onnx.NodeProto(op_type="Constant", name=node.name, output=node.output)
    constant.attribute.add(name="value", type=onnx.AttributeProto.TENSOR).t.CopyFrom(tensor)
    return constant
