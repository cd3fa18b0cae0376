"""The folder of a fix: files that belong together, and nothing of a run that was killed."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

_TEMPORARY = 40  # characters of a name that its temporary one begins with


class FixTargets(NamedTuple):
    """What is written for one model; the model comes last, so where it is, all are."""

    recipe: Path
    report: Path
    model: Path

    @classmethod
    def of(cls, folder: Path, stem: str) -> FixTargets:
        """The files of a model in a folder."""
        names = (f"{stem}.recipe.json", f"{stem}.report.md", f"{stem}.onnx")
        return cls(*(folder / name for name in names))


@contextmanager
def fix_folder(folder: Path, targets: Sequence[Path], *, force: bool) -> Iterator[None]:
    """Make the folder for the time of the work, free of what a killed run left in it.

    What could not be written after the work is refused before it.
    """
    from qnnmem.cli.output import check_free
    from qnnmem.scratch_folder import lock_folder
    from qnnmem.whole_file import folder_for_output

    with folder_for_output(folder):
        lock = lock_folder(folder)
        try:
            if lock is not None:  # nobody else is writing
                _tidy(targets)
            for target in targets:
                check_free(target, force)
            yield
        finally:
            if lock is not None:
                os.close(lock)


def _tidy(targets: Sequence[Path]) -> None:
    """Remove temporary files, and files whose last one was on its way but never came."""
    left = {target: _temporaries(target) for target in targets}
    last = targets[-1]
    unfinished = bool(left[last]) and not os.path.lexists(last)
    for target in targets:
        for path in (*left[target], *[target] * (unfinished and target is not last)):
            with suppress(OSError):
                path.unlink()


def _temporaries(target: Path) -> list[Path]:
    """Hidden files beside a target that were to become it."""
    shape = re.compile(re.escape(f".{target.name[:_TEMPORARY]}.") + "[0-9a-f]{16}")
    try:
        return [path for path in target.parent.iterdir() if shape.fullmatch(path.name)]
    except OSError:
        return []


def write_fixed(contents: Mapping[Path, bytes], *, force: bool) -> list[str]:
    """Write files that belong together, all or none; gives their names, the last one first."""
    from qnnmem.whole_file import write_together

    write_together(contents, force=force)
    return [str(path) for path in reversed(list(contents))]
