"""TFLite element-wise operators and reductions as ONNX nodes."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from qnnmem.ir import DType
from qnnmem.loader.tflite.integers import (
    fixed_point,
    kept,
    look_up,
    scaled,
    scaled_now,
    upper,
    wide,
)
from qnnmem.loader.tflite.step import Row, TfliteStep, away, element

if TYPE_CHECKING:
    from numpy.typing import NDArray

_INTEGER_BITS = 5  # integer bits of a scaled difference: e ** -32 is 0
_SUM_BITS = 12  # integer bits of a sum of exponentials
_ONE = (1 << 31) - 1
# exp(-1/8), and exp(-2 ** k) for k from -2 on: gemmlowp's constants with 31 bits.
_EIGHTH, _THIRD = 1895147668, 715827883
_POWERS = (1672461947, 1302514674, 790015084, 290630308, 39332535, 720401, 242)
_48_17, _32_17 = 1515870810, -1010580540  # constants of Newton's first guess, with 29 bits
_NEWTON_STEPS = 3
_QUARTER = 1 << (31 - _INTEGER_BITS - 2)
_SHIFT = {8: 20, 16: 15}  # left shift before two scales become one, by bits of an element
_BOOLEAN = {
    "EQUAL": ("Equal",),
    "GREATER": ("Greater",),
    "GREATER_EQUAL": ("GreaterOrEqual",),
    "LESS": ("Less",),
    "LESS_EQUAL": ("LessOrEqual",),
    "LOGICAL_AND": ("And",),
    "LOGICAL_NOT": ("Not",),
    "LOGICAL_OR": ("Or",),
    "NOT_EQUAL": ("Equal", "Not"),
}
# A chain of nodes; the first node reads all inputs.
_SAME = {
    "ABS": ("Abs",),
    "CEIL": ("Ceil",),
    "COS": ("Cos",),
    "ELU": ("Elu",),
    "EXP": ("Exp",),
    "FLOOR": ("Floor",),
    "HARD_SWISH": ("HardSwish",),
    "LOG": ("Log",),
    "LOGISTIC": ("Sigmoid",),
    "MAXIMUM": ("Max",),
    "MINIMUM": ("Min",),
    "NEG": ("Neg",),
    "POW": ("Pow",),
    "PRELU": ("PRelu",),
    "RELU": ("Relu",),
    "ROUND": ("Round",),
    "RSQRT": ("Sqrt", "Reciprocal"),
    "SIGN": ("Sign",),
    "SIN": ("Sin",),
    "SQRT": ("Sqrt",),
    "TANH": ("Tanh",),
}


def softmax(step: TfliteStep) -> None:
    """Add the nodes of a quantized SOFTMAX with TFLite's integer arithmetic."""
    tensor, made = step.tensor(), step.result()
    if step.dtype(tensor).bits != 8 or step.dtype(made).bits != 8:
        raise step.refuse("is not supported with 16 bits")
    scale, _ = step.encoding(tensor)
    beta = float(step.option("Beta", 1.0))
    table = _exponentials(scale, beta)
    value = step.one("Cast", step.raw(), to=7)
    largest = step.one("ReduceMax", value, step.constant([-1], "i8"), keepdims=1)
    drop = step.one("Sub", largest, value)
    power = step.one("Gather", step.constant(table, "i8"), drop)
    parts = step.one("Gather", step.constant(_rounded_shift(table, _SUM_BITS), "i8"), drop)
    total = step.one("ReduceSum", parts, step.constant([-1], "i8"), keepdims=1)
    bits = _bit_length(step, total)
    found = _high(step, _reciprocal(step, total, bits), power)
    halves = [0, *((1 << at) >> 1 for at in range(1, 48))]
    by = step.one("Add", bits, step.constant(35 - 32, "i8"))
    half = step.one("Gather", step.constant(halves, "i8"), by)
    unit = step.one("Gather", step.constant([1 << at for at in range(48)], "i8"), by)
    rounded = step.one("Div", step.one("Add", found, half), unit)
    _, zero = step.encoding(made)
    low, _ = step.limits(made)
    step.write_raw(kept(step, step.one("Add", rounded, step.constant(low - zero, "i8")), made))


