"""HTML building blocks; only this module escapes text from files."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from html import escape
from itertools import islice
from typing import Any

from qnnmem.text import counted, printable, shorten
from qnnmem.units import format_size

_LONGEST = 400  # characters of a name or a line
_ROWS = 2000  # rows of a table
_WORD = 24  # letters of a word that fit a phone's column
FITS = ("fits", "does not fit", "cannot tell")
Cell = str | int | None


class Html(str):
    """Markup that needs no escaping."""

    __slots__ = ()


def text(value: object, longest: int = _LONGEST) -> Html:
    """Return any value as escaped, shortened text with visible control characters."""
    return Html(escape(shorten(str(value), longest)))


def tag(name: str, *inner: str, **attributes: object) -> Html:
    """Return an HTML element; plain strings in it are escaped, `class_` sets its class."""
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(printable(str(value)), quote=True)}"'
        for key, value in attributes.items()
        if value is not None
    )
    body = "".join(part if isinstance(part, Html) else text(part) for part in inner)
    return Html(f"<{name}{written}>{body}</{name}>")


def lines(parts: Iterable[str]) -> Html:
    """Return the parts joined by line ends, as markup; plain strings are escaped."""
    return Html("\n".join(part if isinstance(part, Html) else text(part) for part in parts))


def size(value: int | None) -> Html:
    """Return a size as exact bytes, followed by the rounded size."""
    if value is None:
        return Html('<span class="faint">not known</span>')
    return Html(f'{value:,} <span class="faint">{escape(format_size(value))}</span>')


def table(head: Sequence[str], rows: Iterable[Sequence[Cell]], caption: str = "") -> Html:
    """Return a table, cut after a maximum number of rows; numbers are right-aligned."""
    left = iter(rows)
    listed = [tuple(row) for row in islice(left, _ROWS)]
    more = sum(1 for _ in left)
    right = {column for row in listed for column, value in enumerate(row) if type(value) is int}
    top = "".join(
        tag("th", heading, scope="col", class_="number" if column in right else None)
        for column, heading in enumerate(head)
    )
    body = "\n".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in listed)
    title = f"<caption>{text(caption)}</caption>" if caption else ""
    return Html(
        f'<div class="wide"><table>{title}<thead><tr>{top}</tr></thead>'
        f"<tbody>\n{body}\n</tbody></table></div>"
        + (tag("p", f"{counted(more, 'more row')} in the JSON result.") if more else "")
    )


def _cell(value: Cell) -> str:
    if value is None:
        return '<td class="faint">-</td>'
    if isinstance(value, int) and not isinstance(value, bool):
        return f'<td class="number">{value:,}</td>'
    if isinstance(value, Html):
        return f"<td>{value}</td>"
    is_long = any(len(word) > _WORD for word in str(value).split())  # such as paths
    return f"<td{' class=long' if is_long else ''}>{text(value)}</td>"


def details(title: str, body: Html, *, is_open: bool = False, name: str = "") -> Html:
    """Return a collapsible part; a link to `#name` also opens the part."""
    state = f' id="{escape(name)}"' if name else ""
    state += " open" if is_open else ""
    return Html(f"<details{state}><summary>{text(title)}</summary>\n{body}\n</details>")


def badge(fits: bool | None, words: tuple[str, str, str] = FITS) -> Html:
    """Return a verdict as a badge; `words` are the texts for True, False and None."""
    kind, word = {True: ("good", words[0]), False: ("bad", words[1]), None: ("open", words[2])}[
        fits
    ]
    return tag("strong", word, class_=f"badge {kind}")


def answer(fits: bool | None, *sentence: str, words: tuple[str, str, str] = FITS) -> Html:
    """Return a paragraph with the verdict, for the start of a section."""
    return tag("p", badge(fits, words), Html(" "), *sentence, class_="answer")


def data(values: Any) -> Html:
    """Return JSON data for the drawing code; its text cannot close the script element."""
    written = json.dumps(values, separators=(",", ":"), ensure_ascii=True)
    safe = written.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
    return Html(f'<script type="application/json">{safe}</script>')


def command(words: str) -> Html:
    """Return a command with a copy button."""
    return Html(
        f'<div class="command"><code>{text(words, 4000)}</code>'
        '<button type="button" data-copy>copy</button></div>'
    )
