"""Refused nodes as the model has them: their own names, and the types of what they take."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from qnnmem.errors import LoadError
from qnnmem.htp.compile.reason import meaning, unknown_operator
from qnnmem.htp.compile.refused import RefusedNode
from qnnmem.htp.compile.value import OnnxNode
from qnnmem.targets.socs import Soc

if TYPE_CHECKING:
    import onnx

# ONNX Runtime makes a node anew in the layout that QNN wants, under a name of its own.
_REMADE = re.compile(r"_token_\d{1,9}$")
_SHOWN = 8  # tensors of a node, each


class Described(NamedTuple):
    """Refused nodes in the model's own words."""

    nodes: tuple[RefusedNode, ...]
    all_refused: bool = False  # nothing of the model is left to compile


def described(nodes: Sequence[RefusedNode], model: Path, soc: Soc) -> Described:
    """The nodes with names, types, shapes and reasons, as far as the model is readable."""
    from qnnmem.load.onnx import read_guarded

    if not nodes:
        return Described(())
    # Without a verdict on the node the log is too terse to hold a reason.
    said = tuple(
        node if node.index is None else replace(node, reason=meaning(node.line, soc.name))
        for node in nodes
    )
    try:
        graph = read_guarded(model).proto.graph
    except LoadError:
        return Described(said)
    types = _types(graph)
    by_name = {node.name: node for node in graph.node if node.name}
    found = tuple(_described(node, graph.node, by_name, types) for node in said)
    working = sum(node.op_type != "Constant" for node in graph.node)
    return Described(found, len(nodes) >= working)


def named(
    on_cpu: Iterable[Sequence[str]], refused: Iterable[RefusedNode], model: Path, soc: Soc
) -> tuple[OnnxNode, ...]:
    """Nodes that stay on the CPU, with the reasons why they were refused."""
    nodes = tuple(refused)
    left = list(zip(nodes, described(nodes, model, soc).nodes, strict=True))
    found = []
    for name, operator in on_cpu:
        same = (pair for pair in left if (pair[0].name, pair[0].operator) == (name, operator))
        pair = next(same, None)
        if pair is None:
            found.append(OnnxNode(name, operator))
            continue
        left.remove(pair)
        found.append(OnnxNode(pair[1].name, operator, pair[1].reason))
    return tuple(found)


def unknown_nodes(sentence: str, model: Path, soc: Soc) -> Described:
    """The nodes of an operator that ONNX Runtime itself does not know."""
    from qnnmem.load.onnx import read_guarded

    unknown = unknown_operator(sentence)
    if unknown is None:
        return Described(())
    domain, operator = unknown
    try:
        nodes = read_guarded(model).proto.graph.node
    except LoadError:
        nodes = ()
    found = [
        RefusedNode(node.name, operator, sentence, index=at)
        for at, node in enumerate(nodes)
        if node.op_type == operator and (not domain or node.domain == domain)
    ]
    # Such a model is refused as a whole, before any node is judged.
    nodes_ = described(found or [RefusedNode("", operator, sentence, index=-1)], model, soc).nodes
    return Described(nodes_, all_refused=True)


def _described(
    refused: RefusedNode,
    nodes: Sequence[onnx.NodeProto],
    by_name: Mapping[str, onnx.NodeProto],
    types: Mapping[str, str],
) -> RefusedNode:
    name = refused.name
    if name not in by_name:
        name = _REMADE.sub("", name)
    found = by_name.get(name) if name else _at(refused, nodes)
    if found is None:
        return refused
    return replace(
        refused,
        name=found.name or next(filter(None, found.output), ""),
        inputs=_typed(found.input, types),
        outputs=_typed(found.output, types),
    )


def _at(refused: RefusedNode, nodes: Sequence[onnx.NodeProto]) -> onnx.NodeProto | None:
    """A node without a name, by its place; by its type where only one such is there."""
    index = refused.index
    if index is not None and 0 <= index < len(nodes):
        node = nodes[index]
        if node.op_type == refused.operator and not node.name:
            return node
    alike = [node for node in nodes if node.op_type == refused.operator and not node.name]
    return alike[0] if len(alike) == 1 else None


def _typed(names: Iterable[str], types: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(types[name] for name in names if name in types)[:_SHOWN]


def _types(graph: onnx.GraphProto) -> dict[str, str]:
    """Type and shape of every tensor that the file tells."""
    from qnnmem.load.onnx.tensor import type_of

    found = {}
    for info in (*graph.input, *graph.output, *graph.value_info):
        known = type_of(info)
        if known is not None and known.elem:
            found[info.name] = _words(_name_of(known.elem), known.shape)
    for tensor in graph.initializer:
        found[tensor.name] = _words(_name_of(tensor.data_type), tuple(tensor.dims))
    return found


def _name_of(element: int) -> str:
    from qnnmem.load.onnx.tensor import DTYPES, STRING

    if element in DTYPES:
        return DTYPES[element].value
    return "string" if element == STRING else f"type {element}"


def _words(element: str, shape: tuple[int, ...] | None) -> str:
    if shape is None:
        return element
    return f"{element} {'x'.join(map(str, shape))}" if shape else f"{element} scalar"
