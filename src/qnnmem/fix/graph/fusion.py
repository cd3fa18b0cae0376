"""Remedy that fuses and folds nodes; a child process rewrites the model.

onnxruntime's optimiser does this at its first level, which adds no non-standard ops. There are two
steps, the milder first:

    exact      changes no rounding: padding into convolutions, copies, casts and transposes that
               cancel out, common subexpressions, dead branches
    rounding   also folds a factor or a BatchNormalization into weights: the last bits of results
               can differ, so the user must allow it

A rewritten model is read like a user's file and keeps the order of nodes, because the order decides
how many bytes are live.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from qnnmem.child import ChildProcess
from qnnmem.errors import ChildFailed, LoadError
from qnnmem.fix.graph.plan_settings import PlanRemedy, unplanned
from qnnmem.fix.graph.rework_program import InlineOps, Optimise
from qnnmem.fix.remedy import (
    Change,
    FixBench,
    FixCase,
    JudgedChange,
    Step,
    check_node_count,
    read_again,
    self_contained,
)
from qnnmem.loader.onnx.graph import reads
from qnnmem.text import counted, quote
from qnnmem.wire import Done, WireMessage

if TYPE_CHECKING:
    import onnx

    from qnnmem.loader.onnx.passes.shape import ShapedModel

_TIME_LIMIT_S = 300.0


def optimised(case: FixCase, model: ShapedModel, without: Sequence[str]) -> ShapedModel:
    """Return the model after the optimiser's first level, with the named rules disabled."""
    before = self_contained(model)
    with Reworker() as child:
        return read_rewritten(case, before, child.optimised(before, without))


def inlined(case: FixCase, model: ShapedModel, kinds: Sequence[str]) -> ShapedModel:
    """Return the model with operators of these kinds replaced by their ONNX definitions."""
    before = self_contained(model)
    with Reworker() as child:
        return read_rewritten(case, before, child.inlined(before, kinds))


def read_rewritten(case: FixCase, before: onnx.ModelProto, after: onnx.ModelProto) -> ShapedModel:
    """Return the rewritten model: every tensor has a type, and the nodes keep their order."""
    known = {node.domain for node in before.graph.node} | {""}
    if any(node.domain not in known for node in after.graph.node):
        raise ChildFailed("non-standard operators were inserted")
    keep_order(before, after)
    try:
        model = read_again(after)
    except LoadError as exc:
        raise ChildFailed(f"the rewritten model cannot be read: {exc.reason}") from exc
    return replace(model, resolved=replace(model.resolved, path=case.path))


def keep_order(before: onnx.ModelProto, after: onnx.ModelProto) -> None:
    """Sort the nodes of a rewritten graph into the original order, matched by their outputs."""
    position = {name: i for i, node in enumerate(before.graph.node) for name in node.output}
    nodes = list(after.graph.node)
    maker = {name: i for i, node in enumerate(nodes) for name in node.output if name}
    needs = [{maker[name] for name in reads(node) if name in maker} for node in nodes]
    ranks: list[int] = []
    for node, sources in zip(nodes, needs, strict=True):  # producers come first in a valid order
        old = [position[name] for name in node.output if name and name in position]
        known = (ranks[source] for source in sources if source < len(ranks))
        ranks.append(min(old) if old else max(known, default=-1))
    order = _sorted(needs, ranks)
    del after.graph.node[:]
    after.graph.node.extend(nodes[index] for index in order)


def _sorted(needs: Sequence[set[int]], ranks: Sequence[int]) -> list[int]:
    """Return node positions in topological order; among ready nodes, the lowest rank is first."""
    readers: dict[int, list[int]] = {}
    for index, sources in enumerate(needs):
        for source in sources:
            readers.setdefault(source, []).append(index)
    waiting = [len(sources) for sources in needs]
    ready = [(ranks[index], index) for index, count in enumerate(waiting) if not count]
    heapq.heapify(ready)
    order = []
    while ready:
        _, index = heapq.heappop(ready)
        order.append(index)
        for reader in readers.get(index, ()):
            waiting[reader] -= 1
            if not waiting[reader]:
                heapq.heappush(ready, (ranks[reader], reader))
    return order


