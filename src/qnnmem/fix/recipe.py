"""What was done to a model, as JSON, so that it can be done again: to the same, or one like it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from qnnmem.bounded_file import read_bytes
from qnnmem.errors import LoadError
from qnnmem.fix.remedy import Change, FixCase, ModelRemedy, Step
from qnnmem.fix.run import FixResult
from qnnmem.results.fix import FixRecipe
from qnnmem.text import quote

SCHEMA = "qnnmem.fix-recipe/1"
_LARGEST = 1 << 20


def recipe_of(result: FixResult) -> FixRecipe:
    """The recipe of the best change."""
    case, best = result.case, result.best
    types = case.model.scope.types
    inputs = [item.name for item in case.model.scope.graph.input]
    return FixRecipe(
        backend=result.backend,
        model=case.path.name,
        shapes={name: tuple(types[name].shape or ()) for name in inputs},
        steps=tuple(dict(step) for step in best.change.steps),
        before_bytes=best.before.size,
        after_bytes=best.need.size,
    )


class _Schema(msgspec.Struct):
    schema: str = ""


def read_recipe(path: Path) -> FixRecipe:
    """A recipe from a file."""
    data = read_bytes(path, _LARGEST)
    try:
        name = msgspec.json.decode(data, type=_Schema).schema
    except msgspec.ValidationError:
        name = ""
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as exc:
        raise LoadError(path, "is not JSON, so it is no recipe") from exc
    if name != SCHEMA:
        raise LoadError(path, f"is no recipe: its schema is not {SCHEMA}")
    try:
        return msgspec.json.decode(data, type=FixRecipe)
    except (msgspec.DecodeError, RecursionError) as exc:
        raise _damaged(path, exc) from exc


def _damaged(path: Path, exc: Exception) -> LoadError:
    what = f"nothing called {exc}" if isinstance(exc, KeyError) else str(exc)
    return LoadError(path, f"is a recipe with something missing or wrong in it ({what})")


def apply_recipe(
    case: FixCase, steps: Sequence[Step], path: Path, remedies: Sequence[ModelRemedy]
) -> Change:
    """Do again what the steps of a recipe say; refused where the model is another one."""
    known = {remedy.name: remedy for remedy in remedies}
    change = Change("none", "as it is", case.model, case.options)
    for step in steps:
        remedy = known.get(step["remedy"])
        if remedy is None:
            names = ", ".join(known)
            raise LoadError(path, f"has a step {quote(step['remedy'])}; known are {names}")
        try:
            change = remedy.again(case, change, step)
        except (LookupError, TypeError, ValueError, AttributeError) as exc:
            raise _damaged(path, exc) from exc
    return change
