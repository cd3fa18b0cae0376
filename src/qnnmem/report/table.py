"""Tables: columns of text for a terminal, and rows of Markdown.

columns = (Column("pool", "<", 16), Column("before"), Column("after"))
text_table(columns, [("scratch", "100", "90")])
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Column:
    """A column: text to the left (`<`) or numbers to the right (`>`)."""

    title: str
    align: Literal["<", ">"] = ">"
    width: int = 0  # at least; cells that are longer widen the whole column
    gap: int = 2  # spaces before it


def text_table(
    columns: Sequence[Column],
    rows: Iterable[Sequence[str]],
    *,
    indent: str = "",
    has_head: bool = True,
) -> Iterator[str]:
    """The lines of a table, titles first; cells are shown as they are."""
    lines = [*([tuple(column.title for column in columns)] if has_head else []), *rows]
    widths = [
        max([column.width, *(len(line[at]) for line in lines)]) for at, column in enumerate(columns)
    ]
    for line in lines:
        cells = (
            f"{'':{column.gap if at else 0}}{cell:{column.align}{width}}"
            for at, (cell, column, width) in enumerate(zip(line, columns, widths, strict=True))
        )
        yield f"{indent}{''.join(cells)}".rstrip()


def markdown_table(columns: Sequence[Column], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """The same as Markdown; cells are Markdown already."""
    marks = ("--:" if column.align == ">" else "---" for column in columns)
    yield markdown_row([column.title for column in columns])
    yield f"|{'|'.join(marks)}|"
    yield from map(markdown_row, rows)


def markdown_row(cells: Iterable[str]) -> str:
    """A row of a Markdown table."""
    return f"| {' | '.join(cells)} |"
