"""The graph of a model for tiling: nodes in execution order, shapes, stored numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from qnnmem.loader.onnx.graph import OnnxGraph, attribute, is_op, live, opset_of, reads
from qnnmem.loader.onnx.tensor import EXTERNAL

if TYPE_CHECKING:
    import onnx
    from numpy.typing import NDArray

    from qnnmem.loader.onnx.passes.shape import ShapedModel
    from qnnmem.loader.onnx.tensor import OnnxType

_MOST_NUMBERS = 64  # elements of a tensor that sets shapes: pads, scales, starts


@dataclass(frozen=True)
class TiledGraph:
    """Shaped model without dead nodes; `fixed` nodes compute constants, `nodes` all other tensors.

    In the model, the fixed nodes come first.
    """

    model: ShapedModel
    fixed: tuple[onnx.NodeProto, ...]
    nodes: tuple[onnx.NodeProto, ...]

    @classmethod
    def of(cls, model: ShapedModel) -> TiledGraph:
        """Return the graph of a model, with only those nodes that an output depends on."""
        scope = model.scope
        alive = [scope.graph.node[index] for index in live(scope.graph)]
        fixed = tuple(node for node in alive if scope.are_const(node.output))
        nodes = tuple(node for node in alive if not scope.are_const(node.output))
        graph = cls(model, fixed, nodes)
        return replace(graph, model=graph.with_nodes(nodes, {}, ()))

    @property
    def types(self) -> Mapping[str, OnnxType]:
        """Element type and shape of every tensor."""
        return self.model.scope.types

    @property
    def const(self) -> set[str]:
        """Names of constants."""
        return self.model.scope.flow.const

    @cached_property
    def outputs(self) -> frozenset[str]:
        """Names of the model's outputs."""
        return frozenset(item.name for item in self.model.scope.graph.output)

    @cached_property
    def opset(self) -> int:
        """Version of the ONNX operator set."""
        return opset_of(self.model.resolved.head)

    @cached_property
    def last_read(self) -> dict[str, int]:
        """For each tensor, the position of its last reader; model outputs outlive all nodes."""
        last = {name: i for i, node in enumerate(self.nodes) for name in reads(node)}
        return last | dict.fromkeys(self.outputs, len(self.nodes))

    @cached_property
    def _stored(self) -> dict[str, onnx.TensorProto]:
        stored = {item.name: item for item in self.model.scope.graph.initializer}
        for node in self.fixed:
            value = attribute(node, "value")
            if is_op(node, "Constant") and value is not None and value.HasField("t"):
                stored[node.output[0]] = value.t
        return stored

    def shape(self, name: str) -> tuple[int, ...] | None:
        """Return the shape of a tensor; None if the shape is unknown."""
        kind = self.types.get(name)
        return None if kind is None else kind.shape

    def numbers(self, name: str) -> NDArray[Any] | None:
        """Return the values of a tensor; None unless the tensor is a small stored constant."""
        from onnx import numpy_helper

        shape, tensor = self.shape(name), self._stored.get(name)
        if tensor is None or shape is None or tensor.data_location == EXTERNAL:
            return None
        if len(shape) > 1 or (shape and shape[0] > _MOST_NUMBERS):
            return None
        return numpy_helper.to_array(tensor)

    def with_nodes(
        self,
        nodes: tuple[onnx.NodeProto, ...],
        types: Mapping[str, OnnxType],
        constants: tuple[onnx.TensorProto, ...],
    ) -> ShapedModel:
        """Return the model with new nodes, and with types and constants for the new nodes."""
        from qnnmem.loader.onnx.scope import Flow
        from qnnmem.loader.onnx.tensor import stored_type

        scope = self.model.scope
        graph = OnnxGraph(
            scope.graph.name,
            (*self.fixed, *nodes),
            scope.graph.input,
            scope.graph.output,
            (*scope.graph.initializer, *constants),
        )
        stored = {item.name: stored_type(item) for item in constants}
        known = {**self.types, **types, **stored}
        kept = {item.name for item in (*graph.input, *graph.output)}
        kept |= {item.name for item in graph.initializer}
        kept |= {name for node in graph.node for name in (*node.input, *node.output)}
        const = self.const | stored.keys()
        for node in nodes:  # a slice of a constant is a constant
            if is_op(node, "Slice") and all(name in const for name in node.input if name):
                const.update(node.output)
        flow = Flow(const, {}, set())
        typed = {name: kind for name, kind in known.items() if name in kept}
        return replace(self.model, scope=replace(scope, graph=graph, types=typed, flow=flow))
