"""Files of a run: input lists, inputs, generated inputs, and the folder of results.

An input list has one line for each inference:

    entries are separated by single spaces; an entry is `path` or `tensor:=path`
    empty lines are ignored
    headers are ignored: an optional first line with `#`, and an optional next line with `%`
    names count only if every entry of the first line has a name; these names order all lines

Generated inputs come from random numbers, or from `.npy` and `.npz` files. They are written next to
the results, as `input_list.txt` and `Input_<i>/<tensor>.raw`; with several graphs, in a folder for
each graph. qnn-net-run can read these files. Either all of them are written or none.
"""

from __future__ import annotations

import os
import re
import stat
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, overload

from qnnmem.atomic_file import folder_for_output, put_together, write_whole
from qnnmem.bounded_file import MISSING, NOT_THERE, read_head
from qnnmem.calibration import Input, find_samples, random_sample, read_sample
from qnnmem.errors import LoadError, OutputError, UsageError, WrongSize
from qnnmem.ir import Tensor
from qnnmem.loader.onnx.inputs import limits_of_program
from qnnmem.lpai.compiled import CompiledGraph, Quant
from qnnmem.lpai.net_run.log import Line
from qnnmem.lpai.net_run.options import SKIP, RandomInputs, SampleInputs
from qnnmem.lpai.runtime.graph_io import to_float, to_native, typed
from qnnmem.temporary_folder import temporary_folder
from qnnmem.text import counted, plain_or_quoted, quote
from qnnmem.units import format_size

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer
    from numpy.typing import NDArray

MAX_LIST_BYTES = 16 << 20
MAX_LINES = 1_000_000
_FLOAT_BYTES = 4

# File names may have 255 bytes; suffixes and temporary names need some of them.
_LONGEST = 180

LIST_NAME = "input_list.txt"
LARGEST = 1 << 30  # bytes of all files together
_SEPARATORS = re.compile(r"[ \r\n]")
Arrays = Mapping[str, "NDArray[Any]"]
Native = Mapping[str, frozenset[str]]  # by graph: inputs whose files hold the tensor's own type


@dataclass(frozen=True, slots=True)
class InputEntry:
    """An input of an inference, as written in the list."""

    name: str | None
    path: str


