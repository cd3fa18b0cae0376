"""What was done to a model, as JSON, so that it can be done again: to the same, or one like it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic
from typing import Any

from qnnmem.bounded_file import read_bytes
from qnnmem.errors import LoadError, UsageError
from qnnmem.fix.order import reordered
from qnnmem.fix.prove import prove
from qnnmem.fix.remedy import FixCase, JudgedChange, self_contained
from qnnmem.fix.tiling.bands import BandedRegion, Bander, TileRegion
from qnnmem.fix.tiling.graph import TiledGraph
from qnnmem.fix.tiling.rewrite import rewrite
from qnnmem.text import counted, quote

SCHEMA = "qnnmem.fix-recipe/1"
_LARGEST = 1 << 20
_AXES = {"rows": -2, "columns": -1}


@dataclass(frozen=True, slots=True)
class RecipeRegion:
    """A region by positions, and by the tensors that its first and last node make."""

    region: TileRegion
    first: str
    last: str


@dataclass(frozen=True, slots=True)
class Recipe:
    """Regions in bands, how the result is planned, and the shapes of the inputs."""

    shapes: Mapping[str, tuple[int, ...]]
    nodes: int
    regions: tuple[RecipeRegion, ...]
    inplace: bool
    reorder: bool


def recipe_of(case: FixCase, change: JudgedChange) -> dict[str, Any]:
    """The recipe of a change, as JSON has it."""
    graph = TiledGraph.of(case.model)
    names = {axis: word for word, axis in _AXES.items()}
    inputs = [item.name for item in case.model.scope.graph.input]
    return {
        "schema": SCHEMA,
        "model": case.path.name,
        "shapes": {name: list(graph.shape(name) or ()) for name in inputs},
        "nodes": len(graph.nodes),
        "regions": [
            {
                "first": region.first,
                "end": region.end,
                "first_tensor": graph.nodes[region.first].output[0],
                "last_tensor": graph.nodes[region.end - 1].output[0],
                "bands": region.bands,
                "axis": names[region.axis],
            }
            for region in change.regions
        ],
        "inplace": change.plan.options.inplace,
        "reorder": change.reordered,
        "before_bytes": change.before,
        "after_bytes": change.after,
    }


def read_recipe(path: Path) -> Recipe:
    """A recipe from a file."""
    try:
        values = json.loads(read_bytes(path, _LARGEST))
    except (ValueError, RecursionError) as exc:
        raise LoadError(path, "is not JSON, so it is no recipe") from exc
    if not isinstance(values, dict) or values.get("schema") != SCHEMA:
        raise LoadError(path, f"is no recipe: its schema is not {SCHEMA}")
    try:
        return _recipe(values)
    except (KeyError, TypeError, ValueError, AttributeError) as exc:
        raise LoadError(path, f"is a recipe with something missing or wrong in it ({exc})") from exc


def _recipe(values: Mapping[str, Any]) -> Recipe:
    regions = tuple(
        RecipeRegion(
            TileRegion(
                _count(one["first"]), _count(one["end"]), _count(one["bands"]), _AXES[one["axis"]]
            ),
            str(one["first_tensor"]),
            str(one["last_tensor"]),
        )
        for one in values["regions"]
    )
    shapes = {str(name): tuple(map(_count, shape)) for name, shape in values["shapes"].items()}
    flags = (values["inplace"], values["reorder"])
    if {*map(type, flags)} != {bool}:
        raise ValueError("inplace and reorder are true or false")
    return Recipe(shapes, _count(values["nodes"]), regions, *flags)


def _count(value: object) -> int:
    if type(value) is not int or not 0 <= value < 1 << 40:
        raise ValueError(f"{quote(value)} is no count")
    return value


def apply_recipe(case: FixCase, recipe: Recipe) -> JudgedChange:
    """Do again what a recipe says; refused where the model is another one."""
    begin = monotonic()
    before = case.plan(case.model, case.options).scratch_bytes
    graph = TiledGraph.of(case.model)
    bander = Bander(graph)
    banded = tuple(_banded(graph, bander, recipe))
    options = replace(case.options, inplace=recipe.inplace)
    model = rewrite(graph, banded)
    plan = case.plan(model, options)
    if recipe.reorder:
        model, plan = reordered(case, model, options) or (model, plan)
    proof = prove(
        self_contained(case.model), self_contained(model), samples=case.samples, seed=case.seed
    )
    return JudgedChange(
        "recipe",
        f"{counted(len(banded), 'region')} in bands",
        before,
        plan,
        model,
        tuple(one.region for one in banded),
        proof,
        bander.macs(),
        sum(one.extra_macs for one in banded),
        recipe.reorder,
        monotonic() - begin,
    )


def _banded(graph: TiledGraph, bander: Bander, recipe: Recipe) -> Sequence[BandedRegion]:
    if len(graph.nodes) != recipe.nodes:
        raise UsageError(
            f"the recipe is for a model of {recipe.nodes} nodes, this one has {len(graph.nodes)}"
        )
    found, done = [], 0
    for one in sorted(recipe.regions, key=lambda one: one.region.first):
        region = one.region
        if not done <= region.first < region.end <= len(graph.nodes) or region.bands < 2:
            raise UsageError("the recipe has regions that overlap or are not in the model")
        ends = (graph.nodes[region.first].output[0], graph.nodes[region.end - 1].output[0])
        if ends != (one.first, one.last):
            raise UsageError(
                f"the recipe is for another model: {quote(one.first)} is not what node "
                f"{region.first} makes, or {quote(one.last)} not what node {region.end - 1} makes"
            )
        banded = bander.bands(region)
        if isinstance(banded, str):
            raise UsageError(f"a region of the recipe cannot be computed in bands: {banded}")
        found.append(banded)
        done = region.end
    return found