def _exponentials(scale: float, beta: float) -> NDArray[Any]:
    """Return the exponentials of 0 to -255 quantization steps, as 31-bit integers."""
    import numpy

    factor = min(beta * scale * (1 << (31 - _INTEGER_BITS)), (1 << 31) - 1.0)
    whole, shift = fixed_point(factor)
    most = math.floor(
        ((1 << _INTEGER_BITS) - 1) * (1 << (31 - _INTEGER_BITS)) / (1 << max(shift, 0))
    )
    drops = numpy.arange(256, dtype="i8")
    scaled = _multiplied(-drops * (1 << max(shift, 0)), whole)
    found = numpy.where(drops == 0, _ONE, _negative_power(scaled))
    return numpy.where(drops > most, 0, numpy.where(scaled == 0, _ONE, found))


def _negative_power(value: NDArray[Any]) -> NDArray[Any]:
    """Return e raised to negative powers, which are given with 26 fractional bits."""
    rest = (value & (_QUARTER - 1)) - _QUARTER
    x = rest * (1 << _INTEGER_BITS) + (1 << 28)
    square = _multiplied(x, x)
    cube, fourth = _multiplied(square, x), _multiplied(square, square)
    inner = _multiplied(_rounded_shift(fourth, 2) + cube, _THIRD) + square
    found = _EIGHTH + _multiplied(x + _rounded_shift(inner, 1), _EIGHTH)
    left = rest - value
    for place, factor in enumerate(_POWERS):
        bit = (left >> (31 - _INTEGER_BITS - 2 + place)) & 1
        found = found + bit * (_multiplied(found, factor) - found)
    return found


def _multiplied(value: NDArray[Any], factor: NDArray[Any] | int) -> NDArray[Any]:
    return (value * factor + (1 << 30)) >> 31


def _rounded_shift(value: NDArray[Any], right: int) -> NDArray[Any]:
    import numpy

    found: NDArray[Any] = numpy.sign(value) * ((numpy.abs(value) + ((1 << right) >> 1)) >> right)
    return found


def _bit_length(step: TfliteStep, value: str) -> str:
    """Return the name of the bit lengths of positive numbers; their last axis has size 1."""
    reached = step.one("GreaterOrEqual", value, step.constant([1 << at for at in range(32)], "i8"))
    ones = step.one("Cast", reached, to=7)
    return step.one("ReduceSum", ones, step.constant([-1], "i8"), keepdims=1)


def _reciprocal(step: TfliteStep, value: str, bits: str) -> str:
    """Return the name of 1 / x with 31 bits; x is first normalized to between 1 and 2."""
    powers = step.constant([1 << (32 - at) for at in range(33)], "i8")
    moved = step.one("Mul", value, step.one("Gather", powers, bits))
    half = step.one("Div", moved, step.constant(2, "i8"))
    guess = _high(step, half, step.constant(_32_17, "i8"))
    x = step.one("Add", guess, step.constant(_48_17, "i8"))
    for _ in range(_NEWTON_STEPS):
        rest = step.one("Sub", step.constant(1 << 29, "i8"), _high(step, half, x))
        more = step.one("Mul", _high(step, x, rest), step.constant(4, "i8"))
        x = step.one("Add", x, more)
    doubled = step.one("Mul", x, step.constant(2, "i8"))
    return step.one("Min", doubled, step.constant(_ONE, "i8"))


def _high(step: TfliteStep, left: str, right: str) -> str:
    return upper(step, step.one("Mul", left, right))


def _chain(kinds: tuple[str, ...], step: TfliteStep) -> None:
    values = [step.read(place) for place in range(len(step.op.inputs))]
    for kind in kinds:
        values = [step.one(kind, *values)]
    step.write(values[0])