@dataclass(frozen=True, slots=True)
class InputList:
    """The inferences of one graph, in order."""

    file: Path
    lines: tuple[str, ...]

    @classmethod
    def read(cls, file: Path) -> InputList:
        """Return an input list; headers and empty lines are dropped."""
        _check_readable(file, MAX_LIST_BYTES)
        text = os.fsdecode(read_head(file, MAX_LIST_BYTES + 1))
        lines = [line for line in text.split("\n") if line.strip()]
        if len(lines) > MAX_LINES:
            raise LoadError(file, f"has {len(lines):,} lines, over the limit of {MAX_LINES:,}")
        for mark in "#%":
            if lines and lines[0].startswith(mark):
                del lines[0]
        return cls(file, tuple(lines))

    def assigned(self, inputs: Sequence[str], warn: Line) -> InputFiles:
        """Return the file of each input for every inference, after checking all lines."""
        order = self._order(inputs) if self.lines else []
        if self.lines and self.lines[0].endswith("\r"):
            warn(
                f"{self.file}: lines end with carriage return and line feed; qnn-net-run "
                "reads the carriage return as part of the file name"
            )
        warned = False
        for number in range(len(self.lines)):
            entries = self.entries(number, len(order))
            if not warned:
                warned = self._warn_of_order(entries, order, number, warn)
        return InputFiles(self, order)

    def entries(self, number: int, count: int | None = None) -> list[InputEntry]:
        """Return the entries of a line; raise LoadError unless it has `count` entries."""
        line = self.lines[number].removesuffix("\r").removesuffix(" ")
        entries = [_entry(text) for text in line.split(" ")]
        if not all(entry.path for entry in entries):
            self._refuse(number, "has an entry without a file; write single spaces between entries")
        if count is not None and len(entries) != count:
            self._refuse(
                number, f"has {counted(len(entries), 'file')} for {counted(count, 'input')}"
            )
        return entries

    def _order(self, inputs: Sequence[str]) -> list[str]:
        """Return the inputs in the order in which each line lists their files.

        The names in the first line set the order; if there are no names, the order is the graph's.
        """
        entries = self.entries(0)
        if not all(entry.name for entry in entries):
            return list(inputs)
        order: list[str] = []
        for entry in entries:
            name = matching(entry.name or "", inputs)
            if name is None:
                known = ", ".join(quote(known) for known in inputs[:8])
                self._refuse(
                    0, f"names {quote(entry.name)}, which is not an input; the inputs are {known}"
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
        """Warn and return True if the names in a line are not in the order that is used."""
        for entry, name in zip(entries, order, strict=True):
            if entry.name is not None and matching(entry.name, [name]) is None:
                warn(
                    f"{self.file}: line {number + 1} gives a file for {quote(entry.name)}, but "
                    f"the file is used for {quote(name)}: only the first line sets names and order"
                )
                return True
        return False

    def _refuse(self, number: int, what: str) -> NoReturn:
        raise LoadError(
            self.file, f"line {number + 1} (not counting headers and empty lines) {what}"
        )


class InputFiles(Sequence[Mapping[str, Path]]):
    """The file of each input for every inference; lines are parsed when they are accessed."""

    def __init__(self, inputs: InputList, order: Sequence[str]) -> None:
        self._inputs, self._order = inputs, order

    def __len__(self) -> int:
        return len(self._inputs.lines)

    @overload
    def __getitem__(self, number: int) -> Mapping[str, Path]: ...
    @overload
    def __getitem__(self, number: slice) -> Sequence[Mapping[str, Path]]: ...
    def __getitem__(self, number: int | slice) -> Mapping[str, Path] | Sequence[Mapping[str, Path]]:
        """Return the files of one inference, or of several."""
        if isinstance(number, slice):
            return [self[each] for each in range(*number.indices(len(self)))]
        entries = self._inputs.entries(number, len(self._order))
        return {name: Path(e.path) for name, e in zip(self._order, entries, strict=True)}


def read_input(path: Path, tensor: Tensor, quant: Quant | None, *, native: bool) -> NDArray[Any]:
    """Return an input file's content in the tensor's type.

    The file contains float32 values or, if `native` is true, values of the tensor's type.
    """
    import numpy

    expected = _file_bytes(tensor, native=native)
    size = _check_readable(path)
    if size != expected:
        raise WrongSize(path, size, expected)
    content = numpy.frombuffer(read_head(path, expected), numpy.uint8)
    if content.size != expected:  # it shrank meanwhile
        raise WrongSize(path, content.size, expected)
    if native:
        return content
    if not is_convertible(tensor):
        reason = (
            f"input {quote(tensor.name)} has type {tensor.dtype.value}, which cannot be made from "
            "float32; pass the input in that type and add --use_native_input_files"
        )
        raise LoadError(path, reason)
    stored: NDArray[Any] = to_native(content.view("<f4"), tensor, quant)
    return numpy.ascontiguousarray(stored).view(numpy.uint8)


def is_convertible(tensor: Tensor) -> bool:
    """Return whether NumPy has the tensor's type, so that float32 can be converted to that type."""
    import numpy

    try:
        return numpy.dtype(tensor.dtype.value).kind in "biuf"
    except TypeError:
        return False


def sanitized(name: str) -> str:
    """Return a name as a valid C identifier, with `_` for each run of invalid characters."""
    word = re.sub(r"\W+", "_", name, flags=re.ASCII)
    return word if re.match(r"[A-Za-z_]", word) else f"_{word}"


def matching(written: str, names: Sequence[str]) -> str | None:
    """Return the name equal to `written`, or the first equal after sanitizing, or None."""
    if written in names:
        return written
    return next((name for name in names if sanitized(name) == sanitized(written)), None)


def native_tensors(text: str, graphs: dict[str, Sequence[str]]) -> dict[str, frozenset[str]]:
    """Return, for each graph, the inputs named in `--native_input_tensor_names`.

    The text is `graph:tensor,tensor;graph:tensor`. Names without a graph are looked up in all
    graphs.
    """
    native: dict[str, set[str]] = {graph: set() for graph in graphs}
    for group in filter(None, text.split(";")):
        chosen, names = _of_group(group, graphs)
        for written in filter(None, names.split(",")):
            inputs = {
                graph: name
                for graph in chosen
                if (name := matching(written.removeprefix(f"{graph}:"), graphs[graph])) is not None
            }
            if not inputs:
                known = ", ".join(quote(name) for graph in chosen for name in graphs[graph])[:200]
                raise UsageError(
                    f"--native_input_tensor_names: {quote(written)} is not an input; the "
                    f"inputs are {known}"
                )
            for graph, name in inputs.items():
                native[graph].add(name)
    return {graph: frozenset(names) for graph, names in native.items()}


def _of_group(group: str, graphs: dict[str, Sequence[str]]) -> tuple[list[str], str]:
    """Return the graphs that a group refers to, and the group's tensor names."""
    written, colon, names = group.partition(":")
    graph = matching(written, list(graphs)) if colon else None
    return (list(graphs), group) if graph is None else ([graph], names)


def _entry(text: str) -> InputEntry:
    name, separator, path = text.partition(":=")
    return InputEntry(name, path) if separator else InputEntry(None, text)


def _check_readable(path: Path, limit: int | None = None) -> int:
    """Return the size of a file; raise LoadError unless it is regular and at most `limit` bytes.

    The file is not opened, because opening a pipe could block.
    """
    try:
        status = path.stat()
    except NOT_THERE as exc:
        raise LoadError(_shown(path), MISSING) from exc
    except (OSError, ValueError) as exc:  # ValueError: a NUL byte in the name
        reason = getattr(exc, "strerror", None) or str(exc)
        raise LoadError(_shown(path), f"cannot be read ({reason.lower()})") from exc
    if not stat.S_ISREG(status.st_mode):
        what = "a folder" if stat.S_ISDIR(status.st_mode) else "not a regular file"
        raise LoadError(_shown(path), f"is {what}")
    if limit is not None and status.st_size > limit:
        raise LoadError(
            path, f"{status.st_size:,} bytes are over the limit of {format_size(limit)} for a list"
        )
    return status.st_size


def _shown(path: Path) -> str:
    return plain_or_quoted(str(path), 300)


@dataclass(frozen=True, slots=True)
class OutputForm:
    """The file formats written for each output."""

    as_float: bool = True
    native: bool = False


class OutputTree:
    """The folder of `--output_dir`, created if necessary."""

    def __init__(self, folder: Path, form: OutputForm) -> None:
        self.folder, self.form = folder, form
        self.beside = 0  # files written next to the results
        _make(folder)

    def graph_folder(self, stem: str | None) -> Path:
        """Return the folder for a graph's results; without `stem`, that of the whole run."""
        if stem is None:
            return self.folder
        _make(self.folder / stem)
        return self.folder / stem

    @property
    def has_results(self) -> bool:
        """True if an earlier run left results in the folder."""
        return any(True for pattern in ("Result_*", "*/Result_*") for _ in self._find(pattern))

    def _find(self, pattern: str) -> Iterator[Path]:
        try:
            yield from self.folder.glob(pattern)
        except OSError:  # a folder that is writable but cannot be listed
            return

    def write_text(self, name: str, text: str) -> None:
        """Write a file next to the results."""
        write_whole(self.folder / name, text.encode("utf-8", "backslashreplace"))
        self.beside += 1


class ResultWriter:
    """Writes the results of one graph, up to a maximum number of inferences."""

    def __init__(
        self, folder: Path, graph: CompiledGraph, form: OutputForm, keep: int | None
    ) -> None:
        self._folder, self._graph, self._form, self._keep = folder, graph, form, keep
        self._stems = file_stems(graph.outputs)
        self.written = self.files = 0
        if form.as_float and keep != 0:
            self._check_types()

    def write(self, number: int, outputs: Mapping[str, NDArray[Any]]) -> None:
        """Write the files of one inference from the bytes of each output."""
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
                    f"output {quote(name)} has type {tensor.dtype.value}, which cannot be "
                    "written as float32; add --use_native_output_files"
                )


