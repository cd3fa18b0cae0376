"""Another order of ops, written into the model: whoever reads the file runs it in that order."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from qnnmem.fix.remedy import FixCase
from qnnmem.loader.onnx.passes.build import build
from qnnmem.planner.memory import plan_model

if TYPE_CHECKING:
    from qnnmem.loader.onnx.passes.shape import ShapedModel
    from qnnmem.planner.pools import MemoryPlan, PoolOptions


def reordered(case: FixCase, model: ShapedModel, options: PoolOptions) -> ShapedModel | None:
    """The model in an order that needs less; None if none is found."""
    built = build(model)
    found = plan_model(built, replace(options, reorder=True), seed=case.seed)
    if [op.sources for op in found.model.ops] == [op.sources for op in built.ops]:
        return None
    return in_order(model, found)


def in_order(model: ShapedModel, plan: MemoryPlan) -> ShapedModel:
    """The model with its nodes in the order of a plan; what computes constants comes first."""
    graph = model.scope.graph
    run = [at for op in plan.model.ops for at in op.sources]
    ours = set(run)
    first = [at for at in range(len(graph.node)) if at not in ours]
    nodes = tuple(graph.node[at] for at in dict.fromkeys((*first, *run)))
    return replace(model, scope=replace(model.scope, graph=replace(graph, node=nodes)))