def _compared(kinds: tuple[str, ...], step: TfliteStep) -> None:
    """Add a comparison; integers with equal encodings are compared in stored form."""
    tensors = [step.tensor(place) for place in range(len(step.op.inputs))]
    alike = len({(one.scales, one.zeros) for one in tensors}) == 1
    values = [(step.raw if alike else step.read)(place) for place in range(len(tensors))]
    for kind in kinds:
        values = [step.one(kind, *values)]
    step.write_raw(values[0])


def _extreme(kind: str, step: TfliteStep) -> None:
    if step.moves():
        step.write_raw(step.one(kind, step.raw(0), step.raw(1)))
    else:
        _chain((kind,), step)


def _clipped(low: float, high: float | None, step: TfliteStep) -> None:
    """Add a RELU variant; integers are scaled before they are clipped."""
    if not step.is_integer:
        limits = [step.constant(low, "f4"), *([] if high is None else [step.constant(high, "f4")])]
        step.write(step.one("Clip", step.read(), *limits))
        return
    (scale, _), (made, _) = step.encoding(step.tensor()), step.encoding(step.result())

    def clip(values: NDArray[Any]) -> NDArray[Any]:
        import numpy

        least, most = (
            None if end is None else away(numpy.float32(end) / numpy.float32(made))
            for end in (low, high)
        )
        found: NDArray[Any] = numpy.clip(scaled_now(values, scale / made), least, most)
        return found

    look_up(step, clip)


def _leaky(step: TfliteStep) -> None:
    alpha = float(step.option("Alpha", 0.0))
    if not step.is_integer:
        step.write(step.one("LeakyRelu", step.read(), alpha=alpha))
        return
    (scale, _), (made, _) = step.encoding(step.tensor()), step.encoding(step.result())

    def leak(values: NDArray[Any]) -> NDArray[Any]:
        import numpy

        slope = float(numpy.float32(alpha)) * scale / made
        below = scaled_now(values, abs(slope)) * (1 if slope >= 0 else -1)
        return numpy.where(values >= 0, scaled_now(values, scale / made), below)

    look_up(step, leak)


def _function(name: str, step: TfliteStep) -> None:
    """Add nodes for a function of real numbers; for 8-bit integers, a table of 256 values."""
    if not (step.is_integer and step.dtype(step.tensor()).bits == 8):
        _chain(_SAME[name], step)
        return
    (scale, _), (made, _) = step.encoding(step.tensor()), step.encoding(step.result())

    def apply(values: NDArray[Any]) -> NDArray[Any]:
        import numpy

        with numpy.errstate(all="ignore"):
            real = _REAL[name](numpy, (values.astype("f4") * numpy.float32(scale)).astype("f4"))
            found = numpy.nan_to_num(real / numpy.float32(made), posinf=1e6, neginf=-1e6)
        whole: NDArray[Any] = numpy.sign(found) * numpy.floor(numpy.abs(found).astype("f8") + 0.5)
        limited: NDArray[Any] = numpy.clip(whole, -1e6, 1e6).astype("i8")
        return limited

    look_up(step, apply)


_REAL: dict[str, Callable[[Any, NDArray[Any]], NDArray[Any]]] = {
    "ELU": lambda np, x: np.where(x < 0, np.expm1(x), x),
    "EXP": lambda np, x: np.exp(x),
    "LOG": lambda np, x: np.log(x),
    "LOGISTIC": lambda np, x: 1 / (1 + np.exp(-x)),
    "RSQRT": lambda np, x: 1 / np.sqrt(x),
    "SQRT": lambda np, x: np.sqrt(x),
    "TANH": lambda np, x: np.tanh(x),
}


def _gelu(step: TfliteStep) -> None:
    value = step.read()
    way = "tanh" if step.option("Approximate") else "none"
    step.write(step.one("Gelu", value, approximate=way))


