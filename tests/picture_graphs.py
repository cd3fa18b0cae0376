"""Seeded random graphs of pictures, computed whole and in bands, and compared.

The graphs have convolutions with strides, dilations, groups and odd padding, pooling, residuals,
scaling, several outputs, and at times an op that bands cannot compute. Each random region in bands
is refused or gives the same bits. `qnnmem fix` drops a change whose kernel rounds differently.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import numpy
import onnx
import onnx.shape_inference
from onnx import TensorProto, helper, numpy_helper

from qnnmem.fix.tiling.bands import Bander, TileRegion
from qnnmem.fix.tiling.tiled_graph import TiledGraph
from qnnmem.fix.tiling.tiling_remedy import rewrite
from qnnmem.loader.onnx.graph import OnnxGraph, copied_without
from qnnmem.loader.onnx.passes.resolve import ResolvedModel
from qnnmem.loader.onnx.passes.shape import ShapedModel, write_typed
from qnnmem.loader.onnx.scope import Scope, analyse
from qnnmem.loader.onnx.tensor import OnnxType, type_of
from qnnmem.quiet_onnxruntime import import_onnxruntime

if TYPE_CHECKING:
    from numpy.typing import NDArray

_CUTS = 3  # regions tried per graph
_ROUNDING = 1e-5  # relative to the largest value; a larger gap is wrong
_TRIES = 40  # to find an accepted region


@dataclass
class Picture:
    """A tensor of a growing graph."""

    name: str
    channels: int
    rows: int
    columns: int


@dataclass
class Growing:
    """A graph that grows by random nodes."""

    random: Random
    numbers: numpy.random.Generator
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: list[onnx.TensorProto] = field(default_factory=list)
    opset: int = 17

    def name(self) -> str:
        """Return a new name."""
        return f"t{len(self.nodes)}"

    def constant(self, value: Any) -> str:
        """Add a constant and return its name."""
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(numpy.asarray(value), name))
        return name

    def weights(self, *shape: int) -> str:
        """Add random weights and return their name."""
        return self.constant(self.numbers.standard_normal(shape).astype(numpy.float32))

    def add(self, op: str, inputs: list[str], outputs: int = 1, **attributes: Any) -> list[str]:
        """Add a node and return the names of its outputs."""
        base = self.name()
        names = [base if number == 0 else f"{base}_{number}" for number in range(outputs)]
        self.nodes.append(helper.make_node(op, inputs, names, name=f"n{base}", **attributes))
        return names


def _window(grown: Growing, size: int) -> tuple[int, int, int, int, int, int]:
    """Return kernel, stride, dilation, both pads, and the resulting size."""
    for _ in range(50):
        kernel, stride = grown.random.randint(1, 4), grown.random.choice((1, 1, 1, 2, 3))
        dilation = grown.random.choice((1, 1, 1, 2))
        above, below = (grown.random.randint(0, kernel - 1) for _ in range(2))
        span = (kernel - 1) * dilation + 1
        out = (size + above + below - span) // stride + 1
        if out >= 3 and size + above + below >= span:
            return kernel, stride, dilation, above, below, out
    return 1, 1, 1, 0, 0, size


def _conv(grown: Growing, x: Picture) -> Picture:
    rows, columns = _window(grown, x.rows), _window(grown, x.columns)
    group = grown.random.choice([g for g in (1, 2, x.channels) if x.channels % g == 0])
    out = group * grown.random.randint(1, 3)
    inputs = [x.name, grown.weights(out, x.channels // group, rows[0], columns[0])]
    if grown.random.random() < 0.5:
        inputs.append(grown.weights(out))
    if grown.random.random() < 0.25:
        how = grown.random.choice(("SAME_UPPER", "SAME_LOWER", "VALID"))
        sizes = [_same(how, s, w) for s, w in ((x.rows, rows), (x.columns, columns))]
        if min(sizes) >= 2:
            (name,) = grown.add(
                "Conv", inputs, strides=[rows[1], columns[1]], auto_pad=how, group=group
            )
            return Picture(name, out, *sizes)
    (name,) = grown.add(
        "Conv",
        inputs,
        strides=[rows[1], columns[1]],
        dilations=[rows[2], columns[2]],
        pads=[rows[3], columns[3], rows[4], columns[4]],
        group=group,
    )
    return Picture(name, out, rows[5], columns[5])


def _same(how: str, size: int, window: tuple[int, ...]) -> int:
    kernel, stride = window[0], window[1]
    return -(-size // stride) if how.startswith("SAME") else (size - kernel) // stride + 1


def _pool(grown: Growing, x: Picture) -> Picture:
    rows, columns = _window(grown, x.rows), _window(grown, x.columns)
    op = grown.random.choice(("MaxPool", "AveragePool"))
    more: dict[str, Any] = {}
    if op == "MaxPool":
        more["dilations"] = [rows[2], columns[2]]
    elif rows[2] > 1 or columns[2] > 1:
        return x
    else:
        more["count_include_pad"] = grown.random.randint(0, 1)
    (name,) = grown.add(
        op,
        [x.name],
        kernel_shape=[rows[0], columns[0]],
        strides=[rows[1], columns[1]],
        pads=[rows[3], columns[3], rows[4], columns[4]],
        **more,
    )
    return Picture(name, x.channels, rows[5], columns[5])


def _transposed(grown: Growing, x: Picture) -> Picture:
    stride = grown.random.choice((1, 2, 3))
    kernel = grown.random.randint(stride, stride + 2)
    pad = grown.random.randint(0, (kernel - 1) // 2)
    out = grown.random.randint(1, 3)
    (name,) = grown.add(
        "ConvTranspose",
        [x.name, grown.weights(x.channels, out, kernel, kernel)],
        strides=[stride, stride],
        pads=[pad] * 4,
    )
    sizes = [(size - 1) * stride + kernel - 2 * pad for size in (x.rows, x.columns)]
    return Picture(name, out, *sizes)


def _alike(grown: Growing, x: Picture) -> Picture:
    op = grown.random.choice(("Relu", "Sigmoid", "Tanh", "HardSwish", "LeakyRelu", "Abs", "Neg"))
    return Picture(grown.add(op, [x.name])[0], x.channels, x.rows, x.columns)


def _normalise(grown: Growing, x: Picture) -> Picture:
    own = [grown.weights(x.channels) for _ in range(3)]
    spread = grown.constant(numpy.abs(grown.numbers.standard_normal(x.channels)) + 0.1)
    grown.constants[-1] = numpy_helper.from_array(
        numpy_helper.to_array(grown.constants[-1]).astype(numpy.float32), spread
    )
    (name,) = grown.add("BatchNormalization", [x.name, *own, spread])
    return Picture(name, x.channels, x.rows, x.columns)


def _scaled(grown: Growing, x: Picture) -> Picture:
    factor = grown.random.choice((2, 2, 3))
    modes = (("nearest", "asymmetric", "floor"), ("nearest", "half_pixel", "round_prefer_floor"))
    mode, where, how = grown.random.choice((*modes, ("linear", "half_pixel", "floor")))
    attributes: dict[str, Any] = {
        "mode": mode,
        "coordinate_transformation_mode": where,
        "nearest_mode": how,
    }
    sizes = [x.rows * factor, x.columns * factor]
    if grown.random.random() < 0.5:
        scales = grown.constant(numpy.array([1, 1, factor, factor], numpy.float32))
        inputs = [x.name, "", scales]
    else:
        target = grown.constant(numpy.array([1, x.channels, *sizes], numpy.int64))
        inputs = [x.name, "", "", target]
    return Picture(grown.add("Resize", inputs, **attributes)[0], x.channels, *sizes)


def _padded(grown: Growing, x: Picture) -> Picture:
    ends = [0, 0, *(grown.random.randint(0, 2) for _ in range(2)), 0, 0]
    ends += [grown.random.randint(0, 2) for _ in range(2)]
    (name,) = grown.add("Pad", [x.name, grown.constant(numpy.array(ends, numpy.int64))])
    return Picture(name, x.channels, x.rows + ends[2] + ends[6], x.columns + ends[3] + ends[7])


def _blocks(grown: Growing, x: Picture) -> Picture:
    if x.channels % 4 == 0:
        (name,) = grown.add("DepthToSpace", [x.name], blocksize=2)
        return Picture(name, x.channels // 4, x.rows * 2, x.columns * 2)
    if x.rows % 2 == 0 and x.columns % 2 == 0 and x.rows > 5 and x.columns > 5:
        (name,) = grown.add("SpaceToDepth", [x.name], blocksize=2)
        return Picture(name, x.channels * 4, x.rows // 2, x.columns // 2)
    return x


def _shuffled(grown: Growing, x: Picture) -> Picture:
    if x.channels % 2:
        return x
    parts = grown.constant(numpy.array([1, 2, x.channels // 2, x.rows, x.columns], numpy.int64))
    (apart,) = grown.add("Reshape", [x.name, parts])
    (moved,) = grown.add("Transpose", [apart], perm=[0, 2, 1, 3, 4])
    whole = grown.constant(numpy.array([1, x.channels, x.rows, x.columns], numpy.int64))
    return Picture(grown.add("Reshape", [moved, whole])[0], x.channels, x.rows, x.columns)


def _split(grown: Growing, x: Picture) -> Picture:
    if x.channels < 2:
        return x
    first = grown.random.randint(1, x.channels - 1)
    sizes = grown.constant(numpy.array([first, x.channels - first], numpy.int64))
    a, b = grown.add("Split", [x.name, sizes], 2, axis=1)
    left = _alike(grown, Picture(a, first, x.rows, x.columns))
    (name,) = grown.add("Concat", [b, left.name], axis=1)
    return Picture(name, x.channels, x.rows, x.columns)


def _residual(grown: Growing, x: Picture) -> Picture:
    kernel = grown.random.choice((1, 3, 5))
    weights = grown.weights(x.channels, x.channels, kernel, kernel)
    (inner,) = grown.add("Conv", [x.name, weights], pads=[kernel // 2] * 4)
    op = grown.random.choice(("Add", "Mul", "Sub", "Concat"))
    if op == "Concat":
        (name,) = grown.add(op, [x.name, inner], axis=1)
        return Picture(name, 2 * x.channels, x.rows, x.columns)
    return Picture(grown.add(op, [x.name, inner])[0], x.channels, x.rows, x.columns)


def _excited(grown: Growing, x: Picture) -> Picture:
    """Scale each channel by a factor that depends on all rows."""
    (mean,) = grown.add("GlobalAveragePool", [x.name])
    (gate,) = grown.add("Sigmoid", [mean])
    return Picture(grown.add("Mul", [x.name, gate])[0], x.channels, x.rows, x.columns)


def _shifted(grown: Growing, x: Picture) -> Picture:
    """Add a constant per pixel, per row or per column."""
    shape = grown.random.choice(((x.rows, x.columns), (x.rows, 1), (1, x.columns), (1, 1)))
    (name,) = grown.add("Add", [x.name, grown.weights(1, 1, *shape)])
    return Picture(name, x.channels, x.rows, x.columns)


def _quantized(grown: Growing, x: Picture) -> Picture:
    scale, zero = grown.constant(numpy.float32(0.05)), grown.constant(numpy.uint8(128))
    (small,) = grown.add("QuantizeLinear", [x.name, scale, zero])
    (large,) = grown.add("DequantizeLinear", [small, scale, zero])
    return Picture(large, x.channels, x.rows, x.columns)


Growth = Callable[[Growing, Picture], Picture]
_GROWTH: tuple[Growth, ...] = (
    *(_conv, _conv, _conv, _conv, _pool, _pool, _residual, _residual, _residual, _alike, _alike),
    *(_normalise, _scaled, _padded, _transposed, _blocks, _shuffled, _split, _shifted, _quantized),
    _excited,
)
_MOST_PIXELS, _MOST_CHANNELS = 900, 24


def make(seed: int, more: Sequence[Growth] = ()) -> onnx.ModelProto:
    """Return the graph of a seed; `more` adds further types of nodes."""
    random = Random(seed)  # noqa: S311 - reproducible, not secret
    grown = Growing(random, numpy.random.default_rng(seed))
    x = Picture("x", random.randint(1, 4), random.randint(7, 20), random.randint(7, 20))
    first, made = x, [x]
    for _ in range(random.randint(3, 9)):
        source = made[-1] if random.random() < 0.8 else random.choice(made)
        if source.rows * source.columns > _MOST_PIXELS or source.channels > _MOST_CHANNELS:
            continue
        made.append(random.choice((*_GROWTH, *more))(grown, source))
    results = [one for one in made if one is not first]
    chosen = {made[-1].name: made[-1]}
    for one in results:
        if random.random() < 0.15:
            chosen[one.name] = one
    chosen.pop("x", None)
    if not chosen:
        one = _conv(grown, x)
        chosen = {one.name: one}
    graph = helper.make_graph(
        grown.nodes,
        "pictures",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, x.channels, x.rows, x.columns])],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in chosen],
        grown.constants,
    )
    opsets = [helper.make_opsetid("", grown.opset)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def shaped(model: onnx.ModelProto) -> ShapedModel:
    """Return the loader's result without a child process, since these graphs are trusted."""
    inferred = onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True).graph
    types: dict[str, OnnxType] = {}
    for info in (*inferred.input, *inferred.value_info, *inferred.output):
        kind = type_of(info)
        if kind is not None:
            types[info.name] = kind
    for tensor in inferred.initializer:
        types[tensor.name] = OnnxType(tensor.data_type, tuple(tensor.dims))
    graph = OnnxGraph.of(model.graph)
    head = copied_without(model, "graph")
    head.graph.name = model.graph.name
    resolved = ResolvedModel(Path("pictures.onnx"), head, graph, {}, {}, {})
    return ShapedModel(resolved, Scope(graph=graph, types=types, flow=analyse(graph, types, ())))


