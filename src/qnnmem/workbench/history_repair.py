"""Repair of a damaged history: it is moved aside, and its readable rows are copied."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import Any

from qnnmem.errors import OutputError
from qnnmem.workbench.private_folder import BESIDE, DAMAGED, private_file, private_part

REASON = "reason.txt"
# Row ids tried one by one between the last row readable from each end.
_MAX_TRIED = 10_000

Row = Sequence[Any]
RowCheck = Callable[[Row], object]  # raises ValueError or TypeError for a row that makes no sense


def repair(path: Path, reason: str, tables: str, checks: Mapping[str, RowCheck]) -> str:
    """Move a history aside and copy its readable rows; return a sentence with their number.

    `tables` is the schema of the new one.
    """
    aside = _new_folder(path.parent)
    fresh = aside / f"new-{path.name}"  # renamed last, so that no half history is ever found
    private_file(fresh)
    try:
        with closing(sqlite3.connect(fresh, isolation_level=None)) as new:
            new.executescript(f"BEGIN; {tables} COMMIT;")
            kept = {name: _copy(path, new, name, check) for name, check in checks.items()}
        said = (
            f"the history was damaged ({reason}); {kept['results']:,} results and"
            f" {kept['files']:,} files could be read, the damaged one is in {DAMAGED}/{aside.name}"
        )
        (aside / REASON).write_text(f"{said}\n", "utf-8")
        for end in ("", *BESIDE):
            beside = path.with_name(f"{path.name}{end}")
            if beside.exists():
                beside.rename(aside / beside.name)
        fresh.rename(path)
    except (OSError, sqlite3.Error) as exc:
        raise OutputError(f"the history is damaged and cannot be repaired ({exc})") from exc
    return said


def _new_folder(folder: Path) -> Path:
    base = private_part(folder / DAMAGED)
    stamp = time.strftime("%Y%m%d-%H%M%S")
    places = (base / f"{stamp}-{number}" for number in count(1))
    return private_part(next(place for place in places if not place.exists()))


def _copy(path: Path, new: sqlite3.Connection, table: str, check: RowCheck) -> int:
    """Copy the readable, consistent rows of a table and return their number."""
    with closing(sqlite3.connect(path, isolation_level=None)) as old:
        # One text that is not UTF-8 would end the whole walk over the table.
        old.text_factory = _Text
        new.execute("BEGIN")
        for row in _rows(old, table):
            try:
                values = [cell.decode() if isinstance(cell, _Text) else cell for cell in row]
                check(values)
            except (ValueError, TypeError, RecursionError):
                continue
            marks = ", ".join("?" * len(values))
            new.execute(f"INSERT OR IGNORE INTO {table} VALUES ({marks})", values)  # noqa: S608
        new.execute("COMMIT")
    return int(new.execute(f"SELECT count(*) FROM {table}").fetchone()[0])  # noqa: S608


class _Text(bytes):
    """Stored text; a BLOB is plain `bytes`."""


def _rows(old: sqlite3.Connection, table: str) -> Iterator[Row]:
    """Yield rows forwards, then backwards, then one by one, to get around damaged pages."""
    query = f"SELECT rowid, * FROM {table} NOT INDEXED"  # noqa: S608
    low, high = 0, None
    for row in _until_damage(old, f"{query} ORDER BY rowid"):
        low = row[0]
        yield row[1:]
    for row in _until_damage(old, f"{query} WHERE rowid > {low} ORDER BY rowid DESC"):
        high = row[0]
        yield row[1:]
    for number in range(low + 1, min(high or 0, low + _MAX_TRIED)):
        for row in _until_damage(old, f"{query} WHERE rowid = {number}"):
            yield row[1:]


def _until_damage(old: sqlite3.Connection, query: str) -> Iterator[Row]:
    try:
        yield from old.execute(query)
    except (sqlite3.Error, UnicodeDecodeError):  # the second of an error's own text
        return