def file_stems(names: Iterable[str]) -> dict[str, str]:
    """Return a unique file name for each tensor or graph, without a suffix."""
    stems: dict[str, str] = {}
    taken: set[str] = set()
    for name in names:
        stem = base = _short(name)
        number = 2
        while taken & {stem, f"{stem}_native"}:
            stem, number = f"{base}_{number}", number + 1
        stems[name] = stem
        taken |= {stem, f"{stem}_native"}
    return stems


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
        raise OutputError(f"folder {folder} cannot be created: {reason}") from exc


def make_inputs(
    source: RandomInputs | SampleInputs,
    graphs: Sequence[CompiledGraph],
    native: Native,
    tree: OutputTree,
    *,
    force: bool,
) -> tuple[list[InputList | None], int]:
    """Write the input files of every graph and their lists.

    Return the list of each graph, None for a graph to skip, and the number of written files.
    """
    generated = [
        _inputs_of_graph(graph, arrays, native[graph.name], tree.folder)
        for graph, arrays in _by_graph(source, graphs)
    ]
    _check_size([inputs for inputs in generated if inputs is not None])
    stems = file_stems(graph.name for graph in graphs)
    contents: dict[Path, Callable[[], bytes]] = {}
    lists: list[InputList | None] = []
    for inputs in generated:
        if inputs is None:
            lists.append(None)
            continue
        folder = tree.folder / stems[inputs.graph.name] if len(graphs) > 1 else tree.folder
        listed, files = inputs.files(folder)
        contents |= files
        lists.append(listed)
    return lists, _write(contents, tree.folder, force=force)


