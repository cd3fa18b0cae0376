"""The far end's files: sent once, found again by content, the oldest gone when there are too many.

    FOLDER/SHA256            a file that was sent, read-only
    FOLDER/.qnnmem-XXXX/     what one connection works with; gone with it, or with the next one

A file in use is a second link to it in the connection's folder, so whoever makes room takes
nothing away from anybody.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
from contextlib import suppress
from pathlib import Path

from qnnmem.errors import OutputError
from qnnmem.htp.remote.messages import is_digest
from qnnmem.text import sentence
from qnnmem.units import format_size

_FULL = (errno.ENOSPC, errno.EDQUOT)
_ROOM = 16 << 20  # bytes that a disk has left in the end


class FileStore:
    """Files by content in a folder, of at most so many bytes together."""

    def __init__(self, folder: Path, most: int) -> None:
        self.folder, self._most = folder, most
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as exc:
            raise OutputError(f"no files can be kept in {folder} ({sentence(exc)})") from exc

    def hold(self, digest: str, size: int, held: Path) -> bool:
        """Give a connection's folder a file that is here; False if it is not."""
        if (held / digest).is_file():
            return True
        kept = self.folder / digest
        try:
            if kept.stat().st_size != size:
                return False
            os.utime(kept)  # the last to be used are the last to go
            link_or_copy(kept, held / digest)
        except OSError:
            return False
        return True

    def keep(self, held: Path) -> None:
        """Keep a file of a connection's folder for later ones, where there is room."""
        with suppress(OSError):
            os.link(held, self.folder / held.name)
        self.trim()

    def trim(self, most: int | None = None) -> None:
        """Remove the oldest files until what is left is small enough."""
        left = self._most if most is None else most
        for _, size, path in sorted(self._kept(), reverse=True):
            left -= size
            if left < 0:
                with suppress(OSError):
                    path.unlink()

    def _kept(self) -> list[tuple[int, int, Path]]:
        found = []
        with suppress(OSError), os.scandir(self.folder) as entries:
            for entry in entries:
                with suppress(OSError):
                    if is_digest(entry.name) and entry.is_file(follow_symlinks=False):
                        state = entry.stat(follow_symlinks=False)
                        found.append((state.st_mtime_ns, state.st_size, Path(entry.path)))
        return found

    def make_room(self, size: int) -> None:
        """Refuse a file for which the disk has no room, even with nothing kept on it."""
        kept = sum(one.stat().st_size for one in self.folder.iterdir() if one.is_file())
        for most in (None, 0):
            free = shutil.disk_usage(self.folder).free
            if free >= size + _ROOM:
                return
            if free + kept >= size + _ROOM:  # else nothing is gained by letting files go
                self.trim(most)
        free = shutil.disk_usage(self.folder).free
        if free < size + _ROOM:
            has, needs = format_size(max(0, free - _ROOM)), format_size(size)
            raise OutputError(f"its disk has {has} left, a file of {needs} is to be sent")


class IncomingFile:
    """A file while its parts come in."""

    def __init__(self, digest: str, size: int, held: Path) -> None:
        self._digest, self._left = digest, size
        self._sum = hashlib.sha256()
        self._path = held / "incoming"
        self._target = held / digest
        self._stream = self._path.open("wb")

    @property
    def is_whole(self) -> bool:
        """Whether all bytes are here."""
        return self._left == 0

    def take(self, part: bytes) -> None:
        """Write some bytes; OutputError where they cannot be written, or are too many."""
        self._left -= len(part)
        if self._left < 0:
            raise OutputError("more bytes came than were announced")
        self._sum.update(part)
        try:
            self._stream.write(part)
        except OSError as exc:
            raise full_or(exc) from exc

    def finish(self) -> Path:
        """The file, once its content is what was announced."""
        try:
            self._stream.close()
        except OSError as exc:
            raise full_or(exc) from exc
        if self._sum.hexdigest() != self._digest:
            raise OutputError("the file changed while it was sent")
        self._path.chmod(0o400)
        self._path.replace(self._target)
        return self._target

    def drop(self) -> None:
        """Forget what came so far."""
        with suppress(OSError):
            self._stream.close()
        with suppress(OSError):
            self._path.unlink()


def full_or(exc: OSError) -> OutputError:
    """The error for a file that cannot be written at the far end."""
    if exc.errno in _FULL:
        return OutputError("its disk is full")
    return OutputError(f"a file cannot be written there ({(exc.strerror or str(exc)).lower()})")


def link_or_copy(source: Path, target: Path) -> None:
    """A second name of a file, or a copy on file systems that have no such thing."""
    try:
        os.link(source, target)
    except FileExistsError:  # the target may be a second name of a kept file
        raise
    except OSError:
        shutil.copyfile(source, target)
