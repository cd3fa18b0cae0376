"""Models as verbs read them; from memory where one process asks about the same file again.

The local workbench plans a file anew for every setting that changes. Reading it takes a hundred
times as long as planning, and none of these settings changes what is read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from qnnmem.errors import UsageError

if TYPE_CHECKING:
    from qnnmem.htp.composing import ComposedModel
    from qnnmem.ir import Model
    from qnnmem.loader.onnx.inputs import InputValue
    from qnnmem.planner import MemoryPlan

_MOST = 4
# None where nothing is remembered, as on the command line.
REMEMBERED: ContextVar[dict[str, tuple[Model, ...]] | None] = ContextVar("REMEMBERED", default=None)


SM8650 = "SM8650"  # what QNN is given depends little on the SoC: ranks and types that it takes
Sizes = tuple[Mapping[str, int], Mapping[str, tuple[int, ...]], Mapping[str, "InputValue"]]


class FileGraphs(NamedTuple):
    """The graphs of a file that are planned."""

    graphs: tuple[Model, ...]
    source: Model | None = None  # the ONNX graph, where the others are what QNN is given of it
    composed: ComposedModel | None = None

    def say_rest(self) -> None:
        """What a table of several graphs has no place for: nodes that are in none of them."""
        from qnnmem.cli.stderr import note
        from qnnmem.htp.as_qnn import left_notes

        if self.composed is not None and len(self.graphs) > 1:
            for words in left_notes(self.composed.on_cpu):
                note(words)

    def explained(self, source: MemoryPlan, plan: MemoryPlan) -> MemoryPlan:
        """The plan of a graph of QNN, with why it differs from that of the ONNX graph."""
        from dataclasses import replace

        from qnnmem.htp.as_qnn import difference_notes

        if self.composed is None:
            return plan
        notes = difference_notes(source, plan, self.composed)
        return replace(plan, model=replace(plan.model, notes=(*notes, *plan.model.notes)))


def graphs_of(
    path: Path,
    sizes: Sizes,
    *,
    seen_as: str | None,
    graph: str | None,
    say: Callable[[str], None],
    trust: bool = False,
) -> FileGraphs:
    """Every graph of a file, or the one with a name; `trust` lets a model library be executed."""
    from qnnmem.loader import dlc, kind_of
    from qnnmem.loader.file_kind import is_library

    library = is_library(path, trust=trust)
    kind = "library" if library else kind_of(path)
    if seen_as == "qnn":
        if kind != "onnx":
            raise UsageError(f"{path} is no ONNX model; --as qnn is for those")
        return _as_qnn(path, sizes, graph, say)
    if library and any(sizes):
        raise UsageError(f"{path} has fixed shapes; sizes are given to ONNX and TFLite models")
    if library or (kind == "dlc" and not any(sizes)):
        if graph is not None:
            return FileGraphs((dlc.read(path, graph, trusted=library),))
        return FileGraphs(_remembered(path, (), lambda: dlc.read_all(path, trusted=library)))
    if graph is not None:
        raise UsageError(f"{path} holds one graph; --graph is for a DLC or with --as qnn")
    return FileGraphs((load_model(path, *sizes),))


def _as_qnn(path: Path, sizes: Sizes, graph: str | None, say: Callable[[str], None]) -> FileGraphs:
    from qnnmem.htp.composing import compose_onnx
    from qnnmem.loader.dlc import as_model, named_graph
    from qnnmem.targets.socs import find_soc

    source = load_model(path, *sizes)
    say("composing for QNN")
    dims, shapes, values = sizes
    found = compose_onnx(path, find_soc(SM8650), dims=dims, shapes=shapes, values=values)
    chosen = found.graphs if graph is None else (named_graph(path, found.graphs, graph),)
    return FileGraphs(tuple(as_model(path, one) for one in chosen), source, found)


def load_model(
    path: Path,
    dims: Mapping[str, int],
    shapes: Mapping[str, tuple[int, ...]],
    values: Mapping[str, InputValue],
) -> Model:
    """The model in a file, as `qnnmem.load` gives it."""
    from qnnmem import load

    def read() -> tuple[Model, ...]:
        return (load(path, dims=dims, shapes=shapes, values=values),)

    return _remembered(path, (dims, shapes, values), read)[0]


def _remembered(
    path: Path, sizes: Sequence[Mapping[str, object]], read: Callable[[], tuple[Model, ...]]
) -> tuple[Model, ...]:
    known = REMEMBERED.get()
    if known is None:
        return read()
    state = path.stat()
    key = repr(
        [path.name, state.st_dev, state.st_ino, state.st_mtime_ns, state.st_size]
        + [sorted(given.items()) for given in sizes]
    )
    if key not in known:
        models = read()
        while len(known) >= _MOST:
            del known[next(iter(known))]
        known[key] = models
    return known[key]