@dataclass(frozen=True, slots=True)
class _GraphInputs:
    """The inferences of one graph; arrays are created on access."""

    graph: CompiledGraph
    count: int
    arrays: Callable[[int], Arrays]
    native: frozenset[str]

    @property
    def size(self) -> int:
        """Total size of the files in bytes."""
        tensors = self.graph.model.tensors
        return self.count * sum(
            _file_bytes(tensors[name], native=name in self.native) for name in self.graph.inputs
        )

    def files(self, folder: Path) -> tuple[InputList, dict[Path, Callable[[], bytes]]]:
        """Return the input list, and for each file, even the list, a function for its content."""
        stems = file_stems(self.graph.inputs)
        words = [sanitized(name) for name in stems]
        # Names make a list more readable, but they must stay unique after they are sanitised.
        named = [f"{word}:=" if len(set(words)) == len(words) else "" for word in words]
        _check_listable(folder, named=bool(named[0]))
        contents: dict[Path, Callable[[], bytes]] = {}
        lines = []
        for number in range(self.count):
            paths = [folder / f"Input_{number}" / f"{stem}.raw" for stem in stems.values()]
            lines.append(" ".join(f"{n}{path}" for n, path in zip(named, paths, strict=True)))
            for name, path in zip(stems, paths, strict=True):
                contents[path] = partial(self._content, number, name)
        listed = InputList(folder / LIST_NAME, tuple(lines))
        contents[listed.file] = lambda: os.fsencode("\n".join(lines) + "\n")
        return listed, contents

    def _content(self, number: int, name: str) -> bytes:
        """Return the file content of one input in one inference."""
        values = self.arrays(number)[name]
        if name in self.native:
            return bytes(values.tobytes())
        floats = values.astype("<f4")
        if values.dtype.kind in "iu" and (floats.astype(values.dtype) != values).any():
            raise UsageError(
                f"input {quote(name)} contains numbers that float32 cannot hold; "
                "--use_native_input_files writes them unchanged"
            )
        return bytes(floats.tobytes())


def _by_graph(
    source: RandomInputs | SampleInputs, graphs: Sequence[CompiledGraph]
) -> Iterator[tuple[CompiledGraph, RandomInputs | Path | None]]:
    if isinstance(source, RandomInputs):
        yield from ((graph, source) for graph in graphs)
        return
    if len(source.places) != len(graphs):
        names = ", ".join(quote(graph.name) for graph in graphs[:8])
        times = "once" if len(source.places) == 1 else f"{len(source.places)} times"
        raise UsageError(
            f"--inputs occurs {times} for {counted(len(graphs), 'graph')} ({names}); pass it once "
            f"for each graph; {SKIP} skips a graph"
        )
    if all(place == SKIP for place in source.places):
        raise UsageError("--inputs skips all graphs; pass a path for at least one graph")
    for graph, place in zip(graphs, source.places, strict=True):
        yield graph, None if place == SKIP else Path(place)


