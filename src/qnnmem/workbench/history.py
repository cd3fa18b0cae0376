"""Finished results in SQLite, complete and unique even after a crash.

A result is written in one transaction before it is announced. The key of a request finds the result
of an earlier, equal request.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from qnnmem.errors import Damaged, LoadError, OutputError
from qnnmem.loader.file_kind import KINDS
from qnnmem.workbench.limits import MAX_HISTORY, MAX_RESULTS
from qnnmem.workbench.private_folder import BESIDE, DAMAGED, private_file, private_part

_VERSION = 1
# The file is damaged, is no database, or has other tables or columns.
_DAMAGE = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR)
_TABLES = f"""
PRAGMA user_version={_VERSION};
CREATE TABLE IF NOT EXISTS files (
  id TEXT PRIMARY KEY, name TEXT NOT NULL, kind TEXT NOT NULL, size INTEGER NOT NULL,
  digest TEXT NOT NULL, made REAL NOT NULL);
CREATE TABLE IF NOT EXISTS results (
  id INTEGER PRIMARY KEY AUTOINCREMENT, key TEXT NOT NULL UNIQUE, file TEXT NOT NULL,
  name TEXT NOT NULL, task TEXT NOT NULL, options TEXT NOT NULL, command TEXT NOT NULL,
  schema TEXT NOT NULL, summary TEXT NOT NULL, exit_code INTEGER NOT NULL, seconds REAL NOT NULL,
  made REAL NOT NULL, outputs TEXT NOT NULL, digest TEXT NOT NULL, result BLOB NOT NULL);
