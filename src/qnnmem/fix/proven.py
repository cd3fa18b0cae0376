"""Changes that earlier runs proved for the same model, whatever budget they were for.

A search goes from mild to strong and ends with the first change that is enough. A run for another
budget may have found one that costs less: the answer is the best of both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice
from typing import Any

from qnnmem.errors import LoadError, UsageError
from qnnmem.fix.recipe import apply_recipe
from qnnmem.fix.remedy import FixBench, JudgedChange, ModelRemedy, Step
from qnnmem.fix.run import best_of, cost_of

_MOST = 24  # changes kept for a model
_TRIES = 3  # changes that are planned again


@dataclass(frozen=True, slots=True)
class _Proven:
    """The steps, need and cost of a proven change."""

    scratch: int
    cost: tuple[float, ...]
    what: str
    steps: tuple[Step, ...]


def add_proven(
    bench: FixBench, tried: Sequence[JudgedChange], remedies: Sequence[ModelRemedy]
) -> tuple[JudgedChange, ...]:
    """Return the tried changes plus a better one of an earlier run; keep both for later runs."""
    kept = _read(bench.remembered(_question(bench)))
    better = _better(bench, kept, best_of(tried), remedies)
    found = tuple(tried) if better is None else (*tried, better)
    bench.remember(_question(bench), _values((*kept, *_proven(found))))
    return found


def _better(
    bench: FixBench,
    kept: Sequence[_Proven],
    best: JudgedChange,
    remedies: Sequence[ModelRemedy],
) -> JudgedChange | None:
    case = bench.case
    tries = 0
    for one in sorted(kept, key=lambda one: (one.cost, one.scratch)):
        if list(one.steps) == list(best.change.steps) or tries == _TRIES:
            continue
        if case.limit is not None and one.scratch > case.limit:
            continue
        tries += 1
        try:
            change = apply_recipe(case, one.steps, case.path, remedies)
        except (LoadError, UsageError):  # kept by a run that read the model otherwise
            continue
        change = replace(change, what=one.what)
        need = bench.judge(change)
        if not need.fits and need.rank >= best.need.rank:
            continue
        judged = bench.judged(change)
        if judged.holds and best_of((best, judged)) is judged:
            return judged
    return None


def _proven(tried: Sequence[JudgedChange]) -> list[_Proven]:
    return [
        _Proven(one.need.size, cost_of(one), one.change.what, one.change.steps)
        for one in tried
        if one.holds and not one.change.is_lossy and one.change.steps and one.need.size is not None
    ]


def _question(bench: FixBench) -> dict[str, Any]:
    case = bench.case
    return {
        "proven": {name: str(value) for name, value in asdict(case.options).items()},
        "keep": sorted(case.keep),
        "allow": sorted(case.allow),
        "seed": case.seed,
    }


def _values(found: Sequence[_Proven]) -> dict[str, Any]:
    """Return the changes that no other beats in both bytes and cost, for JSON."""
    best: list[_Proven] = []
    for one in sorted(found, key=lambda one: (one.scratch, one.cost)):
        if not best or one.cost < best[-1].cost:
            best.append(one)
    rows = (
        [one.scratch, list(one.cost), one.what, [dict(step) for step in one.steps]] for one in best
    )
    return {"changes": list(islice(rows, _MOST))}


def _read(values: Mapping[str, Any] | None) -> list[_Proven]:
    """Return kept changes; an invalid file counts as missing."""
    try:
        return [_row(*row) for row in (values or {"changes": []})["changes"]]
    except (KeyError, TypeError, ValueError):
        return []


def _row(scratch: object, cost: Any, what: object, steps: Any) -> _Proven:
    if type(scratch) is not int or not isinstance(what, str) or not isinstance(steps, list):
        raise ValueError(scratch)
    if not all(isinstance(step, dict) and isinstance(step.get("remedy"), str) for step in steps):
        raise ValueError(steps)
    return _Proven(scratch, tuple(float(number) for number in cost), what, tuple(steps))
