"""Where files are kept between runs."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """The folder of ours in the user's cache folder, wherever that is on this machine."""
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if not base.is_absolute():
        # Path.home() raises for a user without a home, as containers have them.
        base = Path(os.path.expanduser("~"), ".cache")  # noqa: PTH111
    return base / "qnnmem"
