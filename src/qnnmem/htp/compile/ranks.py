"""Numbers of dimensions that follow from the operators, beside those that a file declares.

Only rules that need no values are here; what they do not reach stays unknown. A compile takes a
wrong declaration as it is, and fails much later, or gives an output of another shape.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from qnnmem.htp.compile.compiled import CompileOptions
from qnnmem.text import quote

if TYPE_CHECKING:
    import onnx

_BROADCAST = frozenset(
    {
        *("Add", "And", "BitShift", "Div", "Equal", "Greater", "GreaterOrEqual", "Less"),
        *("LessOrEqual", "Max", "Mean", "Min", "Mod", "Mul", "Or", "Pow", "Sub", "Sum"),
        *("Where", "Xor"),
    }
)
_SAME = frozenset(
    {
        *("Abs", "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "AveragePool"),
        *("BatchNormalization", "Cast", "Ceil", "Celu", "Clip", "Concat", "Conv"),
        *("ConvTranspose", "Cos", "Cosh", "CumSum", "DepthToSpace", "DequantizeLinear"),
        *("Dropout", "Elu", "Erf", "Exp", "Floor", "Gelu", "GlobalAveragePool"),
        *("GlobalMaxPool", "HardSigmoid", "HardSwish", "Hardmax", "Identity"),
        *("InstanceNormalization", "LRN", "LayerNormalization", "LeakyRelu", "Log"),
        *("LogSoftmax", "LpPool", "MaxPool", "Mish", "Neg", "Not", "PRelu", "Pad"),
        *("QuantizeLinear", "Reciprocal", "Relu", "Resize", "Round", "Selu", "Shrink"),
        *("Sigmoid", "Sign", "Sin", "Sinh", "Slice", "Softmax", "Softplus", "Softsign"),
        *("SpaceToDepth", "Split", "Sqrt", "Tan", "Tanh", "ThresholdedRelu", "Tile", "TopK"),
        *("Transpose",),
    }
)
_FIXED = {"Flatten": (2,), "Gemm": (2,), "Shape": (1,), "LSTM": (4, 3, 3), "GRU": (4, 3)}


def wrong_ranks(graph: onnx.GraphProto, options: CompileOptions) -> Iterator[str]:
    """Sentences about tensors that are declared with another number of dimensions than they get."""
    declared = {
        info.name: [size.dim_value or size.dim_param or "?" for size in _sizes(info)]
        for info in (*graph.value_info, *graph.output)
        if info.type.tensor_type.HasField("shape")
    }
    constants = {tensor.name: tensor for tensor in graph.initializer}
    known = {name: len(tensor.dims) for name, tensor in constants.items()}
    for info in graph.input:
        if info.name in options.shapes:
            known[info.name] = len(options.shapes[info.name])
        elif info.type.tensor_type.HasField("shape"):
            known.setdefault(info.name, len(_sizes(info)))
    for node in graph.node:
        for name, rank in zip(node.output, _ranks(node, known, constants), strict=False):
            if rank is None:
                continue
            known[name] = rank
            if name in declared and len(declared[name]) != rank:
                shape = "x".join(map(str, declared[name])) or "scalar"
                which = f"{quote(node.name)} ({node.op_type})" if node.name else node.op_type
                yield (
                    f"tensor {quote(name)} is declared with {len(declared[name])} dimensions "
                    f"({shape}), and {which} gives {rank}"
                )


def _sizes(info: onnx.ValueInfoProto) -> list[onnx.TensorShapeProto.Dimension]:
    return list(info.type.tensor_type.shape.dim)


def _ranks(
    node: onnx.NodeProto, known: Mapping[str, int], constants: Mapping[str, onnx.TensorProto]
) -> tuple[int | None, ...]:
    """The rank of each output, None where it is not known."""
    if node.domain not in ("", "ai.onnx"):
        return ()
    given = [known.get(name) for name in node.input if name]
    first, count = given[0] if given else None, len(node.output)
    if node.op_type in _FIXED:
        return _FIXED[node.op_type]
    if node.op_type in _SAME:
        return (first,) * count
    if node.op_type in _BROADCAST:
        ranks = [rank for rank in given if rank is not None]
        return (max(ranks) if len(ranks) == len(given) and ranks else None,)
    if node.op_type == "MatMul" and all(rank is not None and rank >= 2 for rank in given):
        return (max(rank for rank in given if rank is not None),)
    if node.op_type == "Gather" and len(given) == 2 and None not in given:
        return (sum(rank for rank in given if rank is not None) - 1,)
    if node.op_type == "Reshape" and len(node.input) > 1 and node.input[1] in constants:
        return (_length(constants[node.input[1]]),)
    return (_reduced(node, first, constants),)


def _reduced(
    node: onnx.NodeProto, rank: int | None, constants: Mapping[str, onnx.TensorProto]
) -> int | None:
    """The rank after axes are added or taken away; None where they are not known."""
    given = {item.name: item for item in node.attribute}
    kept = given["keepdims"].i if "keepdims" in given else 1
    if rank is None or node.op_type.startswith("ArgM"):
        return rank if kept or rank is None else rank - 1
    is_reduce = node.op_type.startswith("Reduce")
    if is_reduce and kept:
        return rank
    axes = next((constants[name] for name in node.input[1:2] if name in constants), None)
    count = len(given["axes"].ints) if "axes" in given else axes and _length(axes)
    if not count or not (is_reduce or node.op_type in ("Squeeze", "Unsqueeze")):
        return None
    return rank + count if node.op_type == "Unsqueeze" else rank - count


def _length(tensor: onnx.TensorProto) -> int | None:
    """Elements of a one-dimensional constant."""
    return tensor.dims[0] if len(tensor.dims) == 1 else None
