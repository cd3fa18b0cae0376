"""Working folder of a job, and the store of output files.

A job's file has a random name in the folder. The result shows the original name without a folder,
so that no path on this machine reaches the page.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from qnnmem.temporary_folder import temporary_folder
from qnnmem.workbench.history import KeptFile, MadeFile
from qnnmem.workbench.limits import MAX_MADE
from qnnmem.workbench.private_folder import is_result_name

MADE = "made"  # subfolder for output files of verbs
_MOST = 64  # output files of one job
_TEXTS = 1 << 20  # bytes of a text file in which names are replaced
# Suffixes that some readers use to choose the file format.
_SUFFIXES = {
    **{"onnx": ".onnx", "epcontext": ".onnx", "tflite": ".tflite", "dlc": ".dlc"},
    **{"eaix": ".eaix", "csv": ".csv", "pte": ".pte", "litert": ".tflite", "zip": ".zip"},
    **{"htp": ".bin", "lpai": ".bin", "config": ".json", "graphs": ".json", "json": ".json"},
}


class JobFolder:
    """Temporary folder of one job, removed on close."""

    def __init__(self, inside: Path, file: KeptFile, source: Path) -> None:
        self._scratch = temporary_folder(inside)
        self.path = Path(self._scratch.name)
        self._token = file.id
        self.name = f"{self._token}{_SUFFIXES.get(file.kind, '')}"
        self._shown = file.name
        try:
            (self.path / self.name).hardlink_to(source)
        except OSError:  # a file system without links
            shutil.copyfile(source, self.path / self.name)

    def close(self) -> None:
        """Remove the folder."""
        self._scratch.cleanup()

    def shown(self, text: str) -> str:
        """Return a text with the uploaded file's original name in place of its random name."""
        return self._replaced(text, self._shown, _stem(self._shown))

    def shown_json(self, text: str) -> str:
        """Return a JSON text with the uploaded file's original name in place of its random name."""
        name, stem = (json.dumps(spelling)[1:-1] for spelling in (self._shown, _stem(self._shown)))
        return self._replaced(text, name, stem)

    def _replaced(self, text: str, name: str, stem: str) -> str:
        text = text.replace(f"{self.path}{os.sep}", "").replace(str(self.path), ".")
        return text.replace(self.name, name).replace(self._token, stem)

    def made(self) -> list[tuple[Path, str]]:
        """Return the job's output files with the names to show for them."""
        root = self.path / MADE
        paths = sorted(path for path in root.rglob("*") if path.is_file() and not path.is_symlink())
        names = [self.shown(path.relative_to(root).as_posix()) for path in paths]
        return list(zip(paths, names, strict=True))[:_MOST]

    def finish_text(self, path: Path) -> None:
        """Replace random names in a short text file that the job wrote."""
        if path.suffix in (".md", ".json", ".txt") and path.stat().st_size <= _TEXTS:
            turn = self.shown_json if path.suffix == ".json" else self.shown
            path.write_text(turn(path.read_text("utf-8", "replace")), "utf-8")


def _stem(name: str) -> str:
    return name.rpartition(".")[0] or name


class MadeFiles:
    """The stored output files of jobs, by the key of the job's result."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def keep(self, key: str, job: JobFolder) -> tuple[MadeFile, ...]:
        """Move output files of a job into the store, up to a size limit; return names and sizes."""
        place, kept, total = self._folder / key, list[MadeFile](), 0
        shutil.rmtree(place, ignore_errors=True)
        for path, name in job.made():
            job.finish_text(path)
            size = path.stat().st_size
            total += size
            if total > MAX_MADE:
                break
            place.mkdir(mode=0o700, exist_ok=True)
            path.replace(place / str(len(kept)))
            kept.append(MadeFile(name, size))
        return tuple(kept)

    def path(self, key: str, number: int) -> Path:
        """Return the path of a stored file."""
        return self._folder / key / str(number)

    def tidy(self, keys: Iterable[str]) -> None:
        """Remove output files whose result no longer exists."""
        known = set(keys)
        with suppress(OSError):
            for place in self._folder.iterdir():
                if is_result_name(place.name) and place.name not in known:
                    shutil.rmtree(place, ignore_errors=True)
