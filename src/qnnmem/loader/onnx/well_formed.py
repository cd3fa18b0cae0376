"""Checks of a graph: unique names defined before use, known operators, only tensors."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from qnnmem.deadline import ask_deadline
from qnnmem.errors import LoadError
from qnnmem.loader.onnx.graph import ONNX_DOMAINS, AnyGraph, bodies, graphs_in, live, reads
from qnnmem.text import quote

if TYPE_CHECKING:
    import onnx

MAX_NODES = 200_000
MAX_NAME = 1 << 16
_Key = tuple[str, str, str]  # domain, name and overload of a function


def check_graphs(path: Path, graph: onnx.GraphProto) -> None:
    """Check the names and the order of a graph and its bodies; sort nodes in place.

    The caller owns the message, which it has just decoded.
    """
    nodes = 0
    for inner in graphs_in(graph):
        nodes += len(inner.node)
        if nodes > MAX_NODES:
            raise LoadError(path, f"has more than {MAX_NODES:,} nodes, the limit for planning")
        _check_names(path, inner)
    sort_nodes(path, graph)


def check_expansion(path: Path, model: onnx.ModelProto) -> None:
    """Raise LoadError for functions that expand into too many nodes.

    The nodes are counted without expansion: thirty functions of two calls each expand to a billion.
    """
    functions = {_key_of(function): function for function in model.functions}
    sizes: dict[_Key, int] = {}
    for start in functions:
        if start in sizes:
            continue
        # The functions that are being counted, outermost first.
        walk = {start: _calls(functions[start].node)}
        while walk:
            ask_deadline()
            key, calls = next(reversed(walk.items()))
            called = next((call for call in calls if call in functions and call not in sizes), None)
            if called is None:
                sizes[key] = _expanded(functions[key].node, sizes)
                del walk[key]
            elif called in walk:
                name = quote(functions[called].name)
                raise LoadError(path, f"function {name} calls itself, directly or through others")
            else:
                walk[called] = _calls(functions[called].node)
    if _expanded(model.graph.node, sizes) > MAX_NODES:
        raise LoadError(
            path,
            f"has more than {MAX_NODES:,} nodes after its functions are expanded; "
            "planning allows no more",
        )


def _key_of(entry: onnx.NodeProto | onnx.FunctionProto) -> _Key:
    """Return a function's key, from a node that calls the function or from the definition."""
    name = entry.op_type if hasattr(entry, "op_type") else entry.name
    return entry.domain, name, entry.overload


def _calls(nodes: Iterable[onnx.NodeProto]) -> Iterator[_Key]:
    for node in nodes:
        yield _key_of(node)
        for body in bodies(node):
            yield from _calls(body.node)


def _expanded(nodes: Iterable[onnx.NodeProto], sizes: Mapping[_Key, int]) -> int:
    """Return the number of nodes after inlining, capped at one above the limit."""
    return min(MAX_NODES + 1, sum(sizes.get(called, 1) for called in _calls(nodes)))


def _check_names(path: Path, graph: AnyGraph) -> None:
    if not all(isinstance(text, str) for text in _texts(graph)):
        # protobuf returns bytes for a name that is not valid UTF-8
        raise LoadError(path, "contains names that are not text; the file is damaged")
    stored = {item.name for item in graph.initializer}
    seen: set[str] = set()
    # Files of IR version 3 list initializers among the inputs as well: that is one definition.
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


def _texts(graph: AnyGraph) -> Iterator[object]:
    for item in (*graph.input, *graph.output, *graph.initializer):
        yield item.name
    for item in graph.input:
        yield from (dim.dim_param for dim in item.type.tensor_type.shape.dim)
    for node in graph.node:
        yield from (node.name, node.op_type, node.domain, *node.input, *node.output)
        yield from (item.name for item in node.attribute)


def sort_nodes(path: Path, graph: onnx.GraphProto, outer: Iterable[str] = ()) -> None:
    """Sort nodes into execution order, stably and in place; raise LoadError for cycles."""
    available = {*outer, *(item.name for item in (*graph.input, *graph.initializer))}
    # Sequences and maps get their own error, not one about a missing producer.
    available.update(item.values.name for item in graph.sparse_initializer)
    maker = {name: i for i, node in enumerate(graph.node) for name in node.output if name}
    order = _order(path, graph, available, maker)
    if order != list(range(len(order))):
        nodes = [type(graph.node[0]).FromString(graph.node[i].SerializeToString()) for i in order]
        del graph.node[:]
        graph.node.extend(nodes)
    for name in (out.name for out in graph.output):
        if name not in maker and name not in available:
            raise LoadError(path, f"output {quote(name)} is not produced by any node")
    scope = available | maker.keys()
    for node in graph.node:
        for body in bodies(node):
            sort_nodes(path, body, scope)


