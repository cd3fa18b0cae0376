"""Inputs of a run: which file holds which tensor in which inference, and what is in the file.

one line is one inference, entries are separated by single spaces
an entry is `path` or `tensor:=path`; empty lines do not count
a first line that begins with `#`, then one that begins with `%`, are headers and do not count
names count only if all entries of the first line have one; then that line fixes the order for all
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, overload

from qnnmem.bounded_file import MISSING, NOT_THERE, read_head
from qnnmem.errors import LoadError, UsageError, WrongSize
from qnnmem.ir import Tensor
from qnnmem.lpai.compiled import Quant
from qnnmem.lpai.net_run.log import Line
from qnnmem.lpai.runtime.convert import to_native
from qnnmem.text import plain_or_quoted, quote
from qnnmem.units import format_size

if TYPE_CHECKING:
    from numpy.typing import NDArray

MAX_LIST_BYTES = 16 << 20
MAX_LINES = 1_000_000
_FLOAT_BYTES = 4


@dataclass(frozen=True, slots=True)
class InputEntry:
    """One input of one inference, as the list writes it."""

    name: str | None
    path: str


@dataclass(frozen=True, slots=True)
class InputList:
    """The inferences of one graph, in order."""

    file: Path
    lines: tuple[str, ...]

    @classmethod
    def read(cls, file: Path) -> InputList:
        """Reads a list; headers and empty lines are gone."""
        _check_readable(file, MAX_LIST_BYTES)
        text = os.fsdecode(read_head(file, MAX_LIST_BYTES + 1))
        lines = [line for line in text.split("\n") if line.strip()]
        if len(lines) > MAX_LINES:
            raise LoadError(file, f"has {len(lines):,} lines; {MAX_LINES:,} is the most taken")
        for mark in "#%":
            if lines and lines[0].startswith(mark):
                del lines[0]
        return cls(file, tuple(lines))

    def assigned(self, inputs: Sequence[str], warn: Line) -> InputFiles:
        """For each inference the file of each input; every line is looked at before the first."""
        order = self._order(inputs) if self.lines else []
        if self.lines and self.lines[0].endswith("\r"):
            warn(
                f"{self.file}: lines end in carriage return and line feed; qnn-net-run takes the "
                "carriage return as part of the file name"
            )
        warned = False
        for number in range(len(self.lines)):
            entries = self.entries(number, len(order))
            if not warned:
                warned = self._warn_of_order(entries, order, number, warn)
        return InputFiles(self, order)

    def entries(self, number: int, count: int | None = None) -> list[InputEntry]:
        """Entries of a line, `count` of them where that is given."""
        line = self.lines[number].removesuffix("\r").removesuffix(" ")
        entries = [_entry(text) for text in line.split(" ")]
        if not all(entry.path for entry in entries):
            self._refuse(number, "has an entry without a file; write single spaces between entries")
        if count is not None and len(entries) != count:
            self._refuse(number, f"names {len(entries)} files for {_counted(count)}")
        return entries

    def _order(self, inputs: Sequence[str]) -> list[str]:
        """Inputs in the order of the entries: that of the first line's names, else the graph's."""
        entries = self.entries(0)
        if not all(entry.name for entry in entries):
            return list(inputs)
        order: list[str] = []
        for entry in entries:
            name = matching(entry.name or "", inputs)
            if name is None:
                known = ", ".join(quote(known) for known in inputs[:8])
                self._refuse(
                    0, f"names {quote(entry.name)}, which is not an input; inputs are {known}"
                )
            if name in order:
                self._refuse(0, f"names input {quote(name)} twice")
            order.append(name)
        missing = [name for name in inputs if name not in order]
        if missing:
            self._refuse(0, f"has no file for input {quote(missing[0])}")
        return order

    def _warn_of_order(
        self, entries: Sequence[InputEntry], order: Sequence[str], number: int, warn: Line
    ) -> bool:
        """Whether a line names its files in another order than it is read, which is then said."""
        for entry, name in zip(entries, order, strict=True):
            if entry.name is not None and matching(entry.name, [name]) is None:
                warn(
                    f"{self.file}: line {number + 1} gives a file for {quote(entry.name)}, but it "
                    f"is read as {quote(name)}: order and names come from the first line alone"
                )
                return True
        return False

    def _refuse(self, number: int, what: str) -> NoReturn:
        raise LoadError(
            self.file, f"line {number + 1} (headers and empty lines not counted) {what}"
        )


class InputFiles(Sequence[Mapping[str, Path]]):
    """For each inference the file of each input; lines are taken apart when they are asked for."""

    def __init__(self, inputs: InputList, order: Sequence[str]) -> None:
        self._inputs, self._order = inputs, order

    def __len__(self) -> int:
        return len(self._inputs.lines)

    @overload
    def __getitem__(self, number: int) -> Mapping[str, Path]: ...
    @overload
    def __getitem__(self, number: slice) -> Sequence[Mapping[str, Path]]: ...
    def __getitem__(self, number: int | slice) -> Mapping[str, Path] | Sequence[Mapping[str, Path]]:
        """One inference, or several."""
        if isinstance(number, slice):
            return [self[each] for each in range(*number.indices(len(self)))]
        entries = self._inputs.entries(number, len(self._order))
        return {name: Path(e.path) for name, e in zip(self._order, entries, strict=True)}


def read_input(path: Path, tensor: Tensor, quant: Quant | None, *, native: bool) -> NDArray[Any]:
    """What an input file holds, as bytes of the tensor; files are float32 unless `native`."""
    import numpy

    elements = 1
    for dimension in tensor.shape:
        elements *= dimension
    expected = tensor.nbytes if native else elements * _FLOAT_BYTES
    size = _check_readable(path)
    if size != expected:
        raise WrongSize(path, size, expected)
    content = numpy.frombuffer(read_head(path, expected), numpy.uint8)
    if content.size != expected:  # it became shorter meanwhile
        raise WrongSize(path, content.size, expected)
    if native:
        return content
    _check_convertible(path, tensor)
    stored: NDArray[Any] = to_native(content.view("<f4"), tensor, quant)
    return numpy.ascontiguousarray(stored).view(numpy.uint8)


def is_convertible(tensor: Tensor) -> bool:
    """Whether elements can be made from float32 and back: numpy knows the type."""
    import numpy

    try:
        return numpy.dtype(tensor.dtype.value).kind in "biuf"
    except TypeError:
        return False


def sanitized(name: str) -> str:
    """A name of word characters: runs of others become `_`, and it does not begin with a digit."""
    word = re.sub(r"\W+", "_", name, flags=re.ASCII)
    return word if re.match(r"[A-Za-z_]", word) else f"_{word}"


def matching(written: str, names: Sequence[str]) -> str | None:
    """The tensor meant by a name in a list or option, which may be raw or sanitised."""
    if written in names:
        return written
    return next((name for name in names if sanitized(name) == sanitized(written)), None)


def native_tensors(text: str, graphs: dict[str, Sequence[str]]) -> dict[str, frozenset[str]]:
    """Inputs by graph that `--native_input_tensor_names` means.

    The text is `graph:tensor,tensor;graph:tensor`; without a graph the names are looked for in all.
    """
    found: dict[str, set[str]] = {graph: set() for graph in graphs}
    for group in filter(None, text.split(";")):
        meant, names = _of_graph(group, graphs)
        for written in filter(None, names.split(",")):
            hits = [(g, n) for g in meant if (n := _input(written, g, graphs)) is not None]
            if not hits:
                known = ", ".join(quote(n) for g in meant for n in graphs[g])[:200]
                raise UsageError(
                    f"--native_input_tensor_names: there is no input {quote(written)}; "
                    f"inputs are {known}"
                )
            for graph, name in hits:
                found[graph].add(name)
    return {graph: frozenset(names) for graph, names in found.items()}


def _of_graph(group: str, graphs: dict[str, Sequence[str]]) -> tuple[list[str], str]:
    """Graphs that a group is about, and its names."""
    graph, colon, names = group.partition(":")
    if colon:
        meant = matching(graph, list(graphs))
        if meant is not None:
            return [meant], names
    return list(graphs), group


def _input(written: str, graph: str, graphs: dict[str, Sequence[str]]) -> str | None:
    return matching(written.removeprefix(f"{graph}:"), graphs[graph])


def _check_convertible(path: Path, tensor: Tensor) -> None:
    if not is_convertible(tensor):
        reason = (
            f"input {quote(tensor.name)} is {tensor.dtype.value}, which cannot be made from "
            "float32; give it in that type and add --use_native_input_files"
        )
        raise LoadError(path, reason)


def _entry(text: str) -> InputEntry:
    name, separator, path = text.partition(":=")
    return InputEntry(name, path) if separator else InputEntry(None, text)


def _counted(inputs: int) -> str:
    return f"{inputs} input{'' if inputs == 1 else 's'}"


def _check_readable(path: Path, limit: int | None = None) -> int:
    """Bytes of an ordinary file; never blocks."""
    try:
        status = path.stat()
    except NOT_THERE as exc:
        raise LoadError(_shown(path), MISSING) from exc
    except (OSError, ValueError) as exc:  # ValueError: a NUL byte in the name
        reason = getattr(exc, "strerror", None) or str(exc)
        raise LoadError(_shown(path), f"cannot be read ({reason.lower()})") from exc
    if not stat.S_ISREG(status.st_mode):
        what = "a folder" if stat.S_ISDIR(status.st_mode) else "not an ordinary file"
        raise LoadError(_shown(path), f"is {what}")
    if limit is not None and status.st_size > limit:
        raise LoadError(
            path, f"{status.st_size:,} bytes are more than the {format_size(limit)} of a list"
        )
    return status.st_size


def _shown(path: Path) -> str:
    return plain_or_quoted(str(path), 300)
