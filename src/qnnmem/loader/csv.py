"""Buffer lists as CSV, in minimalloc's format: `id,lower,upper,size[,alignment][,offset]`.

The format has no quoting. Each column is parsed at once, not field by field, because lists of a
hundred thousand buffers are common.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import repeat
from operator import lt
from pathlib import Path
from typing import Any

from qnnmem.bounded_file import read_bytes
from qnnmem.collector import collector_paused
from qnnmem.errors import LoadError, OutputError
from qnnmem.ir import FixedBuffer, Model, Span
from qnnmem.text import quote
from qnnmem.units import MAX_BYTES

# Parsing takes up to a kilobyte of memory per row: one non-Latin character makes Python store every
# character in four bytes.
_MAX_FILE = 1 << 26
_MAX_ROWS = 1_000_000
_LIMIT = 1 << 60
_MAX_DIGITS = 20
# Characters that a file must not contain: quotes have no meaning in this format, and control
# characters would reach a terminal.
_MARKS = re.compile(r'["\x00-\x08\x0b-\x1f\x7f-\x9f]')

# Other tools' names for the same columns; `end` is the last step, inclusive.
_NAMES = {
    "id": "id",
    "buffer": "id",
    "buffer_id": "id",
    "lower": "lower",
    "begin": "lower",
    "start": "lower",
    "upper": "upper",
    "end": "end",
    "size": "size",
    "alignment": "alignment",
    "offset": "offset",
    "hint": "hint",
    "gaps": "gaps",
}
_EXPECTED = "id,lower,upper,size[,alignment][,offset]"


def read(path: Path) -> Model:
    """Return the model with the buffers of a CSV file."""
    header, _, body = _text(path).partition("\n")
    columns = _header(path, header)
    if not body:
        raise LoadError(path, "the CSV has a header line but no buffers")
    rows = body.count("\n") + 1
    if rows > _MAX_ROWS:
        raise LoadError(path, f"the CSV has {rows:,} rows, over the limit of {_MAX_ROWS:,}")
    fields = _fields(path, body, columns)
    if any(map(str.strip, fields.get("gaps", ()))):
        raise LoadError(
            path, "the CSV has buffers with gaps in their lifetime, which are not supported"
        )
    notes = ("the hint column was ignored",) if "hint" in columns else ()
    with collector_paused():
        buffers = _buffers(path, fields)
    return Model(name=path.stem, format="csv", buffers=buffers, notes=notes)


def write(buffers: Iterable[FixedBuffer]) -> str:
    """Return the buffers as CSV, with columns for alignment and offset only if they are used."""
    rows = tuple(buffers)
    placed = sum(row.offset is not None for row in rows)
    if placed not in (0, len(rows)):
        raise OutputError(
            f"{placed} of {len(rows)} buffers have an offset; a CSV needs offsets for all "
            "buffers or for none"
        )
    aligned = any(row.align != 1 for row in rows)
    header = "id,lower,upper,size" + ",alignment" * aligned + ",offset" * bool(placed)
    lines = (_line(row, aligned, bool(placed)) for row in rows)
    return "\n".join((header, *lines, ""))


def is_header(line: str) -> bool:
    """Return whether a first line names the columns of a buffer list."""
    names = {_NAMES.get(name.strip().lower()) for name in line.split(",")}
    return {"id", "lower", "size"} <= names and bool({"upper", "end"} & names)


def _line(row: FixedBuffer, aligned: bool, placed: bool) -> str:
    if not _is_plain(row.name):
        raise OutputError(
            f"buffer {quote(row.name)} cannot be written as CSV: the format has no quoting, "
            "so a name must not be empty or contain commas, quotes, line breaks or control "
            "characters"
        )
    line = f"{row.name},{row.live.lower},{row.live.upper},{row.size}"
    return line + f",{row.align}" * aligned + f",{row.offset}" * placed


def _is_plain(name: str) -> bool:
    return bool(name) and not ("," in name or "\n" in name or _MARKS.search(name))


def _text(path: Path) -> str:
    """Return the text of the file with Unix line ends and without blank lines at the end."""
    try:
        text = read_bytes(path, _MAX_FILE).decode("utf-8-sig")
    except UnicodeDecodeError as exc:
        raise LoadError(path, f"is not UTF-8 text (byte {exc.start:,})") from exc
    text = text.replace("\r\n", "\n").rstrip("\n")
    if not text:
        raise LoadError(path, f"has no header line; expected {_EXPECTED}")
    mark = _MARKS.search(text)
    if mark is not None:
        number = text.count("\n", 0, mark.start()) + 1
        rule = "the format has no quoting"
        if mark[0] not in '"\r':
            rule = "a buffer list must be plain text"
        raise LoadError(path, f"line {number} contains {mark[0]!r}; {rule}")
    return text


def _header(path: Path, line: str) -> list[str]:
    if line.count(",") >= len(_NAMES):
        raise LoadError(path, f"line 1 names too many columns; expected {_EXPECTED}")
    names = [name.strip().lower() for name in line.split(",")]
    columns = [_NAMES.get(name, "") for name in names]
    if "" in columns:
        unknown = quote(names[columns.index("")])
        raise LoadError(path, f"line 1 has an unknown column {unknown}; expected {_EXPECTED}")
    if len(set(columns)) < len(columns) or {"upper", "end"} <= set(columns):
        raise LoadError(path, f"line 1 names a column twice; expected {_EXPECTED}")
    if not is_header(line):
        raise LoadError(path, f"line 1 has too few columns; expected {_EXPECTED}")
    return columns


def _fields(path: Path, body: str, columns: list[str]) -> dict[str, list[str]]:
    """Return the cells of each column as text."""
    commas = len(columns) - 1
    for number, count in enumerate(map(str.count, body.split("\n"), repeat(",")), 2):
        if count != commas:
            fields = f"{count + 1} fields where the header has {len(columns)}"
            raise LoadError(path, f"line {number} has {fields}")
    cells = body.replace("\n", ",").split(",")
    return {column: cells[index :: len(columns)] for index, column in enumerate(columns)}


def _buffers(path: Path, fields: dict[str, list[str]]) -> tuple[FixedBuffer, ...]:
    _check_names(path, fields["id"])
    sizes = _integers(path, "size", fields["size"], least=0)
    if sum(sizes) > MAX_BYTES:
        raise LoadError(path, f"the sizes add up to more than {MAX_BYTES:,} bytes")
    aligns: Iterable[int] = repeat(1)
    if "alignment" in fields:
        aligns = _integers(path, "alignment", fields["alignment"], least=1)
    offsets: Iterable[int | None] = repeat(None)
    if "offset" in fields:
        offsets = _integers(path, "offset", fields["offset"], least=0)
    columns: Any = (fields["id"], sizes, _spans(path, fields), aligns, offsets)
    return tuple(map(FixedBuffer, *columns))


def _spans(path: Path, fields: dict[str, list[str]]) -> Iterator[Span]:
    lower = _integers(path, "lower", fields["lower"])
    if "end" in fields:
        upper = [last + 1 for last in _integers(path, "end", fields["end"])]
    else:
        upper = _integers(path, "upper", fields["upper"])
    ends: Any = (lower, upper)
    ordered = list(map(lt, *ends))
    if not all(ordered):
        number = ordered.index(False) + 2
        raise LoadError(path, f"line {number} has a lifetime that ends before it begins")
    return map(Span, *ends)


def _check_names(path: Path, names: list[str]) -> None:
    if len(set(names)) == len(names) and all(names):
        return
    seen: set[str] = set()
    for number, name in enumerate(names, 2):
        if name in seen:
            raise LoadError(path, f"line {number} repeats the id {quote(name)}")
        if not name:
            raise LoadError(path, f"the id on line {number} is empty")
        seen.add(name)


def _integers(path: Path, column: str, texts: list[str], least: int = 1 - _LIMIT) -> list[int]:
    """Return the numbers of a column, each at least `least` and below 2^60."""
    joined = "".join(texts)
    if joined.isascii() and joined.isdigit():  # otherwise int() accepts odd spellings
        try:
            values = list(map(int, texts))
        except ValueError:  # an empty field, or more digits than Python converts
            values = []
        if values and least <= min(values) and max(values) < _LIMIT:
            return values
    return [_integer(path, column, number, text, least) for number, text in enumerate(texts, 2)]


def _integer(path: Path, column: str, number: int, text: str, least: int) -> int:
    plain = text.strip()
    digits = plain.removeprefix("-")
    if not (digits.isascii() and digits.isdigit() and len(digits) <= _MAX_DIGITS):
        raise LoadError(path, f"line {number}: {column} is {quote(text)}, not a whole number")
    value = int(plain)
    if not least <= value < _LIMIT:
        raise LoadError(path, f"line {number}: {column} {value} is out of range")
    return value
