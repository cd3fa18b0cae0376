"""Uploads: a private folder, random names, limits on size and number.

The original name is stored and shown with the file, but never becomes part of a path.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from qnnmem.errors import LoadError, OutputError, QnnMemError, UsageError
from qnnmem.loader.file_kind import kind_of_file, wrong_kind
from qnnmem.text import counted, printable, shorten
from qnnmem.units import format_size
from qnnmem.workbench.history import History, KeptFile
from qnnmem.workbench.limits import MAX_COMING, MAX_NAME, MAX_UPLOAD, MAX_UPLOADED, MAX_UPLOADS
from qnnmem.workbench.private_folder import is_file_name
from qnnmem.workbench.tasks import first_task


class TooLarge(QnnMemError):
    """The file is larger than allowed, or than the space that is left."""


@dataclass(slots=True)
class Incoming:
    """An upload in progress."""

    id: str
    path: Path
    file: IO[bytes]
    size: int = 0
    hash: hashlib._Hash = field(default_factory=hashlib.sha256)


class Uploads:
    """Store of uploaded files with limits on number and total size. Thread-safe."""

    def __init__(self, folder: Path, history: History) -> None:
        self._folder, self._history = folder, history
        self._lock = threading.Lock()
        self._coming: dict[str, Incoming] = {}
        self._busy: dict[str, int] = {}
        self._tidy()

    def _tidy(self) -> None:
        """Remove incomplete files of earlier runs, and records of files that no longer exist."""
        known = {file.id for file in self._history.files()}
        there = {path.name for path in self._folder.iterdir() if is_file_name(path.name)}
        for name in there - known:
            with suppress(OSError):
                (self._folder / name).unlink()
        for name in known - there:
            self._history.remove_file(name)

    def begin(self, declared: int | None = None) -> Incoming:
        """Start an upload; to make room, old files are removed only once the upload is finished."""
        if declared is not None:
            _check_size(declared)
        with self._lock:
            name = secrets.token_hex(8)
            path = self._folder / name
            try:
                opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            except OSError as exc:
                raise _unwritten(exc) from exc
            coming = Incoming(name, path, os.fdopen(opened, "wb", buffering=0))
            self._coming[name] = coming
            return coming

    def _make_room(self, wanted: int) -> None:
        """Remove the oldest unused files until there is room; call this with the lock held."""
        kept = self._history.files()
        total, count = sum(file.size for file in kept), len(kept)
        gone: list[KeptFile] = []
        for oldest in reversed(kept):
            if count < MAX_UPLOADS and total + wanted <= MAX_UPLOADED:
                break
            if not self._busy.get(oldest.id):
                gone.append(oldest)
                total, count = total - oldest.size, count - 1
        if count >= MAX_UPLOADS or total + wanted > MAX_UPLOADED:
            room = f"{counted(MAX_UPLOADS, 'file')} and {format_size(MAX_UPLOADED)}"
            raise TooLarge(
                f"there is room for {room} only, and jobs use too many files to make room; cancel "
                "a job or wait"
            )
        for file in gone:
            self._remove(file.id)

    def add(self, coming: Incoming, piece: bytes) -> None:
        """Append received bytes."""
        _check_size(coming.size + len(piece))
        with self._lock:
            if sum(upload.size for upload in self._coming.values()) + len(piece) > MAX_COMING:
                raise TooLarge(
                    f"over {format_size(MAX_COMING)} are being uploaded at the same time; wait for "
                    "other uploads to end"
                )
            coming.size += len(piece)
        coming.hash.update(piece)
        try:
            coming.file.write(piece)
        except OSError as exc:
            raise _unwritten(exc) from exc

    def finish(self, coming: Incoming, name: str) -> KeptFile:
        """Store a finished upload and return its record, or that of an identical stored file.

        Raise LoadError if the kind of file is not supported.
        """
        shown = shown_name(name)
        try:
            coming.file.close()
            kind = kind_of_file(coming.path)
            if kind.name != "result" and not first_task(kind.name, shown):
                raise wrong_kind(shown, kind, "which cannot be shown")
        except LoadError as exc:  # its path here must not be shown
            raise LoadError(shown, exc.what, cure=exc.cure) from exc
        except OSError as exc:
            raise _unwritten(exc) from exc
        file = KeptFile(
            coming.id, shown, kind.name, coming.size, coming.hash.hexdigest(), time.time()
        )
        with self._lock:
            for known in self._history.files():
                if (known.digest, known.name) == (file.digest, file.name):
                    return known  # an identical file exists: the new copy is removed
            self._make_room(file.size)
            self._history.add_file(file)
            del self._coming[coming.id]
        return file

    def abandon(self, coming: Incoming) -> None:
        """Remove an unfinished upload."""
        with self._lock:
            if self._coming.pop(coming.id, None) is None:
                return
        with suppress(OSError):
            coming.file.close()
        with suppress(OSError):
            coming.path.unlink()

    def path(self, file: str) -> Path:
        """Return the path of a stored file."""
        return self._folder / file

    def hold(self, file: str) -> KeptFile:
        """Protect a file from removal while a job reads it; return its record."""
        with self._lock:
            record = self._history.file(file)
            if record is None:
                raise UsageError("this file was removed; upload it again")
            self._busy[file] = self._busy.get(file, 0) + 1
            return record

    def let_go(self, file: str) -> None:
        """Release a file after a job has read it."""
        with self._lock:
            left = self._busy.pop(file, 1) - 1
            if left:
                self._busy[file] = left

    def remove(self, file: str) -> None:
        """Remove a file; raise UsageError while a job reads the file."""
        with self._lock:
            if self._busy.get(file):
                raise UsageError("a job reads this file; cancel it first")
            self._remove(file)

    def drop(self, file: str) -> bool:
        """Remove a file that its only job could not read; return True if the file was removed."""
        with self._lock:
            if self._busy.get(file, 0) > 1:
                return False
            self._remove(file)
            return True

    def _remove(self, file: str) -> None:
        self._history.remove_file(file)
        with suppress(OSError):
            (self._folder / file).unlink()


def shown_name(name: str) -> str:
    """Return the last part of a client's file name, safe to show."""
    last = name.replace("\\", "/").rstrip("/").rpartition("/")[2].strip()
    return shorten(printable(last), MAX_NAME) or "a file without a name"


def _check_size(size: int) -> None:
    if size > MAX_UPLOAD:
        raise TooLarge(f"a file can have at most {format_size(MAX_UPLOAD)}")


def _unwritten(exc: OSError) -> OutputError:
    return OutputError(f"the file cannot be stored ({(exc.strerror or str(exc)).lower()})")
