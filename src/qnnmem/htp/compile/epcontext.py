"""The EPContext model: a small ONNX file with which ONNX Runtime loads a context binary."""

from __future__ import annotations


def rename_binary(epcontext: bytes, old: str, new: str) -> bytes:
    """The model with its binary under another name; both files lie in one folder."""
    import onnx

    model = onnx.ModelProto.FromString(epcontext)
    for node in model.graph.node:
        for attribute in node.attribute:
            if attribute.name == "ep_cache_context" and attribute.s == old.encode():
                attribute.s = new.encode()
    return bytes(model.SerializeToString(deterministic=True))
