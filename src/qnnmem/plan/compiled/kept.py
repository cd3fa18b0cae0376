"""Whether machine code can be kept for the next run; this module imports no numba.

Where it cannot, numba refuses to load a function that is to be kept. And where the user has no
home, it makes a folder called `~` in the working directory. What it finds in its folder it runs,
whoever wrote it: so nothing is kept where others can write.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from tempfile import TemporaryFile

from qnnmem.cache_folder import NOWHERE, cache_folder


def _takes_files(folder: Path) -> bool:
    """As numba finds it out, by trying."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        TemporaryFile(dir=folder).close()
    except (OSError, ValueError):
        return False
    return True


def _is_private(folder: Path) -> bool:
    """Whether the folder is this user's and others cannot write there."""
    try:
        state = folder.stat()
    except (OSError, ValueError):
        return False
    mine = not hasattr(os, "geteuid") or state.st_uid == os.geteuid()
    return mine and not state.st_mode & stat.S_IWOTH


def _has_place() -> bool:
    """Whether one of the folders that numba tries in turn will do."""
    if chosen := os.environ.get("NUMBA_CACHE_DIR"):
        return _takes_files(Path(chosen)) and _is_private(Path(chosen))
    # As safe as the module itself.
    if _takes_files(Path(__file__).with_name("__pycache__")):
        return True
    # numba takes a relative folder at its word, where the standard says to ignore it.
    is_usual = os.path.isabs(os.environ.get("XDG_CACHE_HOME", "/"))  # noqa: PTH117
    ours = cache_folder()
    folder = ours.with_name("numba")
    return is_usual and ours != NOWHERE and _takes_files(folder) and _is_private(folder)


KEPT = _has_place()
