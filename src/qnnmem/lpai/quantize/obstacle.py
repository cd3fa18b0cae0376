"""Why a model cannot be quantized on the way: the operator, its node, and what would help."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from qnnmem.errors import Setting, Words
from qnnmem.loader.onnx.graph import QUANT_DOMAINS, OnnxGraph, is_op, live
from qnnmem.loader.onnx.sizes.free_dimensions import find_open_inputs
from qnnmem.lpai.program.contents import may_hold
from qnnmem.text import quote

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import onnx

_CONTROL = ("If", "Loop", "Scan")
_QUANTIZED = ("QuantizeLinear", "DynamicQuantizeLinear", "DynamicQuantizeLSTM", "QGemm")
_FLOAT = 1
_FLOATS = {10: "float16", 11: "float64", 16: "bfloat16"}  # of ONNX's element types


@dataclass(frozen=True, slots=True)
class Obstacle:
    """What no quantizing gets past, as a clause, and whether the desk runs it in floats."""

    words: Words
    runs_at_desk: bool = True
    unquantized: str = ""  # what whoever asked for quantizing could do without it


def find_obstacle(model: onnx.ModelProto) -> Obstacle | None:
    """The first thing in a float model that the quantizer cannot take."""
    nodes = [model.graph.node[at] for at in live(model.graph)]
    if words := _foreign(nodes):
        return Obstacle(words, runs_at_desk=False)
    if words := _quantized_already(nodes):
        return Obstacle(words, unquantized=", or leave it as it is if no op computes in floats")
    found = _nothing_known(nodes) or _other_float(nodes, _kinds(model.graph))
    return Obstacle(found) if found else None


def find_control(model: onnx.ModelProto) -> Obstacle | None:
    """The first branch or loop that gives floats: the quantizer passes over what is inside."""
    nodes = [model.graph.node[at] for at in live(model.graph)]
    found = _left_control(model, nodes, _kinds(model.graph))
    return Obstacle(found) if found else None


def _kinds(graph: onnx.GraphProto) -> dict[str, int]:
    """Element types of tensors."""
    infos = (*graph.value_info, *graph.input, *graph.output)
    return {
        **{info.name: info.type.tensor_type.elem_type for info in infos},
        **{item.name: item.data_type for item in graph.initializer},
    }


def _quantized_already(nodes: Iterable[onnx.NodeProto]) -> str:
    """A node that only quantized models have."""
    for node in nodes:
        kind = node.op_type
        if kind in _QUANTIZED or kind.startswith("QLinear") or kind.endswith("Integer"):
            return (
                f"is quantized in part already, by {_who(node)}; quantize the float model that it "
                "was made from"
            )
    return ""


def _nothing_known(nodes: Iterable[onnx.NodeProto]) -> str:
    """Models of trees and the like, which have no operator that could be quantized."""
    domains = dict.fromkeys(node.domain for node in nodes)
    if not domains or any(domain in QUANT_DOMAINS for domain in domains):
        return ""
    return f"all operators are of domain {quote(next(iter(domains)))}, none can be quantized"


def _foreign(nodes: Iterable[onnx.NodeProto]) -> str:
    for node in nodes:
        if not may_hold(node):
            domain = f" of domain {quote(node.domain)}" if node.domain else ""
            return f"{_who(node)}{domain} cannot be prepared; export it as other ONNX operators"
    return ""


def _other_float(nodes: Iterable[onnx.NodeProto], kinds: Mapping[str, int]) -> str:
    """A node that computes in other floats than the quantizer takes."""
    for node in nodes:
        for name in (*node.input, *node.output):
            if kinds.get(name) in _FLOATS and not is_op(node, "Cast"):
                kind = _FLOATS[kinds[name]]
                return (
                    f"{_who(node)} computes in {kind}, and only float32 can be quantized; convert "
                    "the model to float32 first"
                )
    return ""


def _left_control(
    model: onnx.ModelProto, nodes: Iterable[onnx.NodeProto], kinds: Mapping[str, int]
) -> Words:
    """Branches and loops that give floats, in which nothing is quantized."""
    left = (node for node in nodes if is_op(node, *_CONTROL))
    node = next((n for n in left if any(kinds.get(o, _FLOAT) == _FLOAT for o in n.output)), None)
    if node is None:
        return ""
    what = f"{_who(node)} is left, and nothing inside of it is quantized; "
    switches = find_open_inputs(OnnxGraph.of(model.graph)).switches
    if is_op(node, "If") and switches:
        switch = switches[0]
        value = str(switch.value(switch.worth[0])).lower()
        given = Setting("values", f"{switch.input}={value}")
        return (f"{what}fix what decides the branch, e.g. with ", given)
    if is_op(node, "If"):
        return f"{what}export the model with the branch that is taken"
    return f"{what}export the model with the loop unrolled"


def _who(node: onnx.NodeProto) -> str:
    """Operator and node as a sentence names them."""
    name = node.name or next(iter(node.output), "")
    return f"{quote(node.op_type)[1:-1]} {quote(name)}"
