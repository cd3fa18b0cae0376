"""Random ONNX models with common and rare exporter patterns; the same seed gives the same model."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Sample:
    """A generated model and the features that it contains."""

    path: Path
    states: dict[str, str]
    has_branch: bool
    quantized: bool


@dataclass
class _Writer:
    random: Random
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    stored: list[onnx.TensorProto] = field(default_factory=list)
    shapes: dict[str, Shape] = field(default_factory=dict)  # float tensors with a value
    count: int = 0
    prefix: str = "t"

    def fresh(self) -> str:
        self.count += 1
        return f"{self.prefix}{self.count}"

    def store(self, value: np.ndarray[Any, Any]) -> str:
        name = f"{self.fresh()}_const"
        self.stored.append(numpy_helper.from_array(value, name))
        return name

    def weights(self, *shape: int) -> str:
        values = np.random.default_rng(self.random.randrange(1 << 30)).standard_normal(shape)
        return self.store((values / 4).astype(np.float32))

    def node(self, kind: str, inputs: list[str], shape: Shape, **attributes: Any) -> str:
        made = self.fresh()
        named = self.random.random() < 0.5
        name = f"{kind}_{made}" if named else ""
        self.nodes.append(helper.make_node(kind, inputs, [made], name=name, **attributes))
        self.shapes[made] = shape
        return made

    def pick(self, rank: int | None = None) -> str | None:
        names = [n for n, shape in self.shapes.items() if rank in (None, len(shape))]
        if not names:
            return None
        recent = names[-4:] if self.random.random() < 0.7 else names
        return self.random.choice(recent)


def _elements(shape: Shape) -> int:
    return int(np.prod(shape)) if shape else 1


def _factors(count: int, random: Random) -> Shape:
    parts: list[int] = []
    for prime in (2, 3, 5, 7, 11, 13, 17):
        while count % prime == 0:
            parts.append(prime)
            count //= prime
    if count > 1:
        parts.append(count)
    random.shuffle(parts)
    while len(parts) > 4:
        parts.append(parts.pop(0) * parts.pop(0))
    return tuple(parts) or (1,)


def _conv(w: _Writer) -> None:
    source = w.pick(4)
    if source is None:
        return
    batch, channels, rows, columns = w.shapes[source]
    made = w.random.choice((1, 3, 5, 8))
    stride = w.random.choice((1, 1, 2)) if min(rows, columns) >= 4 else 1
    weights = [w.weights(made, channels, 3, 3)]
    if w.random.random() < 0.5:
        weights.append(w.weights(made))
    shape = (batch, made, (rows - 1) // stride + 1, (columns - 1) // stride + 1)
    w.node("Conv", [source, *weights], shape, pads=[1] * 4, strides=[stride] * 2)


def _matmul(w: _Writer) -> None:
    source = w.pick(2)
    if source is not None:
        rows, inner = w.shapes[source]
        columns = w.random.choice((1, 3, 7, 16, 33))
        w.node("MatMul", [source, w.weights(inner, columns)], (rows, columns))


def _unary(w: _Writer) -> None:
    source = w.pick()
    assert source is not None
    kind = w.random.choice(("Relu", "Tanh", "Sigmoid", "Abs", "Neg", "Exp", "HardSwish"))
    w.node(kind, [source], w.shapes[source])


def _binary(w: _Writer) -> None:
    source = w.pick()
    assert source is not None
    shape = w.shapes[source]
    twins = [name for name, other in w.shapes.items() if other == shape]
    other = w.random.choice(twins)
    if w.random.random() < 0.2 and shape:
        other = w.weights(1)
    w.node(w.random.choice(("Add", "Mul", "Sub", "Max")), [source, other], shape)


def _reshape(w: _Writer) -> None:
    source = w.pick()
    assert source is not None
    shape = _factors(_elements(w.shapes[source]), w.random)
    w.node("Reshape", [source, w.store(np.array(shape, np.int64))], shape)


def _reshape_by_shape(w: _Writer) -> None:
    """Add a flatten whose size comes from a Size node, like exporters write it."""
    source = w.pick()
    assert source is not None
    name, flat = w.fresh(), w.fresh()
    w.nodes.append(helper.make_node("Size", [source], [name]))
    axes = w.store(np.array([0], np.int64))
    w.nodes.append(helper.make_node("Unsqueeze", [name, axes], [flat]))
    w.node("Reshape", [source, flat], (_elements(w.shapes[source]),))


def _view(w: _Writer) -> None:
    source = w.pick()
    assert source is not None
    shape = w.shapes[source]
    kind = w.random.choice(("Identity", "Unsqueeze", "Flatten", "Dropout", "Cast"))
    if kind == "Unsqueeze" and len(shape) < 4:
        w.node(kind, [source, w.store(np.array([0], np.int64))], (1, *shape))
    elif kind == "Flatten" and shape:
        flat = (shape[0], _elements(shape[1:])) if len(shape) > 1 else (1, shape[0])
        w.node(kind, [source], flat, axis=1 if len(shape) > 1 else 0)
    elif kind == "Cast":
        w.node(kind, [source], shape, to=TensorProto.FLOAT)
    elif kind in ("Identity", "Dropout"):
        w.node(kind, [source], shape)


def _transpose(w: _Writer) -> None:
    source = w.pick()
    assert source is not None
    shape = w.shapes[source]
    order = list(range(len(shape)))
    w.random.shuffle(order)
    w.node("Transpose", [source], tuple(shape[axis] for axis in order), perm=order)


def _concat(w: _Writer) -> None:
    source = w.pick()
    assert source is not None
    shape = w.shapes[source]
    if not shape or _elements(shape) > 20_000:
        return
    axis = w.random.randrange(len(shape))
    twins = [name for name, other in w.shapes.items() if other == shape]
    parts = [w.random.choice(twins) for _ in range(w.random.choice((1, 2)))] + [source]
    wide = tuple(size * len(parts) if at == axis else size for at, size in enumerate(shape))
    w.node("Concat", parts, wide, axis=axis)


def _split(w: _Writer) -> None:
    source = w.pick()
    assert source is not None
    shape = w.shapes[source]
    axes = [axis for axis, size in enumerate(shape) if size >= 2]
    if not axes:
        return
    axis = w.random.choice(axes)
    first = w.random.randrange(1, shape[axis])
    sizes = (first, shape[axis] - first)
    names = [w.fresh(), w.fresh()]
    lengths = w.store(np.array(sizes, np.int64))
    w.nodes.append(helper.make_node("Split", [source, lengths], names, axis=axis))
    for name, size in zip(names, sizes, strict=True):
        w.shapes[name] = (*shape[:axis], size, *shape[axis + 1 :])


def _reduce(w: _Writer) -> None:
    source = w.pick()
    assert source is not None
    shape = w.shapes[source]
    if shape:
        axes = w.store(np.array([len(shape) - 1], np.int64))
        w.node("ReduceMean", [source, axes], (*shape[:-1], 1))


def _lost(w: _Writer) -> None:
    """Add an op whose result has no reader, and an op whose values are never needed."""
    source = w.pick()
    assert source is not None
    name = w.fresh()
    w.nodes.append(helper.make_node("Tanh", [source], [name]))


def _branch(w: _Writer) -> None:
    source = w.pick()
    assert source is not None
    shape = w.shapes[source]
    made = w.fresh()
    graphs = []
    for word in ("then", "else"):
        inner = _Writer(w.random, prefix=f"{made}_{word}")
        inner.shapes[source] = shape
        for _ in range(w.random.choice((0, 1, 2, 3))):
            w.random.choice((_unary, _binary, _reshape, _view, _transpose))(inner)
        last = inner.pick()
        assert last is not None
        back = inner.store(np.array(shape, np.int64))
        out = inner.fresh()
        inner.nodes.append(helper.make_node("Reshape", [last, back], [out]))
        if w.random.random() < 0.7:
            final = inner.fresh()
            inner.nodes.append(helper.make_node("Sigmoid", [out], [final]))
            out = final
        info = helper.make_tensor_value_info(out, TensorProto.FLOAT, shape)
        graphs.append(helper.make_graph(inner.nodes, word, [], [info], inner.stored))
    w.nodes.append(
        helper.make_node(
            "If", ["flag"], [made], name=made, then_branch=graphs[0], else_branch=graphs[1]
        )
    )
    w.shapes[made] = shape


def _state(w: _Writer, name: str) -> tuple[str, str]:
    """Add a state and return its old and new name; the seed decides if both may share bytes."""
    old = f"{name}_in"
    other = w.pick()
    assert other is not None
    total = w.fresh()
    w.nodes.append(helper.make_node("ReduceMax", [other], [total], keepdims=0))
    mixed = w.node(w.random.choice(("Add", "Mul")), [old, total], w.shapes[old])
    if w.random.random() < 0.5:
        mixed = w.node("Tanh", [mixed], w.shapes[old])
    w.nodes.append(helper.make_node("Neg", [mixed], [f"{name}_out"]))
    if w.random.random() < 0.4:  # a late reader of the old value
        w.node("Relu", [old], w.shapes[old])
    return old, f"{name}_out"


_OPS = (
    *(_conv, _conv, _matmul, _unary, _unary, _binary, _binary, _reshape, _reshape_by_shape),
    *(_view, _transpose, _concat, _split, _reduce, _lost),
)


def write_model(path: Path, seed: int) -> Sample:
    """Write the model of a seed."""
    random = Random(seed)  # noqa: S311
    if seed % 5 == 4:
        return _write_quantized(path, random)
    w = _Writer(random)
    inputs: dict[str, Shape] = {"x": (1, random.choice((1, 3, 4)), *_sides(random))}
    if random.random() < 0.5:
        inputs["side"] = (random.choice((1, 5, 17)), random.choice((3, 16, 33)))
    if random.random() < 0.2:
        inputs["unread"] = (7,)
    states: dict[str, str] = {}
    if seed % 3 == 0:
        inputs["h_in"] = (1, random.choice((3, 16, 50)))
    w.shapes.update({name: shape for name, shape in inputs.items() if name != "unread"})
    has_branch = seed % 4 == 1
    for at in range(random.randrange(4, 22)):
        if has_branch and at in (3, 9):
            _branch(w)
        elif _sum_small(w):
            random.choice(_OPS)(w)
        else:
            _unary(w)
    if "h_in" in inputs:
        old, new = _state(w, "h")
        states[old] = new
        for _ in range(random.randrange(3)):
            random.choice((_unary, _binary, _view))(w)
    read = {name for node in w.nodes for name in node.input}
    ends = [name for name in w.shapes if name not in read and name not in inputs]
    outputs = ends[-random.choice((1, 2, 3, 6)) :] or [list(w.shapes)[-1]]
    if random.random() < 0.3:
        outputs.append(random.choice([name for name in w.shapes if name not in inputs] or outputs))
    outputs = list(dict.fromkeys([*outputs, *states.values()]))
    infos = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in inputs.items()]
    if has_branch:
        infos.append(helper.make_tensor_value_info("flag", TensorProto.BOOL, []))
    _save(path, w, infos, [(name, TensorProto.FLOAT) for name in outputs])
    return Sample(path, states, has_branch, False)


def _sides(random: Random) -> Shape:
    return random.choice((5, 8, 13, 16, 17, 33)), random.choice((4, 7, 16, 31))


def _sum_small(w: _Writer) -> bool:
    return max(map(_elements, w.shapes.values())) < 60_000


def _save(
    path: Path,
    w: _Writer,
    inputs: list[onnx.ValueInfoProto],
    outputs: list[tuple[str, int]],
) -> None:
    infos = [helper.make_tensor_value_info(name, kind, None) for name, kind in outputs]
    graph = helper.make_graph(w.nodes, "g", inputs, infos, w.stored)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    onnx.save(made, path)


def _write_quantized(path: Path, random: Random) -> Sample:
    """Write a QDQ model: integers between ops, with some floats at the border or in the middle."""
    w = _Writer(random)
    zero = w.store(np.array(3, np.uint8))
    scales = [w.store(np.array(scale, np.float32)) for scale in (0.02, 0.05)]
    sizes = _sides(random)
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, (1, 3, *sizes))
    held = "xq"
    shape: Shape = (1, 3, *sizes)
    scale = scales[0]
    w.nodes.append(helper.make_node("QuantizeLinear", ["x", scale, zero], [held]))
    integers: list[tuple[str, Shape, str]] = [(held, shape, scale)]
    floats: list[str] = []
    for _ in range(random.randrange(3, 12)):
        held, shape, scale = random.choice(integers[-3:])
        real = w.fresh()
        w.nodes.append(helper.make_node("DequantizeLinear", [held, scale, zero], [real]))
        kind = random.choice(("Conv", "Relu", "Add", "Reshape", "Transpose", "Sigmoid"))
        made = w.fresh()
        if kind == "Conv" and len(shape) == 4:
            kernel = np.random.default_rng(random.randrange(99)).integers(
                -9, 9, (4, shape[1], 3, 3)
            )
            stored = w.store(kernel.astype(np.int8))
            nought = w.store(np.array(0, np.int8))
            weights = w.fresh()
            inputs = [stored, scales[0], nought]
            w.nodes.append(helper.make_node("DequantizeLinear", inputs, [weights]))
            w.nodes.append(helper.make_node("Conv", [real, weights], [made], pads=[1] * 4))
            shape = (shape[0], 4, *shape[2:])
        elif kind == "Add":
            twins = [item for item in integers if item[1] == shape]
            name, _, other = random.choice(twins)
            second = w.fresh()
            w.nodes.append(helper.make_node("DequantizeLinear", [name, other, zero], [second]))
            w.nodes.append(helper.make_node("Add", [real, second], [made]))
        elif kind == "Reshape":
            shape = _factors(_elements(shape), random)
            lengths = w.store(np.array(shape, np.int64))
            w.nodes.append(helper.make_node("Reshape", [real, lengths], [made]))
        elif kind == "Transpose":
            shape = shape[::-1]
            w.nodes.append(helper.make_node("Transpose", [real], [made]))
        else:
            word = "Relu" if kind == "Conv" else kind
            w.nodes.append(helper.make_node(word, [real], [made]))
        if random.random() < 0.15:
            floats.append(made)  # the float gets a second reader
        scale = scale if kind == "Reshape" and random.random() < 0.7 else random.choice(scales)
        held = w.fresh()
        w.nodes.append(helper.make_node("QuantizeLinear", [made, scale, zero], [held]))
        integers.append((held, shape, scale))
    outputs = [(integers[-1][0], int(TensorProto.UINT8))]
    if random.random() < 0.5:
        w.nodes.append(helper.make_node("DequantizeLinear", [held, scale, zero], ["real_out"]))
        outputs = [("real_out", int(TensorProto.FLOAT))]
    outputs += [(name, int(TensorProto.FLOAT)) for name in floats[:2]]
    _save(path, w, [x], outputs)
    return Sample(path, {}, False, True)
