"""Accepted numbers: the pools of every model in a file that git can show the changes of."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from qnnmem.atomic_file import write_whole
from qnnmem.bounded_file import is_there, read_bytes
from qnnmem.errors import LoadError
from qnnmem.gate.checked import BudgetRun, CheckedModel
from qnnmem.gate.comparison import compare_subjects
from qnnmem.gate.subjects import accepted_subject
from qnnmem.gate.tolerance import Tolerance, WhatCounts
from qnnmem.results.check import AcceptedModel, Baseline
from qnnmem.results.read import read_as
from qnnmem.results.schema import encode, schema_name

_LARGEST = 64 << 20  # bytes


def read_baseline(path: Path) -> Baseline | None:
    """The accepted numbers; None where there is no such file yet."""
    if not is_there(path):
        return None
    try:
        values = json.loads(read_bytes(path, _LARGEST))
    except (ValueError, RecursionError) as exc:
        raise LoadError(path, "is not whole: its JSON does not end as it should") from exc
    schema = schema_name(Baseline)
    if not isinstance(values, dict) or values.get("schema") != schema:
        raise LoadError(path, f"is no {schema}")
    return read_as(values, str(path), Baseline)


def against(
    models: Sequence[CheckedModel], accepted: Baseline, tolerance: Tolerance
) -> tuple[tuple[CheckedModel, ...], tuple[str, ...]]:
    """The models with what changed of each, and the names that are no longer checked."""
    by_name = dict(accepted.models)
    counts = WhatCounts(tolerance)
    found = []
    for model in models:
        before = by_name.pop(model.name, None)
        if before is None or model.refusal:
            found.append(model)
            continue
        now = accepted_subject(model.name, _accepted(model))
        compared = compare_subjects([accepted_subject(model.name, before)], [now], counts)
        found.append(replace(model, change=compared.subjects[0]))
    return tuple(found), tuple(by_name)


def write_baseline(path: Path, run: BudgetRun) -> None:
    """Write the numbers of this run; a model without an answer keeps what it had."""
    kept = read_baseline(path) if run.has_baseline else None
    models: dict[str, AcceptedModel] = {}
    for model in run.models:
        if not model.refusal:
            models[model.name] = _accepted(model)
        elif kept is not None and model.name in kept.models:
            models[model.name] = kept.models[model.name]
    # Sorted, a line for each number: git shows a change as what it is.
    ordered = {name: models[name] for name in sorted(models)}
    write_whole(path, encode(Baseline(models=ordered)).encode("ascii"))


def _accepted(model: CheckedModel) -> AcceptedModel:
    return AcceptedModel.of(model.pools, model.peak, model.settings, model.at_most)
