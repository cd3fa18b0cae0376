"""Operators of ONNX that public material names for LPAI; the official list is not public.

A program at the desk runs all operators of the standard. On the device, one that is not listed here
may be refused: nobody outside can say.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from qnnmem.load.onnx.graph import QUANT_DOMAINS

if TYPE_CHECKING:
    import onnx

# Version history of the LPAI backend, Qualcomm document 80-63442-10.
_DOCUMENTED = """
    Add BatchNormalization Buffer Concat DepthToSpace DequantizeLinear GRU Gemm LSTM
    LayerNormalization Mul QuantizeLinear RMSNormalization ReduceMax ReduceMean ReduceMin ReduceSum
    Slice SpaceToDepth Sub Transpose
"""
# What ExecuTorch's quantizer for LPAI takes.
_SEEN = """
    ArgMax ArgMin AveragePool Cast Clip Constant Conv ConvTranspose Div Dropout Exp Expand Flatten
    Gather Gelu GlobalAveragePool GlobalMaxPool HardSwish Identity Log LogSoftmax MatMul Max MaxPool
    Min PRelu Pad Pow Relu Reshape Resize Sigmoid Softmax Split Sqrt Squeeze Tanh Tile TopK
    Unsqueeze
"""
KNOWN = frozenset((*_DOCUMENTED.split(), *_SEEN.split()))


def unknown_operators(nodes: Iterable[onnx.NodeProto]) -> dict[str, int]:
    """Operators that nothing public names for LPAI, and how often a model has them."""
    found: dict[str, int] = {}
    for node in nodes:
        is_whole = node.op_type.startswith("QLinear")  # the quantized form of an operator
        kind = node.op_type.removeprefix("QLinear")
        if kind not in KNOWN or (node.domain not in (*QUANT_DOMAINS, "qti_aisw") and not is_whole):
            found[node.op_type] = found.get(node.op_type, 0) + 1
    return found
