"""Files kept between runs in the user's cache folder; nothing depends on them."""

from __future__ import annotations

from qnnmem.cache_folder import cache_folder

_KEPT = 8  # files of a kind: one for each knowledge base in use


def load(name: str) -> bytes | None:
    """What was kept under this name, if anything was."""
    try:
        with open(_path(name), "rb") as file:  # noqa: PTH123 - pathlib is slow to import
            return file.read()
    except OSError:
        return None


def keep(name: str, data: bytes) -> None:
    """Keeps data if that can be done here."""
    from pathlib import Path

    from qnnmem.errors import OutputError
    from qnnmem.whole_file import write_whole

    path = Path(_path(name))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, data)
        kept = sorted(path.parent.glob(name.split("-")[0] + "-*"), key=lambda p: p.stat().st_mtime)
        for old in kept[:-_KEPT]:
            old.unlink(missing_ok=True)
    except (OSError, OutputError):
        return  # a read-only home: everything is made anew each time


def _path(name: str) -> str:
    return f"{cache_folder()}/{name}"
