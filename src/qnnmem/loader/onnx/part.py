"""The type of one tensor in a graph that is not whole yet, as rewriters have it."""

from __future__ import annotations

from qnnmem.loader.onnx.graph import AnyGraph, OnnxGraph, live, reads
from qnnmem.loader.onnx.passes.fold import fold_graph
from qnnmem.loader.onnx.passes.shape import shape_graph
from qnnmem.loader.onnx.tensor import UNKNOWN, OnnxType
from qnnmem.loader.onnx.trial.questions import Trials


def find_type(trials: Trials, graph: AnyGraph, name: str) -> OnnxType:
    """Type of a tensor after folding and shaping only what it is computed from."""
    import onnx

    output = onnx.ValueInfoProto(name=name)
    whole = OnnxGraph("part", tuple(graph.node), tuple(graph.input), (output,), ())
    nodes = tuple(whole.node[at] for at in live(whole))
    read = {name, *(source for node in nodes for source in reads(node))}
    stored = tuple(item for item in graph.initializer if item.name in read)
    part = OnnxGraph("part", nodes, whole.input, whole.output, stored)
    return shape_graph(trials, fold_graph(trials, part)).types.get(name, UNKNOWN)
