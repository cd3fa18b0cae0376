"""Text and Markdown tables, numbers as text, and escaping for Markdown.

columns = (Column("pool", "<", 16), Column("before"), Column("after"))
text_table(columns, [("scratch", "100", "90")])
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import wraps
from typing import Literal, NamedTuple, ParamSpec

from qnnmem.text import counted, lazy_pattern, printable, shorten
from qnnmem.units import format_size

Arguments = ParamSpec("Arguments")
_WIDE = 400  # columns of code
# An underscore inside a word is not markup. A colon and www. matter only at the start of a link.
_MARKS = lazy_pattern(r"([\\`*\[\]#~|$]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9]))")
_ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;", "@": "&#64;"}
_PLAIN_CODE = lazy_pattern(r"[^`|\\<>&]+")


def as_text(lines: Callable[Arguments, Iterable[str]]) -> Callable[Arguments, str]:
    """Decorate a function that yields lines, so that it returns them as one text."""

    @wraps(lines)
    def text(*args: Arguments.args, **kwargs: Arguments.kwargs) -> str:
        return "\n".join(lines(*args, **kwargs)) + "\n"

    return text


def thousands(value: int | None, unknown: str = "-") -> str:
    """Return a number with thousands separators, or the word for an unknown number."""
    return unknown if value is None else f"{value:,}"


def size_words(size: int) -> str:
    """Return the exact size, plus the rounded size from 1 KiB up: `2,048 bytes (2.00 KiB)`."""
    exact = counted(size, "byte")
    return exact if size < 1 << 10 else f"{exact} ({format_size(size)})"


def size_column(size: int, width: int) -> str:
    """Return the number right-aligned in `width` columns, then its unit."""
    return f"{size:>{width},} {'byte' if size == 1 else 'bytes'}"


_LINE = 80  # columns of a table of files
_NAME = 30  # columns for a file name if nothing is cut
_SHORTEST = 12  # minimum columns for a file name
ANSWERS = {True: "fits", False: "does not fit", None: "cannot tell"}
FITS = {True: "yes", False: "no", None: "-"}  # cells of a column "fits"


class Column(NamedTuple):
    """Table column: text aligned left (`<`) or numbers aligned right (`>`)."""

    title: str
    align: Literal["<", ">"] = ">"
    width: int = 0  # minimum; longer cells widen the whole column
    gap: int = 2  # spaces before the column


def text_table(
    columns: Sequence[Column],
    rows: Iterable[Sequence[str]],
    *,
    indent: str = "",
    has_head: bool = True,
) -> Iterator[str]:
    """Yield the lines of a text table, titles first; the cells are not escaped."""
    lines = [*([tuple(column.title for column in columns)] if has_head else []), *rows]
    widths = [
        max([column.width, *(len(line[index]) for line in lines)])
        for index, column in enumerate(columns)
    ]
    for line in lines:
        cells = (
            f"{'':{column.gap if index else 0}}{cell:{column.align}{width}}"
            for index, (cell, column, width) in enumerate(zip(line, columns, widths, strict=True))
        )
        yield f"{indent}{''.join(cells)}".rstrip()


def markdown_table(columns: Sequence[Column], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Yield a Markdown table; the cells must already be Markdown."""
    marks = ("--:" if column.align == ">" else "---" for column in columns)
    yield markdown_row([column.title for column in columns])
    yield f"|{'|'.join(marks)}|"
    yield from map(markdown_row, rows)


def markdown_row(cells: Iterable[str]) -> str:
    """Return a row of a Markdown table."""
    return f"| {' | '.join(cells)} |"


def common_folder(files: Sequence[str]) -> str:
    """Return the folder that contains all files if a name is too long for its column, else ""."""
    if all(len(file) <= _NAME for file in files):
        return ""
    start = os.path.commonprefix(files)  # noqa: RUF071 - cut at a slash below
    return start[: start.rfind("/") + 1]


def table_lines(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield a table of names, numbers and texts; long names are cut in the middle."""
    folder = common_folder([row[0] for row in rows])
    if folder:
        yield f"in {shorten(folder, 200)}"
    named = [(printable(row[0].removeprefix(folder)), *row[1:]) for row in rows]
    lines = [tuple(titles), *named]
    *columns, last = (max(map(len, column)) for column in list(zip(*lines, strict=True))[1:])
    room = max(_SHORTEST, _LINE - sum(2 + width for width in columns) - 2 - last)
    numbers = (Column(title) for title in titles[1:-1])
    yield from text_table(
        (Column(titles[0], "<"), *numbers, Column(titles[-1], "<")),
        [(shorten(name, room), *rest) for name, *rest in named],
    )


def escape(text: str) -> str:
    """Escape text so that Markdown shows it unchanged: no markup, HTML, links or mentions."""
    marked = "".join(_ENTITIES.get(c, c) for c in _MARKS.sub(r"\\\1", shorten(text, 2000)))
    marked = re.sub(r"(?i)\b(www)\.", r"\1&#46;", marked.replace("://", "&#58;//"))
    return re.sub(r"^(\s*)([-+=]|[0-9]+(?=[.)]))", _not_a_list, marked)


def _not_a_list(match: re.Match[str]) -> str:
    digits = match[2].isdigit()
    return f"{match[1]}{match[2]}\\" if digits else f"{match[1]}\\{match[2]}"


def advice(text: str) -> str:
    """Return a sentence from the knowledge base as Markdown; text in backticks stays code."""
    parts = shorten(text, 600).split("`")
    if len(parts) % 2 == 0:
        return escape(text)
    return "".join(
        (code(part) if part else "") if index % 2 else escape(part) if part else ""
        for index, part in enumerate(parts)
    )


def code(text: str, width: int = _WIDE) -> str:
    """Return text as Markdown code, safe inside a table; special characters become entities."""
    shown = shorten(text, width)
    if _PLAIN_CODE.fullmatch(shown) and shown.strip():
        return f"`{shown}`"
    numbers = (c if c.isalnum() or c == " " else f"&#{ord(c)};" for c in shown)
    return f"<code>{''.join(numbers)}</code>"


def block(lines: Iterable[str]) -> list[str]:
    """Return a code block; its fence is longer than any run of backticks inside."""
    inside = list(lines)
    longest = max((len(run) for line in inside for run in re.findall("`+", line)), default=0)
    fence = "`" * max(3, longest + 1)
    return [f"{fence}text", *inside, fence]


def code_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Return the lines of a Markdown table whose cells are code."""
    columns = tuple(Column(title, "<") for title in head)
    cells = ([code(cell) if cell else " " for cell in row] for row in rows)
    return markdown_table(columns, cells)
