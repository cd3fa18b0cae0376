"""The ONNX model that stands for a context binary, so that ONNX Runtime can execute it."""

from __future__ import annotations

from typing import NamedTuple

from qnnmem.errors import CannotTell
from qnnmem.htp.binary.context import HtpGraph, HtpTensor
from qnnmem.text import quote


class OnnxElement(NamedTuple):
    """An element type by its number in ONNX and its name in NumPy."""

    onnx: int
    numpy: str


_BY_BITS = {
    ("FLOAT", 32): OnnxElement(1, "float32"),
    ("FLOAT", 16): OnnxElement(10, "float16"),
    ("U", 8): OnnxElement(2, "uint8"),
    ("U", 16): OnnxElement(4, "uint16"),
    ("U", 32): OnnxElement(12, "uint32"),
    ("U", 64): OnnxElement(13, "uint64"),
    ("S", 8): OnnxElement(3, "int8"),
    ("S", 16): OnnxElement(5, "int16"),
    ("S", 32): OnnxElement(6, "int32"),
    ("S", 64): OnnxElement(7, "int64"),
    ("BOOL", 8): OnnxElement(9, "bool"),
}


def onnx_type(tensor: HtpTensor) -> OnnxElement:
    """How ONNX Runtime hands over a tensor of a binary; quantized values are plain integers."""
    name, bits = tensor.data_type.name, tensor.data_type.bits
    family = name.split("_")[0].removesuffix("FIXED").removesuffix("INT") or "S"
    found = _BY_BITS.get((family, bits))
    if found is None:
        raise CannotTell(f"tensor {quote(tensor.name)} is {name}, which ONNX Runtime does not take")
    return found


def epcontext_model(graph: HtpGraph, binary_name: str) -> bytes:
    """A model of one EPContext node that names a binary beside it."""
    from onnx import helper

    node = helper.make_node(
        "EPContext",
        [tensor.name for tensor in graph.inputs],
        [tensor.name for tensor in graph.outputs],
        name=graph.name,
        domain="com.microsoft",
        embed_mode=0,
        ep_cache_context=binary_name,
        main_context=1,
        partition_name=graph.name,
        source="QNNExecutionProvider",
    )
    inputs, outputs = (
        [
            helper.make_tensor_value_info(t.name, onnx_type(t).onnx, list(t.dimensions))
            for t in tensors
        ]
        for tensors in (graph.inputs, graph.outputs)
    )
    made = helper.make_graph([node], "graph", inputs, outputs)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    blob: bytes = helper.make_model(made, opset_imports=opsets, ir_version=8).SerializeToString()
    return blob
