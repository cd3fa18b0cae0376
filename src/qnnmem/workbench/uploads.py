"""Files that came in: a private folder, names of ours, bounded in size and number.

The name that a file had elsewhere is kept beside it and shown; it never becomes part of a path.
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
    """More bytes than a file may have, or than there is room for."""


@dataclass(slots=True)
class Incoming:
    """A file on its way."""

    id: str
    path: Path
    file: IO[bytes]
    size: int = 0
    hash: hashlib._Hash = field(default_factory=hashlib.sha256)


class Uploads:
    """The files, at most so many and so large together; may be used by several threads."""

    def __init__(self, folder: Path, history: History) -> None:
        self._folder, self._history = folder, history
        self._lock = threading.Lock()
        self._coming: dict[str, Incoming] = {}
        self._busy: dict[str, int] = {}
        self._tidy()

    def _tidy(self) -> None:
        """What an earlier run left half, or lost."""
        known = {file.id for file in self._history.files()}
        there = {path.name for path in self._folder.iterdir() if is_file_name(path.name)}
        for name in there - known:
            with suppress(OSError):
                (self._folder / name).unlink()
        for name in known - there:
            self._history.remove_file(name)

    def begin(self, declared: int | None = None) -> Incoming:
        """A place for a new file; what it says of its size moves no other out of the way."""
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
        """Lets the oldest go that no job uses, until there is room; the lock is held."""
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
            raise TooLarge(f"there is no room beyond {room}, which jobs read; cancel one or wait")
        for file in gone:
            self._remove(file.id)

    def add(self, coming: Incoming, piece: bytes) -> None:
        """Write what came."""
        _check_size(coming.size + len(piece))
        with self._lock:
            if sum(one.size for one in self._coming.values()) + len(piece) > MAX_COMING:
                raise TooLarge(f"more than {format_size(MAX_COMING)} are on their way")
            coming.size += len(piece)
        coming.hash.update(piece)
        try:
            coming.file.write(piece)
        except OSError as exc:
            raise _unwritten(exc) from exc

    def finish(self, coming: Incoming, name: str) -> KeptFile:
        """The whole file, of a kind that something can be said about; else it is gone."""
        shown = shown_name(name)
        try:
            coming.file.close()
            kind = kind_of_file(coming.path)
            if kind.name != "result" and not first_task(kind.name, shown):
                raise wrong_kind(shown, kind, "which cannot be shown")
        except LoadError as exc:  # which may name the path that it has here
            raise LoadError(shown, exc.what, cure=exc.cure) from exc
        except OSError as exc:
            raise _unwritten(exc) from exc
        file = KeptFile(
            coming.id, shown, kind.name, coming.size, coming.hash.hexdigest(), time.time()
        )
        with self._lock:
            for known in self._history.files():
                if (known.digest, known.name) == (file.digest, file.name):
                    return known  # what came is abandoned
            self._make_room(file.size)
            self._history.add_file(file)
            del self._coming[coming.id]
        return file

    def abandon(self, coming: Incoming) -> None:
        """Remove what came so far."""
        with self._lock:
            if self._coming.pop(coming.id, None) is None:
                return
        with suppress(OSError):
            coming.file.close()
        with suppress(OSError):
            coming.path.unlink()

    def path(self, file: str) -> Path:
        """Where a file of the history lies."""
        return self._folder / file

    def hold(self, file: str) -> KeptFile:
        """Keeps a file from being removed while a job reads it."""
        with self._lock:
            found = self._history.file(file)
            if found is None:
                raise UsageError("this file is not here any more; drop it again")
            self._busy[file] = self._busy.get(file, 0) + 1
            return found

    def let_go(self, file: str) -> None:
        """A job does not need it any more."""
        with self._lock:
            left = self._busy.pop(file, 1) - 1
            if left:
                self._busy[file] = left

    def remove(self, file: str) -> None:
        """Remove a file; a job that reads it refuses that."""
        with self._lock:
            if self._busy.get(file):
                raise UsageError("a job reads this file; cancel it first")
            self._remove(file)

    def drop(self, file: str) -> bool:
        """Remove a file of which its only job says that it is no good; whether it is gone."""
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
    """The last part of a name from elsewhere, as it is shown."""
    last = name.replace("\\", "/").rstrip("/").rpartition("/")[2].strip()
    return shorten(printable(last), MAX_NAME) or "a file without a name"


def _check_size(size: int) -> None:
    if size > MAX_UPLOAD:
        raise TooLarge(f"a file may have {format_size(MAX_UPLOAD)} at most")


def _unwritten(exc: OSError) -> OutputError:
    return OutputError(f"the file cannot be kept ({(exc.strerror or str(exc)).lower()})")
