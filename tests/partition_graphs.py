"""Seeded random ONNX models with everything that makes partitioning hard."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any

import numpy
import onnx
from onnx import TensorProto, helper, numpy_helper

CHANNELS = 4


@dataclass
class Maker:
    """A growing graph; every value is a float tensor of four dimensions."""

    random: Random
    nodes: list[Any] = field(default_factory=list)
    stored: list[Any] = field(default_factory=list)
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    functions: bool = False
    count: int = 0

    def name(self, kind: str) -> str:
        """Return a new name."""
        self.count += 1
        return f"{kind}{self.count}"

    def weight(self, *shape: int) -> str:
        """Return a stored tensor; a quarter of them are shared with another node."""
        floats = (one for one in self.stored if one.data_type == TensorProto.FLOAT)
        same = [str(one.name) for one in floats if tuple(one.dims) == shape]
        if same and self.random.random() < 0.25:
            return self.random.choice(same)
        name = self.name("w")
        values = numpy.random.default_rng(self.random.getrandbits(32)).normal(size=shape)
        self.stored.append(numpy_helper.from_array(values.astype("float32"), name))
        return name

    def numbers(self, *values: int) -> str:
        """Return integers as an initializer, a Constant node, or a computed constant."""
        name = self.name("n")
        tensor = numpy_helper.from_array(numpy.asarray(values, "int64"), name)
        way = self.random.randrange(3)
        if way == 0:
            self.stored.append(tensor)
            return name
        self.nodes.append(helper.make_node("Constant", [], [name], value=tensor))
        if way == 2:
            self.nodes.append(helper.make_node("Identity", [name], [f"{name}_same"]))
            return f"{name}_same"
        return name

    def add(self, kind: str, inputs: list[str], shape: tuple[int, ...], **more: Any) -> str:
        """Add a node with one output and return its name."""
        name = self.name("t")
        self.nodes.append(helper.make_node(kind, inputs, [name], name=f"{kind}_{name}", **more))
        self.shapes[name] = shape
        return name


def conv(maker: Maker, source: str) -> str:
    """Add a convolution with odd padding, strides, dilations and groups."""
    random = maker.random
    batch, channels, height, width = maker.shapes[source]
    kernel, dilation, stride = (
        random.choice((1, 2, 3)),
        random.choice((1, 2)),
        random.choice((1, 2)),
    )
    pads = [random.randrange(3) for _ in range(4)]
    reach = (kernel - 1) * dilation
    sizes = [
        (size + pads[side] + pads[side + 2] - reach - 1) // stride + 1
        for side, size in enumerate((height, width))
    ]
    if min(height + pads[0] + pads[2], width + pads[1] + pads[3]) <= reach:
        return source
    groups = random.choice([n for n in (1, 2, 4) if channels % n == 0])
    out = CHANNELS * random.choice((1, 2))
    inputs = [source, maker.weight(out, channels // groups, kernel, kernel)]
    if random.random() < 0.5:
        inputs.append(maker.weight(out))
    return maker.add(
        *("Conv", inputs, (batch, out, *sizes)),
        group=groups,
        pads=pads,
        strides=[stride] * 2,
        dilations=[dilation] * 2,
        kernel_shape=[kernel] * 2,
    )


def unary(maker: Maker, source: str) -> str:
    """Add an element-wise op, at times with an omitted optional input."""
    shape = maker.shapes[source]
    if maker.random.random() < 0.3:
        bound = maker.name("c")
        maker.stored.append(numpy_helper.from_array(numpy.asarray(0.5, "float32"), bound))
        return maker.add("Clip", [source, "", bound], shape)
    return maker.add(maker.random.choice(("Relu", "Sigmoid", "Tanh", "Neg")), [source], shape)


def merge(maker: Maker, source: str) -> str:
    """Add a sum with a tensor of equal shape; with an old tensor it is a residual."""
    shape = maker.shapes[source]
    same = [name for name, one in maker.shapes.items() if one == shape]
    return maker.add(
        maker.random.choice(("Add", "Mul")), [source, maker.random.choice(same)], shape
    )


def reshaped(maker: Maker, source: str) -> str:
    """Add a reshape and its inverse, with both names in use."""
    shape = maker.shapes[source]
    flat = maker.add("Reshape", [source, maker.numbers(0, -1)], (shape[0], -1))
    del maker.shapes[flat]
    back = maker.add("Reshape", [flat, maker.numbers(*shape)], shape)
    return maker.add("Identity", [back], shape)


def split(maker: Maker, source: str) -> str:
    """Add two halves, joined in reverse order."""
    batch, channels, *rest = maker.shapes[source]
    if channels < 2:
        return source
    names = [maker.name("half"), maker.name("half")]
    sizes = maker.numbers(channels // 2, channels - channels // 2)
    maker.nodes.append(helper.make_node("Split", [source, sizes], names, axis=1))
    for name, size in zip(names, (channels // 2, channels - channels // 2), strict=True):
        maker.shapes[name] = (batch, size, *rest)
    return maker.add("Concat", names[::-1], (batch, channels, *rest), axis=1)


def branch(maker: Maker, source: str) -> str:
    """Add an If whose branches read tensors and weights from outside."""
    shape = maker.shapes[source]
    same = [name for name, one in maker.shapes.items() if one == shape]
    other, weight = maker.random.choice(same), maker.weight(1)
    mean = maker.name("mean")
    maker.nodes.append(helper.make_node("ReduceMean", [source], [mean], keepdims=0))
    zero, test = maker.name("zero"), maker.name("test")
    maker.stored.append(numpy_helper.from_array(numpy.asarray(0, "float32"), zero))
    maker.nodes.append(helper.make_node("Greater", [mean, zero], [test]))
    bodies = {}
    for side, kind in (("then_branch", "Add"), ("else_branch", "Mul")):
        result = maker.name("r")
        inner = maker.name("i")
        nodes = [
            helper.make_node(kind, [other, weight], [inner]),
            helper.make_node("Sub", [inner, source], [result]),
        ]
        info = helper.make_tensor_value_info(result, TensorProto.FLOAT, shape)
        bodies[side] = helper.make_graph(nodes, side, [], [info])
    return maker.add("If", [test], shape, **bodies)


def loop(maker: Maker, source: str) -> str:
    """Add a Loop of two iterations that reads a tensor from outside."""
    shape = maker.shapes[source]
    same = [name for name, one in maker.shapes.items() if one == shape]
    other = maker.random.choice(same)
    names = [maker.name(kind) for kind in ("step", "go", "state", "stays", "next")]
    step, go, state, stays, following = names
    info = helper.make_tensor_value_info
    body = helper.make_graph(
        [
            helper.make_node("Identity", [go], [stays]),
            helper.make_node("Add", [state, other], [following]),
        ],
        "body",
        [
            info(step, TensorProto.INT64, []),
            info(go, TensorProto.BOOL, []),
            info(state, TensorProto.FLOAT, shape),
        ],
        [info(stays, TensorProto.BOOL, []), info(following, TensorProto.FLOAT, shape)],
    )
    trips = maker.name("trips")
    maker.stored.append(numpy_helper.from_array(numpy.asarray(2, "int64"), trips))
    return maker.add("Loop", [trips, "", source], shape, body=body)


def called(maker: Maker, source: str) -> str:
    """Add a call of a function defined in the model."""
    maker.functions = True
    return maker.add("Twice", [source], maker.shapes[source], domain="own")


def quantized(maker: Maker, source: str) -> str:
    """Add a QuantizeLinear and DequantizeLinear pair."""
    scale, zero = maker.name("scale"), maker.name("zero")
    maker.stored.append(numpy_helper.from_array(numpy.asarray(0.05, "float32"), scale))
    maker.stored.append(numpy_helper.from_array(numpy.asarray(1, "int8"), zero))
    shape, small = maker.shapes[source], maker.name("q")
    maker.nodes.append(helper.make_node("QuantizeLinear", [source, scale, zero], [small]))
    return maker.add("DequantizeLinear", [small, scale, zero], shape)


def pooled(maker: Maker, source: str) -> str:
    """Add a pooling that keeps the size."""
    kind = maker.random.choice(("MaxPool", "AveragePool"))
    pads = [1, 1, 1, 1]
    return maker.add(kind, [source], maker.shapes[source], kernel_shape=[3, 3], pads=pads)


STEPS = (conv, conv, unary, unary, merge, merge, reshaped, split, pooled, quantized)
RARE = (branch, loop, called)


def random_model(seed: int) -> onnx.ModelProto:
    """Return a valid random model; the same seed gives the same model."""
    random = Random(seed)  # noqa: S311 - reproducible, not secret
    maker = Maker(random)
    inputs = {f"x{n}": (1, CHANNELS, 5 + n, 6) for n in range(random.choice((1, 1, 2)))}
    maker.shapes.update(inputs)
    for _ in range(random.randrange(3, 14)):
        kinds = RARE if random.random() < 0.12 else STEPS
        recent = list(maker.shapes)[-6:]
        random.choice(kinds)(maker, random.choice(recent))
    return _finished(maker, inputs)


def _finished(maker: Maker, inputs: Mapping[str, tuple[int, ...]]) -> onnx.ModelProto:
    random = maker.random
    read = {name for node in maker.nodes for name in node.input}
    made = [name for name in maker.shapes if name not in inputs]
    outputs = [name for name in made if name not in read]
    outputs += [name for name in made if name in read and random.random() < 0.1]  # intermediates
    if not made or random.random() < 0.05:
        outputs.append(next(iter(inputs)))  # passed through unchanged
    infos = [helper.make_tensor_value_info(n, TensorProto.FLOAT, maker.shapes[n]) for n in outputs]
    if maker.stored and random.random() < 0.1:
        first = maker.stored[0]  # a constant as an output
        infos.append(helper.make_tensor_value_info(first.name, first.data_type, first.dims))
    given = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in inputs.items()]
    if random.random() < 0.2:  # as in old files
        given += [
            helper.make_tensor_value_info(one.name, one.data_type, one.dims) for one in maker.stored
        ]
    graph = helper.make_graph(maker.nodes, "random", given, infos, maker.stored)
    opsets = [helper.make_opsetid("", 17)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    if maker.functions:
        body = [helper.make_node("Add", ["a", "a"], ["b"])]
        model.functions.append(helper.make_function("own", "Twice", ["a"], ["b"], body, opsets))
        model.opset_import.append(helper.make_opsetid("own", 1))
    onnx.checker.check_model(model)
    return model