"""
_FILE = "id, name, kind, size, digest, made"
_LISTED = (
    "id, file, name, task, options, command, schema, summary, exit_code, seconds, made, outputs"
)
REASON = "reason.txt"
# Most row ids tried one by one, between the rows reached from either end of the table.
_MAX_TRIED = 10_000

Row = Sequence[Any]
RowCheck = Callable[[Row], object]  # raises ValueError or TypeError for an inconsistent row


@dataclass(frozen=True, slots=True)
class KeptFile:
    """Record of an uploaded file."""

    id: str
    name: str
    kind: str
    size: int
    digest: str
    made: float


@dataclass(frozen=True, slots=True)
class MadeFile:
    """Name and size of an output file of a job."""

    name: str
    size: int


@dataclass(frozen=True, slots=True)
class KeptResult:
    """Summary of a stored result."""

    id: int
    file: str
    name: str
    task: str
    options: Mapping[str, Any]
    command: str
    schema: str
    summary: str
    exit_code: int
    seconds: float
    made: float
    outputs: tuple[MadeFile, ...] = ()


class History:
    """The database of results; each call is one transaction and can come from any thread."""

    def __init__(self, path: Path) -> None:
        self._lock = threading.RLock()
        self.changes = 0  # increases with every write
        self.repaired = ""  # sentence about the rows saved from a damaged history
        private_file(path)
        try:
            self._base = _opened(path)
        except Damaged as exc:
            checks = {"files": _file, "results": _check_row}
            self.repaired = repair(path, str(exc), _TABLES, checks)
            self._base = _opened(path)

    def close(self) -> None:
        """Close the database permanently."""
        with self._lock:
            self._base.close()

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """Run the block as one transaction."""
        with self._lock:
            try:
                self._base.execute("BEGIN IMMEDIATE")
                yield self._base
                self._base.execute("COMMIT")
                self.changes += 1
            except BaseException as exc:
                if self._base.in_transaction:
                    with suppress(sqlite3.Error):  # report the first error
                        self._base.execute("ROLLBACK")
                if isinstance(exc, sqlite3.Error):
                    raise OutputError(f"the history cannot be written ({exc})") from exc
                raise

    def _rows(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        with self._lock:
            try:
                return self._base.execute(query, values).fetchall()
            except (sqlite3.Error, UnicodeDecodeError) as exc:
                again = "start the workbench again to repair it"
                raise OutputError(f"the history cannot be read ({exc}); {again}") from exc

    def add_file(self, file: KeptFile) -> None:
        """Store the record of an uploaded file."""
        with self._transaction() as base:
            row = (file.id, file.name, file.kind, file.size, file.digest, file.made)
            base.execute("INSERT INTO files VALUES (?, ?, ?, ?, ?, ?)", row)

    def remove_file(self, file: str) -> None:
        """Delete the record of a file, but keep its results."""
        with self._transaction() as base:
            base.execute("DELETE FROM files WHERE id = ?", (file,))

    def files(self) -> list[KeptFile]:
        """Return all files, newest first."""
        rows = self._rows(
            f"SELECT {_FILE} FROM files ORDER BY made DESC, id"  # noqa: S608
        )
        return [_file(row) for row in rows]

    def file(self, file: str) -> KeptFile | None:
        """Return the record of the uploaded file with this id; None for an unknown id."""
        return next((record for record in self.files() if record.id == file), None)

    def add(self, key: str, new: KeptResult, result: Mapping[str, Any]) -> KeptResult:
        """Store a result; it replaces a result with the same key."""
        text = json.dumps(result, separators=(",", ":"))
        packed = zlib.compress(text.encode(), 3)
        outputs = json.dumps([[output.name, output.size] for output in new.outputs])
        row = (
            *(key, new.file, new.name, new.task, json.dumps(dict(new.options)), new.command),
            *(new.schema, new.summary, new.exit_code, new.seconds, time.time(), outputs),
            *(hashlib.sha256(packed).hexdigest(), packed),
        )
        with self._transaction() as base:
            base.execute("DELETE FROM results WHERE key = ?", (key,))
            done = base.execute(
                "INSERT INTO results (key, file, name, task, options, command, schema, summary, "
                "exit_code, seconds, made, outputs, digest, result) "
                "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                row,
            )
            number = done.lastrowid
            base.execute(
                "DELETE FROM results WHERE id NOT IN (SELECT id FROM (SELECT id,"
                " sum(length(result)) OVER (ORDER BY id DESC) AS bytes,"
                " row_number() OVER (ORDER BY id DESC) AS place"
                " FROM results) WHERE place = 1 OR (place <= ? AND bytes <= ?))",
                (MAX_RESULTS, MAX_HISTORY),
            )
        stored = self.entry(number or 0)
        if stored is None:
            raise OutputError("a result could not be stored in the history")
        return stored

    def found(self, key: str) -> KeptResult | None:
        """Return the stored result for a key; None if it is missing or damaged."""
        rows = self._rows(f"SELECT {_LISTED} FROM results WHERE key = ?", key)  # noqa: S608
        entry = _entry(rows[0]) if rows else None
        return entry if entry is not None and self.result(entry.id) is not None else None

    def entry(self, number: int) -> KeptResult | None:
        """Return the summary of the result with this number; None for an unknown number."""
        rows = self._rows(f"SELECT {_LISTED} FROM results WHERE id = ?", number)  # noqa: S608
        return _entry(rows[0]) if rows else None

    def latest(self, file: str, task: str) -> KeptResult | None:
        """Return the summary of a task's newest result for a file; None if there is no result."""
        rows = self._rows(
            f"SELECT {_LISTED} FROM results WHERE file = ? AND task = ? ORDER BY id DESC LIMIT 1",  # noqa: S608
            file,
            task,
        )
        return _entry(rows[0]) if rows else None

    def entries(self, limit: int = MAX_RESULTS) -> list[KeptResult]:
        """Return the summaries of results, newest first."""
        rows = self._rows(
            f"SELECT {_LISTED} FROM results ORDER BY id DESC LIMIT ?",  # noqa: S608
            limit,
        )
        return [_entry(row) for row in rows]

    def result(self, number: int) -> dict[str, Any] | None:
        """Return the values of a result; None if they are missing or damaged."""
        rows = self._rows("SELECT result, digest FROM results WHERE id = ?", number)
        return _unpacked(*rows[0]) if rows else None

    def key(self, number: int) -> str:
        """Return the key of a result; empty if it has none."""
        rows = self._rows("SELECT key FROM results WHERE id = ?", number)
        return str(rows[0][0]) if rows else ""

    def keys(self) -> list[str]:
        """Return the keys of all results."""
        return [str(row[0]) for row in self._rows("SELECT key FROM results")]

    def remove(self, number: int) -> bool:
        """Delete a result; return True if it existed."""
        with self._transaction() as base:
            return base.execute("DELETE FROM results WHERE id = ?", (number,)).rowcount > 0

    def clear(self) -> None:
        """Delete all results."""
        with self._transaction() as base:
            base.execute("DELETE FROM results")


