"""What was done to a model, as JSON, so that it can be done again: to the same, or one like it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qnnmem.bounded_file import read_bytes
from qnnmem.errors import LoadError
from qnnmem.fix.remedy import Change, FixCase, JudgedChange, ModelRemedy, Step
from qnnmem.fix.tiling.remedy import count
from qnnmem.text import quote

SCHEMA = "qnnmem.fix-recipe/1"
_LARGEST = 1 << 20
_MOST_STEPS = 100


@dataclass(frozen=True, slots=True)
class Recipe:
    """Steps in order, and the shapes of the inputs they are for."""

    backend: str
    shapes: Mapping[str, tuple[int, ...]]
    steps: tuple[Step, ...]


def recipe_of(case: FixCase, best: JudgedChange, backend: str) -> dict[str, Any]:
    """The recipe of a change, as JSON has it."""
    types = case.model.scope.types
    inputs = [item.name for item in case.model.scope.graph.input]
    return {
        "schema": SCHEMA,
        "backend": backend,
        "model": case.path.name,
        "shapes": {name: list(types[name].shape or ()) for name in inputs},
        "steps": [dict(step) for step in best.change.steps],
        "before_bytes": best.before.size,
        "after_bytes": best.need.size,
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
    except (LookupError, TypeError, ValueError, AttributeError) as exc:
        raise _damaged(path, exc) from exc


def _damaged(path: Path, exc: Exception) -> LoadError:
    what = f"nothing called {exc}" if isinstance(exc, KeyError) else str(exc)
    return LoadError(path, f"is a recipe with something missing or wrong in it ({what})")


def _recipe(values: Mapping[str, Any]) -> Recipe:
    steps = values["steps"]
    if not isinstance(steps, list) or len(steps) > _MOST_STEPS:
        raise ValueError(f"steps are a list of at most {_MOST_STEPS}")
    if not all(isinstance(step, dict) and isinstance(step.get("remedy"), str) for step in steps):
        raise ValueError("a step names its remedy")
    shapes = {str(name): tuple(map(count, shape)) for name, shape in values["shapes"].items()}
    return Recipe(str(values["backend"]), shapes, tuple(steps))


def apply_recipe(
    case: FixCase, recipe: Recipe, path: Path, remedies: Sequence[ModelRemedy]
) -> Change:
    """Do again what a recipe says; refused where the model is another one."""
    known = {remedy.name: remedy for remedy in remedies}
    change = Change("none", "as it is", case.model, case.options)
    for step in recipe.steps:
        remedy = known.get(step["remedy"])
        if remedy is None:
            names = ", ".join(known)
            raise LoadError(path, f"has a step {quote(step['remedy'])}; known are {names}")
        try:
            change = remedy.again(case, change, step)
        except (LookupError, TypeError, ValueError, AttributeError) as exc:
            raise _damaged(path, exc) from exc
    return change
