"""The folder of the workbench, with files that only its user can read.

The workbench removes leftovers in this folder. Therefore it uses only a folder that was new or
empty at first use; a marker file records this. Any other folder is refused and not changed.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from qnnmem.atomic_file import shown
from qnnmem.cache import make_closed
from qnnmem.errors import OutputError, UsageError
from qnnmem.temporary_folder import is_temporary_name

HISTORY, FILES, WORK, MADE = "history.sqlite", "files", "work", "made"
DAMAGED = "damaged"  # unchanged copies of damaged histories
MARKER = ".qnnmem-workbench"
BESIDE = ("-wal", "-shm", "-journal")  # SQLite's additional files of a database
_BASES = (HISTORY, *(f"{HISTORY}{end}" for end in BESIDE))
_FOLDERS = {FILES, WORK, MADE, DAMAGED}
_OURS = {MARKER, *_FOLDERS, *_BASES}
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_FILE, _RESULT = re.compile(r"[0-9a-f]{16}"), re.compile(r"[0-9a-f]{64}")
# SQLite's stored definition of the results table
_TABLE = b"CREATE TABLE results (\n  id INTEGER PRIMARY KEY AUTOINCREMENT, key TEXT NOT NULL UNIQUE"
_HEAD = 256 << 10  # bytes of a database that contain it


def is_file_name(name: str) -> bool:
    """Return True for a valid name of an uploaded file."""
    return _FILE.fullmatch(name) is not None


def is_result_name(name: str) -> bool:
    """Return True for a valid name of a folder of job files."""
    return _RESULT.fullmatch(name) is not None


def private_folder(folder: Path) -> None:
    """Create the folder, or close it to other users; raise UsageError for a foreign folder.

    If the workbench's folder also contains other files, the folder stays readable to other users,
    but its private parts are closed. If other users can also create files there, the folder is
    refused.
    """
    if folder.is_file():
        raise UsageError(
            f"{shown(folder)} is a file, but the workbench needs a folder; choose a folder"
        )
    try:
        make_closed(folder)
        _check_owner(folder.lstat())
        names = {path.name for path in folder.iterdir()}
        _check_parts(folder, names)
        if names and MARKER not in names and not _is_of_earlier_version(folder, names):
            raise UsageError(
                "there are other files in the folder of the workbench; choose an empty or a new "
                "folder"
            )
        if os.name == "posix":
            _close(folder, is_alone=names <= _OURS)
        private_file(folder / MARKER)
    except OSError as exc:
        raise _refused("the folder of the workbench cannot be created", exc) from exc


def _check_owner(state: os.stat_result) -> None:
    if stat.S_ISLNK(state.st_mode):
        raise UsageError("the folder of the workbench is a link; give the folder itself")
    if os.name == "posix" and state.st_uid != os.geteuid():
        raise UsageError(
            "the folder of the workbench belongs to another user; choose your own folder"
        )


def _check_parts(folder: Path, names: Iterable[str]) -> None:
    """Raise UsageError for parts that are links or belong to another user."""
    for name in _OURS.intersection(names):
        state = (folder / name).lstat()
        is_folder = name in _FOLDERS
        # A file with several hard links is also in another place, which may be public.
        is_right = (
            stat.S_ISDIR(state.st_mode)
            if is_folder
            else stat.S_ISREG(state.st_mode) and state.st_nlink == 1
        )
        if not is_right or (os.name == "posix" and state.st_uid != os.geteuid()):
            noun = "folder" if is_folder else "file"
            raise UsageError(
                f"{name} in the folder of the workbench is not a {noun} of the "
                "workbench; name an empty folder or a new one"
            )


def _is_of_earlier_version(folder: Path, names: set[str]) -> bool:
    """Return True if a folder without a marker contains only the workbench's history and files."""
    if HISTORY not in names or not names <= _OURS:
        return False
    known = {FILES: is_file_name, WORK: is_temporary_name, MADE: is_result_name}
    for part in names.intersection(known):
        if not all(known[part](path.name) for path in (folder / part).iterdir()):
            return False
    # Opening a database with SQLite would create files next to it.
    return any(_TABLE in _head(folder / name) for name in _BASES[:2] if name in names)


def _head(path: Path) -> bytes:
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    with os.fdopen(os.open(path, flags | getattr(os, "O_BINARY", 0)), "rb") as stream:
        return stream.read(_HEAD)


def _close(folder: Path, *, is_alone: bool) -> None:
    mode = folder.lstat().st_mode
    if is_alone and not mode & stat.S_ISVTX:
        folder.chmod(0o700)
    elif mode & _OTHERS_WRITE:
        raise UsageError(
            "other users can write to the folder of the workbench, and it contains other files; "
            "choose a folder for the workbench alone"
        )


def private_part(folder: Path) -> Path:
    """Create a subfolder with mode 700; return its path."""
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        _check_parts(folder.parent, [folder.name])
        folder.chmod(0o700)
    except OSError as exc:
        raise _refused("the folder of the workbench cannot be used", exc) from exc
    return folder


def private_file(path: Path) -> None:
    """Open or create a file with mode 600."""
    flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    try:
        os.close(os.open(path, flags | getattr(os, "O_CLOEXEC", 0), 0o600))
        path.chmod(0o600)
    except OSError as exc:
        raise _refused("a file of the workbench cannot be opened", exc) from exc
    for end in BESIDE:  # from an earlier run; SQLite creates new ones with the database's mode
        beside = path.with_name(f"{path.name}{end}")
        with suppress(OSError):
            if not beside.is_symlink():
                beside.chmod(0o600)


def _refused(problem: str, exc: OSError) -> OutputError:
    return OutputError(f"{problem} ({(exc.strerror or str(exc)).lower()})")
