"""What was accepted: the pools of every model in a file that git can show the changes of."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from qnnmem.bounded_file import is_there, read_bytes
from qnnmem.errors import LoadError
from qnnmem.gate.budget_subjects import accepted_subject
from qnnmem.gate.changes import Tolerance, WhatCounts
from qnnmem.gate.checked import BudgetRun, CheckedModel
from qnnmem.gate.comparison import compare_subjects
from qnnmem.gate.subject import ResultSubject
from qnnmem.gate.subjects import subjects_of
from qnnmem.whole_file import write_whole

SCHEMA = "qnnmem.baseline/1"
_LARGEST = 64 << 20  # bytes


def read_baseline(path: Path) -> tuple[ResultSubject, ...] | None:
    """What was accepted; None where there is no such file yet."""
    if not is_there(path):
        return None
    try:
        found = json.loads(read_bytes(path, _LARGEST))
    except (ValueError, RecursionError) as exc:
        raise LoadError(path, "is not whole: its JSON does not end as it should") from exc
    if not isinstance(found, dict) or found.get("schema") != SCHEMA:
        raise LoadError(path, f"is no {SCHEMA}")
    return subjects_of(found, str(path))


def against(
    models: Sequence[CheckedModel], accepted: Sequence[ResultSubject], tolerance: Tolerance
) -> tuple[tuple[CheckedModel, ...], tuple[str, ...]]:
    """The models with what changed of each, and the names that are no longer checked."""
    by_name = {one.file: one for one in accepted}
    counts = WhatCounts(tolerance)
    found = []
    for model in models:
        before = by_name.pop(model.name, None)
        if before is None or model.refusal:
            found.append(model)
            continue
        now = accepted_subject(model.name, model.pools, model.peak, model.settings, model.at_most)
        compared = compare_subjects([before], [now], counts)
        found.append(replace(model, change=compared.subjects[0]))
    return tuple(found), tuple(by_name)


def write_baseline(path: Path, run: BudgetRun) -> None:
    """The numbers of this run; a model without an answer keeps what it had."""
    kept = {one.file: one for one in read_baseline(path) or ()} if run.has_baseline else {}
    models: dict[str, Any] = {}
    for model in run.models:
        if not model.refusal:
            models[model.name] = _accepted(model.pools, model.peak, model.settings, model.at_most)
        elif model.name in kept:
            old = kept[model.name]
            peak = {name: tensor.size for name, tensor in old.tensors.items()}
            models[model.name] = _accepted(old.pools, peak, old.settings, old.at_most)
    # Sorted, a line for each number: git shows a change as what it is. The schema comes first, by
    # which the file is known as a result.
    ordered = {name: models[name] for name in sorted(models)}
    text = json.dumps({"schema": SCHEMA, "models": ordered}, indent=1, ensure_ascii=True)
    write_whole(path, f"{text}\n".encode("ascii"))


def _accepted(
    pools: Mapping[str, int],
    peak: Mapping[str, int],
    settings: Mapping[str, str],
    at_most: Iterable[str],
) -> dict[str, Any]:
    bounds = {"at_most": sorted(at_most)} if at_most else {}
    return bounds | {
        "pools": dict(sorted(pools.items())),
        "peak": dict(sorted(peak.items())),
        "settings": dict(sorted(settings.items())),
    }