class Reworker(ChildProcess):
    """Child process with onnxruntime's optimiser and onnx's inliner."""

    def __init__(self, time_limit_s: float = _TIME_LIMIT_S) -> None:
        super().__init__("qnnmem.fix.graph.rework_program", time_limit_s)

    def optimised(self, model: onnx.ModelProto, without: Sequence[str]) -> onnx.ModelProto:
        """Return the model that onnxruntime's optimiser rewrote with the named rules disabled."""
        return self._asked(Optimise(list(without)), model)

    def inlined(self, model: onnx.ModelProto, kinds: Sequence[str]) -> onnx.ModelProto:
        """Return the model with operators of these kinds inlined by onnx."""
        return self._asked(InlineOps(list(kinds)), model)

    def _asked(self, request: WireMessage, model: onnx.ModelProto) -> onnx.ModelProto:
        """Return the rewritten model from the child process."""
        import onnx
        from google.protobuf.message import DecodeError  # type: ignore[import-untyped]  # no stubs

        _, content = self.ask(request, Done, model.SerializeToString(), limit=self.memory_limit)
        rewritten = onnx.ModelProto()
        try:
            rewritten.ParseFromString(content)
        except DecodeError as exc:
            raise ChildFailed("the written file is not a model") from exc
        return rewritten


ROUNDING = "rounding"  # name in `--allow`, if last bits may change
# Relative to the largest value of an output; a larger difference cannot be rounding.
MOST_ROUNDING = 1e-4
# Optimiser rules that compute other weights, sum in another order, or drop seemingly empty ops:
# adding zero turns -0.0 into +0.0.
_ROUND_OTHERWISE = (
    "NoopElimination",
    *("ConvBNFusion", "ConvMulFusion", "ConvAddFusion", "DivMulFusion", "GemmSumFusion"),
    *("MatMulAddFusion", "GemmTransposeFusion", "MatMul_BatchNormalization_Fusion"),
)
LEVELS = {"exact": _ROUND_OTHERWISE, ROUNDING: ()}
_NAMED = 2  # kinds of nodes named in a table row


@dataclass(frozen=True, slots=True)
class FusionRemedy:
    """Remedy that fuses nodes with onnxruntime's optimiser."""

    name: str = "fusion"

    def changes(self, bench: FixBench, base: JudgedChange) -> Iterator[JudgedChange]:
        """Yield the model after fusions that change no rounding, then after all fusions."""
        start, case = unplanned(base.change), bench.case
        kinds, before = count_kinds(start.model), self_contained(start.model)
        with Reworker() as child:
            for level, without in LEVELS.items():
                after = child.optimised(before, without)
                counts = Counter(node.op_type for node in after.graph.node)
                if counts == kinds:
                    continue
                kinds = counts
                change = self._change(start, read_rewritten(case, before, after), level)
                judged = bench.judged(PlanRemedy().best(bench, change))
                yield judged if level == "exact" else allowed_to_round(case, judged)

    def replay(self, case: FixCase, base: Change, step: Step) -> Change:
        """Return `base` with a recipe's fusion; raise UsageError if the model differs."""
        level = str(step["level"])
        check_node_count(step, len(base.model.scope.graph.node))
        if level not in LEVELS:
            raise ValueError(f"fusion must be {' or '.join(LEVELS)}, not {quote(level)}")
        change = self._change(base, optimised(case, base.model, LEVELS[level]), level)
        return replace(change, is_lossy=change.is_lossy or flagged(step))

    def _change(self, base: Change, model: ShapedModel, level: str) -> Change:
        step = {"level": level, "nodes": len(base.model.scope.graph.node)}
        removed = count_kinds(base.model) - count_kinds(model)
        return base.then(self.name, _words(removed), step, model=model)


def allowed_to_round(case: FixCase, judged: JudgedChange) -> JudgedChange:
    """Return the change; mark it as lossy if only last bits differ and rounding is allowed."""
    proof = judged.proof
    if proof is None or proof.identical or not proof.relative <= MOST_ROUNDING:
        return judged
    change = judged.change
    if ROUNDING not in case.allow:
        return replace(
            judged, change=replace(change, what=f"{change.what}; {ROUNDING} not allowed")
        )
    note = f"results are rounded differently, by at most {proof.relative:.2g} of the largest value"
    steps = tuple(
        {**step, "lossy": True} if "level" in step or "operators" in step else step
        for step in change.steps
    )
    return replace(
        judged,
        change=replace(change, is_lossy=True, steps=steps, notes=(*change.notes, note)),
    )


def flagged(step: Step) -> bool:
    """Return True if a recipe step is marked as allowed to change the last bits of results."""
    return step.get("lossy") is True


def count_kinds(model: ShapedModel) -> Counter[str]:
    """Count the operators that run, by kind; operators that compute constants do not run."""
    scope = model.scope
    running = (node for node in scope.graph.node if not scope.are_const(node.output))
    return Counter(node.op_type for node in running)


def _words(removed: Counter[str]) -> str:
    """Return a short description of the removed nodes."""
    if not removed:
        return "nodes fused"
    named = removed.most_common(_NAMED)
    words = ", ".join(f"{number} {quote(kind)[1:-1]}" for kind, number in named)
    left = removed.total() - sum(number for _, number in named)
    return f"without {words}" + (f" and {counted(left, 'other')}" if left else "")
