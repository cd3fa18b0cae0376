"""Ops that are done again just before a late reader, in the place of keeping what they made.

Nodes are copied under other names; from the reader on, the copies are read. What is computed is the
same: equal ops on equal inputs. Quantize and dequantize nodes go with the op that they belong to.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from qnnmem.fix.tiling.graph import TiledGraph
from qnnmem.ir import Model, Op
from qnnmem.loader.onnx.graph import all_names
from qnnmem.loader.onnx.passes.build import build

if TYPE_CHECKING:
    import onnx

    from qnnmem.loader.onnx.tensor import OnnxType


@dataclass(frozen=True, slots=True)
class Redo:
    """Ops, by position, and the op before which they are done again."""

    ops: tuple[int, ...]
    before: int


@dataclass(frozen=True)
class SteppedGraph:
    """A graph with the steps that its nodes make."""

    graph: TiledGraph

    @cached_property
    def model(self) -> Model:
        """Its steps, whose sources are positions of nodes."""
        return build(self.graph.model)

    @cached_property
    def users(self) -> dict[int, list[int]]:
        """Ops that each node is part of."""
        found: dict[int, list[int]] = {}
        for at, op in enumerate(self.model.ops):
            for source in op.sources:
                found.setdefault(source, []).append(at)
        return found

    @property
    def nodes(self) -> Sequence[onnx.NodeProto]:
        """All nodes; the first ones compute constants."""
        return self.graph.model.scope.graph.node

    @property
    def is_whole(self) -> bool:
        """Whether every node that runs is part of a step."""
        return all(at in self.users for at in range(len(self.graph.fixed), len(self.nodes)))


def redone(graph: SteppedGraph, redo: Redo) -> SteppedGraph:
    """The graph with some ops done again."""
    writer = _Redoing(graph, redo)
    for at, op in enumerate(graph.model.ops):
        if at == redo.before:
            writer.repeat()
        writer.emit(at, op)
    made = graph.graph.with_nodes(tuple(writer.written), writer.types, ())
    return SteppedGraph(TiledGraph.of(made))


@dataclass
class _Redoing:
    """Writes the nodes of a graph op by op."""

    graph: SteppedGraph
    redo: Redo
    written: list[onnx.NodeProto] = field(default_factory=list)
    types: dict[str, OnnxType] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._taken = set(all_names(self.graph.graph.model.scope.graph))
        self._taken |= {node.name for node in self.graph.nodes}
        self._fixed = len(self.graph.graph.fixed)
        self._done: set[int] = set()
        self._new: dict[str, str] = {}  # names of what was done again
        outputs = (self.graph.model.ops[at].outputs for at in self.redo.ops)
        self._again = {name for names in outputs for name in names}

    def repeat(self) -> None:
        """Copies of all ops that are done again, in their order."""
        sources = {at for op in self.redo.ops for at in self.graph.model.ops[op].sources}
        for at in sorted(sources):
            if at >= self._fixed:
                self._copy(at, self._new)

    def emit(self, at: int, op: Op) -> None:
        """The nodes of an op that are not written yet; from the late reader on with new names."""
        if at < self.redo.before or self._again.isdisjoint(op.inputs):
            for source in op.sources:
                self._once(source)
            return
        # Only what this op reads: inside of other ops the same names stay.
        names = {name: self._new[name] for name in op.inputs if name in self._again}
        for source in op.sources:
            node = self.graph.nodes[source]
            if source < self._fixed or names.keys().isdisjoint(node.input):
                self._once(source)
            elif len(self.graph.users[source]) > 1:
                self._copy(source, names)  # other ops need it as it is
            else:
                self._write(node, [names.get(name, name) for name in node.input], node.output)

    def _once(self, source: int) -> None:
        if source >= self._fixed and source not in self._done:
            self._done.add(source)
            self.written.append(self.graph.nodes[source])

    def _copy(self, source: int, names: dict[str, str]) -> None:
        """A node again: it reads what `names` say and adds what it makes to them."""
        node = self.graph.nodes[source]
        inputs = [names.get(name, name) for name in node.input]
        outputs = [self._free(name) if name else "" for name in node.output]
        names.update((old, new) for old, new in zip(node.output, outputs, strict=True) if old)
        self._write(node, inputs, outputs, self._free(node.name) if node.name else "")

    def _write(
        self, node: onnx.NodeProto, inputs: Sequence[str], outputs: Sequence[str], name: str = ""
    ) -> None:
        import onnx

        made = onnx.NodeProto()
        made.CopyFrom(node)
        made.name = name or node.name
        del made.input[:], made.output[:]
        made.input.extend(inputs)
        made.output.extend(outputs)
        self.written.append(made)

    def _free(self, wish: str) -> str:
        """A name that nothing has; of the type of what it copies."""
        number = 1
        while (name := f"{wish}/again{number}") in self._taken:
            number += 1
        self._taken.add(name)
        if wish in self.graph.graph.types:
            self.types[name] = self.graph.graph.types[wish]
        return name
