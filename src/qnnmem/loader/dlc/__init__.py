"""Load DLC files of the vendor's converter and quantizer.

The format is not documented. The vendor's own reader composes the graphs by calling the functions
of a backend; qnnmem passes functions that record all calls.

recorder    the functions, and the recorded graphs
program     the child process in which the reader runs
composed    the file as QNN graphs
model       a QNN graph as a model
operators   a QNN graph as equivalent ONNX nodes: a table, one row per operator
draft       helpers for the rows of that table
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from qnnmem.loader.dlc.composed import compose, compose_trusted, named_graph

if TYPE_CHECKING:
    import onnx

    from qnnmem.ir import Model
    from qnnmem.qnn.graph import ComposedGraph

__all__ = [
    "compose",
    "compose_trusted",
    "named_graph",
    "read",
    "read_all",
    "read_with_graph",
]


def read(path: Path, graph: str | None = None, *, trusted: bool = False) -> Model:
    """Return a graph of a DLC as a model: the named graph, or else the first.

    QNN's compilers receive the same graph. A `trusted` file is a model library, not a DLC.
    """
    return _model(path, compose_trusted(path) if trusted else compose(path), graph)


def read_all(path: Path, *, trusted: bool = False) -> tuple[Model, ...]:
    """Return every graph of a DLC as a model, in file order.

    A `trusted` file is a model library, not a DLC.
    """
    from qnnmem.loader.dlc.model import as_model
    from qnnmem.loader.model_checks import check_model

    graphs = compose_trusted(path) if trusted else compose(path)
    models = tuple(as_model(path, graph) for graph in graphs)
    for model in models:
        check_model(path, model)
    return models


def read_with_graph(
    path: Path, time_limit_s: float, *, trusted: bool = False
) -> tuple[Model, onnx.ModelProto | None]:
    """Return the result of `read`, and the ONNX nodes that compute the model.

    The second value is None if an operator has no translation; a note in the model names that
    operator. A `trusted` file is a model library.
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
        note = f"layout only, without a program, because {exc}; the graph cannot be executed here"
        return replace(model, notes=(*model.notes, note)), None


def _model(path: Path, graphs: tuple[ComposedGraph, ...], name: str | None = None) -> Model:
    from qnnmem.loader.dlc.model import as_model
    from qnnmem.loader.model_checks import check_model

    chosen = graphs[0] if name is None else named_graph(path, graphs, name)
    others = () if name is not None else tuple(graph.name for graph in graphs[1:])
    model = as_model(path, chosen, others=others)
    check_model(path, model)
    return model
