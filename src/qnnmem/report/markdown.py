"""Text from logs and files as Markdown; nothing in it can become markup."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from qnnmem.report.table import Column, markdown_table
from qnnmem.text import shorten

_WIDE = 400  # columns of code
# An underscore inside a word is not markup; a colon and www. only matter where they begin a link.
_MARKS = re.compile(r"([\\`*\[\]#~|$]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9]))")
_ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;", "@": "&#64;"}
_PLAIN_CODE = re.compile(r"[^`|\\<>&]+")


def escape(text: str) -> str:
    """Text that shows as it is: without markup, HTML, links or mentions."""
    marked = "".join(_ENTITIES.get(c, c) for c in _MARKS.sub(r"\\\1", shorten(text, 2000)))
    marked = re.sub(r"(?i)\b(www)\.", r"\1&#46;", marked.replace("://", "&#58;//"))
    return re.sub(r"^(\s*)([-+=]|[0-9]+(?=[.)]))", _not_a_list, marked)


def _not_a_list(match: re.Match[str]) -> str:
    digits = match[2].isdigit()
    return f"{match[1]}{match[2]}\\" if digits else f"{match[1]}\\{match[2]}"


def advice(text: str) -> str:
    """A sentence of the knowledge base, in which `code` stays code."""
    parts = shorten(text, 600).split("`")
    if len(parts) % 2 == 0:
        return escape(text)
    return "".join(
        (code(part) if part else "") if index % 2 else escape(part) if part else ""
        for index, part in enumerate(parts)
    )


def code(text: str, width: int = _WIDE) -> str:
    """Text as code, also inside a table; what could end the code is written as numbers."""
    shown = shorten(text, width)
    if _PLAIN_CODE.fullmatch(shown) and shown.strip():
        return f"`{shown}`"
    numbers = (c if c.isalnum() or c == " " else f"&#{ord(c)};" for c in shown)
    return f"<code>{''.join(numbers)}</code>"


def block(lines: Iterable[str]) -> list[str]:
    """A code block with a fence longer than any run of backticks inside it."""
    inside = list(lines)
    longest = max((len(run) for line in inside for run in re.findall("`+", line)), default=0)
    fence = "`" * max(3, longest + 1)
    return [f"{fence}text", *inside, fence]


def code_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """A table whose cells are code."""
    columns = tuple(Column(title, "<") for title in head)
    cells = ([code(cell) if cell else " " for cell in row] for row in rows)
    return markdown_table(columns, cells)