def run(model: onnx.ModelProto, feed: dict[str, NDArray[Any]]) -> list[NDArray[Any]]:
    """Return the outputs of a model."""
    onnxruntime = import_onnxruntime()
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    blob = model.SerializeToString()
    session = onnxruntime.InferenceSession(blob, options, providers=["CPUExecutionProvider"])
    results: list[NDArray[Any]] = session.run(None, feed)
    return results


def largest_gap(one: NDArray[Any], other: NDArray[Any]) -> float:
    """Return the largest difference relative to the largest value; 0 for equal bits."""
    if one.shape == other.shape and one.tobytes() == other.tobytes():
        return 0.0
    if one.shape != other.shape:
        return float("inf")
    top = float(numpy.abs(one).max(initial=0.0)) or 1.0
    gap = float(numpy.abs(one.astype(numpy.float64) - other).max(initial=0.0)) / top
    return gap or 1e-30


def cut_and_compare(seed: int) -> tuple[list[float], int]:
    """Return the gaps of all cuts of one graph, and the number of refused cuts."""
    model = make(seed)
    graph = TiledGraph.of(shaped(model))
    random = Random(-seed - 1)  # noqa: S311 - reproducible, not secret
    bander, gaps, refused = Bander(graph), [], 0
    shape = tuple(size.dim_value for size in model.graph.input[0].type.tensor_type.shape.dim)
    values = numpy.random.default_rng(seed).standard_normal(shape).astype(numpy.float32)
    wanted = run(write_typed(graph.model), {"x": values})
    for _ in range(_TRIES):
        first = random.randrange(len(graph.nodes))
        end = random.randint(first + 1, len(graph.nodes))
        region = TileRegion(first, end, random.choice((2, 2, 3, 4, 5, 7)), random.choice((-2, -1)))
        banded = bander.bands(region)
        if isinstance(banded, str):
            refused += 1
            continue
        found = run(write_typed(rewrite(graph, [banded])), {"x": values})
        gaps.append(max(map(largest_gap, wanted, found)))
        if len(gaps) == _CUTS:
            break
    return gaps, refused
