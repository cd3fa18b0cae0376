"""The plans of several files: one row each, as text and as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence

from qnnmem.planner.planned_file import PlannedFile, PlanRow
from qnnmem.report.plan import allocation_lines
from qnnmem.report.shell import file_word, next_line
from qnnmem.report.table import ANSWERS, table_lines
from qnnmem.results.plan import PlanResult
from qnnmem.results.proof import ProofScope
from qnnmem.results.several import RefusedFile
from qnnmem.text import MAX_NAME, counted, shorten

_SHOWN = ("scratch", "persistent", "constants")
_TITLES = ("file", *_SHOWN, "answer")
_NOT_FOUND = "not found to fit"  # by an upper bound: a smaller plan may exist
_NAMED = 3  # files that the verdict names
_POOLS = ("scratch", "persistent", "io", "constants")
_COLUMNS = ("file", *(f"{pool}_bytes" for pool in _POOLS), "lower_bound_bytes", "answer")

Row = PlanResult | RefusedFile


def render_text(planned: Sequence[PlanRow]) -> str:
    """The verdict on all, then a row for each."""
    rows = rows_of(planned)
    lines = [verdict(rows), "", *_table(rows)]
    crowded = [*crowded_lines(rows)]
    lines += ["", *crowded] if crowded else []
    files = [row for row in planned if isinstance(row, PlannedFile)]
    worst = [file for file in files if file.result.fits is not True]
    for shown in (*worst, *files)[:1]:
        words = ["qnnmem", "plan", file_word(shown.input), *shown.given]
        lines += ["", next_line("one of them in detail", words, "-v")]
    return "\n".join(lines).rstrip("\n") + "\n"


def rows_of(planned: Sequence[PlanRow]) -> list[Row]:
    """The result of each file, or why there is none, in the order of the files."""
    return [row.result if isinstance(row, PlannedFile) else row for row in planned]


def verdict(rows: Sequence[Row]) -> str:
    """One line about all files: whether budgets hold, and how many could not be planned."""
    planned = [row for row in rows if isinstance(row, PlanResult)]
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


def _some(asked: Sequence[PlanResult], answer: bool | None) -> str:
    """How many have an answer, and the first of them by name."""
    names = [shorten(row.input, 40) for row in asked if row.fits is answer]
    more = ", …" if len(names) > _NAMED else ""
    return f"{len(names)} of {len(asked)} ({', '.join(names[:_NAMED])}{more})"


def _table(rows: Sequence[Row]) -> Iterator[str]:
    lines = list(table_lines(_TITLES, [_cells(row) for row in rows]))
    yield from lines
    text = "\n".join(lines)
    for row in rows:
        if isinstance(row, PlanResult) and row.graph not in text:
            yield f"graph in full: {shorten(row.graph, MAX_NAME)}"


def crowded_lines(rows: Sequence[Row]) -> Iterator[str]:
    """The first files with too many allocations for TCM, or planned for one input only."""
    said = [
        f"{shorten(row.input, 200)}: {line}"
        for row in rows
        if isinstance(row, PlanResult)
        for line in (*row.holds_for, *allocation_lines(row))
    ]
    yield from said[:_NAMED]
    if len(said) > _NAMED:
        yield f"… and {counted(len(said) - _NAMED, 'more file')}"


def _cells(row: Row) -> tuple[str, ...]:
    if isinstance(row, RefusedFile):
        return row.input, *["-"] * len(_SHOWN), "not planned"
    graph = f" {shorten(row.graph, 40)}" if row.graph else ""
    return row.input + graph, *(f"{row.pools[pool]:,}" for pool in _SHOWN), _answer(row)


def _answer(row: PlanResult) -> str:
    if row.has_verdict:
        return _NOT_FOUND if _is_only_bound(row) else ANSWERS[row.fits]
    return row.scope.value


def _is_only_bound(row: PlanResult) -> bool:
    """Whether only an upper bound of scratch is over its budget."""
    return row.scope is ProofScope.UPPER_BOUND and row.lacking == ("scratch",)


def render_csv(rows: Sequence[Row]) -> str:
    """A row for each file, quoted as spreadsheets do."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(_COLUMNS)
    for row in rows:
        if isinstance(row, RefusedFile):
            table.writerow([row.input, *[""] * (len(_COLUMNS) - 2), "not planned"])
        else:
            table.writerow([row.input, *row.pools.values(), row.lower_bound_bytes, _answer(row)])
    return text.getvalue()
