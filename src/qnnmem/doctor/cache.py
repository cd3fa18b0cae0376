"""Files kept between runs in the user's cache folder; qnnmem also works without them.

A file is used only if it is regular, belongs to this user and is complete. A digest of name and
content at the start of the file proves that it is complete. Other files count as missing and are
replaced.
"""

from __future__ import annotations

from collections.abc import Iterable

from qnnmem.cache import DIGEST, cache_folder, digest, read_kept, write_kept

_KEPT = 8  # files of one kind: one for each knowledge base in use
_MAX_BYTES = 64 << 20


def name_of(kind: str, facts: Iterable[bytes], suffix: str) -> str:
    """Return a cache file name that changes if any byte of the facts changes."""
    return f"{kind}-{digest(facts).hex()}{suffix}"


def load(name: str) -> bytes | None:
    """Return the data cached under this name; None if it is missing or damaged."""
    try:
        data = read_kept(cache_folder() / name, _MAX_BYTES)
    except (OSError, ValueError, RuntimeError):
        return None
    kept = data[DIGEST:]
    return kept if data[:DIGEST] == digest((name.encode(), kept)) else None


def keep(name: str, data: bytes) -> None:
    """Store data in the cache and delete the oldest files of its kind; ignore failures."""
    if len(data) + DIGEST > _MAX_BYTES:
        return
    try:
        path = cache_folder() / name
        write_kept(path, digest((name.encode(), data)) + data)
        kind = name.split("-")[0]
        kept = sorted(path.parent.glob(f"{kind}-*"), key=lambda p: p.lstat().st_mtime)
        for old in kept[:-_KEPT]:
            old.unlink(missing_ok=True)
    except (OSError, ValueError, RuntimeError):
        return  # a read-only or missing home: nothing is cached
