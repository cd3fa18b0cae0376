"""The user's cache folder, and results stored there under a digest of what produced them."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from qnnmem.errors import OutputError

# No file can be read or written there, so every cache write fails and is skipped.
NOWHERE = Path(os.devnull, "qnnmem")
DIGEST = 32  # bytes of a digest


def cache_folder() -> Path:
    """Return qnnmem's folder in the user's cache folder; `NOWHERE` for a user without a home.

    Only an existing folder with an absolute path counts as a home. A relative path would create
    files in the working directory, and a missing home is not created.
    """
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if base.is_absolute():
        return base / "qnnmem"
    # Not Path.home(), which raises for a user without a passwd entry.
    home = os.path.expanduser("~") if os.environ.get("HOME", "~") else ""  # noqa: PTH111
    if not (os.path.isabs(home) and os.path.isdir(home)):  # noqa: PTH112, PTH117
        return NOWHERE
    return Path(home, ".cache", "qnnmem")


def read_kept(path: Path, limit: int) -> bytes:
    """Return the content of a cached file; raise OSError if the file has more than `limit` bytes.

    Also raise OSError unless the file is regular, belongs to this user and is not writable by other
    users. Links are not followed, and a pipe does not block.
    """
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOFOLLOW", 0)
    descriptor = os.open(path, flags | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0))
    try:
        state = os.fstat(descriptor)
        is_own = not hasattr(os, "geteuid") or (
            state.st_uid == os.geteuid() and not state.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        )
        if not stat.S_ISREG(state.st_mode) or not is_own or state.st_size > limit:
            raise OSError("not a file that this user's cache wrote")
        with open(descriptor, "rb", buffering=0, closefd=False) as file:
            return file.read(limit)
    finally:
        os.close(descriptor)


def make_closed(folder: Path) -> None:
    """Create a folder and its missing parents, accessible only to this user.

    `mkdir(parents=True)` creates parents with the umask; another user who can write to a parent
    could rename the folder.
    """
    if not folder.parent.exists():
        make_closed(folder.parent)
    folder.mkdir(mode=0o700, exist_ok=True)


def write_kept(path: Path, data: bytes) -> None:
    """Atomically write a cache file that only this user can read."""
    import tempfile  # most runs do not need it

    make_closed(path.parent)
    handle, name = tempfile.mkstemp(prefix=".", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())  # a long compile must survive a power cut
        Path(name).replace(path)
    except BaseException:
        with suppress(OSError):
            Path(name).unlink()
        raise


def digest(parts: Iterable[bytes]) -> bytes:
    """Return a collision-resistant digest of several parts and of the boundaries between them."""
    # Imported directly: hashlib loads OpenSSL, which takes 4 ms at the start of every command.
    try:
        from _blake2 import blake2b
    except ImportError:
        from hashlib import blake2b
    total = blake2b(digest_size=DIGEST)
    for part in parts:
        total.update(len(part).to_bytes(8, "little"))
        total.update(part)
    return total.digest()


_MAX_FILE = 1 << 20


class ResultCache:
    """A folder with one small file for each result; an invalid file counts as missing.

    If the folder cannot be written, `put` raises OutputError if `must_keep` is true, and does
    nothing if it is false.
    """

    def __init__(self, folder: Path, kind: str = "sweep", *, must_keep: bool = True) -> None:
        self.folder = folder / kind
        self._must_keep = must_keep

    def get(self, key: str) -> dict[str, Any] | None:
        """Return the result cached under a key; None if there is no valid one."""
        import json

        path = self._path(key)
        try:
            entry = json.loads(read_kept(path, _MAX_FILE))
        except (OSError, ValueError, RecursionError):
            return None
        if not isinstance(entry, dict) or entry.get("key") != key:
            return None
        values = entry.get("result")
        if not isinstance(values, dict) or entry.get("digest") != _digest(key, values):
            return None
        return values

    def put(self, key: str, result: Mapping[str, Any]) -> None:
        """Store a result under its key."""
        import json

        path = self._path(key)
        text = json.dumps({"key": key, "result": dict(result), "digest": _digest(key, result)})
        try:
            write_kept(path, text.encode("ascii"))
        except OSError as exc:
            if not self._must_keep:
                return
            raise OutputError(f"{path.parent} cannot be written: {exc.strerror or exc}") from exc

    def _path(self, key: str) -> Path:
        return self.folder / key[:2] / f"{key}.json"


def _digest(key: str, result: Mapping[str, Any]) -> str:
    """Return a checksum of a key and its result: a result can look valid after a bit flip."""
    import hashlib
    import json

    return hashlib.sha256(json.dumps([key, dict(result)], sort_keys=True).encode()).hexdigest()
