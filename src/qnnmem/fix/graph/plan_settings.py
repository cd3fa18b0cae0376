"""The mildest remedy: plan the unchanged model in place, or reorder its ops.

The new order is written into the model, so every reader of the file runs it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from qnnmem.fix.remedy import Change, FixBench, FixCase, JudgedChange, Step
from qnnmem.fix.tiling.tiled_graph import TiledGraph
from qnnmem.loader.onnx.passes.build import build
from qnnmem.planner.model_plan import plan_model

if TYPE_CHECKING:
    from qnnmem.loader.onnx.passes.shape import ShapedModel
    from qnnmem.planner.pools import MemoryPlan, PoolOptions


def reordered(case: FixCase, model: ShapedModel, options: PoolOptions) -> ShapedModel | None:
    """Return the model in an order that needs less memory; None if no other order is better."""
    built = build(model)
    found = plan_model(built, replace(options, reorder=True), seed=case.seed)
    if [op.sources for op in found.model.ops] == [op.sources for op in built.ops]:
        return None
    return in_order(model, found)


def in_order(model: ShapedModel, plan: MemoryPlan) -> ShapedModel:
    """Return the model with nodes in a plan's order; nodes that compute constants come first."""
    graph = model.scope.graph
    run = [at for op in plan.model.ops for at in op.sources]
    ours = set(run)
    first = [at for at in range(len(graph.node)) if at not in ours]
    nodes = tuple(graph.node[at] for at in dict.fromkeys((*first, *run)))
    return replace(model, scope=replace(model.scope, graph=replace(graph, node=nodes)))


_WISHES = (
    ("in place", {"inplace": True}),
    ("another order", {"reorder": True}),
    ("both", {"inplace": True, "reorder": True}),
)


@dataclass(frozen=True, slots=True)
class PlanRemedy:
    """Remedy that plans element-wise ops in place and reorders ops."""

    name: str = "plan"

    def changes(self, bench: FixBench, base: JudgedChange) -> Iterator[JudgedChange]:
        """Yield in-place planning, a new order, then both together."""
        start = base.change
        for words, wish in _WISHES:
            if "reorder" in wish and "order" in bench.case.keep:
                continue
            found = self._made(bench.case, start, words, wish)
            if found is not None:
                yield bench.judged(found)

    def again(self, case: FixCase, base: Change, step: Step) -> Change:
        """Return `base` with a recipe's plan settings applied."""
        wish = {name: flag(step[name]) for name in ("inplace", "reorder") if name in step}
        return self._made(case, base, "as in the recipe", wish) or base

    def best(self, bench: FixBench, change: Change) -> Change:
        """Return the change with the plan settings that need the least memory, without a proof."""
        found, need = change, bench.judge(change)
        for words, wish in _WISHES:
            if need.fits or ("reorder" in wish and "order" in bench.case.keep):
                continue
            other = self._made(bench.case, change, words, wish)
            if other is not None and (other_need := bench.judge(other)).rank < need.rank:
                found, need = replace(other, remedy=change.remedy), other_need
        return found

    def _made(
        self, case: FixCase, base: Change, words: str, wish: dict[str, bool]
    ) -> Change | None:
        """Return the change with these settings; None if the search finds no better order."""
        options = base.pool_options
        if wish.get("inplace"):
            options = replace(options, inplace=True)
        if not wish.get("reorder"):
            return base.then(self.name, words, wish, options=options)
        model = reordered(case, TiledGraph.of(base.model).model, options)
        if model is None:
            return None
        return base.then(self.name, words, wish, options=options, model=model)


def unplanned(change: Change) -> Change:
    """Return the change without its last plan settings, because the next remedy replaces them."""
    last = change.steps[-1]["remedy"] if change.steps else ""
    return change.of if last == PlanRemedy().name and change.of is not None else change


def flag(value: object) -> bool:
    """Return a boolean from a recipe; raise ValueError if the value is not a boolean."""
    if not isinstance(value, bool):
        raise ValueError("inplace and reorder must be true or false")
    return value
