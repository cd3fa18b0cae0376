"""Operators that a backend does not take, replaced by others that say the same.

The ONNX standard defines many operators by simpler ones; onnx puts those in their place. Then the
model is run and compared like any other change. Sums in another order round otherwise, so that it
counts only where that is allowed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qnnmem.errors import UsageError
from qnnmem.fix.graph.einsum import without_einsum
from qnnmem.fix.graph.fusion import ROUNDING, allowed_to_round, flagged
from qnnmem.fix.graph.rework import inlined
from qnnmem.fix.remedy import Change, FixBench, FixCase, JudgedChange, Step
from qnnmem.loader.onnx.graph import ONNX_DOMAINS
from qnnmem.loader.onnx.passes.shape import ShapedModel
from qnnmem.text import counted, quote

if TYPE_CHECKING:
    from qnnmem.htp.compile import CompileOptions
    from qnnmem.targets.socs import Soc

OPERATORS = "operators"  # what must be allowed
_NAMED = 4
_MOST_KINDS = 20

# Tested one by one on SM8650 with onnxruntime-qnn 2.7.0; 30 others compile.
_REFUSED_BY_HTP = frozenset(
    (
        *("Celu", "Einsum", "Erf", "GlobalLpPool", "Hardmax", "MeanVarianceNormalization"),
        *("ReduceL1", "ReduceLogSum", "ReduceSumSquare", "Shrink", "Sinh", "Softsign", "Trilu"),
    )
)

Refused = Callable[[ShapedModel], Collection[str]]  # kinds of unsupported operators
Takes = Callable[[str], bool]  # whether a kind of operator is acceptable as a replacement


def unknown_to_lpai(model: ShapedModel) -> Collection[str]:
    """Return operators that no public source lists for LPAI."""
    from qnnmem.lpai.program.contents import unknown_operators

    scope = model.scope
    return unknown_operators(
        (node.op_type, node.domain) for node in scope.graph.node if not scope.are_const(node.output)
    )


def taken_by_lpai(kind: str) -> bool:
    """True if a public source lists an operator for LPAI."""
    from qnnmem.lpai.program.contents import KNOWN

    return kind in KNOWN


def taken_by_htp(kind: str) -> bool:
    """True unless the library is known to refuse an operator."""
    return kind not in _REFUSED_BY_HTP


def refused_by_htp(soc: Soc, options: CompileOptions) -> Refused:
    """Ask the real library which operators it refuses for a SoC."""

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
    """Remedy that replaces unsupported operators by others of the ONNX standard."""

    refused: Refused = unknown_to_lpai
    takes: Takes = taken_by_lpai
    name: str = OPERATORS

    def changes(self, bench: FixBench, base: JudgedChange) -> Iterator[JudgedChange]:
        """Yield one change that replaces all of them."""
        if self.name not in bench.case.allow:
            return
        kinds = self._kinds(bench.case, base.change.model)
        if kinds:
            may = replace(bench.case, allow=bench.case.allow | {ROUNDING})
            yield allowed_to_round(may, bench.judged(self._change(bench.case, base.change, kinds)))

    def again(self, case: FixCase, base: Change, step: Step) -> Change:
        """Replace the operators of a recipe."""
        kinds = [str(kind) for kind in step["operators"]][:_MOST_KINDS]
        if not replaceable(base.model, kinds):
            raise UsageError("the recipe replaces operators that this model does not have")
        change = self._change(case, base, kinds)
        return replace(change, is_lossy=change.is_lossy or flagged(step))

    def _kinds(self, case: FixCase, model: ShapedModel) -> list[str]:
        """Return the kinds to replace whose replacements are supported."""
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
        return base.then(self.name, f"{words} by other operators", step, model=model)


def _new_kinds(case: FixCase, model: ShapedModel, kinds: Sequence[str]) -> set[str]:
    before, after = count_kinds(model), count_kinds(_apart(case, model, kinds))
    return {kind for kind, number in after.items() if number > before.get(kind, 0)}


def _apart(case: FixCase, model: ShapedModel, kinds: Sequence[str]) -> ShapedModel:
    """Return the model with operators of these kinds replaced."""
    model = without_einsum(model) if "Einsum" in kinds else model
    others = [kind for kind in kinds if kind != "Einsum"]
    return inlined(case, model, others) if others else model


def count_kinds(model: ShapedModel) -> dict[str, int]:
    """Count the operators that run."""
    found: dict[str, int] = {}
    scope = model.scope
    for node in scope.graph.node:
        if not scope.are_const(node.output):
            found[node.op_type] = found.get(node.op_type, 0) + 1
    return found


def replaceable(model: ShapedModel, kinds: Collection[str]) -> set[str]:
    """Return the operators that the standard defines by others."""
    found = set()
    for node in model.scope.graph.node:
        ours = node.op_type in kinds and node.domain in ONNX_DOMAINS
        if ours and (node.op_type == "Einsum" or has_definition(model, node.op_type)):
            found.add(node.op_type)
    return found


def has_definition(model: ShapedModel, kind: str) -> bool:
    """True if the model's version of the standard defines an operator by others."""
    import onnx

    head = model.resolved.head
    versions = [item.version for item in head.opset_import if item.domain in ONNX_DOMAINS]
    try:
        schema = onnx.defs.get_schema(kind, min(versions, default=1), "")
    except onnx.defs.SchemaError:
        return False
    known: Any = schema  # onnx leaves these two out of its types
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
    cure = f"; the standard says {', '.join(known[:_NAMED])} by others" if known else ""
    return f"public material about LPAI does not name {named}{rest}{cure}"
