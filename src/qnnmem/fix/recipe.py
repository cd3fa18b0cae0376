"""Recipes: the steps of a change as JSON, to repeat on the same model or a similar model.

Earlier runs cache the recipes of proven changes. A search ends with the first sufficient change,
but a run for another budget might have proven a cheaper change. The result is the better
of the two changes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from qnnmem.bounded_file import read_bytes
from qnnmem.errors import LoadError, UsageError
from qnnmem.fix.remedy import Change, FixBench, FixCase, JudgedChange, ModelRemedy, Step
from qnnmem.fix.remedy_search import FixResult, best_of, cost_of
from qnnmem.htp.compile_cache import from_builtins, to_builtins
from qnnmem.results.fix import FixRecipe
from qnnmem.text import quote

SCHEMA = "qnnmem.fix-recipe/1"
_LARGEST = 1 << 20


def recipe_of(result: FixResult) -> FixRecipe:
    """Return the recipe of the best change."""
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
    """Read a recipe from a file; raise LoadError if the recipe is invalid."""
    data = read_bytes(path, _LARGEST)
    try:
        name = msgspec.json.decode(data, type=_Schema).schema
    except msgspec.ValidationError:
        name = ""
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as exc:
        raise LoadError(path, "is not JSON, so it is not a recipe") from exc
    if name != SCHEMA:
        raise LoadError(path, f"is not a recipe: its schema is not {SCHEMA}")
    try:
        return msgspec.json.decode(data, type=FixRecipe)
    except (msgspec.DecodeError, RecursionError) as exc:
        raise _damaged(path, exc) from exc


def _damaged(path: Path, exc: Exception) -> LoadError:
    fault = f"{exc} is missing" if isinstance(exc, KeyError) else str(exc)
    if isinstance(exc, IndexError):
        fault = "a list is too short, or a number is too large"
    return LoadError(path, f"is a damaged recipe ({fault})")


def apply_recipe(
    case: FixCase, steps: Sequence[Step], path: Path, remedies: Sequence[ModelRemedy]
) -> Change:
    """Return the change that a recipe makes; raise UsageError if the model does not match."""
    known = {remedy.name: remedy for remedy in remedies}
    change = Change("none", "as it is", case.model, case.options)
    for step in steps:
        remedy = known.get(step["remedy"])
        if remedy is None:
            raise LoadError(
                path,
                f"has a step {quote(step['remedy'])}, which is not a remedy; choose one of "
                f"{', '.join(known)}",
            )
        try:
            change = remedy.replay(case, change, step)
        except (LookupError, TypeError, ValueError, AttributeError) as exc:
            raise _damaged(path, exc) from exc
    return change


_MOST = 24  # cached changes for a model
_TRIES = 3  # cached changes that are planned again


@dataclass(frozen=True, slots=True)
class _Proven:
    """The steps, memory need and cost of a proven change."""

    scratch: int
    cost: tuple[float, ...]
    what: str
    steps: tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class _ProvenChanges:
    """Proven changes cached by earlier runs."""

    changes: tuple[_Proven, ...]


def add_proven(
    bench: FixBench, tried: Sequence[JudgedChange], remedies: Sequence[ModelRemedy]
) -> tuple[JudgedChange, ...]:
    """Return the tried changes, plus any better cached change; cache the proven changes."""
    cached = _read(bench.remembered(_question(bench)))
    better = _better(bench, cached, best_of(tried), remedies)
    judged = tuple(tried) if better is None else (*tried, better)
    bench.remember(_question(bench), _values((*cached, *_proven(judged))))
    return judged


def _better(
    bench: FixBench,
    cached: Sequence[_Proven],
    best: JudgedChange,
    remedies: Sequence[ModelRemedy],
) -> JudgedChange | None:
    case = bench.case
    tries = 0
    for proven in sorted(cached, key=lambda proven: (proven.cost, proven.scratch)):
        if list(proven.steps) == list(best.change.steps) or tries == _TRIES:
            continue
        if case.limit is not None and proven.scratch > case.limit:
            continue
        tries += 1
        try:
            change = apply_recipe(case, proven.steps, case.path, remedies)
        except (LoadError, UsageError):  # cached by a run that read the model differently
            continue
        change = replace(change, what=proven.what)
        need = bench.judge(change)
        if not need.fits and need.rank >= best.need.rank:
            continue
        judged = bench.judged(change)
        if judged.holds and best_of((best, judged)) is judged:
            return judged
    return None


def _proven(tried: Sequence[JudgedChange]) -> list[_Proven]:
    exact = ((j, j.change, j.need.size) for j in tried if j.holds and not j.change.is_lossy)
    return [
        _Proven(size, cost_of(judged), change.what, change.steps)
        for judged, change, size in exact
        if change.steps and size is not None
    ]


def _question(bench: FixBench) -> dict[str, Any]:
    case = bench.case
    return {
        "proven": {name: str(value) for name, value in asdict(case.options).items()},
        "keep": sorted(case.keep),
        "allow": sorted(case.allow),
        "seed": case.seed,
    }


def _values(changes: Sequence[_Proven]) -> dict[str, Any]:
    """Return, as JSON values, the changes that no other change beats in both bytes and cost."""
    best: list[_Proven] = []
    for proven in sorted(changes, key=lambda change: (change.scratch, change.cost)):
        if not best or proven.cost < best[-1].cost:
            best.append(proven)
    return to_builtins(_ProvenChanges(tuple(best[:_MOST])))


def _read(values: Mapping[str, Any] | None) -> tuple[_Proven, ...]:
    """Return the cached changes; an invalid cache entry counts as missing."""
    cached = from_builtins(_ProvenChanges, values)
    if cached is None:
        return ()
    steps = (step for proven in cached.changes for step in proven.steps)
    return cached.changes if all(isinstance(step.get("remedy"), str) for step in steps) else ()
