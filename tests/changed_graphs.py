"""Changes seeded random graphs and compares the results with the unchanged graph.

The graphs are those of `picture_graphs.py`, with more nodes that can be fused or replaced. An exact
fusion gives the same bits. A fusion with changed weights gives the same values up to rounding.
Recomputing random ops before a later reader gives the same bits. Replacing operators by their
definition gives the same values up to rounding. ¶ Everything runs in this process, since the graphs
are trusted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from random import Random
from typing import TYPE_CHECKING, Any

import numpy
import onnx
from picture_graphs import Growing, Growth, Picture, make, run, shaped

from qnnmem.fix.graph.fusion import LEVELS, keep_order
from qnnmem.fix.graph.rematerialise import Recomputation, SteppedGraph, recomputed
from qnnmem.fix.graph.rework_program import inline, optimise
from qnnmem.fix.proof.program import difference, is_same
from qnnmem.fix.tiling.tiled_graph import TiledGraph
from qnnmem.loader.onnx.passes.shape import write_typed

if TYPE_CHECKING:
    from numpy.typing import NDArray

_REDOS = 3
_REPLACED = (
    *("Celu", "Softsign", "Mish", "Softplus", "Elu", "Selu", "HardSigmoid", "HardSwish", "Shrink"),
    *("ThresholdedRelu", "MeanVarianceNormalization", "LeakyRelu"),
)


def _kind(op: str, **attributes: Any) -> Growth:
    """Return a growth step that adds a node of the same shape."""

    def grow(grown: Growing, x: Picture) -> Picture:
        return Picture(grown.add(op, [x.name], **attributes)[0], x.channels, x.rows, x.columns)

    return grow


def _padded_conv(grown: Growing, x: Picture) -> Picture:
    ends = grown.constant(numpy.array([0, 0, 1, 1, 0, 0, 1, 1], numpy.int64))
    (wide,) = grown.add("Pad", [x.name, ends])
    weights = grown.weights(x.channels, x.channels, 3, 3)
    return Picture(grown.add("Conv", [wide, weights])[0], x.channels, x.rows, x.columns)


def _scaled_conv(grown: Growing, x: Picture) -> Picture:
    (made,) = grown.add("Conv", [x.name, grown.weights(x.channels, x.channels, 1, 1)])
    (more,) = grown.add("Mul", [made, grown.weights(1, x.channels, 1, 1)])
    (name,) = grown.add("Add", [more, grown.weights(1, x.channels, 1, 1)])
    return Picture(name, x.channels, x.rows, x.columns)


def _to_and_fro(grown: Growing, x: Picture) -> Picture:
    (there,) = grown.add("Transpose", [x.name], perm=[0, 2, 3, 1])
    (between,) = grown.add("Relu", [there])
    (back,) = grown.add("Transpose", [between], perm=[0, 3, 1, 2])
    return Picture(back, x.channels, x.rows, x.columns)


def _twice(grown: Growing, x: Picture) -> Picture:
    one, other = (grown.add("Sigmoid", [x.name])[0] for _ in range(2))
    return Picture(grown.add("Mul", [one, other])[0], x.channels, x.rows, x.columns)


_MORE: tuple[Growth, ...] = (
    *(_padded_conv, _scaled_conv, _to_and_fro, _twice, _kind("Identity"), _kind("Dropout")),
    *(_kind("Cast", to=1), _kind("Shrink", lambd=0.4), _kind("Celu", alpha=0.7)),
    *map(_kind, ("Celu", "Softsign", "Mish", "Softplus", "Elu", "Selu", "HardSigmoid")),
    *(_kind("ThresholdedRelu"), _kind("MeanVarianceNormalization", axes=[0, 2, 3])),
)


def change_and_compare(seed: int) -> dict[str, list[float]]:
    """Return the gaps of all changes of one graph, by kind of change."""
    model = make(seed, _MORE)
    model.opset_import[0].version = 18
    graph = SteppedGraph(TiledGraph.of(shaped(model)))
    plain = write_typed(graph.graph.model)
    shape = tuple(size.dim_value for size in model.graph.input[0].type.tensor_type.shape.dim)
    values = numpy.random.default_rng(seed).standard_normal(shape).astype(numpy.float32)
    wanted = run(plain, {"x": values})
    found: dict[str, list[float]] = {}
    for name, changed in _changed(seed, plain, graph):
        gap = _gap(wanted, run(changed, {"x": values}))
        found.setdefault(name, []).append(gap)
    return found


def _changed(
    seed: int, plain: onnx.ModelProto, graph: SteppedGraph
) -> Iterator[tuple[str, onnx.ModelProto]]:
    kinds = Counter(node.op_type for node in plain.graph.node)
    for level, without in LEVELS.items():
        made = onnx.ModelProto.FromString(optimise(list(without), plain.SerializeToString()))
        if Counter(node.op_type for node in made.graph.node) != kinds:
            keep_order(plain, made)
            yield level, made
    there = [kind for kind in _REPLACED if kind in kinds]
    if there:
        made = onnx.ModelProto.FromString(inline(there, plain.SerializeToString()))
        keep_order(plain, made)
        yield "replaced", made
    random = Random(-seed - 1)  # noqa: S311 - reproducible, not secret
    steps = len(graph.model.ops)
    for _ in range(_REDOS if graph.is_whole and steps > 1 else 0):
        before = random.randrange(1, steps)
        several = random.sample(range(before), min(before, random.randint(1, 3)))
        graph = recomputed(graph, Recomputation(tuple(sorted(several)), before))
        steps = len(graph.model.ops)
        yield "again", write_typed(graph.graph.model)


def _gap(wanted: list[NDArray[Any]], found: list[NDArray[Any]]) -> float:
    """Return the gap relative to the largest value; 0 for equal bits, infinite for NaN or inf."""
    pairs = zip(wanted, found, strict=True)
    return max(0.0 if is_same(*both) else difference(*both)[1] or 1e-30 for both in pairs)
