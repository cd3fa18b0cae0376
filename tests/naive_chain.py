"""Simulates a run of a chain op by op from its ONNX files; shares no code with qnnmem."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import onnx
from onnx import helper

ALIGN = 64
# Ops whose result shares the bytes of their first input.
VIEWS = ("Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity", "Dropout")


@dataclass(frozen=True)
class NaiveRun:
    """The peak bytes of a run by pool, for one arrangement of the parts."""

    scratch: int
    io: int
    constants: int
    total: int


def rounded(size: int) -> int:
    """Return a size rounded up to the alignment."""
    return -(-size // ALIGN) * ALIGN


def simulate(
    whole: onnx.ModelProto,
    parts: Sequence[onnx.ModelProto],
    *,
    inside: bool,
    resident: bool,
    scratches: Sequence[int] = (),
) -> NaiveRun:
    """Run the parts one after another and return the peak bytes.

    `scratches` are the parts' scratch sizes, if known. With `inside`, inputs and outputs of a part
    are in its scratch, and a tensor that waits for a later part is a copy beside it. Otherwise they
    are in buffers of the application.
    """
    sizes: dict[str, int] = {}
    for part in (whole, *parts):
        sizes.update(tensor_sizes(part))
    stored = [constant_bytes(part, sizes) for part in parts]
    names = {one.name for one in whole.graph.initializer}
    there = {item.name for item in whole.graph.input if item.name not in names}
    results = {item.name for item in whole.graph.output}
    scratch = io = total = 0
    for at, part in enumerate(parts):
        later = results.union(*({one.name for one in p.graph.input} for p in parts[at + 1 :]))
        inputs = {one.name for one in part.graph.input}
        outputs = {one.name for one in part.graph.output}
        waiting = {name for name in there if name in later and name not in outputs}
        constants = sum(stored) if resident else stored[at]
        inner = scratches[at] if scratches else most_alive(part, sizes, count_io=inside)
        if inside:
            held = sum(rounded(sizes[name]) for name in waiting)
            scratch = max(scratch, inner + held)
            total = max(total, inner + held + constants)
        else:
            outside = sum(rounded(sizes[name]) for name in waiting | inputs | outputs)
            scratch, io = max(scratch, inner), max(io, outside)
            total = max(total, inner + outside + constants)
        there = {name for name in there | outputs if name in later}
    assert results <= there
    return NaiveRun(scratch, io, sum(stored) if resident else max(stored), total)


def fixed_names(model: onnx.ModelProto) -> set[str]:
    """Return the names of stored tensors and of values computed only from them."""
    found = {one.name for one in model.graph.initializer}
    for node in model.graph.node:
        if all(not name or name in found for name in node.input):
            found.update(node.output)
    return found


def constant_bytes(model: onnx.ModelProto, sizes: dict[str, int]) -> int:
    """Return the bytes of the constants that a part's ops read."""
    fixed = fixed_names(model)
    read = {
        name
        for node in model.graph.node
        if not fixed.issuperset(node.output)
        for name in node.input
        if name in fixed
    }
    return sum(sizes[name] for name in read)


def weight_bytes(tensor: onnx.TensorProto) -> int:
    """Return the bytes of a stored tensor."""
    width = int(helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize)
    return width * int(math.prod(tensor.dims))


def tensor_sizes(model: onnx.ModelProto) -> dict[str, int]:
    """Return the bytes of every stored or typed tensor."""
    found = {one.name: weight_bytes(one) for one in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type == "Constant" and node.attribute[0].name == "value":
            found[node.output[0]] = weight_bytes(node.attribute[0].t)
    for item in (*model.graph.input, *model.graph.value_info, *model.graph.output):
        kind = item.type.tensor_type
        if kind.HasField("shape") and all(dim.HasField("dim_value") for dim in kind.shape.dim):
            size = helper.tensor_dtype_to_np_dtype(kind.elem_type).itemsize
            found[item.name] = size * math.prod(dim.dim_value for dim in kind.shape.dim)
    return found


def most_alive(part: onnx.ModelProto, sizes: dict[str, int], *, count_io: bool) -> int:
    """Return the peak of live bytes in a part, op by op; views take no bytes."""
    graph = onnx.GraphProto()
    graph.CopyFrom(part.graph)
    fixed = fixed_names(part)
    moving = [node for node in graph.node if not fixed.issuperset(node.output)]
    del graph.node[:]
    graph.node.extend(moving)
    inputs = [item.name for item in graph.input]
    outputs = {item.name for item in graph.output}
    owner = {name: name for name in inputs}
    for node in graph.node:
        first = node.input[0] if node.input else ""
        for name in node.output:
            shares = node.op_type in VIEWS and first in owner
            owner[name] = owner[first] if shares else name
    last = dict.fromkeys((owner[name] for name in outputs), len(graph.node))
    born = dict.fromkeys(inputs, -1)
    for at, node in enumerate(graph.node):
        for name in node.input:
            if name in owner:
                last[owner[name]] = max(last.get(owner[name], at), at)
        for name in node.output:
            born.setdefault(owner[name], at)
            last.setdefault(owner[name], at)
    lies_outside = {owner[name] for name in (*inputs, *outputs)} if not count_io else set()
    width: dict[str, int] = {}
    for name, own in owner.items():
        width[own] = max(width.get(own, 0), rounded(sizes.get(name, 0)))
    kept = [own for own in born if own not in lies_outside]
    return max(
        sum(width[own] for own in kept if born[own] <= at <= last.get(own, born[own]))
        for at in range(-1, len(graph.node) + 1)
    )
