"""Small questions about ONNX graphs: bodies, captured names, order."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from qnnmem.errors import LoadError
from qnnmem.text import quote

if TYPE_CHECKING:
    import onnx

ONNX_DOMAINS = ("", "ai.onnx")
QUANT_DOMAINS = (*ONNX_DOMAINS, "com.microsoft")
_GRAPH, _GRAPHS = 5, 10  # AttributeProto.AttributeType


def is_op(node: onnx.NodeProto, *types: str) -> bool:
    """Whether a node is one of these ops of the ONNX standard."""
    return node.op_type in types and node.domain in ONNX_DOMAINS


def is_quant(node: onnx.NodeProto, kind: str) -> bool:
    """Whether a node is QuantizeLinear or DequantizeLinear of either domain that has them."""
    return node.op_type == kind and node.domain in QUANT_DOMAINS


def attribute(node: onnx.NodeProto, name: str) -> onnx.AttributeProto | None:
    """Attribute of that name, if the node has it."""
    return next((found for found in node.attribute if found.name == name), None)


def integer(node: onnx.NodeProto, name: str, default: int) -> int:
    """Integer attribute's value."""
    found = attribute(node, name)
    return default if found is None else found.i


def bodies(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """Graphs inside a node, in attribute order."""
    for found in node.attribute:
        if found.HasField("g"):
            yield found.g
        yield from found.graphs


def reads(node: onnx.NodeProto) -> list[str]:
    """Every name a node reads: inputs, then names its bodies capture; each once."""
    names = dict.fromkeys(node.input)
    names.pop("", None)
    for body in bodies(node):
        names.update(dict.fromkeys(captured(body)))
    return list(names)


def captured(graph: onnx.GraphProto) -> list[str]:
    """Names a body reads that it does not define itself, nested bodies included."""
    own = set(defined(graph))
    names: dict[str, None] = {}
    for node in graph.node:
        names.update(dict.fromkeys(name for name in reads(node) if name not in own))
    names.update(dict.fromkeys(out.name for out in graph.output if out.name not in own))
    return list(names)


def defined(graph: onnx.GraphProto) -> Iterator[str]:
    """Names a graph defines at its own level."""
    yield from (item.name for item in graph.input)
    yield from (item.name for item in graph.initializer)
    for node in graph.node:
        yield from (name for name in node.output if name)


def sort_nodes(path: Path, graph: onnx.GraphProto, outer: Iterable[str] = ()) -> None:
    """Bring nodes into execution order, stably and in place; cycles are refused."""
    available = {*outer, *(item.name for item in (*graph.input, *graph.initializer))}
    maker: dict[str, int] = {}
    for index, node in enumerate(graph.node):
        maker.update((name, index) for name in node.output if name)
    order = _order(path, graph, available, maker)
    if order != list(range(len(order))):
        nodes = [type(graph.node[0]).FromString(graph.node[i].SerializeToString()) for i in order]
        del graph.node[:]
        graph.node.extend(nodes)
    for name in (out.name for out in graph.output):
        if name not in maker and name not in available:
            raise LoadError(path, f"output {quote(name)} is produced by no node")
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
                raise LoadError(path, f"node {who} reads {quote(name)}, which nothing produces")
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
        raise LoadError(path, f"the graph has a cycle through or before node {who}")
    return order
