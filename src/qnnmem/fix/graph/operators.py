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
from qnnmem.fix.graph.fusion import ROUNDING, allowed_to_round, flagged, inlined
from qnnmem.fix.remedy import Change, FixBench, FixCase, JudgedChange, Step
from qnnmem.fix.tiling.tiled_graph import TiledGraph
from qnnmem.loader.onnx.graph import ONNX_DOMAINS, all_names, attribute, is_op
from qnnmem.loader.onnx.passes.shape import ShapedModel
from qnnmem.loader.onnx.tensor import OnnxType
from qnnmem.text import counted, quote

if TYPE_CHECKING:
    import onnx

    from qnnmem.htp.compile import CompileOptions
    from qnnmem.loader.onnx.passes.shape import ShapedModel
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
        """Replace an Einsum node; return False if it is not supported."""
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
        """Transpose an operand to the wanted order of axes; return the name of the result."""
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
    """Return the letters of each operand and the result; None if a term repeats a letter."""
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
            found = compile_model(path, soc, options)
        nodes = found.unsupported if isinstance(found, CompileFailure) else ()
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

    def again(self, case: FixCase, base: Change, step: Step) -> Change:
        """Return `base` with a recipe's operators replaced; raise UsageError for another model."""
        kinds = [str(kind) for kind in step["operators"]][:_MOST_KINDS]
        if not replaceable(base.model, kinds):
            raise UsageError("the recipe replaces operators that this model does not have")
        change = self._change(case, base, kinds)
        return replace(change, is_lossy=change.is_lossy or flagged(step))

    def _kinds(self, case: FixCase, model: ShapedModel) -> list[str]:
        """Return the operator kinds that are refused and have supported replacements."""
        refused = self.refused(model)
        found: list[str] = []
        for kind in sorted(replaceable(model, refused))[:_MOST_KINDS]:
            chosen = [kind]
            bad = self._not_taken(_new_kinds(case, model, chosen), refused)
            if bad and all(has_definition(model, one) for one in bad):
                chosen += sorted(bad)
                bad = self._not_taken(_new_kinds(case, model, chosen), refused)
            found += [] if bad else chosen
        return list(dict.fromkeys(found))

    def _not_taken(self, kinds: Collection[str], refused: Collection[str]) -> set[str]:
        return {kind for kind in kinds if kind in refused or not self.takes(kind)}

    def _change(self, case: FixCase, base: Change, kinds: Sequence[str]) -> Change:
        model = _apart(case, base.model, kinds)
        before, after = count_kinds(base.model), count_kinds(model)
        gone = {kind: before[kind] for kind in before if kind not in after}
        words = ", ".join(f"{n} {quote(kind)[1:-1]}" for kind, n in [*gone.items()][:_NAMED])
        step = {"operators": list(kinds)}
        return base.then(self.name, f"{words} replaced by other operators", step, model=model)


def _new_kinds(case: FixCase, model: ShapedModel, kinds: Sequence[str]) -> set[str]:
    before, after = count_kinds(model), count_kinds(_apart(case, model, kinds))
    return {kind for kind, number in after.items() if number > before.get(kind, 0)}


def _apart(case: FixCase, model: ShapedModel, kinds: Sequence[str]) -> ShapedModel:
    """Return the model with all operators of these kinds replaced."""
    model = without_einsum(model) if "Einsum" in kinds else model
    others = [kind for kind in kinds if kind != "Einsum"]
    return inlined(case, model, others) if others else model


def count_kinds(model: ShapedModel) -> dict[str, int]:
    """Count the operators that run, by kind."""
    found: dict[str, int] = {}
    scope = model.scope
    for node in scope.graph.node:
        if not scope.are_const(node.output):
            found[node.op_type] = found.get(node.op_type, 0) + 1
    return found


def replaceable(model: ShapedModel, kinds: Collection[str]) -> set[str]:
    """Return those of the given operators that ONNX defines as functions of other operators."""
    found = set()
    for node in model.scope.graph.node:
        ours = node.op_type in kinds and node.domain in ONNX_DOMAINS
        if ours and (node.op_type == "Einsum" or has_definition(model, node.op_type)):
            found.add(node.op_type)
    return found


def has_definition(model: ShapedModel, kind: str) -> bool:
    """Return True if the model's operator set defines this operator as a function."""
    import onnx

    head = model.resolved.head
    versions = [item.version for item in head.opset_import if item.domain in ONNX_DOMAINS]
    try:
        schema = onnx.defs.get_schema(kind, min(versions, default=1), "")
    except onnx.defs.SchemaError:
        return False
    known: Any = schema  # onnx's type stubs lack these two attributes
    return bool(known.has_function or known.has_context_dependent_function)


def about_operators(model: ShapedModel) -> str:
    """Return a sentence about operators that LPAI may not support, or ""."""
    found = unknown_to_lpai(model)
    if not found:
        return ""
    named = ", ".join(quote(kind)[1:-1] for kind in sorted(found)[:_NAMED])
    more = len(found) - _NAMED
    rest = f" and {counted(more, 'other')}" if more > 0 else ""
    known = sorted(replaceable(model, found))
    listed = ", ".join(known[:_NAMED])
    cure = f"; ONNX defines {listed} as functions of other ops" if known else ""
    return f"public LPAI documents do not mention {named}{rest}{cure}"
