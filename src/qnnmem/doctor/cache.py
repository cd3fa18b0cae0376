"""Files kept between runs in the user's cache folder; nothing depends on them."""

from __future__ import annotations

from qnnmem.cache_folder import cache_folder
from qnnmem.errors import OutputError

_KEPT = 8  # files of a kind: one for each knowledge base in use


def load(name: str) -> bytes | None:
    """What was kept under this name, if anything was."""
    try:
        return (cache_folder() / name).read_bytes()
    except OSError:
        return None


def keep(name: str, data: bytes) -> None:
    """Keeps data if that can be done here."""
    from qnnmem.whole_file import write_whole

    path = cache_folder() / name
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, data)
        kept = sorted(path.parent.glob(name.split("-")[0] + "-*"), key=lambda p: p.stat().st_mtime)
        for old in kept[:-_KEPT]:
            old.unlink(missing_ok=True)
    except (OSError, OutputError):
        return  # a read-only home: everything is made anew each time
