"""Where files are kept between runs."""

from __future__ import annotations

import os
import stat
from pathlib import Path


def cache_folder() -> Path:
    """The folder of ours in the user's cache folder, wherever that is on this machine."""
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if not base.is_absolute():
        # Path.home() raises for a user without a home, as containers have them.
        base = Path(os.path.expanduser("~"), ".cache")  # noqa: PTH111
    return base / "qnnmem"


def read_kept(path: Path, limit: int) -> bytes:
    """A file that an earlier run kept: regular, of this user, not behind a link; never waits."""
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOFOLLOW", 0)
    descriptor = os.open(path, flags | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0))
    try:
        state = os.fstat(descriptor)
        mine = not hasattr(os, "geteuid") or state.st_uid == os.geteuid()
        if not stat.S_ISREG(state.st_mode) or not mine or state.st_size > limit:
            raise OSError("not a file that was kept here")
        with open(descriptor, "rb", buffering=0, closefd=False) as file:
            return file.read(limit)
    finally:
        os.close(descriptor)