def _opened(path: Path) -> sqlite3.Connection:
    """Open the database and check every row; raise Damaged if a row is inconsistent."""
    try:
        base = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
    except sqlite3.Error as exc:  # the connection already reads the file
        raise OutputError(f"the history cannot be opened ({exc})") from exc
    try:
        base.execute("PRAGMA journal_mode=WAL")
        base.execute("PRAGMA synchronous=FULL")  # a power cut loses no announced result
        version = base.execute("PRAGMA user_version").fetchone()[0]
        if version not in (0, _VERSION):
            raise LoadError(path.name, "is a history of another version of qnnmem")
        if version == 0:
            base.executescript(f"BEGIN; {_TABLES} COMMIT;")
        _check(base)
    except BaseException as exc:
        base.close()
        if isinstance(exc, UnicodeDecodeError):  # in a name of the schema
            raise Damaged("a name is not UTF-8") from exc
        if not isinstance(exc, sqlite3.Error):
            raise
        # An error about text that is not UTF-8 has no SQLite code. Extended codes add bits above
        # the first byte.
        if getattr(exc, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF in _DAMAGE:
            raise Damaged(str(exc)) from exc
        raise OutputError(f"the history cannot be opened ({exc})") from exc
    return base


def _check(base: sqlite3.Connection) -> None:
    [(state,), *_] = base.execute("PRAGMA quick_check(1)")
    if state != "ok":
        raise Damaged(str(state).partition("\n")[0])
    try:
        for row in base.execute(f"SELECT {_FILE} FROM files"):  # noqa: S608
            _file(row)
        columns = f"{_LISTED}, key, digest, length(result)"
        for row in base.execute(f"SELECT {columns} FROM results"):  # noqa: S608
            _entry(row[:-3])
            _typed(row[-3:], (str, str, int))
    except (ValueError, TypeError, RecursionError) as exc:
        raise Damaged("a row is invalid") from exc


def _typed(row: Sequence[Any], kinds: Sequence[type]) -> list[Any]:
    """Return a row with checked types, because SQLite stores any type in any column."""
    if not all(map(isinstance, row, kinds)):
        raise TypeError("a value has the wrong type")
    return list(row)


def _file(row: Sequence[Any]) -> KeptFile:
    file = KeptFile(*_typed(row, (str, str, str, int, str, float)))
    if file.kind not in KINDS:
        raise ValueError("an unknown kind of file")
    return file


def _entry(row: Sequence[Any]) -> KeptResult:
    values = _typed(row, (int, *(str,) * 7, int, float, float, str))
    values[4] = _mapping(json.loads(values[4]))
    values[11] = tuple(MadeFile(str(name), int(size)) for name, size in json.loads(values[11]))
    return KeptResult(*values)


def _mapping(value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise TypeError("no mapping")
    return value


def _check_row(row: Sequence[Any]) -> None:
    """Raise ValueError or TypeError for a row whose values contradict each other."""
    number, key, *listed, digest, packed = row
    _typed((key,), (str,))
    _entry((number, *listed))
    if _unpacked(packed, digest) is None:
        raise ValueError("the values of a result are missing")


def _unpacked(packed: object, digest: object) -> dict[str, Any] | None:
    """Return the unpacked values of a result; None if they are damaged."""
    if not isinstance(packed, bytes) or hashlib.sha256(packed).hexdigest() != digest:
        return None
    try:
        values = json.loads(zlib.decompress(packed))
    except (zlib.error, ValueError):
        return None
    return values if isinstance(values, dict) else None


def repair(path: Path, reason: str, tables: str, checks: Mapping[str, RowCheck]) -> str:
    """Move a damaged history aside and copy its readable rows; return a sentence that counts them.

    `tables` is the schema of the new history.
    """
    aside = _new_folder(path.parent)
    fresh = aside / f"new-{path.name}"  # renamed last, so that a partial history is never found
    private_file(fresh)
    try:
        with closing(sqlite3.connect(fresh, isolation_level=None)) as new:
            new.executescript(f"BEGIN; {tables} COMMIT;")
            kept = {name: _copy(path, new, name, check) for name, check in checks.items()}
        sentence = (
            f"the history was damaged ({reason}); {kept['results']:,} results and"
            f" {kept['files']:,} files could be read; the damaged history is in "
            f"{DAMAGED}/{aside.name}"
        )
        (aside / REASON).write_text(f"{sentence}\n", "utf-8")
        for end in ("", *BESIDE):
            beside = path.with_name(f"{path.name}{end}")
            if beside.exists():
                beside.rename(aside / beside.name)
        fresh.rename(path)
    except (OSError, sqlite3.Error) as exc:
        raise OutputError(f"the history is damaged and cannot be repaired ({exc})") from exc
    return sentence


def _new_folder(folder: Path) -> Path:
    base = private_part(folder / DAMAGED)
    stamp = time.strftime("%Y%m%d-%H%M%S")
    places = (base / f"{stamp}-{number}" for number in count(1))
    return private_part(next(place for place in places if not place.exists()))


def _copy(path: Path, new: sqlite3.Connection, table: str, check: RowCheck) -> int:
    """Copy the readable, consistent rows of a table; return the number of copied rows."""
    with closing(sqlite3.connect(path, isolation_level=None)) as old:
        # Otherwise one text that is not UTF-8 would end the scan of the table.
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
    """Stored text as raw bytes; the type distinguishes it from a BLOB."""


def _rows(old: sqlite3.Connection, table: str) -> Iterator[Row]:
    """Yield a table's rows forwards, then backwards, then one by one, to skip damaged pages."""
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
    except (sqlite3.Error, UnicodeDecodeError):  # UnicodeDecodeError: in the text of an error
        return
