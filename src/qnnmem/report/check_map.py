"""The memory maps of checked models, as drawings in files."""

from __future__ import annotations

import re
from collections.abc import Iterable

from qnnmem.gate.checked import CheckedModel
from qnnmem.planner.planned_file import PlannedFile
from qnnmem.report.plan_picture import render_svg

_ODD = re.compile(r"[^A-Za-z0-9._-]+")
_LONGEST = 120


def planned_file(model: CheckedModel) -> PlannedFile:
    """The plan of a model as renderers of plans take it."""
    if model.plan is None:
        raise ValueError(f"{model.name} was not planned")
    return PlannedFile(model.plan, model.file, model.seconds)


def drawings(models: Iterable[CheckedModel]) -> dict[str, tuple[str, str]]:
    """File name and SVG of every model that was planned, by its name."""
    found: dict[str, tuple[str, str]] = {}
    taken: set[str] = set()
    for model in models:
        if model.plan is not None:
            name = _file(model.name, taken)
            taken.add(name)
            found[model.name] = name, render_svg(planned_file(model).result)
    return found


def _file(name: str, taken: set[str]) -> str:
    """A name that is safe in every file system, and no other's."""
    stem = _ODD.sub("_", name).strip("._")[:_LONGEST] or "model"
    number, file = 1, f"{stem}.svg"
    while file.lower() in {one.lower() for one in taken}:
        number += 1
        file = f"{stem}-{number}.svg"
    return file
