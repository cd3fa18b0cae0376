"""The folder of a fix: files that belong together, and nothing of a run that was killed.

The recipe is written last: where it is, all are. Where it was on its way when a run was killed, its
temporary name is still there; the next run then takes what is there for its own if it is the same.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

_NAMED = 40  # characters of a name that its temporary one begins with


@dataclass(frozen=True, slots=True)
class FixFolder:
    """Where the files of one model go."""

    folder: Path
    stem: str
    force: bool = False

    @property
    def recipe(self) -> Path:
        """What comes last."""
        return self.folder / f"{self.stem}.recipe.json"

    @property
    def report(self) -> Path:
        """For people."""
        return self.folder / f"{self.stem}.report.md"

    @property
    def is_unfinished(self) -> bool:
        """Whether a run was killed while it wrote here."""
        return bool(self._left(self.recipe.name)) and not os.path.lexists(self.recipe)

    def write(self, contents: Mapping[str, bytes]) -> list[str]:
        """Write files in this order, all or none, but for those that are there already."""
        from qnnmem.atomic_file import write_together

        named = {self.folder / name: content for name, content in contents.items()}
        goes_on = self.is_unfinished
        stale = [left for name in contents for left in self._left(name)]
        new = {
            path: content
            for path, content in named.items()
            if not (goes_on and _is_same(path, content))
        }
        write_together(new, force=self.force)
        for left in stale:
            with suppress(OSError):
                left.unlink()
        return [str(path) for path in named]

    def _left(self, name: str) -> list[Path]:
        """Hidden files that were to become one of this name."""
        shape = re.compile(re.escape(f".{name[:_NAMED]}.") + "[0-9a-f]{16}")
        try:
            return [path for path in self.folder.iterdir() if shape.fullmatch(path.name)]
        except OSError:
            return []


def _is_same(path: Path, content: bytes) -> bool:
    try:
        if path.is_symlink() or path.stat().st_size != len(content):
            return False
        return path.read_bytes() == content
    except OSError:
        return False


@contextmanager
def fix_folder(place: FixFolder, names: Sequence[str]) -> Iterator[None]:
    """Make the folder for the time of the work; what could not be written after it is refused."""
    from qnnmem.atomic_file import check_replaceable, folder_for_output

    with folder_for_output(place.folder):
        if not place.is_unfinished:
            for name in names:
                check_replaceable(place.folder / name, force=place.force)
        yield
