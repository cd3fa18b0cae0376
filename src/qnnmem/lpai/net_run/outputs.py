"""The output tree: a folder for each inference, a file for each output, each whole or not there."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qnnmem.atomic_file import write_whole
from qnnmem.errors import OutputError, UsageError
from qnnmem.lpai.compiled import CompiledGraph
from qnnmem.lpai.net_run.inputs import is_convertible, sanitized
from qnnmem.lpai.runtime.convert import to_float
from qnnmem.lpai.runtime.graph_io import typed
from qnnmem.text import quote

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer
    from numpy.typing import NDArray


# A file system takes names of 255 bytes; endings and temporary names need some of them.
_LONGEST = 180


@dataclass(frozen=True, slots=True)
class OutputForm:
    """Which files are written for an output."""

    as_float: bool = True
    native: bool = False


class OutputTree:
    """The folder that `--output_dir` names; it is made if it is not there."""

    def __init__(self, folder: Path, form: OutputForm) -> None:
        self.folder, self.form = folder, form
        self.beside = 0  # files written beside the results
        _make(folder)

    def graph_folder(self, stem: str | None) -> Path:
        """Where the results of a graph go; where only one runs, it has no folder of its own."""
        if stem is None:
            return self.folder
        _make(self.folder / stem)
        return self.folder / stem

    @property
    def has_results(self) -> bool:
        """Whether an earlier run left results here."""
        return any(True for pattern in ("Result_*", "*/Result_*") for _ in self._find(pattern))

    def _find(self, pattern: str) -> Iterator[Path]:
        try:
            yield from self.folder.glob(pattern)
        except OSError:  # a folder that may be written but not listed
            return

    def write_text(self, name: str, text: str) -> None:
        """A file beside the results."""
        write_whole(self.folder / name, text.encode("utf-8", "backslashreplace"))
        self.beside += 1


class ResultWriter:
    """Writes the results of one graph, up to the number that is to be kept."""

    def __init__(
        self, folder: Path, graph: CompiledGraph, form: OutputForm, keep: int | None
    ) -> None:
        self._folder, self._graph, self._form, self._keep = folder, graph, form, keep
        self._stems = file_stems(graph.outputs)
        self.written = self.files = 0
        if form.as_float and keep != 0:
            self._check_types()

    def write(self, number: int, outputs: Mapping[str, NDArray[Any]]) -> None:
        """Files of one inference; `outputs` are the bytes of each tensor."""
        if self._keep is not None and self.written >= self._keep:
            return
        folder = self._folder / f"Result_{number}"
        _make(folder)
        for name, content in outputs.items():
            for ending, data in self._files(name, content):
                write_whole(folder / f"{self._stems[name]}{ending}", data)
                self.files += 1
        self.written += 1

    def _files(self, name: str, content: NDArray[Any]) -> Iterator[tuple[str, ReadableBuffer]]:
        if self._form.as_float:
            stored = typed(content, self._graph.model.tensors[name])
            yield ".raw", to_float(stored, self._graph.quants.get(name)).astype("<f4").tobytes()
        if self._form.native:
            yield "_native.raw", content.tobytes()

    def _check_types(self) -> None:
        for name in self._graph.outputs:
            tensor = self._graph.model.tensors[name]
            if not is_convertible(tensor):
                raise UsageError(
                    f"output {quote(name)} is {tensor.dtype.value}, which cannot be written as "
                    "float32; add --use_native_output_files"
                )


def file_stems(names: Iterable[str]) -> dict[str, str]:
    """A file name without ending for each tensor, different for all of them."""
    found: dict[str, str] = {}
    taken: set[str] = set()
    for name in names:
        stem = base = _short(name)
        number = 2
        while taken & {stem, f"{stem}_native"}:
            stem, number = f"{base}_{number}", number + 1
        found[name] = stem
        taken |= {stem, f"{stem}_native"}
    return found


def _short(name: str) -> str:
    word = sanitized(name)
    if len(word) <= _LONGEST:
        return word
    return f"{word[: _LONGEST - 9]}_{zlib.crc32(name.encode('utf-8', 'replace')):08x}"


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileExistsError as exc:
        raise OutputError(f"{folder} exists and is not a folder") from exc
    except (OSError, ValueError) as exc:
        reason = getattr(exc, "strerror", None) or exc
        raise OutputError(f"folder {folder} cannot be made: {reason}") from exc
