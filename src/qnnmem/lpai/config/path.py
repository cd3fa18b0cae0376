"""Where the files are that a tool file names."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from qnnmem.bounded_file import config_file


@dataclass(frozen=True, slots=True)
class Located:
    """A named file that was found."""

    path: Path
    in_place_of: bool = False  # the path itself is not there, a file of the same name is


def locate(text: str, tool_file: Path) -> Located | None:
    """Finds the LPAI file beside the tool file or from the current folder; None if in neither.

    The tools know the current folder only; beside the tool file is where the files lie on a desk.
    A path of the device, e.g. `/data/x.conf`, is also met by `x.conf` beside the tool file. Raise
    Damaged if the file lies outside the tool file's folder.
    """
    found = config_file(tool_file, text)
    if found is not None:
        return Located(found)
    name = PurePosixPath(text).name
    beside = config_file(tool_file, name) if name and text.startswith("/") else None
    return None if beside is None else Located(beside, in_place_of=True)
