"""The EPContext model: a small ONNX file with which ONNX Runtime loads a context binary."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from qnnmem.errors import WorkerError
from qnnmem.results.footprint import MissingOutput

if TYPE_CHECKING:
    import onnx

_EPCONTEXT = "EPContext"


def rename_binary(epcontext: bytes, old: str, new: str) -> bytes:
    """The model with its binary under another name; both files lie in one folder."""
    model = _parsed(epcontext)
    for node in model.graph.node:
        for attribute in node.attribute:
            if attribute.name == "ep_cache_context" and attribute.s == old.encode():
                attribute.s = new.encode()
    return bytes(model.SerializeToString(deterministic=True))


def _parsed(epcontext: bytes) -> onnx.ModelProto:
    """The model; WorkerError if it is none: a remote worker may send anything."""
    import onnx
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]  # no stubs

    try:
        model: onnx.ModelProto = onnx.ModelProto.FromString(epcontext)
    except DecodeError as exc:
        raise WorkerError("the EPContext model that came with the binary is no ONNX model") from exc
    return model


def missing_in_epcontext(
    outputs: Sequence[str], epcontext: bytes, binary: str
) -> Iterator[MissingOutput]:
    """Outputs that the EPContext model of a binary does not take from that binary."""
    graph = _parsed(epcontext).graph
    made = {name: node for node in graph.node for name in node.output}
    constants = {item.name for item in graph.initializer}
    inputs = {item.name for item in graph.input}
    for name in outputs:
        node = made.get(name)
        if node is not None and node.op_type == _EPCONTEXT and _is_of(node, binary):
            continue
        if node is None:
            reason = "a constant" if name in constants else "an input" if name in inputs else ""
            yield MissingOutput(name, reason)
        elif node.op_type == _EPCONTEXT:
            yield MissingOutput(name, "in another binary")
        else:
            yield MissingOutput(name, f"{node.op_type} on the CPU")


def _is_of(node: onnx.NodeProto, binary: str) -> bool:
    """Whether a node runs a graph of the binary; only main nodes name theirs."""
    found = {item.name: item for item in node.attribute}
    if "main_context" in found and not found["main_context"].i:
        return True
    return "ep_cache_context" in found and found["ep_cache_context"].s == binary.encode()
