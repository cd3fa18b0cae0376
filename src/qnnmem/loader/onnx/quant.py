"""QDQ graphs read as the quantized graphs they mean.

    QuantizeLinear whose input only it reads   ->  the producer writes the integers itself
    DequantizeLinear                           ->  its consumers read the integers themselves

A float tensor stays real when something else needs it: a graph output, a body that captures it.
Scales and zero points must be constant.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from qnnmem.loader.onnx.graph import OnnxGraph, bodies, captured, is_op, is_quant, reads
from qnnmem.loader.onnx.scope import CONTROL

if TYPE_CHECKING:
    import onnx

    from qnnmem.loader.onnx.tensor import OnnxType


@dataclass(slots=True)
class Group:
    """A node together with the quantize and dequantize nodes folded into it."""

    node: onnx.NodeProto
    inputs: list[str]
    outputs: list[str]
    before: list[int] = field(default_factory=list)
    index: int = 0
    after: list[int] = field(default_factory=list)

    @property
    def sources(self) -> tuple[int, ...]:
        """Positions of the nodes, in an order they can run in."""
        return (*self.before, self.index, *self.after)


def group(graph: OnnxGraph, alive: Collection[int], const: Collection[str]) -> list[Group]:
    """Live, non-constant nodes of a graph with quantization folded in."""
    folding = _Folding(graph, alive, const)
    groups = [
        folding.group(index)
        for index in folding.active
        if index not in folding.quantize and index not in folding.dequantize
    ]
    return groups


class _Folding:
    def __init__(self, graph: OnnxGraph, alive: Collection[int], const: Collection[str]) -> None:
        self.nodes = list(graph.node)
        self.const = const
        self.active = [index for index in sorted(alive) if not self._is_folded_away(index)]
        self.readers: dict[str, list[int]] = {}
        for index in self.active:
            for name in reads(self.nodes[index]):
                self.readers.setdefault(name, []).append(index)
        self.kept = {item.name for item in graph.output}
        for index in self.active:
            for body in bodies(self.nodes[index]):
                self.kept.update(captured(body))
        self.maker = {
            name: index for index in sorted(alive) for name in self.nodes[index].output if name
        }
        self.dequantize = {index for index in self.active if self._is_free_dequantize(index)}
        self.quantize = {index for index in self.active if self._is_free_quantize(index)}

    def group(self, index: int) -> Group:
        """One node with what is folded into it."""
        node = self.nodes[index]
        found = Group(node, [], [], index=index)
        for name in reads(node):
            found.inputs.extend(self._read(name, found.before))
        for name in filter(None, node.output):
            found.outputs.append(self._written(name, found))
        found.inputs = list(dict.fromkeys(found.inputs))
        return found

    def _read(self, name: str, before: list[int]) -> list[str]:
        maker = self.maker.get(name)
        if maker is None or name in self.kept:
            return [name]
        weights = name in self.const and self._has_constant_scale(maker, "DequantizeLinear")
        if maker not in self.dequantize and not weights:
            return [name]
        before.append(maker)
        return reads(self.nodes[maker])

    def _written(self, name: str, found: Group) -> str:
        readers = self.readers.get(name, [])
        if len(readers) != 1 or readers[0] not in self.quantize:
            return name
        quantize = self.nodes[readers[0]]
        found.after.append(readers[0])
        found.inputs.extend(filter(None, quantize.input[1:]))
        return str(quantize.output[0])

    def _is_folded_away(self, index: int) -> bool:
        return all(name in self.const for name in self.nodes[index].output if name)

    def _has_constant_scale(self, index: int, kind: str) -> bool:
        node = self.nodes[index]
        return is_quant(node, kind) and all(name in self.const for name in node.input[1:] if name)

    def _is_free_dequantize(self, index: int) -> bool:
        name = self.nodes[index].output[0]
        return self._has_constant_scale(index, "DequantizeLinear") and name not in self.kept

    def _is_free_quantize(self, index: int) -> bool:
        node = self.nodes[index]
        if not self._has_constant_scale(index, "QuantizeLinear"):
            return False
        name = node.input[0]
        maker = self.maker.get(name)
        if maker is None or name in self.kept or name in self.const:
            return False
        if maker in self.dequantize or is_op(self.nodes[maker], *CONTROL):
            return False
        # A single read by a single node: scale and zero point are other tensors.
        return self.readers[name] == [index] and is_real(self.nodes[maker])


def is_real(node: onnx.NodeProto) -> bool:
    """True if a quantize node can be folded into this node: it is not one itself."""
    return not is_quant(node, "QuantizeLinear")


def same_scale(graph: OnnxGraph, found: Group, types: Mapping[str, OnnxType]) -> bool:
    """Whether one dequantize before and one quantize after undo each other exactly."""
    if len(found.before) != 1 or len(found.after) != 1:
        return False
    before, after = graph.node[found.before[0]], graph.node[found.after[0]]
    names = [*before.input[1:3], *after.input[1:3]]
    # Several scales run along an axis, which the op between may move.
    if before.attribute or after.attribute or any(types[name].shape for name in names if name):
        return False
    if types[before.input[0]].elem != types[after.output[0]].elem:
        return False
    return _parameters(graph, before) == _parameters(graph, after)


def _parameters(graph: OnnxGraph, node: onnx.NodeProto) -> list[object]:
    """Scale and zero point: the stored bytes where a file repeats them under other names."""
    names = [*node.input[1:3], ""][:2]
    stored = {item.name: item.raw_data for item in graph.initializer if item.name in names}
    return [stored.get(name) or name for name in names]
