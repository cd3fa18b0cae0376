"""Budgets of a project as Markdown: a table before and after, and the map of what is too large.

Forges take inline SVG and images in `data:` out of such a text, so the map stands in it as
characters; the drawing itself is a file beside it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from qnnmem.gate.checked import BudgetRun, CheckedModel
from qnnmem.report.check import PoolRow, answer, pool_rows, reasons, size, verdict
from qnnmem.report.check_map import planned_file
from qnnmem.report.diff import signed
from qnnmem.report.doctor_markdown import block, escape
from qnnmem.report.plan import map_lines
from qnnmem.text import shorten

_MARKS = {0: ":white_check_mark:", 1: ":x:", 2: ":x:", 3: ":grey_question:"}
_MAPS = 5  # drawn at most: a summary may have 1 MiB
_MODELS = 200  # in the table
_LINE = 200


def render_markdown(run: BudgetRun, maps: Mapping[str, str] | None = None) -> str:
    """The verdict, a table of all models, and maps of those that are not well.

    `maps` are drawings that were written, by the name of the model.
    """
    lines = [f"### {_MARKS[run.exit_code]} {escape(shorten(verdict(run), 1000))}", ""]
    lines += [
        "| model | pool | before | now | change | budget | |",
        "|---|---|--:|--:|--:|--:|---|",
    ]
    for model in run.models[:_MODELS]:
        lines += _table(model)
    if len(run.models) > _MODELS:
        lines += ["", f"{len(run.models) - _MODELS:,} more models are not shown here."]
    bad = [model for model in run.models if model.exit_code and model.plan is not None]
    for model in bad[:_MAPS]:
        lines += ["", *_map(model, (maps or {}).get(model.name, ""))]
    return "\n".join(lines) + "\n"


def _table(model: CheckedModel) -> Iterator[str]:
    rows: Sequence[PoolRow] = pool_rows(model)
    shown = [row for row in rows if row.limit is not None or row.words or row.is_changed]
    name = escape(shorten(model.name, _LINE))
    mark = _MARKS[model.exit_code]
    if not shown:
        yield f"| {name} | | | | | | {mark} {escape(shorten(answer(model), 300))} |"
        return
    for number, row in enumerate(shown):
        first = name if number == 0 else ""
        words = f"{mark} {escape(answer(model))}" if number == 0 else ""
        what = f" **{escape(row.words)}**" if row.words and row.words not in words else ""
        cells = (row.pool, size(row.before), size(row.now), signed(row.delta), size(row.limit))
        yield f"| {first} | {' | '.join(cells)} | {words}{what} |"


def _map(model: CheckedModel, drawing: str) -> Iterator[str]:
    yield f"<details><summary>{escape(shorten(model.name, _LINE))}: what sets the peak</summary>"
    yield ""
    yield from (f"- {escape(one)}" for one in reasons(model))
    yield ""
    yield from block(map_lines(planned_file(model)))
    if drawing:
        yield from ("", f"As a drawing: `{escape(drawing)}` among the files of this run.")
    yield from ("", "</details>")
