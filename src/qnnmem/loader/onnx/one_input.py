"""Models whose sizes hold for one input only: a given value, a stated or a measured shape."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from qnnmem.loader.onnx.flow import CONTROL, SHAPING
from qnnmem.loader.onnx.foreign import is_foreign
from qnnmem.loader.onnx.graph import bodies, is_op, reads
from qnnmem.text import quote

if TYPE_CHECKING:
    import onnx

    from qnnmem.loader.onnx.graph import OnnxGraph
    from qnnmem.loader.onnx.scope import Scope

_SHOWN = 3
# Operators of ONNX Runtime whose output shapes depend on data; those of its others follow from the
# shapes of their inputs.
_BY_DATA = frozenset(
    (
        *("BeamSearch", "GreedySearch", "WhisperBeamSearch", "Sampling", "Tokenizer", "Range"),
        *("ConvTransposeWithDynamicPads", "DynamicTimeWarping", "ExpandDims", "Unique"),
    )
)
_DECIDING = {"If": (0,), "Loop": (0, 1)}  # inputs that choose a branch or count the turns


def inputs_it_holds_for(
    graph: OnnxGraph,
    scope: Scope,
    valued: Mapping[str, str],
    stated: Mapping[str, tuple[int, ...]],
) -> Iterator[str]:
    """Sentences about what an input must have in common with the one that was planned.

    `graph` is the model before constants are folded, `scope` the same with every shape found.
    """
    for name, text in valued.items():
        node = _decided(graph.node, {name})
        if node is not None:  # a value that is only computed with changes no size
            yield f"holds for {quote(name)} = {text} only: {_named(node)} depends on it"
    makers: dict[str, onnx.NodeProto] = {}
    measured: list[str] = []
    for inner in scope.with_bodies():
        makers |= {name: node for node in inner.graph.node for name in node.output if name}
        measured += (name for name in inner.measured if _may_vary(makers.get(name)))
    for name in sorted(stated.keys() - {item.name for item in graph.input}):
        shape = "x".join(map(str, stated[name])) or "a scalar"
        yield f"holds while {_made(name, makers)} is no larger than the stated {shape}"
    measured = [name for name in measured if name not in stated]
    if measured:
        shown = ", ".join(_made(name, makers) for name in measured[:_SHOWN])
        more = f" and {len(measured) - _SHOWN} more" if len(measured) > _SHOWN else ""
        yield f"holds for inputs that give the shapes measured in a trial run: {shown}{more}"


def _decided(nodes: Iterable[onnx.NodeProto], known: set[str]) -> onnx.NodeProto | None:
    """The first node whose branch, turns or output shape follow from the values of `known`."""
    known = set(known)
    for node in nodes:
        deciding = _DECIDING.get(node.op_type, SHAPING.get(node.op_type, ()))
        if any(at < len(node.input) and node.input[at] in known for at in deciding):
            return node
        if is_op(node, "Shape", "Size") or known.isdisjoint(reads(node)):
            continue
        known.update(filter(None, node.output))
        for body in bodies(node):
            if found := _decided(body.node, known):
                return found
    return None


def _may_vary(node: onnx.NodeProto | None) -> bool:
    """Whether nothing but a trial run says what shape a node gives."""
    if node is None:
        return False
    return is_op(node, *CONTROL) or is_foreign(node) or node.op_type in _BY_DATA


def _made(name: str, makers: Mapping[str, onnx.NodeProto]) -> str:
    return quote(name) + (f" of {_named(makers[name])}" if name in makers else "")


def _named(node: onnx.NodeProto) -> str:
    return f"{node.op_type} {quote(node.name or node.output[0])}"
