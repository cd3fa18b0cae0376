"""Input lists that nobody has to write: from made-up numbers, or from `.npy` and `.npz` files.

The files lie where the results will: `input_list.txt` beside `Input_<i>/<tensor>.raw`, in the
folder of the graph where there are several. They are those that qnn-net-run would read, and appear
all or none.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qnnmem.atomic_file import folder_for_output, put_together, write_whole
from qnnmem.bounded_file import read_head
from qnnmem.calibration import Input, find_samples, random_sample, read_sample
from qnnmem.errors import UsageError
from qnnmem.loader.onnx.inputs import limits_of_program
from qnnmem.lpai.compiled import CompiledGraph
from qnnmem.lpai.net_run.inputs import InputList, is_convertible, sanitized
from qnnmem.lpai.net_run.options import SKIP, RandomInputs, SampleInputs
from qnnmem.lpai.net_run.outputs import OutputTree, file_stems
from qnnmem.lpai.runtime.convert import to_float, to_native
from qnnmem.temporary_folder import temporary_folder
from qnnmem.text import quote
from qnnmem.units import format_size

if TYPE_CHECKING:
    from numpy.typing import NDArray

LIST_NAME = "input_list.txt"
LARGEST = 1 << 30  # bytes of all files together
_SEPARATORS = re.compile(r"[ \r\n]")

Arrays = Mapping[str, "NDArray[Any]"]
Native = Mapping[str, frozenset[str]]  # by graph: inputs whose files hold the tensor's own type


@dataclass(frozen=True, slots=True)
class MadeInputs:
    """The lists, one for each graph (None skips it), and how many files were written for them."""

    lists: tuple[InputList | None, ...]
    files: int


def make_inputs(
    source: RandomInputs | SampleInputs,
    graphs: Sequence[CompiledGraph],
    native: Native,
    tree: OutputTree,
    *,
    force: bool,
) -> MadeInputs:
    """Write the input files of every graph and the lists that name them."""
    given = _by_graph(source, graphs)
    made = [_of_graph(graph, arrays, native[graph.name], tree.folder) for graph, arrays in given]
    _check_size(graph for graph in made if graph is not None)
    stems = file_stems(graph.name for graph in graphs)
    contents: dict[Path, Callable[[], bytes]] = {}
    lists: list[InputList | None] = []
    for one in made:
        if one is None:
            lists.append(None)
            continue
        folder = tree.folder / stems[one.graph.name] if len(graphs) > 1 else tree.folder
        listed, files = one.files(folder)
        contents |= files
        lists.append(listed)
    return MadeInputs(tuple(lists), _write(contents, tree.folder, force=force))


@dataclass(frozen=True, slots=True)
class _GraphInputs:
    """The inferences of one graph; arrays are made when they are asked for."""

    graph: CompiledGraph
    count: int
    arrays: Callable[[int], Arrays]
    native: frozenset[str]

    @property
    def size(self) -> int:
        """Bytes of the files."""
        return self.count * sum(_file_bytes(self.graph, n, self.native) for n in self.graph.inputs)

    def files(self, folder: Path) -> tuple[InputList, dict[Path, Callable[[], bytes]]]:
        """The list, and what goes into each file: those that it names, and its own."""
        stems = file_stems(self.graph.inputs)
        words = [sanitized(name) for name in stems]
        # A list that names its tensors is easier to read; names that are one as words cannot be.
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
        """The bytes of one input in one inference, as its file holds them."""
        values = self.arrays(number)[name]
        if name in self.native:
            return bytes(values.tobytes())
        floats = values.astype("<f4")
        if values.dtype.kind in "iu" and (floats.astype(values.dtype) != values).any():
            raise UsageError(
                f"input {quote(name)} holds numbers that float32 cannot; "
                "--use_native_input_files writes them as they are"
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
        raise UsageError(
            f"--inputs is given {_times(len(source.places))} for {len(graphs)} "
            f"graph{'' if len(graphs) == 1 else 's'} ({names}); give it once for each, "
            f"{SKIP} for one that should not run"
        )
    if all(place == SKIP for place in source.places):
        raise UsageError("--inputs skips every graph; name a place for at least one")
    for graph, place in zip(graphs, source.places, strict=True):
        yield graph, None if place == SKIP else Path(place)


def _of_graph(
    graph: CompiledGraph, source: RandomInputs | Path | None, own: frozenset[str], results: Path
) -> _GraphInputs | None:
    if source is None:
        return None
    if not graph.inputs:
        raise UsageError(f"graph {quote(graph.name)} has no inputs, so none can be made for it")
    wanted = [_wanted(graph, name, own) for name in dict.fromkeys(graph.inputs)]
    if isinstance(source, RandomInputs):
        shapes = {name: tensor.shape for name, tensor in graph.model.tensors.items()}
        rows = limits_of_program(graph.program, shapes) if graph.program else {}
        wanted = [item._replace(below=rows.get(item.name)) for item in wanted]
        made = partial(_random, graph, wanted, source.seed)
        return _GraphInputs(graph, source.count, lru_cache(1)(made), own)
    samples = find_samples(source, wanted, apart=results)
    read = lru_cache(1)(lambda number: read_sample(samples[number], wanted))
    return _GraphInputs(graph, len(samples), read, own)


def _wanted(graph: CompiledGraph, name: str, native: frozenset[str]) -> Input:
    """What an array of an input holds: real numbers for a quantized one, unless it is native."""
    tensor = graph.model.tensors[name]
    if not is_convertible(tensor):
        raise UsageError(
            f"input {quote(name)} is {tensor.dtype.value}, for which no files are made here; "
            "write them and an input list of your own"
        )
    real = name in graph.quants and name not in native
    return Input(name, "float32" if real else tensor.dtype.value, tensor.shape, integers=not real)


def _random(graph: CompiledGraph, wanted: Sequence[Input], seed: int, number: int) -> Arrays:
    """Made-up arrays; every value that a quantized input can store is equally likely."""
    import numpy

    found = random_sample(wanted, seed, number)
    random = numpy.random.default_rng([seed, number, 1])
    for item in wanted:
        tensor, quant = graph.model.tensors[item.name], graph.quants.get(item.name)
        if quant is not None and item.below is not None:
            if item.dtype == tensor.dtype.value:
                found[item.name] = to_native(found[item.name].astype("f4"), tensor, quant)
        elif quant is not None:
            limits = numpy.iinfo(tensor.dtype.value)
            stored = random.integers(limits.min, limits.max, item.shape, limits.dtype, True)
            stored = numpy.asarray(stored, limits.dtype)
            native = item.dtype == tensor.dtype.value
            found[item.name] = stored if native else to_float(stored, quant)
    return found


def _file_bytes(graph: CompiledGraph, name: str, native: frozenset[str]) -> int:
    tensor = graph.model.tensors[name]
    if name in native:
        return tensor.nbytes
    elements = 4  # bytes of each
    for size in tensor.shape:
        elements *= size
    return elements


def _check_size(graphs: Iterator[_GraphInputs]) -> None:
    chosen = list(graphs)
    size = sum(graph.size for graph in chosen)
    if size > LARGEST:
        inferences = sum(graph.count for graph in chosen)
        raise UsageError(
            f"{inferences:,} inferences need {format_size(size)} of input files, and "
            f"{format_size(LARGEST)} is the most made; ask for fewer"
        )


def _check_listable(folder: Path, *, named: bool) -> None:
    text = str(folder)
    if _SEPARATORS.search(text) or (":=" in text and not named):
        raise UsageError(
            f"an input list cannot name files in {quote(text)}: spaces, line ends and := separate "
            "its entries; choose another --output_dir"
        )


def _write(contents: Mapping[Path, Callable[[], bytes]], folder: Path, *, force: bool) -> int:
    """Write all files or none; what is there already with the same bytes stays as it is."""
    with ExitStack() as stack:
        staging = Path(stack.enter_context(temporary_folder(folder)))
        new: dict[Path, Path] = {}
        for number, (path, content) in enumerate(contents.items()):
            made = content()
            if not _holds(path, made):
                new[path] = staging / str(number)
                write_whole(new[path], made)
        for parent in dict.fromkeys(path.parent for path in new):
            stack.enter_context(folder_for_output(parent))
        put_together(new, force=force)
    return len(new)


def _holds(path: Path, content: bytes) -> bool:
    try:
        return path.stat().st_size == len(content) and read_head(path, len(content)) == content
    except OSError:
        return False


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"
