"""Operators of ONNX that public material names for LPAI; the official list is not public.

A program at the desk runs all operators of the standard. On the device, one that is not listed here
may be refused: nobody outside can say.
"""

from __future__ import annotations

from collections.abc import Iterable

from qnnmem.loader.onnx.graph import QUANT_DOMAINS

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


def unknown_operators(nodes: Iterable[tuple[str, str]]) -> dict[str, int]:
    """Operators that nothing public names for LPAI, and how often; given by kind and domain."""
    found: dict[str, int] = {}
    for kind, domain in nodes:
        plain = kind.removeprefix("QLinear")  # the quantized form of an operator
        ours = domain in (*QUANT_DOMAINS, "qti_aisw")
        if plain not in KNOWN or not ours:
            found[kind] = found.get(kind, 0) + 1
    return found
