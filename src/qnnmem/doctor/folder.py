"""Files of an untrusted folder: regular files are read; all others are skipped and reported.

A pipe would block, a device has no end, and a link might lead to a file that the sender of the
folder could not read. Therefore a link is followed only if its target is inside the folder. Files
named on the command line are trusted.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator

import msgspec

from qnnmem.bounded_file import MISSING, NOT_THERE
from qnnmem.errors import LoadError

_ELSEWHERE = "a link out of the folder; name its target instead"
_KINDS = (
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


class LeftOut(msgspec.Struct, frozen=True):
    """File or folder that is skipped, with the reason."""

    path: str
    why: str
    unread: bool  # True: it may contain a log
    folder: bool = False


def files_in(folder: str, *, below: bool) -> Iterator[str | LeftOut]:
    """Yield the regular files and the skipped entries of a folder, in order, subfolders last."""
    top = os.path.realpath(folder)
    waiting = [folder]
    while waiting:
        where = waiting.pop()
        try:
            with os.scandir(where) as found:
                items = sorted(found, key=lambda item: item.name)
        except (OSError, ValueError) as exc:
            if where == folder:
                raise LoadError(folder, reason(exc)) from exc
            yield LeftOut(where, reason(exc), unread=True, folder=True)
            continue
        folders = []
        for item in items:
            path = f"{where}/{item.name}"
            if item.is_symlink():
                yield from _followed(path, top)
            elif item.is_dir(follow_symlinks=False):
                folders.append(path)
            elif item.is_file(follow_symlinks=False):
                yield path
            else:
                yield LeftOut(path, _kind(path), unread=False)
        waiting += reversed(folders) if below else ()


def _followed(path: str, top: str) -> Iterator[str | LeftOut]:
    """Yield the path of a link to a file inside `top`, or the reason why the link is skipped.

    Nothing is yielded for a link to a folder inside `top`, because `top` is listed completely.
    """
    try:
        mode = os.stat(path).st_mode  # noqa: PTH116 - only names are used here
        target = os.path.realpath(path)
    except OSError as exc:
        nothing = exc.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)
        why = "a broken link" if nothing else reason(exc)
        yield LeftOut(path, why, unread=not nothing)
    else:
        if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
            yield LeftOut(path, f"a link to {kind_of(mode)}", unread=False)
        elif target != top and not target.startswith(os.path.join(top, "")):  # noqa: PTH118
            yield LeftOut(path, _ELSEWHERE, unread=True, folder=stat.S_ISDIR(mode))
        elif stat.S_ISREG(mode):
            yield path


def _kind(path: str) -> str:
    try:
        return kind_of(os.lstat(path).st_mode)
    except OSError as exc:
        return reason(exc)


def kind_of(mode: int) -> str:
    """Return the kind of a special file, e.g. a pipe or a device, as text."""
    return next((words for test, words in _KINDS if test(mode)), "not a regular file")


def open_regular(path: str) -> int:
    """Open a regular file without blocking; raise LoadError if it is no longer a regular file."""
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0)
    descriptor = os.open(path, flags | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0))
    if stat.S_ISREG(mode := os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    raise LoadError(path, "is a folder" if stat.S_ISDIR(mode) else kind_of(mode))


def reason(exc: BaseException) -> str:
    """Return a short explanation of why a file cannot be opened."""
    if isinstance(exc, NOT_THERE):
        return MISSING
    return getattr(exc, "strerror", None) or str(exc) or type(exc).__name__
