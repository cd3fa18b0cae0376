"""DLC files, as the vendor's converter and quantizer write them, into models.

Their inside is not documented. The vendor's own reader composes their graphs into any backend
whose functions it is given; it is given ours, which write everything down.

recorder    the functions, and what was composed
program     the child process in which the reader runs
composed    the file as graphs of QNN
model       a graph of QNN as a model
operators   a graph of QNN as nodes that compute the same: a table, a row an operator
draft       what a row is written with
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from qnnmem.ir import Model
from qnnmem.loader.dlc.composed import compose, compose_trusted, named_graph
from qnnmem.loader.dlc.model import as_model
from qnnmem.loader.model_checks import check_model

if TYPE_CHECKING:
    import onnx

    from qnnmem.qnn.graph import ComposedGraph

__all__ = [
    "as_model",
    "compose",
    "compose_trusted",
    "named_graph",
    "read",
    "read_all",
    "read_with_graph",
]


def read(path: Path, graph: str | None = None, *, trusted: bool = False) -> Model:
    """Read a graph of a DLC, the first one unless it is named, as QNN's compilers are given it.

    A `trusted` file is a model library instead.
    """
    return _model(path, compose_trusted(path) if trusted else compose(path), graph)


def read_all(path: Path, *, trusted: bool = False) -> tuple[Model, ...]:
    """Every graph of a DLC in the order of the file; of a model library if it is `trusted`."""
    graphs = compose_trusted(path) if trusted else compose(path)
    models = tuple(as_model(path, graph) for graph in graphs)
    for model in models:
        check_model(path, model)
    return models


def read_with_graph(
    path: Path, time_limit_s: float, *, trusted: bool = False
) -> tuple[Model, onnx.ModelProto | None]:
    """What `read` gives, and nodes that compute it where every operator has some.

    Where one has none the model says so in a note. A `trusted` file is a model library.
    """
    from qnnmem.loader.dlc.operators import translate
    from qnnmem.loader.onnx.draft import NotTranslated

    if trusted:
        graphs = compose_trusted(path, time_limit_s=time_limit_s)
    else:
        graphs = compose(path, with_data=True, time_limit_s=time_limit_s)
    model = _model(path, graphs)
    try:
        return translate(graphs[0], model)
    except NotTranslated as exc:
        note = f"a layout without a program: {exc}, so it cannot be executed here"
        return replace(model, notes=(*model.notes, note)), None


def _model(path: Path, graphs: tuple[ComposedGraph, ...], name: str | None = None) -> Model:
    chosen = graphs[0] if name is None else named_graph(path, graphs, name)
    others = () if name is not None else tuple(graph.name for graph in graphs[1:])
    model = as_model(path, chosen, others=others)
    check_model(path, model)
    return model
