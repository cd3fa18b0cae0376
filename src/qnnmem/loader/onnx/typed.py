"""A shaped model as an ONNX model again, every tensor with its type."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qnnmem.loader.onnx.passes.shape import ShapedModel
from qnnmem.loader.onnx.tensor import value_info

if TYPE_CHECKING:
    import onnx


def write_typed(model: ShapedModel) -> onnx.ModelProto:
    """Message of its own with value infos for all tensors.

    External data stays where it is: locations were checked and are relative to the model's folder.
    """
    scope = model.scope
    outer = {item.name for item in scope.graph.input}
    outer |= {item.name for item in scope.graph.initializer}
    outputs = {item.name for item in scope.graph.output}
    proto = model.resolved.proto(scope.graph)
    for name, kind in scope.types.items():
        if kind.is_static and name not in outer and name not in outputs:
            proto.graph.value_info.append(value_info(name, kind))
    for item in proto.graph.output:
        item.CopyFrom(value_info(item.name, scope.types[item.name]))
    return proto
