"""The plans of several files: one row each, as text, as JSON of schema `qnnmem.plans/1`, as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from typing import Any

from qnnmem.planner import Pool
from qnnmem.report.plan import allocation_lines
from qnnmem.report.plan_json import as_values
from qnnmem.report.planned import PlanReport
from qnnmem.report.several import (
    ANSWERS,
    overall_values,
    refused_values,
    table_lines,
)
from qnnmem.report.shell import file_word, next_line
from qnnmem.results.proof import ProofScope
from qnnmem.results.schema import write_json
from qnnmem.results.several import RefusedFile, worst_code
from qnnmem.text import MAX_NAME, counted, shorten

SCHEMA = "qnnmem.plans/1"
_SHOWN = (Pool.SCRATCH, Pool.PERSISTENT, Pool.CONSTANTS)
_TITLES = ("file", *(pool.value for pool in _SHOWN), "answer")
_NOT_FOUND = "not found to fit"  # by an upper bound: a smaller plan may exist
_NAMED = 3  # files that the verdict names
_COLUMNS = ("file", *(f"{pool.value}_bytes" for pool in Pool), "lower_bound_bytes", "answer")


Row = PlanReport | RefusedFile


def render_text(rows: Sequence[Row]) -> str:
    """The verdict on all, then a row for each."""
    lines = [verdict(rows), "", *_table(rows)]
    crowded = [*crowded_lines(rows)]
    lines += ["", *crowded] if crowded else []
    worst = next(
        (row for row in rows if isinstance(row, PlanReport) and row.fits is not True), None
    )
    shown = worst or next((row for row in rows if isinstance(row, PlanReport)), None)
    if shown is not None:
        words = ["qnnmem", "plan", file_word(shown.input), *shown.given]
        lines += ["", next_line("one of them in detail", words, "-v")]
    return "\n".join(lines).rstrip("\n") + "\n"


def verdict(rows: Sequence[Row]) -> str:
    """One line about all files: whether budgets hold, and how many could not be planned."""
    planned = [row for row in rows if isinstance(row, PlanReport)]
    refused = len(rows) - len(planned)
    asked = [row for row in planned if row.has_verdict]
    parts = []
    if asked:
        count = {answer: sum(row.fits is answer for row in asked) for answer in ANSWERS}
        if count[True] == len(asked):
            whole = "all" if not refused else "the other"
            parts.append(f"fits: {whole} {len(asked)}" if len(rows) > 1 else "fits")
        elif count[False]:
            final = not all(map(_is_only_bound, (row for row in asked if row.fits is False)))
            words = ANSWERS[False] if final else _NOT_FOUND
            parts.append(f"{words}: {_some(asked, answer=False)}")
        if count[None]:
            parts.append(f"cannot tell: {_some(asked, answer=None)}")
    else:
        parts.append(f"{counted(len(planned), 'file')} planned")
    # What was not looked at comes first: without it nothing is said of all files.
    return ", ".join([f"{refused} of {len(rows)} not planned"] * bool(refused) + parts)


def _some(asked: Sequence[PlanReport], answer: bool | None) -> str:
    """How many have an answer, and the first of them by name."""
    names = [shorten(row.input, 40) for row in asked if row.fits is answer]
    more = ", …" if len(names) > _NAMED else ""
    return f"{len(names)} of {len(asked)} ({', '.join(names[:_NAMED])}{more})"


def _table(rows: Sequence[Row]) -> Iterator[str]:
    lines = list(table_lines(_TITLES, [_cells(row) for row in rows]))
    yield from lines
    text = "\n".join(lines)
    for row in rows:
        if isinstance(row, PlanReport) and row.graph not in text:
            yield f"graph in full: {shorten(row.graph, MAX_NAME)}"


def crowded_lines(rows: Sequence[Row]) -> Iterator[str]:
    """The first files with too many allocations for TCM, or planned for one input only."""
    said = [
        f"{shorten(row.input, 200)}: {line}"
        for row in rows
        if isinstance(row, PlanReport)
        for line in (*row.plan.model.holds_for, *allocation_lines(row))
    ]
    yield from said[:_NAMED]
    if len(said) > _NAMED:
        yield f"… and {counted(len(said) - _NAMED, 'more file')}"


def _cells(row: Row) -> tuple[str, ...]:
    if isinstance(row, RefusedFile):
        return row.input, *["-"] * len(_SHOWN), "not planned"
    sizes = dict(row.pools)
    graph = f" {shorten(row.graph, 40)}" if row.graph else ""
    return row.input + graph, *(f"{sizes[pool]:,}" for pool in _SHOWN), _answer(row)


def _answer(row: PlanReport) -> str:
    if row.has_verdict:
        return _NOT_FOUND if _is_only_bound(row) else ANSWERS[row.fits]
    return row.plan.proof.value


def _is_only_bound(row: PlanReport) -> bool:
    """Whether only an upper bound of scratch is over its budget."""
    return row.plan.proof is ProofScope.UPPER_BOUND and row.lacking == ("scratch",)


def render_json(rows: Sequence[Row], tool: str) -> str:
    """One object, with the object of each plan as it would be alone."""
    planned = [row for row in rows if isinstance(row, PlanReport)]
    refused = [row for row in rows if isinstance(row, RefusedFile)]
    values: dict[str, Any] = {
        "schema": SCHEMA,
        "tool": tool,
        **overall_values([row.fits for row in planned], refused, exit_code(rows)),
        "plans": [as_values(row) for row in planned],
        "refused": refused_values(refused),
    }
    return write_json(values)


def exit_code(rows: Sequence[Row]) -> int:
    """The worst of all: not planned, then too small, then unknown."""
    return worst_code([row.exit_code for row in rows])


def render_csv(rows: Sequence[Row]) -> str:
    """A row for each file, quoted as spreadsheets do."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(_COLUMNS)
    for row in rows:
        if isinstance(row, RefusedFile):
            table.writerow([row.input, *[""] * (len(_COLUMNS) - 2), "not planned"])
        else:
            sizes = (size for _pool, size in row.pools)
            table.writerow([row.input, *sizes, row.plan.scratch.lower_bound, _answer(row)])
    return text.getvalue()
