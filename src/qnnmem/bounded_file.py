"""Open untrusted files without blocking, and read them up to a limit."""

from __future__ import annotations

import os
import stat
from pathlib import Path, PurePosixPath, PureWindowsPath

from qnnmem.errors import Damaged, LoadError
from qnnmem.text import quote
from qnnmem.units import format_size

MISSING = "no such file"  # the same wording everywhere
NOT_THERE = (FileNotFoundError, NotADirectoryError)
_LONGEST_NAME = 4096


def regular_size(path: Path) -> int:
    """Return the size of a file; raise LoadError unless the file is regular and not empty."""
    try:
        status = path.stat()
    except NOT_THERE as exc:
        raise LoadError(path, MISSING) from exc
    except (OSError, ValueError) as exc:  # ValueError: a NUL byte in the name
        raise LoadError(quote(str(path)), f"cannot be opened ({_why(exc)})") from exc
    if stat.S_ISDIR(status.st_mode):
        raise LoadError(path, "is a folder; give the model file in it")
    if not stat.S_ISREG(status.st_mode):
        raise LoadError(path, "is not a regular file; save the model to disk first")
    if status.st_size == 0:
        raise LoadError(path, "is empty")
    return status.st_size


def read_bytes(path: Path, limit: int) -> bytes:
    """Return the content of a file; raise LoadError if the file has more than `limit` bytes."""
    size = regular_size(path)
    if size > limit:
        largest = format_size(limit)
        raise LoadError(path, f"{size:,} bytes are over the limit of {largest} for this format")
    return read_head(path, limit)


def read_head(path: Path, count: int) -> bytes:
    """Return at most `count` bytes from the start of a file."""
    return read_range(path, 0, count)


def read_range(path: Path, start: int, count: int) -> bytes:
    """Return at most `count` bytes of a file, from offset `start`."""
    try:
        # O_NONBLOCK: if a pipe replaced the file after the check, opening it must not block.
        with open(path, "rb", opener=_open_without_waiting) as file:
            # read() allocates as many bytes as requested: request no more than the file has.
            left = os.fstat(file.fileno()).st_size - start
            file.seek(start)
            return file.read(max(0, min(count, left)))
    except (OSError, MemoryError) as exc:
        raise LoadError(path, f"cannot be read ({_why(exc)})") from exc


def file_below(folder: Path, name: str) -> Path:
    """Return the path of a file below `folder` that an untrusted file names.

    Raise Damaged, with a clause about the name, if the path is not below `folder` after all
    links are followed.
    """
    if not name or "\0" in name or len(name) > _LONGEST_NAME:
        raise Damaged("does not name a usable file")
    # Test for absolute POSIX and Windows paths: a model must get the same verdict on every system.
    if PurePosixPath(name).is_absolute() or PureWindowsPath(name).anchor:
        raise Damaged(f"is at {quote(name)}, an absolute path, which is refused")
    try:
        top = folder.resolve()
        file = (top / name).resolve()
    except (OSError, RuntimeError, ValueError) as exc:
        raise Damaged(f"is at {quote(name)}, which cannot be resolved") from exc
    if not file.is_relative_to(top):
        raise Damaged(f"is at {quote(name)}, outside the model's folder, which is refused")
    return file


def is_there(path: Path) -> bool:
    """Return True if the path exists; never raises."""
    try:
        return path.exists()
    except (OSError, ValueError):  # e.g. a name that is too long, or a NUL byte
        return False


def config_file(tool_file: Path, name: str, *, here_first: bool = False) -> Path | None:
    """Return the path of the config file that another config file, `tool_file`, names.

    The name is relative to the folder of `tool_file` or, if no file is there, to the current
    folder; with `here_first`, the current folder is tried first, as in the SDK's tools. Return None
    if neither folder has the file. Raise Damaged, with a clause about the name, if the path
    is below neither folder after all links are followed.
    """
    places = (tool_file.parent / name, Path(name))
    for path in reversed(places) if here_first else places:
        if is_there(path):
            if not any(_is_below(path, folder) for folder in (tool_file.parent, Path())):
                folders = "the folder of the tools' config file and the current folder"
                raise Damaged(f"{quote(name)} is outside {folders}, which is refused")
            return path
    return None


def _is_below(path: Path, folder: Path) -> bool:
    try:
        return path.resolve().is_relative_to(folder.resolve())
    except (OSError, RuntimeError, ValueError):  # circular links
        return False


def _open_without_waiting(name: str, flags: int) -> int:
    return os.open(name, flags | getattr(os, "O_NONBLOCK", 0))


def _why(exc: BaseException) -> str:
    if isinstance(exc, MemoryError):
        return "not enough memory"
    reason = exc.strerror if isinstance(exc, OSError) and exc.strerror else str(exc)
    return reason.lower()
