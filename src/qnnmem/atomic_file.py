"""Write files atomically, and leave nothing behind after a failure.

An existing file is replaced only with `force`, and only if it is a regular file. Without `force`,
the last step creates the file name atomically, so that only one of two simultaneous writers
succeeds. A new file gets the mode that the umask allows; a replaced file keeps its mode.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from qnnmem.errors import OutputError, Setting
from qnnmem.text import plain_or_quoted

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

_SHOWN = 200  # characters of a path in a sentence
_PERMISSIONS = 0o777  # permissions that a replaced file keeps: new content gets no set-user-id


def write_whole(path: Path, *pieces: ReadableBuffer, force: bool = True) -> int:
    """Write a file atomically through a temporary file; return the number of bytes written."""
    return write_pieces(path, pieces, force=force)


def write_pieces(path: Path, pieces: Iterable[ReadableBuffer], *, force: bool = True) -> int:
    """Write pieces to a file atomically through a temporary file; return the number of bytes."""
    temporary = _beside(path)
    with _said(path), _removed(temporary):
        size = _fill(temporary, pieces)
        put_in_place(temporary, path, force=force)
    return size


def write_together(contents: Mapping[Path, ReadableBuffer], *, force: bool = True) -> None:
    """Write several files, either all of them or none."""
    new = {path: _beside(path) for path in contents}
    with _removed(*new.values()):
        for path, content in contents.items():
            with _said(path):
                _fill(new[path], (content,))
        put_together(new, force=force)


def put_together(new: Mapping[Path, Path], *, force: bool = True) -> None:
    """Move finished files to their final names; if one move fails, restore all old files.

    `new` maps each final path to the path of the finished file on the same file system.
    """
    old = {path: _beside(path) for path in new}
    with _removed(*old.values()):
        try:
            for path, temporary in new.items():
                with _said(path):
                    if force:
                        _set_aside(path, old[path])
                    put_in_place(temporary, path, force=force)
        except BaseException:
            for path, temporary in new.items():
                _put_back(path, temporary, old[path])
            raise


def put_in_place(temporary: Path, path: Path, *, force: bool = True) -> None:
    """Rename a finished file to its final name on the same file system."""
    mode = _replaceable_mode(path)
    if force:
        if mode is not None:
            temporary.chmod(mode)
        temporary.replace(path)
        return
    if mode is not None:
        raise _taken(path)
    try:
        _make_name(temporary, path)
    except FileExistsError:  # created at this moment by another process
        raise _taken(path) from None


def check_replaceable(path: Path, *, force: bool) -> None:
    """Raise OutputError if a later write to this path would fail."""
    with _said(path):
        mode = _replaceable_mode(path)
        if mode is not None and not force:
            raise _taken(path)
        # Even an existing file is replaced through a temporary file, so its folder must be
        # writable.
        if not stat.S_ISDIR(path.parent.stat().st_mode):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        if not os.access(path.parent, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, "its folder is not writable")


@contextmanager
def folder_for_output(folder: Path) -> Iterator[None]:
    """Create a folder and its parents; after the block, remove new folders that are empty."""
    created: list[Path] = []
    try:
        try:
            for place in reversed((folder, *folder.parents)):
                if not place.exists():
                    place.mkdir(exist_ok=True)
                    created.append(place)
            if not folder.is_dir():
                raise OutputError(f"{shown(folder)} exists and is not a folder")
        except (OSError, ValueError) as exc:  # ValueError: a NUL byte in the name
            raise OutputError(f"folder {shown(folder)} cannot be created: {_reason(exc)}") from exc
        yield
    finally:
        for place in reversed(created):
            with suppress(OSError):  # not empty
                place.rmdir()


def shown(path: Path) -> str:
    """Return a path as text for a message, quoted if it has unprintable characters."""
    return plain_or_quoted(str(path), _SHOWN)


def _beside(path: Path) -> Path:
    """Return an unused hidden path for a temporary file, in the folder of `path`."""
    # with_name would reject a path that ends in ".."; opening such a path raises an error that
    # states the reason.
    return path.parent / f".{path.name[:40]}.{os.urandom(8).hex()}"


def _fill(temporary: Path, pieces: Iterable[ReadableBuffer]) -> int:
    # tempfile would ignore the umask and create a private file.
    with temporary.open("xb") as file:
        return sum(file.write(piece) for piece in pieces)


def _replaceable_mode(path: Path) -> int | None:
    """Return the permissions of the file to replace; None if there is no file.

    Raise OutputError if the path is not a regular file: a rename would replace even `/dev/null`,
    for the whole machine.
    """
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(mode):
        raise OutputError(f"{shown(path)} is not a regular file, so it is not replaced")
    return stat.S_IMODE(mode) & _PERMISSIONS


def _make_name(temporary: Path, path: Path) -> None:
    """Move a finished file to a new name; raise FileExistsError if the name is taken."""
    try:
        os.link(temporary, path)
    except FileExistsError:
        raise
    except (OSError, NotImplementedError):  # not all file systems have links
        with path.open("xb"):
            pass
    else:
        temporary.unlink()
        return
    try:
        temporary.replace(path)
    except BaseException:
        path.unlink(missing_ok=True)
        raise


def _set_aside(path: Path, backup: Path) -> None:
    """Keep an existing file under a backup name, so that it can be restored."""
    if _replaceable_mode(path) is None:
        return
    try:
        os.link(path, backup)
    except (OSError, NotImplementedError):  # a file system without links
        import shutil

        shutil.copy2(path, backup)


def _put_back(path: Path, new: Path, old: Path) -> None:
    if os.path.lexists(old):
        old.replace(path)
    elif not os.path.lexists(new) or _is_one_file(new, path):
        path.unlink(missing_ok=True)  # written by this call, where no file was before


def _is_one_file(path: Path, other: Path) -> bool:
    try:
        return path.samefile(other)
    except OSError:
        return False


def _taken(path: Path) -> OutputError:
    return OutputError(f"{shown(path)} already exists", cure=(Setting("force"), " replaces it"))


@contextmanager
def _removed(*temporaries: Path) -> Iterator[None]:
    """Remove temporary files at the end of the block, even after an error."""
    try:
        yield
    finally:
        for temporary in temporaries:
            with suppress(OSError, ValueError):
                temporary.unlink(missing_ok=True)


@contextmanager
def _said(path: Path) -> Iterator[None]:
    """Convert system errors in the block to an OutputError about this file."""
    try:
        yield
    except (OSError, ValueError) as exc:  # ValueError: a NUL byte in the name
        raise OutputError(f"{shown(path)} cannot be written: {_reason(exc)}") from exc


def _reason(exc: OSError | ValueError) -> str:
    return str(getattr(exc, "strerror", None) or exc)
