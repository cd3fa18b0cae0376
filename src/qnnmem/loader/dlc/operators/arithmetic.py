"""QNN element-wise operators and reductions as ONNX nodes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from qnnmem.loader.dlc.draft import Step
from qnnmem.loader.onnx.draft import NotTranslated
from qnnmem.qnn.enums import DataType
from qnnmem.text import quote

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
        raise NotTranslated(f"{quote(step.op.type)} with operation {number} is not supported")
    _apply(names[number], step)


def _apply(name: str, step: Step) -> None:
    values = [step.read(place) for place in range(len(step.op.inputs))]
    made = _COMPOSED[name](step, *values) if name in _COMPOSED else step.one(_SAME[name], *values)
    step.write(made)


def _elu(step: Step, value: str) -> str:
    return step.one("Elu", value, alpha=float(step.scalar("alpha", 1.0)))


def _hard_sigmoid(step: Step, value: str) -> str:
    alpha, beta = float(step.scalar("alpha")), float(step.scalar("beta"))
    return step.one("HardSigmoid", value, alpha=alpha, beta=beta)


def _clipped(step: Step, value: str) -> str:
    low, high = step.scalar("min_value"), step.scalar("max_value")
    return _clip(float(low), float(high), step, value)


def _clip(low: float, high: float, step: Step, value: str) -> str:
    return step.one("Clip", value, step.constant(low, "f4"), step.constant(high, "f4"))


def _rsqrt(step: Step, value: str) -> str:
    return step.one("Reciprocal", step.one("Sqrt", value))


def _squared_difference(step: Step, one: str, other: str) -> str:
    difference = step.one("Sub", one, other)
    return step.one("Mul", difference, difference)


def _not_equal(step: Step, one: str, other: str) -> str:
    return step.one("Not", step.one("Equal", one, other))


def _fmod(step: Step, one: str, other: str) -> str:
    return step.one("Mod", one, other, fmod=1)


def _floor_div(step: Step, one: str, other: str) -> str:
    made = step.one("Div", one, other)
    return step.one("Floor", made) if step.tensor(0).data_type in _FLOATS else made


def _select(step: Step) -> None:
    step.write(step.one("Where", step.raw(0), step.read(1), step.read(2)))


def _prelu(step: Step) -> None:
    step.write(step.one("PRelu", step.read(0), step.read(1)))


def _cast(step: Step) -> None:
    from onnx import TensorProto

    step.only(dynamic_input_data=(False,), dynamic_output_data=(False,))
    kind, given = step.result().data_type, step.tensor(0).data_type
    if kind.is_quantized and not given.is_quantized and given not in _FLOATS:
        step.write(step.one("Cast", step.raw(0), to=TensorProto.FLOAT))
        return
    if kind.is_quantized or (given.is_quantized and kind in _FLOATS):
        step.write(step.read(0))
        return
    words = {"float32": "FLOAT", "float64": "DOUBLE"}
    name = words.get(kind.numpy_name, kind.numpy_name.upper())
    step.write_raw(step.one("Cast", step.read(0), to=TensorProto.DataType.Value(name)))


def _gelu(step: Step, value: str) -> str:
    half = step.one("Mul", value, step.constant(0.5, "f4"))
    scaled = step.one("Mul", value, step.constant(0.5**0.5, "f4"))
    return step.one("Mul", half, step.one("Add", step.one("Erf", scaled), step.constant(1, "f4")))


def _softplus(step: Step, value: str) -> str:
    """Add a softplus node and return the name of its result.

    QNN can return inputs above a threshold unchanged; for a threshold of 16 or more, the difference
    is negligible.
    """
    step.only(beta=(1.0,))
    threshold = float(step.scalar("threshold", _LINEAR))
    if threshold < _LINEAR:
        raise NotTranslated(f"{quote(step.op.type)} with threshold {threshold} is not supported")
    return step.one("Softplus", value)


_COMPOSED: dict[str, Callable[..., str]] = {
    "Elu": _elu,
    "FloorDiv": _floor_div,
    "Fmod": _fmod,
    "Gelu": _gelu,
    "HardSigmoid": _hard_sigmoid,
    "NotEqual": _not_equal,
    "ReluMinMax": _clipped,
    "Relu1": partial(_clip, -1.0, 1.0),
    "Relu6": partial(_clip, 0.0, 6.0),
    "Rsqrt": _rsqrt,
    "Softplus": _softplus,
    "SquaredDifference": _squared_difference,
}
_NAMED = (*_NEURON, "Relu1", "Relu6")

POINTWISE: dict[str, Callable[[Step], None]] = {
    "ElementWiseBinary": partial(_numbered, _BINARY),
    "ElementWiseUnary": partial(_numbered, _UNARY),
    "ElementWiseNeuron": partial(_numbered, _NEURON),
    "ElementWiseSelect": _select,
    **{f"ElementWise{name}": partial(_apply, name) for name in (*_BINARY, *_UNARY, *_NEURON)},
    **{name: partial(_apply, name) for name in _NAMED},
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
    step.write(step.one(kind, step.read(0), axes, keepdims=keep))


def _softmax(kind: str, step: Step) -> None:
    value = step.read(0)
    beta = float(step.scalar("beta", 1.0))
    if beta != 1.0:
        value = step.one("Mul", value, step.constant(beta, "f4"))
    step.write(step.one(kind, value, axis=int(step.scalar("axis", len(step.shape()) - 1))))


def _extreme(kind: str, step: Step) -> None:
    axis, keep = int(step.scalar("axis")), int(step.scalar("keep_dims", False))
    found = step.one(kind, step.read(0), axis=axis, keepdims=keep)
    step.write_raw(step.one("Cast", found, to=_AS_INTEGERS[step.result().data_type.name]))


def _top(step: Step) -> None:
    count = step.constant([int(step.scalar("k"))], "i8")
    largest = int(step.scalar("largest", True))
    values, places = step.node("TopK", [step.read(0), count], 2, largest=largest)
    cast = step.one("Cast", places, to=_AS_INTEGERS[step.result(1).data_type.name])
    step.write_raw(cast, 1)
    step.write(values)


def _running_sum(step: Step) -> None:
    axis = step.constant(int(step.scalar("axis")), "i8")
    flags = {name: int(step.scalar(name, False)) for name in ("exclusive", "reverse")}
    step.write(step.one("CumSum", step.read(0), axis, **flags))


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
