"""Where files are kept between runs."""

from __future__ import annotations

import os


def cache_folder() -> str:
    """The folder of ours in the user's cache folder, wherever that is on this machine."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(base):  # noqa: PTH117 - pathlib is slow to import
        base = os.path.join(os.path.expanduser("~"), ".cache")  # noqa: PTH111, PTH118
    return f"{base}/qnnmem"
