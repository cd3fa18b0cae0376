"""The remedy that makes a model of fewer nodes: fused, folded, without what does nothing.

onnxruntime's optimiser does it, in a child process and at its first level, which knows no ops but
those of the standard. Two steps, the milder first:

    exact      what rounds nothing otherwise: padding into convolutions, copies, casts and
               transposes that cancel out, the same computed twice, dead branches
    rounding   also weights that take in a factor or a BatchNormalization: the last bits of
               results may be others, which counts only where that is allowed
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from qnnmem.errors import UsageError
from qnnmem.fix.graph.plan_settings import PlanRemedy, unplanned
from qnnmem.fix.graph.rework import Reworker, optimised, taken_over
from qnnmem.fix.remedy import Change, FixBench, FixCase, JudgedChange, Step, self_contained
from qnnmem.fix.tiling.remedy import count
from qnnmem.text import counted, quote

if TYPE_CHECKING:
    from qnnmem.loader.onnx.passes.shape import ShapedModel

ROUNDING = "rounding"  # name to allow if last bits change
# Relative to the largest value of an output; a larger difference is more than rounding.
MOST_ROUNDING = 1e-4
# Rules of onnxruntime's optimiser that compute other weights, sum up in another order, or drop what
# seems to do nothing: adding zero turns a zero below zero into one above.
_ROUND_OTHERWISE = (
    "NoopElimination",
    *("ConvBNFusion", "ConvMulFusion", "ConvAddFusion", "DivMulFusion", "GemmSumFusion"),
    *("MatMulAddFusion", "GemmTransposeFusion", "MatMul_BatchNormalization_Fusion"),
)
LEVELS = {"exact": _ROUND_OTHERWISE, ROUNDING: ()}
_NAMED = 2  # kinds of nodes in a line of the table


@dataclass(frozen=True, slots=True)
class FusionRemedy:
    """Remedy that fuses nodes."""

    name: str = "fusion"

    def changes(self, bench: FixBench, base: JudgedChange) -> Iterator[JudgedChange]:
        """Yield fusions that keep rounding, then all fusions."""
        start, case = unplanned(base.change), bench.case
        seen, before = _kinds(start.model), self_contained(start.model)
        with Reworker() as child:
            for level, without in LEVELS.items():
                made = child.optimised(before, without)
                kinds = Counter(node.op_type for node in made.graph.node)
                if kinds == seen:
                    continue
                seen = kinds
                change = self._change(start, taken_over(case, before, made), level)
                judged = bench.judged(PlanRemedy().best(bench, change))
                yield judged if level == "exact" else allowed_to_round(case, judged)

    def again(self, case: FixCase, base: Change, step: Step) -> Change:
        """Apply the rules of a recipe."""
        nodes, level = count(step["nodes"]), str(step["level"])
        found = len(base.model.scope.graph.node)
        if nodes != found:
            raise UsageError(f"the recipe is for a model of {nodes} nodes, this one has {found}")
        if level not in LEVELS:
            raise ValueError(f"fusion is {' or '.join(LEVELS)}, not {quote(level)}")
        change = self._change(base, optimised(case, base.model, LEVELS[level]), level)
        return replace(change, is_lossy=change.is_lossy or flagged(step))

    def _change(self, base: Change, model: ShapedModel, level: str) -> Change:
        step = {"level": level, "nodes": len(base.model.scope.graph.node)}
        gone = _kinds(base.model) - _kinds(model)
        return base.then(self.name, _words(gone), step, model=model)


def allowed_to_round(case: FixCase, judged: JudgedChange) -> JudgedChange:
    """Return a change with different last bits as lossy, if that is allowed."""
    proof = judged.proof
    if proof is None or proof.identical or not proof.relative <= MOST_ROUNDING:
        return judged
    change = judged.change
    if ROUNDING not in case.allow:
        return replace(
            judged, change=replace(change, what=f"{change.what}; {ROUNDING} not allowed")
        )
    note = f"results are rounded otherwise, by at most {proof.relative:.2g} of the largest value"
    steps = tuple(
        {**step, "lossy": True} if "level" in step or "operators" in step else step
        for step in change.steps
    )
    return replace(
        judged,
        change=replace(change, is_lossy=True, steps=steps, notes=(*change.notes, note)),
    )


def flagged(step: Step) -> bool:
    """True if a step of a recipe was allowed to change last bits."""
    return step.get("lossy") is True


def _kinds(model: ShapedModel) -> Counter[str]:
    """Count the operators of a model that run; constants cost nothing."""
    scope = model.scope
    running = (node for node in scope.graph.node if not scope.are_const(node.output))
    return Counter(node.op_type for node in running)


def _words(gone: Counter[str]) -> str:
    """Describe the removed nodes in a few words."""
    if not gone:
        return "nodes fused"
    named = ", ".join(f"{number} {quote(kind)[1:-1]}" for kind, number in gone.most_common(_NAMED))
    left = sum(gone.values()) - sum(number for _, number in gone.most_common(_NAMED))
    return f"without {named}" + (f" and {counted(left, 'other')}" if left else "")
