"""Replace operators that a backend does not support by equivalent operators.

The ONNX standard defines many operators as functions of simpler operators; onnx's inliner replaces
them by these functions. An Einsum with one or two operands becomes Transpose, Reshape, MatMul and
ReduceSum:

    letters in both operands and the result   batch axes
    letters in both operands only             the contracted axes
    letters in one operand and the result     rows of the left, columns of the right operand

The changed model is then run and compared like any other change. A sum in another order rounds
differently, so the change counts only if rounding is allowed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qnnmem.errors import UsageError
from qnnmem.fix.graph.fusion import ROUNDING, allowed_to_round, count_kinds, flagged, inlined
from qnnmem.fix.remedy import Change, FixBench, FixCase, JudgedChange, Step
from qnnmem.fix.tiling.tiled_graph import TiledGraph
from qnnmem.loader.onnx.graph import all_names, attribute, is_op, opset_of, unused_name
from qnnmem.loader.onnx.passes.shape import ShapedModel
from qnnmem.loader.onnx.tensor import OnnxType
from qnnmem.text import counted, quote

if TYPE_CHECKING:
    import onnx

    from qnnmem.htp.compile import CompileOptions
    from qnnmem.targets.socs import Soc

_EQUATION = re.compile(r"([A-Za-z]+)(?:,([A-Za-z]+))?(?:->([A-Za-z]*))?")
_AXES_AS_INPUT = 13  # operator set in which ReduceSum takes its axes as an input


def without_einsum(model: ShapedModel) -> ShapedModel:
    """Return the model with each supported Einsum replaced by other ops."""
    graph = TiledGraph.of(model)
    writer = _EinsumWriter(graph)
    for node in graph.nodes:
        if not (is_op(node, "Einsum") and writer.write(node)):
            writer.nodes.append(node)
    return graph.with_nodes(tuple(writer.nodes), writer.types, tuple(writer.constants))


class _EinsumWriter:
    """Writes the nodes that replace an Einsum, and the types of their tensors."""

    def __init__(self, graph: TiledGraph) -> None:
        self.graph = graph
        self.nodes: list[onnx.NodeProto] = []
        self.types: dict[str, OnnxType] = {}
        self.constants: list[onnx.TensorProto] = []
        self._taken = set(all_names(graph.model.scope.graph))
        self._base, self._elem = "", 0

    def write(self, node: onnx.NodeProto) -> bool:
        """Replace an Einsum node; return False if the Einsum is not supported."""
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
                    return False  # an operand is broadcast
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
        """Sum an operand over its unwanted letters; return the name and letters of the result."""
        axes = [axis for axis, letter in enumerate(letters) if letter not in wanted]
        if not axes:
            return name, letters
        left = "".join(letter for letter in letters if letter in wanted)
        inputs = [name, self._numbers(axes)]
        total = self._add("ReduceSum", inputs, [sizes[letter] for letter in left])
        self.nodes[-1].attribute.add(name="keepdims", type=2, i=0)
        return total, left

    def _multiplied(
        self,
        first: tuple[str, str],
        second: tuple[str, str],
        result: str,
        sizes: dict[str, int],
        output: str,
    ) -> None:
        """Write the product of two operands as one batched MatMul."""
        a, b = first[1], second[1]
        batch = "".join(letter for letter in a if letter in b and letter in result)
        inner = "".join(letter for letter in a if letter in b and letter not in result)
        rows = "".join(letter for letter in a if letter not in b)
        columns = "".join(letter for letter in b if letter not in a)
        b_size, r_size, i_size, c_size = (
            math.prod(sizes[letter] for letter in group) for group in (batch, rows, inner, columns)
        )
        left = self._arranged(first[0], a, batch + rows + inner, sizes)
        right = self._arranged(second[0], b, batch + inner + columns, sizes)
        left = self._reshaped(left, [b_size, r_size, i_size])
        right = self._reshaped(right, [b_size, i_size, c_size])
        product = self._add("MatMul", [left, right], [b_size, r_size, c_size])
        letters = batch + rows + columns
        product = self._reshaped(product, [sizes[letter] for letter in letters])
        self._arranged(product, letters, result, sizes, output)

    def _arranged(
        self, name: str, letters: str, wanted: str, sizes: dict[str, int], output: str = ""
    ) -> str:
        """Transpose an operand to the wanted order of axes; return the name of the result."""
        if letters == wanted and not output:
            return name
        shape = [sizes[letter] for letter in wanted]
        transposed = self._add("Transpose", [name], shape, output)
        order = [letters.index(letter) for letter in wanted]
        self.nodes[-1].attribute.add(name="perm", type=7, ints=order)
        return transposed

    def _reshaped(self, name: str, shape: Sequence[int]) -> str:
        return self._add("Reshape", [name, self._numbers(shape)], shape)

    def _add(self, kind: str, inputs: list[str], shape: Sequence[int], output: str = "") -> str:
        import onnx

        name = output or unused_name(f"{self._base}/{kind}", self._taken)
        self.nodes.append(onnx.NodeProto(op_type=kind, name=name, input=inputs, output=[name]))
        self.types[name] = OnnxType(self._elem, tuple(shape))
        return name

    def _numbers(self, values: Sequence[int]) -> str:
        import numpy
        from onnx import numpy_helper

        name = unused_name(f"{self._base}/numbers", self._taken)
        self.constants.append(numpy_helper.from_array(numpy.array(values, numpy.int64), name))
        return name


def _parts(node: onnx.NodeProto) -> list[str] | None:
    """Return the letters of each operand and the result; None if a term repeats a letter."""
    equation = attribute(node, "equation")
    text = "" if equation is None else equation.s.decode("utf-8", "replace").replace(" ", "")
    match = _EQUATION.fullmatch(text)
    if match is None or len(node.input) != (1 if match[2] is None else 2):
        return None
    operands = [match[1], *([match[2]] if match[2] is not None else [])]
    letters = "".join(operands)
    single = sorted(letter for letter in set(letters) if letters.count(letter) == 1)
    parts = [*operands, "".join(single) if match[3] is None else match[3]]
    if any(len(set(part)) < len(part) for part in parts) or set(parts[-1]) - set(letters):
        return None
    return parts


OPERATORS = "operators"  # name in `--allow`
_NAMED = 4
_MOST_KINDS = 20

# On SM8650, onnxruntime-qnn 2.7.0 refuses each of these operators and compiles 30 others.
_REFUSED_BY_HTP = frozenset(
    (
        *("Celu", "Einsum", "Erf", "GlobalLpPool", "Hardmax", "MeanVarianceNormalization"),
        *("ReduceL1", "ReduceLogSum", "ReduceSumSquare", "Shrink", "Sinh", "Softsign", "Trilu"),
    )
)

Refused = Callable[[ShapedModel], Collection[str]]  # returns kinds of unsupported operators
Takes = Callable[[str], bool]  # returns whether a replacement operator is supported


def unknown_to_lpai(model: ShapedModel) -> Collection[str]:
    """Return operators of the model that no public source lists for LPAI."""
    from qnnmem.lpai.program.contents import unknown_operators

    scope = model.scope
    return unknown_operators(
        (node.op_type, node.domain) for node in scope.graph.node if not scope.are_const(node.output)
    )


def taken_by_lpai(kind: str) -> bool:
    """Return True if a public source lists an operator for LPAI."""
    from qnnmem.lpai.program.contents import KNOWN

    return kind in KNOWN


def taken_by_htp(kind: str) -> bool:
    """Return False if the HTP library is known to refuse an operator."""
    return kind not in _REFUSED_BY_HTP


def refused_by_htp(soc: Soc, options: CompileOptions) -> Refused:
    """Return a function that asks the real library which operators it refuses for a SoC."""

    def ask(model: ShapedModel) -> Collection[str]:
        from tempfile import TemporaryDirectory

        from qnnmem.fix.remedy import self_contained
        from qnnmem.htp.compile import CompileFailure, compile_model

        with TemporaryDirectory(".qnnmem") as folder:
            path = Path(folder, "asked.onnx")
            path.write_bytes(self_contained(model).SerializeToString())
            compiled = compile_model(path, soc, options)
        nodes = compiled.unsupported if isinstance(compiled, CompileFailure) else ()
        return {node.operator for node in nodes}

    return ask


@dataclass(frozen=True, slots=True)
class OperatorRemedy:
    """Remedy that replaces unsupported operators by other standard ONNX operators."""

    refused: Refused = unknown_to_lpai
    takes: Takes = taken_by_lpai
    name: str = OPERATORS

    def changes(self, bench: FixBench, base: JudgedChange) -> Iterator[JudgedChange]:
        """Yield one change that replaces all unsupported operators."""
        if self.name not in bench.case.allow:
            return
        kinds = self._kinds(bench.case, base.change.model)
        if kinds:
            may = replace(bench.case, allow=bench.case.allow | {ROUNDING})
            yield allowed_to_round(may, bench.judged(self._change(bench.case, base.change, kinds)))

    def replay(self, case: FixCase, base: Change, step: Step) -> Change:
        """Return `base` with a recipe's replacements; raise UsageError if the model differs."""
        kinds = [str(kind) for kind in step["operators"]][:_MOST_KINDS]
        if not replaceable(base.model, kinds):
            raise UsageError("the recipe replaces operators that this model does not have")
        change = self._change(case, base, kinds)
        return replace(change, is_lossy=change.is_lossy or flagged(step))

    def _kinds(self, case: FixCase, model: ShapedModel) -> list[str]:
        """Return the operator kinds that are refused and have supported replacements."""
        refused = self.refused(model)
        supported: list[str] = []
        for kind in sorted(replaceable(model, refused))[:_MOST_KINDS]:
            chosen = [kind]
            bad = self._not_taken(_new_kinds(case, model, chosen), refused)
            if bad and all(has_definition(model, other) for other in bad):
                chosen += sorted(bad)
                bad = self._not_taken(_new_kinds(case, model, chosen), refused)
            supported += [] if bad else chosen
        return list(dict.fromkeys(supported))

    def _not_taken(self, kinds: Collection[str], refused: Collection[str]) -> set[str]:
        return {kind for kind in kinds if kind in refused or not self.takes(kind)}

    def _change(self, case: FixCase, base: Change, kinds: Sequence[str]) -> Change:
        model = _replaced(case, base.model, kinds)
        before, after = count_kinds(base.model), count_kinds(model)
        gone = [
            f"{number} {quote(kind)[1:-1]}" for kind, number in before.items() if kind not in after
        ]
        words = f"{', '.join(gone[:_NAMED])} replaced by other operators"
        return base.then(self.name, words, {"operators": list(kinds)}, model=model)


