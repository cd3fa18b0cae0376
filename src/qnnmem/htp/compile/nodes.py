"""Refused nodes as the model has them: their own names, and the types of what they take."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from qnnmem.errors import LoadError
from qnnmem.htp.compile.refused import (
    RefusedNode,
    has_no_builder,
    is_about_type,
    meaning,
    unknown_operator,
    unknown_tensors,
)
from qnnmem.results.footprint import OnnxNode
from qnnmem.targets.socs import Soc

if TYPE_CHECKING:
    import onnx

# ONNX Runtime makes a node anew in the layout that QNN wants, under a name of its own.
_REMADE = re.compile(r"_token_\d{1,9}$")
_SHOWN = 8  # tensors of a node, each
# Of these alone QNN makes no graph.
_NO_WORK = ("Constant", "QuantizeLinear", "DequantizeLinear")
_UNTOLD = "?"  # the type of a tensor that the file does not tell
_UNMAPPED = ("bfloat16", "complex64", "complex128", "float8", "string", "uint4", "int4")


class Described(NamedTuple):
    """Refused nodes in the model's own words."""

    nodes: tuple[RefusedNode, ...]
    all_refused: bool = False  # nothing of the model is left to compile


def described(nodes: Sequence[RefusedNode], model: Path, soc: Soc) -> Described:
    """The nodes with names, types, shapes and reasons, as far as the model is readable."""
    from qnnmem.loader.onnx import read_guarded

    if not nodes:
        return Described(())
    # Without a verdict on the node the log is too terse to hold a reason.
    said = tuple(
        node
        if node.index is None or node.reason
        else replace(node, reason=meaning(node.line, soc.name))
        for node in nodes
    )
    try:
        graph = read_guarded(model).proto.graph
    except LoadError:
        return Described(said)
    types = _types(graph)
    by_name = {node.name: node for node in graph.node if node.name}
    found = tuple(_described(node, graph.node, by_name, types) for node in said)
    working = sum(node.op_type not in _NO_WORK for node in graph.node)
    left = sum(node.operator not in _NO_WORK for node in nodes)
    return Described(found, left >= working)


def with_origins(
    listed: Sequence[RefusedNode], judged: Sequence[RefusedNode], model: Path
) -> tuple[RefusedNode, ...]:
    """Refused nodes of which the model knows: ONNX Runtime puts functions in the place of some.

    Such a function is `judged` first, as one node, and is not `listed`: its parts are, without
    names.
    """
    names = {(node.name, node.operator) for node in listed}
    origins = [n for n in judged if (n.name, n.operator) not in names and has_no_builder(n.line)]
    kinds = _nameless_kinds(model) if origins else None
    if kinds is None:
        return tuple(listed)
    parts = [node for node in listed if not node.name and node.operator not in kinds]
    if not parts:
        return tuple(listed)
    shown = ", ".join(sorted({node.operator for node in parts}))
    what = f"QNN has no operator of this type, and ONNX Runtime computes it by {shown}, which"
    why = f"{what} QNN refuses"
    rest = [node for node in listed if node not in parts]
    return (*(replace(one, reason=why) for one in origins), *rest)


def _nameless_kinds(model: Path) -> set[str] | None:
    """Types of the nodes of a model that have no names; None where it cannot be read."""
    from qnnmem.loader.onnx import read_guarded

    try:
        nodes = read_guarded(model).proto.graph.node
    except LoadError:
        return None
    return {node.op_type for node in nodes if not node.name}


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
    from qnnmem.loader.onnx import read_guarded

    unknown = unknown_operator(sentence)
    if unknown is None:
        return _of_unknown_type(sentence, model, soc)
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


def _of_unknown_type(sentence: str, model: Path, soc: Soc) -> Described:
    """The nodes that take or give tensors which ONNX Runtime itself does not have."""
    from qnnmem.loader.onnx import read_guarded

    element = unknown_tensors(sentence)
    if not element:
        return Described(())
    try:
        graph = read_guarded(model).proto.graph
    except LoadError:
        return Described(())
    types = _types(graph)
    found = [
        RefusedNode(node.name, node.op_type, sentence, index=at)
        for at, node in enumerate(graph.node)
        if any(types.get(name, "").startswith(element) for name in (*node.input, *node.output))
    ]
    return Described(described(found, model, soc).nodes, all_refused=True)


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
    takes, gives = _typed(found.input, types), _typed(found.output, types)
    if {*takes, *gives} == {_UNTOLD}:
        takes = gives = ()
    reason = refused.reason
    if is_about_type(refused.line):
        reason = _with_type(reason, (*takes, *gives))
    name = found.name or next(filter(None, found.output), "")
    return replace(refused, name=name, inputs=takes, outputs=gives, reason=reason)


def _with_type(reason: str, tensors: Iterable[str]) -> str:
    """A reason that names the type which has no counterpart, where it can only be one."""
    words = {text.split(" ")[0] for text in tensors}
    found = sorted(words & set(_UNMAPPED))
    return f"ONNX Runtime has no data type of QNN for {found[0]}" if len(found) == 1 else reason


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
    return tuple(types.get(name, _UNTOLD) for name in names if name)[:_SHOWN]


def _types(graph: onnx.GraphProto) -> dict[str, str]:
    """Type and shape of every tensor that the file tells."""
    from qnnmem.loader.onnx.tensor import type_of

    found = {}
    for info in (*graph.input, *graph.output, *graph.value_info):
        known = type_of(info)
        if known is not None and known.elem:
            found[info.name] = _words(_name_of(known.elem), known.shape)
    for tensor in graph.initializer:
        found[tensor.name] = _words(_name_of(tensor.data_type), tuple(tensor.dims))
    return found


def _name_of(element: int) -> str:
    from qnnmem.htp.compile.refused import element_name
    from qnnmem.loader.onnx.tensor import DTYPES

    return DTYPES[element].value if element in DTYPES else element_name(element)


def _words(element: str, shape: tuple[int, ...] | None) -> str:
    if shape is None:
        return element
    return f"{element} {'x'.join(map(str, shape))}" if shape else f"{element} scalar"
