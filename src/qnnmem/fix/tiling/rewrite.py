"""The nodes that compute a region in bands, in the place of those that compute it whole."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from qnnmem.fix.tiling.band_steps import Rows
from qnnmem.fix.tiling.bands import BandedRegion
from qnnmem.fix.tiling.graph import TiledGraph
from qnnmem.fix.tiling.schedule import WHOLE, Cut, Join, NodeRun, Part, schedule
from qnnmem.loader.onnx.graph import all_names
from qnnmem.loader.onnx.tensor import OnnxType

if TYPE_CHECKING:
    import onnx
    from numpy.typing import NDArray

    from qnnmem.loader.onnx.passes.shape import ShapedModel

_SLICE_BY_INPUTS = 10  # operator set; before, by attributes


class _Writer:
    """Writes nodes; knows the names of all that is made."""

    def __init__(self, graph: TiledGraph) -> None:
        self.graph = graph
        self.taken = {*all_names(graph.model.scope.graph), *(node.name for node in graph.nodes)}
        self.names: dict[Part, str] = {}
        self.nodes: list[onnx.NodeProto] = []
        self.types: dict[str, OnnxType] = {}
        self.constants: dict[str, onnx.TensorProto] = {}
        self.axis = 0

    def write(self, banded: BandedRegion) -> None:
        """All nodes of a region."""
        self.names, self.axis = {}, banded.region.axis
        for work in schedule(self.graph, banded):
            if isinstance(work, NodeRun):
                self._run(work)
            elif isinstance(work, Cut):
                self._cut(work)
            else:
                self._join(work)

    def _run(self, work: NodeRun) -> None:
        """The node for one band, reading the rows of its step."""
        import onnx

        old, step = self.graph.nodes[work.at], work.step
        node = onnx.NodeProto(op_type=old.op_type, domain=old.domain)
        band = next(part.band for part in work.outputs if part is not None)
        node.name = self._free(f"{old.name or old.output[0]}/band{band}")
        for slot, name in enumerate(old.input):
            part = work.inputs[slot]
            if slot in step.values:
                value = step.values[slot]
                node.input.append("" if value is None else self._constant(value))
            else:
                node.input.append(name if part is None else self._name(part))
        while node.input and not node.input[-1]:
            node.input.pop()
        node.output.extend("" if part is None else self._new(part) for part in work.outputs)
        node.attribute.extend(one for one in old.attribute if one.name not in step.attributes)
        for name, value in step.attributes.items():
            if value is not None:
                node.attribute.add(name=name, type=onnx.AttributeProto.INTS, ints=value)
        self.nodes.append(node)

    def _cut(self, work: Cut) -> None:
        import numpy
        import onnx

        source, rows = self._name(work.source), work.result.rows
        start = rows.first - work.source.rows.first
        axis = len(self.graph.shape(work.result.tensor) or ()) + self.axis
        result = self._new(work.result)
        node = onnx.NodeProto(op_type="Slice", name=result, input=[source], output=[result])
        ends = Rows(start, start + rows.height)
        if self.graph.opset >= _SLICE_BY_INPUTS:
            for number in (*ends, axis):
                node.input.append(self._constant(numpy.array([number], numpy.int64)))
        else:
            for name, number in (("starts", ends.first), ("ends", ends.end), ("axes", axis)):
                node.attribute.add(name=name, type=onnx.AttributeProto.INTS, ints=[number])
        self.nodes.append(node)

    def _join(self, work: Join) -> None:
        import onnx

        name = work.result.tensor
        node = onnx.NodeProto(op_type="Concat", name=self._free(f"{name}/bands"), output=[name])
        node.input.extend(map(self._name, work.parts))
        axis = len(self.graph.shape(name) or ()) + self.axis
        node.attribute.add(name="axis", type=onnx.AttributeProto.INT, i=axis)
        self.nodes.append(node)

    def _name(self, part: Part) -> str:
        return part.tensor if part.band == WHOLE else self.names[part]

    def _new(self, part: Part) -> str:
        """The name of a part that is made now."""
        rows = f"/{part.rows.first}:{part.rows.end}" if part.is_cut else ""
        name = self._free(f"{part.tensor}/band{part.band}{rows}")
        kind = self.graph.types[part.tensor]
        shape = [*(kind.shape or ())]
        shape[self.axis] = part.rows.height
        self.types[name] = OnnxType(kind.elem, tuple(shape))
        self.names[part] = name
        return name

    def _constant(self, value: NDArray[Any]) -> str:
        """A new constant; the same one for the same numbers."""
        from onnx import numpy_helper

        words = "x".join(str(number) for number in value.tolist())
        wish = f"qnnmem/{value.dtype.name}/{words}"
        if wish not in self.constants:
            # Under a name of its own: a model that was changed before has such constants already.
            self.constants[wish] = numpy_helper.from_array(value, self._free(wish))
        return self.constants[wish].name

    def _free(self, wish: str) -> str:
        """A name that nothing in the model has."""
        name, number = wish, 1
        while name in self.taken:
            number += 1
            name = f"{wish}#{number}"
        self.taken.add(name)
        return name


def rewrite(graph: TiledGraph, regions: Sequence[BandedRegion]) -> ShapedModel:
    """The model with some regions, which share no node, computed in bands."""
    writer = _Writer(graph)
    done = 0
    for banded in sorted(regions, key=lambda one: one.region.first):
        writer.nodes += graph.nodes[done : banded.region.first]
        writer.write(banded)
        done = banded.region.end
    writer.nodes += graph.nodes[done:]
    constants = tuple(writer.constants.values())
    return graph.with_nodes(tuple(writer.nodes), writer.types, constants)