def _sum(kind: str, step: TfliteStep) -> None:
    """Add the nodes of ADD or SUB.

    Integers are scaled to a common scale, added, and scaled to the output.
    """
    if not step.is_integer:
        _chain((kind,), step)
        return
    ends = (step.tensor(0), step.tensor(1), step.result())
    (left, _), (right, _), (made, _) = map(step.encoding, ends)
    bits = step.dtype(step.result()).bits
    if bits == 16 and step.option("PotScaleInt16", True):
        raise step.refuse("is not supported with 16-bit scales that are powers of two")
    twice, shift = 2 * max(left, right), 1 << _SHIFT[bits]
    parts = [
        scaled(step, step.one("Mul", wide(step, at), step.constant(shift, "i8")), [scale / twice])
        for at, scale in enumerate((left, right))
    ]
    total = scaled(step, step.one(kind, *parts), [twice / (shift * made)])
    step.write_raw(kept(step, total, step.result()))


def _product(step: TfliteStep) -> None:
    import numpy

    if not step.is_integer:
        _chain(("Mul",), step)
        return
    ends = (step.tensor(0), step.tensor(1), step.result())
    left, right, made = (numpy.float32(step.encoding(end)[0]) for end in ends)
    product = step.one("Mul", wide(step, 0), wide(step, 1))
    found = scaled(step, product, [float(left * right / made)])
    step.write_raw(kept(step, found, step.result()))


def _squared(step: TfliteStep) -> None:
    value = step.read(0)
    if step.op.type == "SQUARED_DIFFERENCE":
        value = step.one("Sub", value, step.read(1))
    step.write(step.one("Mul", value, value))


def _whole_division(step: TfliteStep) -> None:
    """Add the nodes of FLOOR_DIV; ONNX integer division truncates towards zero."""
    kind = step.dtype(step.result())
    numbers = [step.one("Cast", step.read(at), to=11) for at in (0, 1)]
    found = step.one("Floor", step.one("Div", *numbers))
    step.write_raw(step.one("Cast", found, to=_number(kind)))


def _remainder(step: TfliteStep) -> None:
    if step.dtype(step.result()).is_float:
        quotient = step.one("Floor", step.one("Div", step.read(0), step.read(1)))
        step.write(step.one("Sub", step.read(0), step.one("Mul", quotient, step.read(1))))
    else:
        step.write_raw(step.one("Mod", step.raw(0), step.raw(1)))


def _number(kind: DType) -> int:
    import numpy

    return element(numpy.dtype(kind.value))


def _cast(step: TfliteStep) -> None:
    step.write_raw(step.one("Cast", step.raw(), to=_number(step.dtype(step.result()))))


def _quantize(step: TfliteStep) -> None:
    if not step.is_integer:
        step.write(step.read())
        return
    (scale, _), (made, _) = step.encoding(step.tensor()), step.encoding(step.result())
    if step.dtype(step.tensor()).bits == 8:
        look_up(step, lambda values: scaled_now(values, scale / made))
    else:
        step.write_raw(kept(step, scaled(step, wide(step, 0), [scale / made]), step.result()))


def _select(step: TfliteStep) -> None:
    if step.moves():
        step.write_raw(step.one("Where", step.raw(0), step.raw(1), step.raw(2)))
    else:
        step.write(step.one("Where", step.raw(0), step.read(1), step.read(2)))


def _axes(step: TfliteStep) -> tuple[list[int], str]:
    rank = len(step.shape())
    axes = sorted({axis % rank for axis in step.numbers(1)} if rank else set())
    return axes, step.constant(axes, "i8")


def _reduced(kind: str, step: TfliteStep) -> None:
    _, listed = _axes(step)
    keep = int(step.option("KeepDims"))
    moves = kind in ("ReduceMax", "ReduceMin") and step.moves()
    value = step.raw() if moves else step.read()
    made = step.one(kind, value, listed, keepdims=keep, noop_with_empty_axes=1)
    (step.write_raw if moves else step.write)(made)


