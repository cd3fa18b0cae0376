"""The mildest remedy: plan the unchanged model in place, or reorder its ops.

The new order is written into the model, so every reader of the file runs it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from qnnmem.fix.remedy import Change, FixBench, FixCase, JudgedChange, Step, recipe_flag
from qnnmem.fix.tiling.tiled_graph import TiledGraph
from qnnmem.loader.onnx.passes.build import build
from qnnmem.planner.model_plan import plan_model

if TYPE_CHECKING:
    from qnnmem.loader.onnx.passes.shape import ShapedModel
    from qnnmem.planner.pools import PoolOptions


def reordered(case: FixCase, model: ShapedModel, options: PoolOptions) -> ShapedModel | None:
    """Return the model in an order that needs less memory; None if no other order is better."""
    built = build(model)
    plan = plan_model(built, replace(options, reorder=True), seed=case.seed)
    if [op.sources for op in plan.model.ops] == [op.sources for op in built.ops]:
        return None
    graph = model.scope.graph
    ordered = [index for op in plan.model.ops for index in op.sources]
    constant = sorted(set(range(len(graph.node))).difference(ordered))  # these run first
    nodes = tuple(graph.node[index] for index in dict.fromkeys((*constant, *ordered)))
    return replace(model, scope=replace(model.scope, graph=replace(graph, node=nodes)))


_SETTINGS: tuple[tuple[str, dict[str, bool]], ...] = (
    ("in place", {"inplace": True}),
    ("another order", {"reorder": True}),
    ("both", {"inplace": True, "reorder": True}),
)


@dataclass(frozen=True, slots=True)
class PlanRemedy:
    """Remedy that plans element-wise ops in place and reorders ops."""

    name: str = "plan"

    def changes(self, bench: FixBench, base: JudgedChange) -> Iterator[JudgedChange]:
        """Yield in-place planning, then a new order, then in-place planning with the new order."""
        for change in self._changes(bench.case, base.change):
            yield bench.judged(change)

    def replay(self, case: FixCase, base: Change, step: Step) -> Change:
        """Return `base` with a recipe's plan settings applied."""
        names = ("inplace", "reorder")
        settings = {name: recipe_flag(step[name]) for name in names if name in step}
        return self._with_settings(case, base, "as in the recipe", settings) or base

    def best(self, bench: FixBench, change: Change) -> Change:
        """Return the change with the first plan settings that fit, else those with the least need.

        Results are not compared.
        """
        best, least = change, bench.judge(change)
        if least.fits:
            return best
        for planned in self._changes(bench.case, change):
            need = bench.judge(planned)
            if need.rank < least.rank:
                best, least = replace(planned, remedy=change.remedy), need
            if least.fits:
                break
        return best

    def _changes(self, case: FixCase, base: Change) -> Iterator[Change]:
        """Yield one change for each allowed combination of settings."""
        for words, settings in _SETTINGS:
            if "reorder" not in settings or "order" not in case.keep:
                change = self._with_settings(case, base, words, settings)
                if change is not None:
                    yield change

    def _with_settings(
        self, case: FixCase, base: Change, words: str, settings: dict[str, bool]
    ) -> Change | None:
        """Return the change with these settings; None if the search finds no better order."""
        options = base.pool_options
        if settings.get("inplace"):
            options = replace(options, inplace=True)
        if not settings.get("reorder"):
            return base.then(self.name, words, settings, options=options)
        model = reordered(case, TiledGraph.of(base.model).model, options)
        if model is None:
            return None
        return base.then(self.name, words, settings, options=options, model=model)


def unplanned(change: Change) -> Change:
    """Return the change without its last plan settings, because the next remedy replaces them."""
    last = change.steps[-1]["remedy"] if change.steps else ""
    return change.of if last == PlanRemedy().name and change.of is not None else change