def _new_kinds(case: FixCase, model: ShapedModel, kinds: Sequence[str]) -> set[str]:
    """Return the operator kinds that the replacement of `kinds` adds to the model."""
    return set(count_kinds(_replaced(case, model, kinds)) - count_kinds(model))


def _replaced(case: FixCase, model: ShapedModel, kinds: Sequence[str]) -> ShapedModel:
    """Return the model with all operators of these kinds replaced."""
    model = without_einsum(model) if "Einsum" in kinds else model
    others = [kind for kind in kinds if kind != "Einsum"]
    return inlined(case, model, others) if others else model


def replaceable(model: ShapedModel, kinds: Collection[str]) -> set[str]:
    """Return those of the given operators that ONNX defines as functions of other operators."""
    present = {node.op_type for node in model.scope.graph.node if is_op(node, *kinds)}
    return {kind for kind in present if kind == "Einsum" or has_definition(model, kind)}


def has_definition(model: ShapedModel, kind: str) -> bool:
    """Return True if the model's operator set defines this operator as a function."""
    import onnx

    try:
        schema = onnx.defs.get_schema(kind, opset_of(model.resolved.head), "")
    except onnx.defs.SchemaError:
        return False
    known: Any = schema  # onnx's type stubs lack these two attributes
    return bool(known.has_function or known.has_context_dependent_function)


def about_operators(model: ShapedModel) -> str:
    """Return a sentence about operators that LPAI may not support, or ""."""
    kinds = unknown_to_lpai(model)
    if not kinds:
        return ""
    named = ", ".join(quote(kind)[1:-1] for kind in sorted(kinds)[:_NAMED])
    left = len(kinds) - _NAMED
    rest = f" and {counted(left, 'other')}" if left > 0 else ""
    defined = ", ".join(sorted(replaceable(model, kinds))[:_NAMED])
    cure = f"; other ops can replace {defined}" if defined else ""
    return f"LPAI might not support {named}{rest} (not in public documents){cure}"
