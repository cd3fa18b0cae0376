"""QNN element-wise operators and reductions as ONNX nodes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from qnnmem.loader.dlc.draft import Step
from qnnmem.qnn.enums import DataType

# Indexed by the parameter `operation`.
_BINARY = (
    *("Add", "And", "Divide", "Equal", "FloorDiv", "Fmod", "Greater", "GreaterEqual", "Less"),
    *("LessEqual", "Maximum", "Minimum", "Mod", "Multiply", "NotEqual", "Or", "Power"),
    *("SquaredDifference", "Subtract", "Xor"),
)
_UNARY = (
    *("Abs", "Asin", "Atan", "Ceil", "Cos", "Exp", "Floor", "Log", "Neg", "Not", "Reciprocal"),
    *("Round", "Rsqrt", "Sign", "Sin", "SquareRoot"),
)
_NEURON = (
    *("Elu", "Gelu", "HardSigmoid", "HardSwish", "Relu", "ReluMinMax", "Sigmoid", "Softplus"),
    *("Tanh",),
)
# The equivalent ONNX node.
_SAME = {
    **{name: name for name in ("Add", "And", "Equal", "Greater", "Less", "Mod", "Or", "Xor")},
    **{name: name for name in ("Abs", "Asin", "Atan", "Ceil", "Cos", "Exp", "Floor", "Log", "Neg")},
    **{name: name for name in ("Not", "Reciprocal", "Round", "Sign", "Sin")},
    **{name: name for name in ("HardSwish", "Relu", "Sigmoid", "Tanh")},
    **{"Divide": "Div", "Multiply": "Mul", "Subtract": "Sub", "Power": "Pow"},
    **{"GreaterEqual": "GreaterOrEqual", "LessEqual": "LessOrEqual"},
    **{"Maximum": "Max", "Minimum": "Min", "SquareRoot": "Sqrt"},
}
_LINEAR = 16.0  # from here on, exp(-x) is below the resolution of a 32-bit float
_FLOATS = {DataType.FLOAT_16, DataType.FLOAT_32}


def _numbered(names: tuple[str, ...], step: Step) -> None:
    """Add the nodes of the operator that the parameter `operation` selects."""
    number = int(step.scalar("operation"))
    if number >= len(names):
        raise step.refuse(f"with operation {number} is not supported")
    _apply(names[number], step)


def _apply(name: str, step: Step) -> None:
    values = [step.read(position) for position in range(len(step.op.inputs))]
    compose = _COMPOSED.get(name)
    step.write(compose(step, *values) if compose else step.emit(_SAME[name], *values))


def _elu(step: Step, value: str) -> str:
    return step.emit("Elu", value, alpha=float(step.scalar("alpha", 1.0)))


def _hard_sigmoid(step: Step, value: str) -> str:
    alpha, beta = float(step.scalar("alpha")), float(step.scalar("beta"))
    return step.emit("HardSigmoid", value, alpha=alpha, beta=beta)


def _relu_min_max(step: Step, value: str) -> str:
    return step.emit_clip(value, float(step.scalar("min_value")), float(step.scalar("max_value")))


def _rsqrt(step: Step, value: str) -> str:
    return step.emit("Reciprocal", step.emit("Sqrt", value))


def _squared_difference(step: Step, left: str, right: str) -> str:
    difference = step.emit("Sub", left, right)
    return step.emit("Mul", difference, difference)


def _floor_div(step: Step, left: str, right: str) -> str:
    quotient = step.emit("Div", left, right)
    return step.emit("Floor", quotient) if step.tensor(0).data_type in _FLOATS else quotient


def _select(step: Step) -> None:
    step.write(step.emit("Where", step.raw(0), step.read(1), step.read(2)))


def _prelu(step: Step) -> None:
    step.write(step.emit("PRelu", step.read(0), step.read(1)))


def _cast(step: Step) -> None:
    from onnx import TensorProto

    step.require(dynamic_input_data=(False,), dynamic_output_data=(False,))
    target, source = step.result().data_type, step.tensor(0).data_type
    if target.is_quantized and not source.is_quantized and source not in _FLOATS:
        step.write(step.emit("Cast", step.raw(0), to=TensorProto.FLOAT))
        return
    if target.is_quantized or (source.is_quantized and target in _FLOATS):
        step.write(step.read(0))
        return
    names = {"float32": "FLOAT", "float64": "DOUBLE"}
    name = names.get(target.numpy_name, target.numpy_name.upper())
    step.write_raw(step.emit("Cast", step.read(0), to=TensorProto.DataType.Value(name)))


def _gelu(step: Step, value: str) -> str:
    half = step.emit("Mul", value, step.constant(0.5, "f4"))
    error = step.emit("Erf", step.emit("Mul", value, step.constant(0.5**0.5, "f4")))
    return step.emit("Mul", half, step.emit("Add", error, step.constant(1, "f4")))


def _softplus(step: Step, value: str) -> str:
    """Add a Softplus node and return the name of its result.

    QNN may return inputs above a threshold unchanged. From a threshold of 16 on, the difference is
    negligible.
    """
    step.require(beta=(1.0,))
    threshold = float(step.scalar("threshold", _LINEAR))
    if threshold < _LINEAR:
        raise step.refuse(f"with threshold {threshold} is not supported")
    return step.emit("Softplus", value)


_COMPOSED: dict[str, Callable[..., str]] = {
    "Elu": _elu,
    "FloorDiv": _floor_div,
    "Fmod": lambda step, left, right: step.emit("Mod", left, right, fmod=1),
    "Gelu": _gelu,
    "HardSigmoid": _hard_sigmoid,
    "NotEqual": lambda step, left, right: step.emit("Not", step.emit("Equal", left, right)),
    "ReluMinMax": _relu_min_max,
    "Relu1": lambda step, value: step.emit_clip(value, -1.0, 1.0),
    "Relu6": lambda step, value: step.emit_clip(value, 0.0, 6.0),
    "Rsqrt": _rsqrt,
    "Softplus": _softplus,
    "SquaredDifference": _squared_difference,
}
POINTWISE: dict[str, Callable[[Step], None]] = {
    "ElementWiseBinary": partial(_numbered, _BINARY),
    "ElementWiseUnary": partial(_numbered, _UNARY),
    "ElementWiseNeuron": partial(_numbered, _NEURON),
    "ElementWiseSelect": _select,
    **{f"ElementWise{name}": partial(_apply, name) for name in (*_BINARY, *_UNARY, *_NEURON)},
    **{name: partial(_apply, name) for name in (*_NEURON, "Relu1", "Relu6")},
    "Cast": _cast,
    "Convert": _cast,
    "Dequantize": _cast,
    "Prelu": _prelu,
    "Quantize": _cast,
}

_AS_INTEGERS = {"INT_32": 6, "UINT_32": 12, "INT_64": 7, "UINT_64": 13}


def _reduce(kind: str, step: Step) -> None:
    axes = step.constant(step.array("axes").reshape(-1), "i8")
    keep = int(step.scalar("keep_dims", False))
    step.write(step.emit(kind, step.read(0), axes, keepdims=keep))


def _softmax(kind: str, step: Step) -> None:
    value = step.read(0)
    beta = float(step.scalar("beta", 1.0))
    if beta != 1.0:
        value = step.emit("Mul", value, step.constant(beta, "f4"))
    step.write(step.emit(kind, value, axis=int(step.scalar("axis", len(step.shape()) - 1))))


def _extreme(kind: str, step: Step) -> None:
    axis, keep = int(step.scalar("axis")), int(step.scalar("keep_dims", False))
    indices = step.emit(kind, step.read(0), axis=axis, keepdims=keep)
    step.write_raw(step.emit("Cast", indices, to=_AS_INTEGERS[step.result().data_type.name]))


def _top(step: Step) -> None:
    count = step.constant([int(step.scalar("k"))], "i8")
    largest = int(step.scalar("largest", True))
    values, indices = step.emit_many("TopK", [step.read(0), count], 2, largest=largest)
    step.write_raw(step.emit("Cast", indices, to=_AS_INTEGERS[step.result(1).data_type.name]), 1)
    step.write(values)


def _running_sum(step: Step) -> None:
    axis = step.constant(int(step.scalar("axis")), "i8")
    flags = {name: int(step.scalar(name, False)) for name in ("exclusive", "reverse")}
    step.write(step.emit("CumSum", step.read(0), axis, **flags))


REDUCTION: dict[str, Callable[[Step], None]] = {
    "Argmax": partial(_extreme, "ArgMax"),
    "Argmin": partial(_extreme, "ArgMin"),
    "CumulativeSum": _running_sum,
    "LogSoftmax": partial(_softmax, "LogSoftmax"),
    "ReduceMax": partial(_reduce, "ReduceMax"),
    "ReduceMean": partial(_reduce, "ReduceMean"),
    "ReduceMin": partial(_reduce, "ReduceMin"),
    "ReduceProd": partial(_reduce, "ReduceProd"),
    "ReduceSum": partial(_reduce, "ReduceSum"),
    "ReduceSumSquare": partial(_reduce, "ReduceSumSquare"),
    "Softmax": partial(_softmax, "Softmax"),
    "TopK": _top,
}
