"""Untrusted bytes to a checked ModelProto: pure parsing, every count and size bounded."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from qnnmem.bounded_file import read_bytes
from qnnmem.errors import LoadError
from qnnmem.load.onnx.graph import ONNX_DOMAINS, bodies, sort_nodes
from qnnmem.load.onnx.tensor import check_stored
from qnnmem.load.onnx.wire import check_wire
from qnnmem.text import quote

if TYPE_CHECKING:
    import onnx

MAX_FILE = (1 << 31) - 1  # protobuf's own limit
MAX_NODES = 200_000
MAX_OUTPUTS = 20_000
MAX_NAME = 1 << 16
MIN_OPSET = 7


def parse(path: Path) -> onnx.ModelProto:
    """Model in a file, checked, with the nodes of every graph in execution order."""
    return unpack(path, read_checked(path))


def read_checked(path: Path) -> bytes:
    """Bytes of a file that unpack into bounded memory; needs no library."""
    blob = read_bytes(path, MAX_FILE)
    check_wire(path, blob)
    return blob


def unpack(path: Path, blob: bytes) -> onnx.ModelProto:
    """Model in checked bytes, checked in turn."""
    model = _decode(path, blob)
    try:
        _check_model(path, model)
    except UnicodeDecodeError as exc:
        raise LoadError(path, "holds names that are not text; the file is damaged") from exc
    return model


def check_graphs(path: Path, model: onnx.ModelProto) -> None:
    """Check definitions and order of all graphs, sorting nodes that are merely out of order."""
    nodes = 0
    for graph in _graphs(model.graph):
        nodes += len(graph.node)
        if nodes > MAX_NODES:
            raise LoadError(path, f"has more than {MAX_NODES:,} nodes, too many to be planned")
        _check_names(path, graph)
    sort_nodes(path, model.graph)


def _decode(path: Path, blob: bytes) -> onnx.ModelProto:
    import onnx
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]  # no stubs

    model = onnx.ModelProto()
    try:
        model.ParseFromString(blob)
    except (DecodeError, ValueError, RuntimeError) as exc:
        raise LoadError(path, "is cut short or is not an ONNX model") from exc
    except MemoryError as exc:
        raise LoadError(path, "does not fit into memory") from exc
    return model


def _check_model(path: Path, model: onnx.ModelProto) -> None:
    if not model.graph.output:
        raise LoadError(path, "is not an ONNX model, or one without outputs")
    if len(model.graph.output) > MAX_OUTPUTS:
        raise LoadError(path, f"has more than {MAX_OUTPUTS:,} outputs, too many to be planned")
    _check_opset(path, model)
    if not model.functions:  # with functions, names are only final once they are inlined
        check_graphs(path, model)
    for graph in _graphs(model.graph):
        _check_tensors(path, graph)
    for function in model.functions:
        _check_constants(path, function.node)
    model.ClearField("training_info")


def _check_opset(path: Path, model: onnx.ModelProto) -> None:
    versions = [entry.version for entry in model.opset_import if entry.domain in ONNX_DOMAINS]
    if not versions and any(node.domain in ONNX_DOMAINS for node in model.graph.node):
        raise LoadError(path, "does not say which ONNX operator set it uses")
    if versions and min(versions) < MIN_OPSET:
        old = quote(min(versions))
        raise LoadError(
            path, f"uses ONNX operator set {old}; {MIN_OPSET} or newer is needed, convert it first"
        )


def _graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    # Depth was bounded by the wire check, so plain recursion is safe.
    yield graph
    for node in graph.node:
        for body in bodies(node):
            yield from _graphs(body)


def _check_names(path: Path, graph: onnx.GraphProto) -> None:
    if not all(isinstance(text, str) for text in _texts(graph)):
        # protobuf hands out bytes where a name is not valid UTF-8
        raise LoadError(path, "holds names that are not text; the file is damaged")
    stored = {item.name for item in graph.initializer}
    seen: set[str] = set()
    # Files of IR version 3 list initialisers among the inputs as well: that is one definition.
    names = [name for name in (item.name for item in graph.input) if name not in stored]
    names += [item.name for item in graph.initializer]
    names += [name for node in graph.node for name in node.output if name]
    for name in names:
        if name in seen:
            raise LoadError(path, f"tensor {quote(name)} is defined twice")
        if not name or len(name) > MAX_NAME:
            raise LoadError(path, f"a tensor name is empty or longer than {MAX_NAME:,} characters")
        seen.add(name)
    inputs = [item.name for item in graph.input]
    if len(set(inputs)) < len(inputs):
        twice = next(name for name in inputs if inputs.count(name) > 1)
        raise LoadError(path, f"tensor {quote(twice)} is defined twice")
    if graph.sparse_initializer:
        raise LoadError(path, "stores weights as sparse tensors, which are not handled")


def _texts(graph: onnx.GraphProto) -> Iterator[object]:
    for item in (*graph.input, *graph.output, *graph.initializer):
        yield item.name
    for item in graph.input:
        yield from (dim.dim_param for dim in item.type.tensor_type.shape.dim)
    for node in graph.node:
        yield from (node.name, node.op_type, node.domain, *node.input, *node.output)
        yield from (found.name for found in node.attribute)


def _check_tensors(path: Path, graph: onnx.GraphProto) -> None:
    for tensor in graph.initializer:
        check_stored(path, tensor)
    _check_constants(path, graph.node)


def _check_constants(path: Path, nodes: object) -> None:
    for node in nodes:  # type: ignore[attr-defined]  # protobuf's repeated field has no public type
        for found in node.attribute:
            for tensor in (*([found.t] if found.HasField("t") else []), *found.tensors):
                check_stored(path, tensor)
