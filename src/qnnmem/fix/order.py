"""Another order of ops, written into the model: whoever reads the file runs it in that order."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from qnnmem.load.onnx.passes.build import build

if TYPE_CHECKING:
    from qnnmem.fix.remedy import FixCase
    from qnnmem.load.onnx.passes.shape import ShapedModel
    from qnnmem.plan.pools import MemoryPlan, PoolOptions


def reordered(
    case: FixCase, model: ShapedModel, options: PoolOptions
) -> tuple[ShapedModel, MemoryPlan] | None:
    """The model in an order that needs less, and its plan as it then is; None if none is found."""
    asked = replace(options, reorder=True)
    found = case.plan(model, asked)
    if [op.sources for op in found.model.ops] == [op.sources for op in build(model).ops]:
        return None
    changed = in_order(model, found)
    return changed, case.plan(changed, replace(options, reorder=False))


def in_order(model: ShapedModel, plan: MemoryPlan) -> ShapedModel:
    """The model with its nodes in the order of a plan; what computes constants comes first."""
    graph = model.scope.graph
    run = [at for op in plan.model.ops for at in op.sources]
    ours = set(run)
    first = [at for at in range(len(graph.node)) if at not in ours]
    nodes = tuple(graph.node[at] for at in dict.fromkeys((*first, *run)))
    return replace(model, scope=replace(model.scope, graph=replace(graph, node=nodes)))