def _added(step: TfliteStep) -> None:
    """Add the nodes of SUM or MEAN; the factor that scales a MEAN includes its division."""
    name = "ReduceMean" if step.op.type == "MEAN" else "ReduceSum"
    if not step.is_integer:
        _reduced(name, step)
        return
    axes, listed = _axes(step)
    keep = int(step.option("KeepDims"))
    value = step.one("Cast", step.raw(), to=7)
    total = step.one("ReduceSum", value, listed, keepdims=keep, noop_with_empty_axes=1)
    count = math.prod(step.shape()[axis] for axis in axes)
    (scale, zero), (made, _) = step.encoding(step.tensor()), step.encoding(step.result())
    total = step.one("Sub", total, step.constant(zero * count, "i8"))
    if name == "ReduceMean":
        total = _mean(step, total, scale / made, count)
    else:
        total = scaled(step, total, [scale / made])
    step.write_raw(kept(step, total, step.result()))


def _mean(step: TfliteStep, total: str, factor: float, count: int) -> str:
    """Return the name of a total times a factor, divided by a count.

    A single fixed-point factor does both.
    """
    whole, shift = fixed_point(factor)
    # TFLite includes the division in the factor, with as many bits as are free.
    spare = min(64 - _leading_zeros(count), 32, 31 + shift)
    whole = ((whole << spare) // count) & 0xFFFFFFFF
    return scaled(step, total, [math.ldexp(whole, shift - spare - 31)])


def _leading_zeros(count: int) -> int:
    return 64 - count.bit_length()


def _largest(kind: str, step: TfliteStep) -> None:
    (axis,) = step.numbers(1)
    found = step.one(kind, step.raw(), axis=axis, keepdims=0)
    step.write_raw(step.one("Cast", found, to=_number(step.dtype(step.result()))))


def _running_sum(step: TfliteStep) -> None:
    flags = {name.lower(): int(step.option(name)) for name in ("Exclusive", "Reverse")}
    (axis,) = step.numbers(1)
    step.write(step.one("CumSum", step.read(), step.constant(axis, "i8"), **flags))


def _unit_length(step: TfliteStep) -> None:
    value = step.read()
    length = step.one("ReduceL2", value, step.constant([-1], "i8"), keepdims=1)
    least = step.constant(1e-6, "f4")
    step.write(step.one("Div", value, step.one("Max", length, least)))


def _soft(step: TfliteStep) -> None:
    if step.is_integer:
        softmax(step)
        return
    value, beta = step.read(), float(step.option("Beta", 1.0))
    if beta != 1.0:
        value = step.one("Mul", value, step.constant(beta, "f4"))
    step.write(step.one("Softmax", value, axis=-1))


ARITHMETIC: dict[str, Row] = {
    **{name: partial(_chain, kinds) for name, kinds in _SAME.items()},
    **{name: partial(_compared, kinds) for name, kinds in _BOOLEAN.items()},
    **{name: partial(_function, name) for name in _REAL},
    "ADD": partial(_sum, "Add"),
    "ARG_MAX": partial(_largest, "ArgMax"),
    "ARG_MIN": partial(_largest, "ArgMin"),
    "CAST": _cast,
    "CUMSUM": _running_sum,
    "DEQUANTIZE": _quantize,
    "DIV": partial(_chain, ("Div",)),
    "FLOOR_DIV": _whole_division,
    "FLOOR_MOD": _remainder,
    "GELU": _gelu,
    "L2_NORMALIZATION": _unit_length,
    "LEAKY_RELU": _leaky,
    "MAXIMUM": partial(_extreme, "Max"),
    "MEAN": _added,
    "MINIMUM": partial(_extreme, "Min"),
    "MUL": _product,
    "QUANTIZE": _quantize,
    "REDUCE_MAX": partial(_reduced, "ReduceMax"),
    "REDUCE_MIN": partial(_reduced, "ReduceMin"),
    "REDUCE_PROD": partial(_reduced, "ReduceProd"),
    "RELU": partial(_clipped, 0.0, None),
    "RELU6": partial(_clipped, 0.0, 6.0),
    "RELU_0_TO_1": partial(_clipped, 0.0, 1.0),
    "RELU_N1_TO_1": partial(_clipped, -1.0, 1.0),
    "SELECT": _select,
    "SELECT_V2": _select,
    "SOFTMAX": _soft,
    "SQUARE": _squared,
    "SQUARED_DIFFERENCE": _squared,
    "SUB": partial(_sum, "Sub"),
    "SUM": _added,
}
