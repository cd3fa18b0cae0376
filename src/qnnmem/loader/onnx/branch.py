"""The nodes of the branch taken in the place of an If."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from qnnmem.loader.onnx.graph import OnnxGraph, bodies, defined

if TYPE_CHECKING:
    import onnx


def inline_branches(
    graph: OnnxGraph, taken: Mapping[int, onnx.GraphProto], used: set[str]
) -> OnnxGraph:
    """Graph in which Ifs, named by their position, gave way to the branch taken; `used` grows."""
    nodes: list[onnx.NodeProto] = []
    stored = list(graph.initializer)
    for index, node in enumerate(graph.node):
        if index not in taken:
            nodes.append(node)
            continue
        branch = type(taken[index])()
        branch.CopyFrom(taken[index])
        nodes.extend(_inline(branch, list(node.output), used))
        stored.extend(branch.initializer)
    return replace(graph, node=tuple(nodes), initializer=tuple(stored))


def _inline(branch: onnx.GraphProto, outputs: list[str], used: set[str]) -> list[onnx.NodeProto]:
    """Nodes of a branch that the caller owns, renamed in place so that they fit outside."""
    made = {name for node in branch.node for name in node.output if name}
    renamed: dict[str, str] = {}
    forwards = []
    for result, target in zip((out.name for out in branch.output), outputs, strict=False):
        if not target:
            continue
        if result in made and result not in renamed:
            renamed[result] = target
        else:  # an outer tensor, a stored one, or one result given twice
            forwards.append((result, target))
    for name in defined(branch):
        if name not in renamed and name in used:
            renamed[name] = _fresh(name, used)
        used.add(renamed.get(name, name))
    _rename(branch, renamed)
    return [
        *branch.node,
        *(_identity(renamed.get(name, name), target) for name, target in forwards),
    ]


def _identity(source: str, target: str) -> onnx.NodeProto:
    import onnx

    node = onnx.NodeProto()
    node.op_type, node.name = "Identity", target
    node.input.append(source)
    node.output.append(target)
    return node


def _fresh(name: str, used: set[str]) -> str:
    number = 1
    while (candidate := f"{name}/{number}") in used:
        number += 1
    return candidate


def _rename(graph: onnx.GraphProto, names: Mapping[str, str]) -> None:
    for item in (*graph.input, *graph.initializer, *graph.output):
        item.name = names.get(item.name, item.name)
    for node in graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
        node.output[:] = [names.get(name, name) for name in node.output]
        for body in bodies(node):
            own = set(defined(body))
            _rename(body, {old: new for old, new in names.items() if old not in own})
