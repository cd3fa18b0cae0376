"""Budgets of a project as Markdown: a table before and after, and memory maps.

Forges take inline SVG and images in `data:` out of such a text, so the map stands in it as
characters; the drawing itself is a file beside it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from qnnmem.gate.checked import BudgetRun, CheckedModel
from qnnmem.planner.planned_file import PlannedFile
from qnnmem.report.check import PoolRow, pool_rows
from qnnmem.report.diff import signed, size
from qnnmem.report.markdown import block, escape
from qnnmem.report.plan import map_lines
from qnnmem.report.plan_picture import render_svg
from qnnmem.report.table import Column, markdown_table
from qnnmem.text import shorten

_MARKS = {0: ":white_check_mark:", 1: ":x:", 2: ":x:", 3: ":grey_question:"}
_MAPS = 5  # drawn at most: a summary may have 1 MiB
_MODELS = 200  # in the table
_LINE = 200
_COLUMNS = (
    *(Column(title, "<") for title in ("model", "pool")),
    *(Column(title) for title in ("before", "now", "change", "budget")),
    Column("", "<"),
)
_ODD = re.compile(r"[^A-Za-z0-9._-]+")
_LONGEST = 120  # characters of a file's name


def render_markdown(run: BudgetRun, maps: Mapping[str, str] | None = None) -> str:
    """The verdict, a table of all models, and maps of those that are not well.

    `maps` are drawings that were written, by the name of the model.
    """
    lines = [f"### {_MARKS[run.exit_code]} {escape(shorten(run.verdict, 1000))}", ""]
    rows = (cells for model in run.models[:_MODELS] for cells in _rows(model))
    lines += markdown_table(_COLUMNS, rows)
    if len(run.models) > _MODELS:
        lines += ["", f"{len(run.models) - _MODELS:,} more models are not shown here."]
    bad = [model for model in run.models if model.exit_code and model.plan is not None]
    for model in bad[:_MAPS]:
        lines += ["", *_map(model, (maps or {}).get(model.name, ""))]
    return "\n".join(lines) + "\n"


def _rows(model: CheckedModel) -> Iterator[Sequence[str]]:
    rows: Sequence[PoolRow] = pool_rows(model)
    shown = [row for row in rows if row.limit is not None or row.words or row.is_changed]
    name = escape(shorten(model.name, _LINE))
    mark = _MARKS[model.exit_code]
    if not shown:
        yield name, *[""] * 5, f"{mark} {escape(shorten(model.answer, 300))}"
        return
    for number, row in enumerate(shown):
        words = f"{mark} {escape(model.answer)}" if number == 0 else ""
        what = f" **{escape(row.words)}**" if row.words and row.words not in words else ""
        sizes = size(row.before), size(row.now), signed(row.delta), size(row.limit)
        yield "" if number else name, row.pool, *sizes, f"{words}{what}"


def _map(model: CheckedModel, drawing: str) -> Iterator[str]:
    yield f"<details><summary>{escape(shorten(model.name, _LINE))}: what sets the peak</summary>"
    yield ""
    yield from (f"- {escape(one)}" for one in model.reasons)
    yield ""
    yield from block(map_lines(_planned_file(model)))
    if drawing:
        yield from ("", f"As a drawing: `{escape(drawing)}` among the files of this run.")
    yield from ("", "</details>")


def _planned_file(model: CheckedModel) -> PlannedFile:
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
            found[model.name] = name, render_svg(_planned_file(model).result)
    return found


def _file(name: str, taken: set[str]) -> str:
    """A name that is safe in every file system, and no other's."""
    stem = _ODD.sub("_", name).strip("._")[:_LONGEST] or "model"
    number, file = 1, f"{stem}.svg"
    while file.lower() in {other.lower() for other in taken}:
        number += 1
        file = f"{stem}-{number}.svg"
    return file
