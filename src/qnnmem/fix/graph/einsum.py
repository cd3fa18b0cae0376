"""Einsum as Transpose, Reshape, MatMul and ReduceSum, where two operands or one are enough of it.

letters of both operands and the result   several products at once
of both, not of the result                what is summed over
of one and the result                     rows of the left, columns of the right operand
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from qnnmem.fix.tiling.graph import TiledGraph
from qnnmem.loader.onnx.graph import all_names, attribute, is_op
from qnnmem.loader.onnx.tensor import OnnxType

if TYPE_CHECKING:
    import onnx

    from qnnmem.loader.onnx.passes.shape import ShapedModel

_EQUATION = re.compile(r"([A-Za-z]+)(?:,([A-Za-z]+))?(?:->([A-Za-z]*))?")
_AXES_AS_INPUT = 13  # operator set from which ReduceSum takes axes so


def without_einsum(model: ShapedModel) -> ShapedModel:
    """Return the model with every supported Einsum replaced by other ops."""
    graph = TiledGraph.of(model)
    writer = _EinsumWriter(graph)
    for node in graph.nodes:
        if not (is_op(node, "Einsum") and writer.write(node)):
            writer.nodes.append(node)
    return graph.with_nodes(tuple(writer.nodes), writer.types, tuple(writer.constants))


class _EinsumWriter:
    """Writes equivalent nodes and the types of their intermediate tensors."""

    def __init__(self, graph: TiledGraph) -> None:
        self.graph = graph
        self.nodes: list[onnx.NodeProto] = []
        self.types: dict[str, OnnxType] = {}
        self.constants: list[onnx.TensorProto] = []
        self._taken = set(all_names(graph.model.scope.graph))
        self._base, self._elem = "", 0

    def write(self, node: onnx.NodeProto) -> bool:
        """Replace a node if supported; return whether it was."""
        parts = _parts(node)
        if parts is None or self.graph.opset < _AXES_AS_INPUT:
            return False
        *operands, result = parts
        sizes: dict[str, int] = {}
        for name, letters in zip(node.input, operands, strict=True):
            shape = self.graph.shape(name)
            if shape is None or len(shape) != len(letters):
                return False
            for letter, size in zip(letters, shape, strict=True):
                if sizes.setdefault(letter, size) != size:
                    return False  # one of them is broadcast
        self._base, self._elem = node.output[0], self.graph.types[node.output[0]].elem
        names = [
            self._summed(name, letters, "".join([*others, result]), sizes)
            for name, letters, others in zip(
                node.input, operands, (operands[1:], operands[:1]), strict=False
            )
        ]
        if len(names) == 1:
            self._arranged(*names[0], result, sizes, node.output[0])
        else:
            self._multiplied(names[0], names[1], result, sizes, node.output[0])
        return True

    def _summed(
        self, name: str, letters: str, wanted: str, sizes: dict[str, int]
    ) -> tuple[str, str]:
        """Return an operand summed over the letters that occur in no other."""
        axes = [at for at, letter in enumerate(letters) if letter not in wanted]
        if not axes:
            return name, letters
        left = "".join(letter for letter in letters if letter in wanted)
        inputs = [name, self._numbers(axes)]
        made = self._add("ReduceSum", inputs, [sizes[one] for one in left])
        self.nodes[-1].attribute.add(name="keepdims", type=2, i=0)
        return made, left

    def _multiplied(
        self,
        first: tuple[str, str],
        second: tuple[str, str],
        result: str,
        sizes: dict[str, int],
        output: str,
    ) -> None:
        a, b = first[1], second[1]
        many = "".join(one for one in a if one in b and one in result)
        summed = "".join(one for one in a if one in b and one not in result)
        rows = "".join(one for one in a if one not in b)
        columns = "".join(one for one in b if one not in a)
        counts = [math.prod(sizes[one] for one in some) for some in (many, rows, summed, columns)]
        left = self._arranged(first[0], a, many + rows + summed, sizes)
        right = self._arranged(second[0], b, many + summed + columns, sizes)
        left = self._reshaped(left, [counts[0], counts[1], counts[2]])
        right = self._reshaped(right, [counts[0], counts[2], counts[3]])
        made = self._add("MatMul", [left, right], [counts[0], counts[1], counts[3]])
        letters = many + rows + columns
        made = self._reshaped(made, [sizes[one] for one in letters])
        self._arranged(made, letters, result, sizes, output)

    def _arranged(
        self, name: str, letters: str, wanted: str, sizes: dict[str, int], output: str = ""
    ) -> str:
        """Return a transposed tensor."""
        if letters == wanted and not output:
            return name
        shape = [sizes[one] for one in wanted]
        made = self._add("Transpose", [name], shape, output)
        order = [letters.index(one) for one in wanted]
        self.nodes[-1].attribute.add(name="perm", type=7, ints=order)
        return made

    def _reshaped(self, name: str, shape: Sequence[int]) -> str:
        return self._add("Reshape", [name, self._numbers(shape)], shape)

    def _add(self, kind: str, inputs: list[str], shape: Sequence[int], output: str = "") -> str:
        import onnx

        name = output or self._free(f"{self._base}/{kind}")
        self.nodes.append(onnx.NodeProto(op_type=kind, name=name, input=inputs, output=[name]))
        self.types[name] = OnnxType(self._elem, tuple(shape))
        return name

    def _numbers(self, values: Sequence[int]) -> str:
        import numpy
        from onnx import numpy_helper

        name = self._free(f"{self._base}/numbers")
        self.constants.append(numpy_helper.from_array(numpy.array(values, numpy.int64), name))
        return name

    def _free(self, wish: str) -> str:
        number = 1
        while (name := f"{wish}{number}") in self._taken:
            number += 1
        self._taken.add(name)
        return name


def _parts(node: onnx.NodeProto) -> list[str] | None:
    """Return the letters of operands and result; None if one repeats a letter."""
    found = attribute(node, "equation")
    text = "" if found is None else found.s.decode("utf-8", "replace").replace(" ", "")
    match = _EQUATION.fullmatch(text)
    if match is None or len(node.input) != (1 if match[2] is None else 2):
        return None
    operands = [match[1], *([match[2]] if match[2] is not None else [])]
    letters = "".join(operands)
    single = sorted(one for one in set(letters) if letters.count(one) == 1)
    parts = [*operands, "".join(single) if match[3] is None else match[3]]
    if any(len(set(part)) < len(part) for part in parts) or set(parts[-1]) - set(letters):
        return None
    return parts