def _order(
    path: Path, graph: onnx.GraphProto, available: set[str], maker: dict[str, int]
) -> list[int]:
    waiting: list[int] = []
    followers: dict[int, list[int]] = {}
    for index, node in enumerate(graph.node):
        needs = set()
        for name in reads(node):
            if name in maker:
                needs.add(maker[name])
            elif name not in available:
                who = quote(node.name or node.op_type)
                raise LoadError(path, f"node {who} reads {quote(name)}, which no node produces")
        waiting.append(len(needs))
        for need in needs:
            followers.setdefault(need, []).append(index)
    ready = [index for index, count in enumerate(waiting) if count == 0]
    order = []
    while ready:
        index = heapq.heappop(ready)
        order.append(index)
        for follower in followers.get(index, ()):
            waiting[follower] -= 1
            if waiting[follower] == 0:
                heapq.heappush(ready, follower)
    if len(order) < len(waiting):
        stuck = next(index for index, count in enumerate(waiting) if count)
        who = quote(graph.node[stuck].name or graph.node[stuck].op_type)
        raise LoadError(path, f"the graph has a cycle at or before node {who}")
    return order


# Domains with operators whose output shapes onnx or onnxruntime infer. Operators of qti_aisw, the
# windows of LPAI, are rewritten as ONNX operators.
_KNOWN = (*ONNX_DOMAINS, "ai.onnx.ml", "ai.onnx.preview.training", "com.microsoft", "qti_aisw")
_WAYS_OUT = {
    "ZipMap": "remove it at export with the skl2onnx option zipmap=False",
    "SequenceMap": "export the model with the loop unrolled",
}


def is_foreign(node: onnx.NodeProto) -> bool:
    """Return whether a node is from a domain whose operators have unknown output shapes."""
    return node.domain not in _KNOWN and not node.domain.startswith("com.microsoft.")


def first_foreign(nodes: Iterable[onnx.NodeProto]) -> onnx.NodeProto | None:
    """Return the first foreign node (see `is_foreign`), or None."""
    return next((node for node in nodes if is_foreign(node)), None)


def foreign_op(path: Path, node: onnx.NodeProto) -> LoadError:
    """Return the error about an operator with unknown output shapes."""
    who = f"{quote(node.op_type)[1:-1]} {quote(node.name or next(iter(node.output), ''))}"
    return LoadError(
        path,
        f"operator {who} of domain {quote(node.domain)} is not an ONNX operator, so its "
        "output shapes are unknown",
        cure="export it as standard ONNX operators, or define it as a function inside the model",
    )


def no_tensor(path: Path, name: str, nodes: Iterable[onnx.NodeProto]) -> LoadError:
    """Return the error about a value that is a sequence, a map or an optional."""
    node = next((node for node in nodes if name in node.output), None)
    who = "" if node is None else f", output of {quote(node.op_type)},"
    return LoadError(
        path,
        f"tensor {quote(name)}{who} is a sequence, map or optional; only tensors are supported",
        cure="" if node is None else _WAYS_OUT.get(node.op_type, ""),
    )


def check_outputs(path: Path, graph: AnyGraph) -> None:
    """Raise LoadError for outputs that are not tensors, before the user is asked for sizes."""
    for item in graph.output:
        kind = item.type.WhichOneof("value")
        maker = next((node for node in graph.node if item.name in node.output), None)
        zipped = maker is not None and maker.op_type == "ZipMap" and maker.domain == "ai.onnx.ml"
        if zipped or kind not in (None, "tensor_type"):
            raise no_tensor(path, item.name, graph.node)


def check_foreign(path: Path, graph: AnyGraph, declared: Collection[str]) -> None:
    """Raise LoadError for custom operators whose output types the file does not declare."""
    for index in live(graph):
        node = graph.node[index]
        if is_foreign(node) and not all(name in declared for name in node.output if name):
            raise foreign_op(path, node)
