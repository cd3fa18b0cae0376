"""Where files are kept between runs."""

from __future__ import annotations

import os
from pathlib import Path

# Nothing can be read or made there: whoever keeps files finds that they cannot be kept.
NOWHERE = Path(os.devnull, "qnnmem")


def cache_folder() -> Path:
    """The folder of ours in the user's cache folder, `NOWHERE` for a user who has no home.

    A home is an absolute path of a folder that is there; `~` or a relative one would litter the
    working directory, and a home that is not there is not ours to make.
    """
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if base.is_absolute():
        return base / "qnnmem"
    # Not Path.home(), which raises for a user whom the system does not know.
    home = os.path.expanduser("~") if os.environ.get("HOME", "~") else ""  # noqa: PTH111
    if not (os.path.isabs(home) and os.path.isdir(home)):  # noqa: PTH112, PTH117
        return NOWHERE
    return Path(home, ".cache", "qnnmem")
