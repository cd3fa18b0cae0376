"""Whether several files fit: a row for each, as text and as JSON of schema `qnnmem.fits/1`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from qnnmem.htp.fit import TITLES, Fit, exit_code
from qnnmem.report.fit import answer_word, as_values, render_text, verdict
from qnnmem.report.several import (
    ANSWERS,
    overall_values,
    refused_values,
    table_lines,
)
from qnnmem.results.schema import write_json
from qnnmem.results.several import RefusedFile, worst_code
from qnnmem.text import counted, shorten

SCHEMA = "qnnmem.fits/1"
_NAMED = 3  # files that the verdict names


@dataclass(frozen=True, slots=True)
class FileFits:
    """The answers about one file, for each SoC that was asked for."""

    input: str
    fits: tuple[Fit, ...]

    @property
    def answer(self) -> bool | None:
        """Whether it fits all of them."""
        answers = {fit.fits for fit in self.fits}
        return False if False in answers else None if None in answers else True

    @property
    def exit_code(self) -> int:
        """As for the file alone."""
        return exit_code(self.fits)


FitRow = FileFits | RefusedFile


def code_of_all(rows: Sequence[FitRow]) -> int:
    """The worst of all: unreadable, then too large, then out of time, then unknown."""
    return worst_code([row.exit_code for row in rows])


def render_all(rows: Sequence[FitRow], *, verbose: bool = False) -> str:
    """The verdict on all, then a row for each file and SoC."""
    judged = [row for row in rows if isinstance(row, FileFits)]
    lines = [verdict_on_files(rows), "", *_table(rows)]
    open_ = [fit for row in judged for fit in row.fits if fit.fits is None]
    lines += ["", *dict.fromkeys(map(verdict, open_))] if open_ and not verbose else []
    text = "\n".join(lines) + "\n"
    details = (render_text(row.fits, row.input, verbose=True) for row in judged)
    return "\n".join([text, *details]) if verbose else text


def verdict_on_files(rows: Sequence[FitRow]) -> str:
    """One line about all files."""
    judged = [row for row in rows if isinstance(row, FileFits)]
    refused = len(rows) - len(judged)
    parts = [f"{refused} of {len(rows)} not judged"] if refused else []
    for answer in (False, None):
        names = [shorten(row.input, 40) for row in judged if row.answer is answer]
        if names:
            more = ", …" if len(names) > _NAMED else ""
            some = f"{', '.join(names[:_NAMED])}{more}"
            parts.append(f"{ANSWERS[answer]}: {len(names)} of {len(judged)} ({some})")
    if judged and all(row.answer is True for row in judged):
        parts.append(f"fits: {'all' if not refused else 'the other'} {len(judged)}")
    return ", ".join(parts) or f"{counted(0, 'file')} judged"


def _table(rows: Sequence[FitRow]) -> Iterator[str]:
    titles = ("file", "SoC", "to spare", "limit", "answer")
    yield from table_lines(titles, [cells for row in rows for cells in _cells(row)])


def _cells(row: FitRow) -> Iterator[tuple[str, ...]]:
    if isinstance(row, RefusedFile):
        yield row.input, "-", "-", "-", "not judged"
        return
    for fit in row.fits:
        worst = fit.tightest
        known = fit.fits is not None and worst is not None and worst.spare is not None
        spare = f"{worst.spare:,}" if known and worst is not None else "-"
        title = TITLES[worst.pool] if known and worst is not None else "-"
        yield row.input, fit.soc.name, spare, title, answer_word(fit)


def render_json(rows: Sequence[FitRow], tool: str) -> str:
    """One object, with the object of each file as it would be alone."""
    judged = [row for row in rows if isinstance(row, FileFits)]
    refused = [row for row in rows if isinstance(row, RefusedFile)]
    values: dict[str, Any] = {
        "schema": SCHEMA,
        "tool": tool,
        **overall_values([row.answer for row in judged], refused, code_of_all(rows)),
        "answers": [as_values(row.fits, row.input, tool) for row in judged],
        "refused": refused_values(refused),
    }
    return write_json(values)
