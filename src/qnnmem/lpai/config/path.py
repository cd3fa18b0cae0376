"""Where the files are that a tool file names."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path, PurePosixPath


@dataclass(frozen=True, slots=True)
class Located:
    """A named file that was found."""

    path: Path
    in_place_of: bool = False  # the path itself is not there, a file of the same name is


def locate(text: str, tool_file: Path, by_name: bool = False) -> Located | None:
    """Finds a path beside the tool file or in the current folder; None if it is in neither.

    The tools know the current folder only; beside the tool file is where the files lie on a desk.
    With `by_name` a path of the device, e.g. `/data/x.conf`, is also met by `x.conf` beside it.
    """
    for folder in (tool_file.parent, Path()):
        if _exists(folder / text):
            return Located(folder / text)
    name = PurePosixPath(text).name
    beside = tool_file.parent / name
    if by_name and name and text.startswith("/") and _exists(beside):
        return Located(beside, in_place_of=True)
    return None


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # a name too long, a folder closed to us, a NUL byte
        return False
