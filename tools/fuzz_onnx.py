"""Hostile ONNX models that parse: fields that no seed has, references with invalid targets.

`damage.change_proto` changes existing fields. These functions add new fields: external data, sparse
tensors, bodies, functions, giant shapes, operators of any name.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

from damage import TEXTS

BESIDE = "weights.data"
LOCATIONS = (
    *(
        BESIDE,
        "",
        ".",
        "..",
        "../x",
        "/etc/passwd",
        "sub/../weights.data",
        "link.data",
        "away.data",
    ),
    *(
        "hard.data",
        "missing.data",
        "fifo",
        "C:\\x",
        "\\\\host\\x",
        "a\0b",
        "x" * 5000,
        "model.onnx",
    ),
)
DIMS = (0, 1, 2, 3, 7, 64, -1, -(2**31), 2**20, 2**31, 2**40, 2**62, 2**63 - 1)
COUNTS = ("0", "4", "16", "64", "-1", "1e9", "99999999999999999999", "", "x")
NAMES = tuple(text for text in TEXTS if text != "\ud800")

Change = Callable[[random.Random, Any], None]


def craft(rng: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """Add one to three fields to an ONNX model that no exporter would write."""
    import onnx

    model = onnx.ModelProto.FromString(data)
    for _ in range(rng.choice((1, 1, 2, 3))):
        rng.choice(CHANGES)(rng, model)
    try:
        return bytes(model.SerializeToString())
    except ValueError:  # a message nested too deeply to be written
        return data


def _graphs(graph: Any) -> list[Any]:
    found = [graph]
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                found += _graphs(attribute.g)
            for inner in attribute.graphs:
                found += _graphs(inner)
    return found


def _tensors(model: Any) -> list[Any]:
    found = []
    for graph in _graphs(model.graph):
        found += graph.initializer
        for sparse in graph.sparse_initializer:
            found += [sparse.values, sparse.indices]
        for node in graph.node:
            for attribute in node.attribute:
                found += [attribute.t] if attribute.HasField("t") else []
                found += attribute.tensors
                if attribute.HasField("sparse_tensor"):
                    found += [attribute.sparse_tensor.values, attribute.sparse_tensor.indices]
    return found


def _nodes(model: Any) -> list[Any]:
    return [node for graph in _graphs(model.graph) for node in graph.node]


def _external(rng: random.Random, model: Any) -> None:
    tensors = _tensors(model)
    if not tensors:
        _constant(rng, model)
        tensors = _tensors(model)
    tensor = rng.choice(tensors)
    tensor.data_location = rng.choice((1, 1, 1, 0))
    if rng.random() < 0.7:
        tensor.ClearField("raw_data")
    del tensor.external_data[:]
    for key, values in (("location", LOCATIONS), ("offset", COUNTS), ("length", COUNTS)):
        for _ in range(rng.choice((0, 1, 1, 2)) if key != "location" else rng.choice((1, 1, 2))):
            good = rng.random() < 0.5
            value = {"location": BESIDE, "offset": "0", "length": "16"}[key]
            tensor.external_data.add(key=key, value=value if good else rng.choice(values))


def _sparse(rng: random.Random, tensor: Any) -> None:
    values, indices = tensor.values, tensor.indices
    values.name, values.data_type = rng.choice(("", "s", "x")), rng.choice((1, 1, 3, 7, 8))
    count = rng.choice((0, 1, 2, 5))
    values.dims.append(count)
    values.float_data.extend([1.0] * count)
    indices.data_type = 7
    indices.dims.append(count)
    indices.int64_data.extend(rng.choice((0, 1, 3, -1, 2**40)) for _ in range(count))
    tensor.dims.extend(rng.choice(DIMS) for _ in range(rng.choice((1, 2))))


def _sparse_weight(rng: random.Random, model: Any) -> None:
    _sparse(rng, rng.choice(_graphs(model.graph)).sparse_initializer.add())


def _constant(rng: random.Random, model: Any) -> None:
    graph = rng.choice(_graphs(model.graph))
    node = graph.node.add(op_type="Constant", output=[rng.choice(("k", "x", "kk"))])
    key = rng.choice(("value", "value", "sparse_value", "sparse_value", "value_floats"))
    attribute = node.attribute.add(name=key)
    if key == "sparse_value":
        attribute.type = 11
        _sparse(rng, attribute.sparse_tensor)
    elif key == "value":
        attribute.type = 4
        attribute.t.data_type = 1
        attribute.t.dims.append(4)
        attribute.t.raw_data = bytes(16)
    else:
        attribute.type = 6
        attribute.floats.extend([0.0] * rng.choice((0, 1, 1000)))


def _giant(rng: random.Random, model: Any) -> None:
    """Add an operator with a result of the size stated in the file."""
    graph = model.graph
    kind, name = rng.choice(("ConstantOfShape", "Expand", "Tile", "Range", "Pad")), "giant"
    sizes = [rng.choice(DIMS) for _ in range(rng.choice((1, 2, 4)))]
    graph.initializer.add(name=f"{name}_n", data_type=7, dims=[len(sizes)], int64_data=sizes)
    inputs = [f"{name}_n"] if kind == "ConstantOfShape" else [_name(rng, graph), f"{name}_n"]
    inputs += [f"{name}_n"] if kind == "Range" else []
    graph.node.add(op_type=kind, input=inputs, output=[name])
    if rng.random() < 0.7:
        graph.output.add(name=name)


def _name(rng: random.Random, graph: Any) -> str:
    names = [item.name for item in (*graph.input, *graph.initializer)]
    names += [name for node in graph.node for name in node.output]
    return str(rng.choice(names or ["x"]))


def _body(rng: random.Random, model: Any) -> None:
    """Add a loop, a scan or a branch, sometimes nested many levels deep."""
    graph = model.graph
    kind, key = rng.choice((("Loop", "body"), ("Scan", "body"), ("If", "then_branch")))
    count = rng.choice((1, 1, 2, 40, 95))
    for level in range(count):
        node = graph.node.add(op_type=kind, output=[f"level{level}"])
        node.input.extend(
            [_name(rng, graph), rng.choice(("", "c", "x"))][: 1 if kind == "If" else 2]
        )
        attribute = node.attribute.add(name=key, type=5)
        graph = attribute.g
        graph.name = "body"
        graph.input.add(name=f"i{level}")
        graph.output.add(name=f"o{level}")
        graph.node.add(op_type="Identity", input=[f"i{level}"], output=[f"o{level}"])


def _function(rng: random.Random, model: Any) -> None:
    domain, name = rng.choice(("own", "", "ai.onnx")), rng.choice(("F", "Relu", "Add"))
    function = model.functions.add(name=name, domain=domain)
    function.input.append("a")
    function.output.append("b")
    function.opset_import.add(domain="", version=rng.choice((18, 1, 99)))
    inner = rng.choice(("Relu", name))  # its own name makes a function call itself
    function.node.add(op_type=inner, domain=domain, input=["a"], output=["b"])
    model.opset_import.add(domain=domain, version=rng.choice((1, 18, -1, 2**40)))
    model.graph.node.add(op_type=name, domain=domain, input=["x"], output=["called"])


def _operator(rng: random.Random, model: Any) -> None:
    import onnx.defs

    kinds = sorted({schema.name for schema in onnx.defs.get_all_schemas()})
    node = rng.choice(_nodes(model) or [model.graph.node.add()])
    node.op_type = rng.choice((*kinds, *NAMES))
    if rng.random() < 0.2:
        node.domain = rng.choice(("com.microsoft", "ai.onnx.ml", "x", *NAMES))


def _attribute(rng: random.Random, model: Any) -> None:
    nodes = _nodes(model)
    if not nodes:
        return
    node = rng.choice(nodes)
    names = ("axis", "axes", "perm", "to", "shape", "kernel_shape", "pads", "num_outputs", "body")
    found = node.attribute.add(name=rng.choice((*names, *NAMES)), type=rng.randrange(15))
    found.i = rng.choice(DIMS)
    found.ints.extend(rng.choice(DIMS) for _ in range(rng.randrange(4)))
    if rng.random() < 0.2:
        found.ref_attr_name = rng.choice(NAMES)


def _shape(rng: random.Random, model: Any) -> None:
    graph = rng.choice(_graphs(model.graph))
    infos = [*graph.input, *graph.output, *graph.value_info] or [graph.value_info.add(name="x")]
    kind = rng.choice(infos).type
    if rng.random() < 0.1:
        kind.sequence_type.elem_type.tensor_type.elem_type = rng.randrange(25)
        return
    kind.tensor_type.elem_type = rng.choice((1, 1, 3, 7, 8, 9, 16, 0, 99))
    for _ in range(rng.choice((1, 1, 2, 70))):
        dim = kind.tensor_type.shape.dim.add()
        if rng.random() < 0.3:
            dim.dim_param = rng.choice(("N", *NAMES))
        else:
            dim.dim_value = rng.choice(DIMS)


def _wire_twice(rng: random.Random, model: Any) -> None:
    """Add cycles, double definitions, or reads of missing tensors."""
    nodes = _nodes(model)
    if len(nodes) < 2:
        return
    one, other = rng.choice(nodes), rng.choice(nodes)
    end = rng.choice(("input", "output"))
    names = getattr(one, end)
    if names:
        names[rng.randrange(len(names))] = rng.choice((*other.output, *other.input, *NAMES))


def _head(rng: random.Random, model: Any) -> None:
    """Change versions, training information, metadata or annotations."""
    action = rng.randrange(4)
    if action == 0:
        model.opset_import.add(domain=rng.choice(("", "ai.onnx")), version=rng.choice(DIMS))
    elif action == 1:
        model.training_info.add().initialization.CopyFrom(model.graph)
    elif action == 2:
        model.metadata_props.add(key=rng.choice(NAMES), value=rng.choice(NAMES))
    else:
        model.graph.quantization_annotation.add(tensor_name=rng.choice(NAMES))


CHANGES: tuple[Change, ...] = (
    *(_external, _external, _sparse_weight, _constant, _giant, _giant, _body, _function),
    *(_operator, _operator, _attribute, _shape, _wire_twice, _head),
)