def _inputs_of_graph(
    graph: CompiledGraph, source: RandomInputs | Path | None, native: frozenset[str], results: Path
) -> _GraphInputs | None:
    if source is None:
        return None
    if not graph.inputs:
        raise UsageError(f"graph {quote(graph.name)} has no inputs")
    wanted = [_wanted(graph, name, native) for name in dict.fromkeys(graph.inputs)]
    if isinstance(source, RandomInputs):
        shapes = {name: tensor.shape for name, tensor in graph.model.tensors.items()}
        rows = limits_of_program(graph.program, shapes) if graph.program else {}
        wanted = [item._replace(below=rows.get(item.name)) for item in wanted]
        generate = lru_cache(1)(partial(_random, graph, wanted, source.seed))
        return _GraphInputs(graph, source.count, generate, native)
    samples = find_samples(source, wanted, apart=results)
    read = lru_cache(1)(lambda number: read_sample(samples[number], wanted))
    return _GraphInputs(graph, len(samples), read, native)


def _wanted(graph: CompiledGraph, name: str, native: frozenset[str]) -> Input:
    """Return an input with the type of its array: float32 if it is quantized, but not native.

    Any other input keeps its stored type.
    """
    tensor = graph.model.tensors[name]
    if not is_convertible(tensor):
        raise UsageError(
            f"input {quote(name)} has type {tensor.dtype.value}, for which qnnmem cannot create "
            "files; write the files and an input list yourself"
        )
    real = name in graph.quants and name not in native
    return Input(name, "float32" if real else tensor.dtype.value, tensor.shape, integers=not real)


def _random(graph: CompiledGraph, wanted: Sequence[Input], seed: int, number: int) -> Arrays:
    """Return random arrays; all values that a quantized input can store are equally likely."""
    import numpy

    arrays = random_sample(wanted, seed, number)
    random = numpy.random.default_rng([seed, number, 1])
    for item in wanted:
        tensor, quant = graph.model.tensors[item.name], graph.quants.get(item.name)
        if quant is not None and item.below is not None:
            if item.dtype == tensor.dtype.value:
                arrays[item.name] = to_native(arrays[item.name].astype("f4"), tensor, quant)
        elif quant is not None:
            limits = numpy.iinfo(tensor.dtype.value)
            stored = random.integers(limits.min, limits.max, item.shape, limits.dtype, True)
            stored = numpy.asarray(stored, limits.dtype)
            native = item.dtype == tensor.dtype.value
            arrays[item.name] = stored if native else to_float(stored, quant)
    return arrays


def _file_bytes(tensor: Tensor, *, native: bool) -> int:
    """Return the size of an input file: in the tensor's own type, or in float32."""
    return tensor.nbytes if native else _FLOAT_BYTES * tensor.elements


def _check_size(graphs: Sequence[_GraphInputs]) -> None:
    size = sum(graph.size for graph in graphs)
    if size > LARGEST:
        inferences = sum(graph.count for graph in graphs)
        raise UsageError(
            f"{inferences:,} inferences need {format_size(size)} of input files, over the "
            f"limit of {format_size(LARGEST)}; use fewer inferences"
        )


def _check_listable(folder: Path, *, named: bool) -> None:
    text = str(folder)
    if _SEPARATORS.search(text) or (":=" in text and not named):
        raise UsageError(
            f"an input list cannot name files in {quote(text)}: spaces, line ends and := separate "
            "its entries; choose another --output_dir"
        )


def _write(contents: Mapping[Path, Callable[[], bytes]], folder: Path, *, force: bool) -> int:
    """Write all files or none of them, and return how many were written.

    Existing files with the same bytes stay unchanged.
    """
    with ExitStack() as stack:
        staging = Path(stack.enter_context(temporary_folder(folder)))
        new: dict[Path, Path] = {}
        for number, (path, content) in enumerate(contents.items()):
            data = content()
            if not _holds(path, data):
                new[path] = staging / str(number)
                write_whole(new[path], data)
        for parent in dict.fromkeys(path.parent for path in new):
            stack.enter_context(folder_for_output(parent))
        put_together(new, force=force)
    return len(new)


def _holds(path: Path, content: bytes) -> bool:
    try:
        return path.stat().st_size == len(content) and read_head(path, len(content)) == content
    except OSError:
        return False
