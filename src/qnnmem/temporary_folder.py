"""Temporary folders that are removed at the end of their `with` block.

A killed process cannot clean up. Therefore a folder stays locked while its process lives, and the
next run removes unlocked folders. It removes only folders whose whole name was generated: a folder
such as `qnnmem-results` belongs to the user.
"""

from __future__ import annotations

import os
import re
import tempfile
import time
from contextlib import suppress
from functools import cache
from pathlib import Path

from qnnmem.atomic_file import shown
from qnnmem.errors import OutputError

_PREFIX = "qnnmem~"  # short, because socket paths have at most 107 bytes
_HIDDEN_PREFIX = ".qnnmem-"
_DRAWN = "[a-z0-9_]{8}"  # characters that tempfile adds to a prefix
_NAME = re.compile(f"(?:{re.escape(_PREFIX)}|{re.escape(_HIDDEN_PREFIX)}){_DRAWN}")
_ABANDONED_S = 10.0  # seconds: a new folder exists for a moment before its lock


def temporary_folder(inside: Path | None = None) -> tempfile.TemporaryDirectory[str]:
    """Return an empty temporary folder for a `with` block.

    If `inside` is given, the new folder is a hidden subfolder of `inside`, so that its files can be
    renamed into `inside`.
    """
    prefix = _PREFIX if inside is None else _HIDDEN_PREFIX
    try:
        folder = _HeldFolder(prefix, inside)
    except OSError as exc:
        reason = (exc.strerror or str(exc)).lower()
        if inside is not None:
            raise OutputError(f"nothing can be written to {shown(inside)} ({reason})") from exc
        raise OutputError(
            f"no temporary folder can be created ({reason}); set TMPDIR to a folder with free space"
        ) from exc
    if inside is None:
        _remove_abandoned(Path(folder.name).parent, _PREFIX)
    return folder


def is_temporary_name(name: str) -> bool:
    """Return True if the name could be that of a temporary folder inside another folder."""
    return name.startswith(_HIDDEN_PREFIX) and _NAME.fullmatch(name) is not None


def remove_abandoned_inside(folder: Path) -> None:
    """Remove the temporary folders that killed processes left inside a folder."""
    _remove_abandoned.__wrapped__(folder, _HIDDEN_PREFIX)  # not cached: on every call


class _HeldFolder(tempfile.TemporaryDirectory[str]):
    """Temporary folder with a lock that shows it is in use."""

    def __init__(self, prefix: str, inside: Path | None) -> None:
        # A failed removal must not hide the result, or the error, of the work.
        super().__init__(prefix=prefix, dir=inside, ignore_cleanup_errors=True)
        self._lock = lock_folder(Path(self.name))

    def cleanup(self) -> None:
        """Remove the folder and release its lock."""
        super().cleanup()
        if Path(self.name).exists():  # the obstacle may be gone by now
            import shutil

            shutil.rmtree(self.name, ignore_errors=True)
        lock, self._lock = self._lock, None
        if lock is not None:
            os.close(lock)


def lock_folder(folder: Path) -> int | None:
    """Lock a folder until the returned descriptor is closed; return None if locking fails.

    The system releases the lock when the process ends.
    """
    try:
        import fcntl
    except ImportError:  # not on Windows
        return None
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


@cache  # only once for each run
def _remove_abandoned(place: Path, prefix: str) -> None:
    """Remove the temporary folders that killed processes left behind."""
    import shutil

    with suppress(OSError):
        for folder in place.glob(f"{prefix}*"):
            if not _is_old_and_ours(folder):
                continue
            lock = lock_folder(folder)
            if lock is not None:
                shutil.rmtree(folder, ignore_errors=True)
                os.close(lock)


def _is_old_and_ours(folder: Path) -> bool:
    if _NAME.fullmatch(folder.name) is None:
        return False
    try:
        state = folder.lstat()
    except OSError:  # removed meanwhile
        return False
    is_own = not hasattr(os, "geteuid") or state.st_uid == os.geteuid()
    return is_own and time.time() - state.st_mtime > _ABANDONED_S
