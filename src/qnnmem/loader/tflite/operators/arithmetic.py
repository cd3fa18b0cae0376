"""TFLite element-wise operators and reductions as ONNX nodes."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from qnnmem.loader.onnx.draft import onnx_type_of
from qnnmem.loader.tflite.integers import (
    as_int64,
    emit_table_lookup,
    fixed_point,
    high_bits,
    rescale,
    rescale_values,
    rounded_product,
    rounded_shift,
    to_output_type,
)
from qnnmem.loader.tflite.step import TfliteStep, Translation, round_half_away

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
    **{
        name.upper(): (name,)
        for name in (
            *("Abs", "Ceil", "Cos", "Elu", "Exp", "Floor", "Log", "Neg", "Pow", "PRelu", "Round"),
            *("Sign", "Sin", "Sqrt", "Tanh"),
        )
    },
    "HARD_SWISH": ("HardSwish",),
    "LOGISTIC": ("Sigmoid",),
    "RSQRT": ("Sqrt", "Reciprocal"),
}


def _integer_softmax(step: TfliteStep) -> None:
    """Add the nodes of a quantized SOFTMAX with TFLite's integer arithmetic."""
    source, result = step.tensor(), step.result()
    if step.dtype(source).bits != 8 or step.dtype(result).bits != 8:
        raise step.refuse("is not supported with 16 bits")
    scale, _ = step.encoding(source)
    beta = float(step.option("Beta", 1.0))
    table = _exponentials(scale, beta)
    value = step.emit("Cast", step.raw(), to=7)
    largest = step.emit("ReduceMax", value, step.constant([-1], "i8"), keepdims=1)
    drop = step.emit("Sub", largest, value)
    power = step.emit("Gather", step.constant(table, "i8"), drop)
    parts = step.emit("Gather", step.constant(rounded_shift(table, _SUM_BITS), "i8"), drop)
    total = step.emit("ReduceSum", parts, step.constant([-1], "i8"), keepdims=1)
    bits = _bit_length(step, total)
    product = _multiply_high(step, _reciprocal(step, total, bits), power)
    powers = [1 << bit for bit in range(48)]
    shift = step.emit("Add", bits, step.constant(35 - 32, "i8"))
    half = step.emit("Gather", step.constant([unit >> 1 for unit in powers], "i8"), shift)
    unit = step.emit("Gather", step.constant(powers, "i8"), shift)
    rounded = step.emit("Div", step.emit("Add", product, half), unit)
    _, zero = step.encoding(result)
    low, _ = step.limits(result)
    step.write_raw(
        to_output_type(step, step.emit("Add", rounded, step.constant(low - zero, "i8")), result)
    )


def _exponentials(scale: float, beta: float) -> NDArray[Any]:
    """Return the exponentials of 0 to -255 quantization steps, as 31-bit integers."""
    import numpy

    factor = min(beta * scale * (1 << (31 - _INTEGER_BITS)), (1 << 31) - 1.0)
    whole, shift = fixed_point(factor)
    most = math.floor(
        ((1 << _INTEGER_BITS) - 1) * (1 << (31 - _INTEGER_BITS)) / (1 << max(shift, 0))
    )
    drops = numpy.arange(256, dtype="i8")
    scaled = rounded_product(-drops * (1 << max(shift, 0)), whole)
    powers = numpy.where((drops == 0) | (scaled == 0), _ONE, _negative_power(scaled))
    return numpy.where(drops > most, 0, powers)


def _negative_power(value: NDArray[Any]) -> NDArray[Any]:
    """Return `e ** value` as 31-bit integers; values are negative, with 26 fractional bits."""
    rest = (value & (_QUARTER - 1)) - _QUARTER
    x = rest * (1 << _INTEGER_BITS) + (1 << 28)
    square = rounded_product(x, x)
    cube, fourth = rounded_product(square, x), rounded_product(square, square)
    inner = rounded_product(rounded_shift(fourth, 2) + cube, _THIRD) + square
    power = _EIGHTH + rounded_product(x + rounded_shift(inner, 1), _EIGHTH)
    left = rest - value
    for position, factor in enumerate(_POWERS):
        bit = (left >> (31 - _INTEGER_BITS - 2 + position)) & 1
        power = power + bit * (rounded_product(power, factor) - power)
    return power


def _bit_length(step: TfliteStep, value: str) -> str:
    """Compute the bit length of each positive number; return the name of the result.

    The last axis of the numbers has size 1, and so has that of the result.
    """
    reached = step.emit(
        "GreaterOrEqual", value, step.constant([1 << bit for bit in range(32)], "i8")
    )
    ones = step.emit("Cast", reached, to=7)
    return step.emit("ReduceSum", ones, step.constant([-1], "i8"), keepdims=1)


def _reciprocal(step: TfliteStep, value: str, bits: str) -> str:
    """Normalize x to between 1 and 2, compute 1 / x in 31 bits; return the name of the result."""
    powers = step.constant([1 << (32 - bit) for bit in range(33)], "i8")
    moved = step.emit("Mul", value, step.emit("Gather", powers, bits))
    half = step.emit("Div", moved, step.constant(2, "i8"))
    guess = _multiply_high(step, half, step.constant(_32_17, "i8"))
    x = step.emit("Add", guess, step.constant(_48_17, "i8"))
    for _ in range(_NEWTON_STEPS):
        rest = step.emit("Sub", step.constant(1 << 29, "i8"), _multiply_high(step, half, x))
        more = step.emit("Mul", _multiply_high(step, x, rest), step.constant(4, "i8"))
        x = step.emit("Add", x, more)
    doubled = step.emit("Mul", x, step.constant(2, "i8"))
    return step.emit("Min", doubled, step.constant(_ONE, "i8"))


def _multiply_high(step: TfliteStep, left: str, right: str) -> str:
    return high_bits(step, step.emit("Mul", left, right))


def _chain(kinds: tuple[str, ...], step: TfliteStep) -> None:
    values = [step.read(position) for position in range(len(step.op.inputs))]
    for kind in kinds:
        values = [step.emit(kind, *values)]
    step.write(values[0])


def _compared(kinds: tuple[str, ...], step: TfliteStep) -> None:
    """Add a comparison; integers with equal encodings are compared in stored form."""
    positions = range(len(step.op.inputs))
    tensors = map(step.tensor, positions)
    same = len({(tensor.scales, tensor.zeros) for tensor in tensors}) == 1
    values = [*map(step.raw if same else step.read, positions)]
    for kind in kinds:
        values = [step.emit(kind, *values)]
    step.write_raw(values[0])


def _extreme(kind: str, step: TfliteStep) -> None:
    read, write = step.movement()
    write(step.emit(kind, read(0), read(1)))


def _relu(low: float, high: float | None, step: TfliteStep) -> None:
    """Add a RELU variant; integers are scaled before they are clipped."""
    if not step.is_integer:
        step.write(step.emit_clip(step.read(), low, high))
        return
    scale, result_scale = step.scales

    def clip(values: NDArray[Any]) -> NDArray[Any]:
        import numpy

        least, most = (
            None
            if limit is None
            else round_half_away(numpy.float32(limit) / numpy.float32(result_scale))
            for limit in (low, high)
        )
        clipped: NDArray[Any] = numpy.clip(
            rescale_values(values, scale / result_scale), least, most
        )
        return clipped

    emit_table_lookup(step, clip)


def _leaky(step: TfliteStep) -> None:
    alpha = float(step.option("Alpha", 0.0))
    if not step.is_integer:
        step.write(step.emit("LeakyRelu", step.read(), alpha=alpha))
        return
    scale, result_scale = step.scales

    def leak(values: NDArray[Any]) -> NDArray[Any]:
        import numpy

        slope = float(numpy.float32(alpha)) * scale / result_scale
        below = rescale_values(values, abs(slope)) * (1 if slope >= 0 else -1)
        return numpy.where(values >= 0, rescale_values(values, scale / result_scale), below)

    emit_table_lookup(step, leak)


def _function(name: str, step: TfliteStep) -> None:
    """Add nodes for a function of real numbers; for 8-bit integers, a table of 256 values."""
    if not (step.is_integer and step.dtype(step.tensor()).bits == 8):
        _chain(_SAME[name], step)
        return
    scale, result_scale = step.scales

    def apply(values: NDArray[Any]) -> NDArray[Any]:
        import numpy

        with numpy.errstate(all="ignore"):
            reals = _REAL[name](numpy, (values.astype("f4") * numpy.float32(scale)).astype("f4"))
            steps = numpy.nan_to_num(reals / numpy.float32(result_scale), posinf=1e6, neginf=-1e6)
        whole = numpy.sign(steps) * numpy.floor(numpy.abs(steps).astype("f8") + 0.5)
        limited: NDArray[Any] = numpy.clip(whole, -1e6, 1e6).astype("i8")
        return limited

    emit_table_lookup(step, apply)


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
    approximate = "tanh" if step.option("Approximate") else "none"
    step.write(step.emit("Gelu", step.read(), approximate=approximate))


def _add_or_subtract(kind: str, step: TfliteStep) -> None:
    """Add the nodes of ADD or SUB.

    Integers are scaled to a common scale, added, and scaled to the output.
    """
    if not step.is_integer:
        _chain((kind,), step)
        return
    tensors = (step.tensor(0), step.tensor(1), step.result())
    left, right, result_scale = (step.encoding(tensor)[0] for tensor in tensors)
    bits = step.dtype(step.result()).bits
    if bits == 16 and step.option("PotScaleInt16", True):
        raise step.refuse("is not supported with 16-bit scales that are powers of two")
    twice, shift = 2 * max(left, right), 1 << _SHIFT[bits]
    parts = [
        rescale(
            step,
            step.emit("Mul", as_int64(step, position), step.constant(shift, "i8")),
            [scale / twice],
        )
        for position, scale in enumerate((left, right))
    ]
    total = rescale(step, step.emit(kind, *parts), [twice / (shift * result_scale)])
    step.write_raw(to_output_type(step, total, step.result()))


def _product(step: TfliteStep) -> None:
    import numpy

    if not step.is_integer:
        _chain(("Mul",), step)
        return
    tensors = (step.tensor(0), step.tensor(1), step.result())
    left, right, result_scale = (numpy.float32(step.encoding(t)[0]) for t in tensors)
    product = step.emit("Mul", as_int64(step, 0), as_int64(step, 1))
    scaled = rescale(step, product, [float(left * right / result_scale)])
    step.write_raw(to_output_type(step, scaled, step.result()))


def _squared(step: TfliteStep) -> None:
    value = step.read(0)
    if step.op.type == "SQUARED_DIFFERENCE":
        value = step.emit("Sub", value, step.read(1))
    step.write(step.emit("Mul", value, value))


def _whole_division(step: TfliteStep) -> None:
    """Add the nodes of FLOOR_DIV; ONNX integer division truncates towards zero."""
    numbers = [step.emit("Cast", step.read(position), to=11) for position in (0, 1)]
    _write_cast(step, step.emit("Floor", step.emit("Div", *numbers)))


def _remainder(step: TfliteStep) -> None:
    if step.dtype(step.result()).is_float:
        quotient = step.emit("Floor", step.emit("Div", step.read(0), step.read(1)))
        step.write(step.emit("Sub", step.read(0), step.emit("Mul", quotient, step.read(1))))
    else:
        step.write_raw(step.emit("Mod", step.raw(0), step.raw(1)))


def _write_cast(step: TfliteStep, value: str) -> None:
    """Cast a value to the output's type, and write the value to the output."""
    step.write_raw(step.emit("Cast", value, to=onnx_type_of(step.dtype(step.result()))))


def _cast(step: TfliteStep) -> None:
    _write_cast(step, step.raw())


def _quantize(step: TfliteStep) -> None:
    if not step.is_integer:
        step.write(step.read())
        return
    scale, result_scale = step.scales
    if step.dtype(step.tensor()).bits == 8:
        emit_table_lookup(step, lambda values: rescale_values(values, scale / result_scale))
    else:
        step.write_raw(
            to_output_type(
                step, rescale(step, as_int64(step, 0), [scale / result_scale]), step.result()
            )
        )


def _select(step: TfliteStep) -> None:
    read, write = step.movement()
    write(step.emit("Where", step.raw(0), read(1), read(2)))


def _axes(step: TfliteStep) -> tuple[list[int], str]:
    rank = len(step.shape())
    axes = sorted({axis % rank for axis in step.numbers(1)} if rank else set())
    return axes, step.constant(axes, "i8")


def _reduce(kind: str, step: TfliteStep) -> None:
    _, axes = _axes(step)
    keep = int(step.option("KeepDims"))
    read, write = step.movement(exact=kind in ("ReduceMax", "ReduceMin"))
    write(step.emit(kind, read(0), axes, keepdims=keep, noop_with_empty_axes=1))


def _sum_or_mean(step: TfliteStep) -> None:
    """Add the nodes of SUM or MEAN; the scale factor of MEAN includes the division by the count."""
    name = "ReduceMean" if step.op.type == "MEAN" else "ReduceSum"
    if not step.is_integer:
        _reduce(name, step)
        return
    axes, axes_name = _axes(step)
    keep = int(step.option("KeepDims"))
    value = step.emit("Cast", step.raw(), to=7)
    total = step.emit("ReduceSum", value, axes_name, keepdims=keep, noop_with_empty_axes=1)
    count = math.prod(step.shape()[axis] for axis in axes)
    (scale, zero), (result_scale, _) = map(step.encoding, (step.tensor(), step.result()))
    total = step.emit("Sub", total, step.constant(zero * count, "i8"))
    if name == "ReduceMean":
        total = _mean(step, total, scale / result_scale, count)
    else:
        total = rescale(step, total, [scale / result_scale])
    step.write_raw(to_output_type(step, total, step.result()))


def _mean(step: TfliteStep, total: str, factor: float, count: int) -> str:
    """Multiply a total by a factor and divide it by a count; return the name of the result.

    A single fixed-point factor does the multiplication and the division.
    """
    whole, shift = fixed_point(factor)
    # TFLite includes the division in the factor, with as many bits as are free.
    spare = min(count.bit_length(), 32, 31 + shift)
    whole = ((whole << spare) // count) & 0xFFFFFFFF
    return rescale(step, total, [math.ldexp(whole, shift - spare - 31)])


def _largest(kind: str, step: TfliteStep) -> None:
    (axis,) = step.numbers(1)
    _write_cast(step, step.emit(kind, step.raw(), axis=axis, keepdims=0))


def _running_sum(step: TfliteStep) -> None:
    flags = {name.lower(): int(step.option(name)) for name in ("Exclusive", "Reverse")}
    (axis,) = step.numbers(1)
    step.write(step.emit("CumSum", step.read(), step.constant(axis, "i8"), **flags))


def _unit_length(step: TfliteStep) -> None:
    value = step.read()
    length = step.emit("ReduceL2", value, step.constant([-1], "i8"), keepdims=1)
    least = step.constant(1e-6, "f4")
    step.write(step.emit("Div", value, step.emit("Max", length, least)))


def _softmax(step: TfliteStep) -> None:
    if step.is_integer:
        _integer_softmax(step)
        return
    value, beta = step.read(), float(step.option("Beta", 1.0))
    if beta != 1.0:
        value = step.emit("Mul", value, step.constant(beta, "f4"))
    step.write(step.emit("Softmax", value, axis=-1))


ARITHMETIC: dict[str, Translation] = {
    **{name: partial(_chain, kinds) for name, kinds in _SAME.items()},
    **{name: partial(_compared, kinds) for name, kinds in _BOOLEAN.items()},
    **{name: partial(_function, name) for name in _REAL},
    "ADD": partial(_add_or_subtract, "Add"),
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
    "MEAN": _sum_or_mean,
    "MINIMUM": partial(_extreme, "Min"),
    "MUL": _product,
    "QUANTIZE": _quantize,
    "REDUCE_MAX": partial(_reduce, "ReduceMax"),
    "REDUCE_MIN": partial(_reduce, "ReduceMin"),
    "REDUCE_PROD": partial(_reduce, "ReduceProd"),
    "RELU": partial(_relu, 0.0, None),
    "RELU6": partial(_relu, 0.0, 6.0),
    "RELU_0_TO_1": partial(_relu, 0.0, 1.0),
    "RELU_N1_TO_1": partial(_relu, -1.0, 1.0),
    "SELECT": _select,
    "SELECT_V2": _select,
    "SOFTMAX": _softmax,
    "SQUARE": _squared,
    "SQUARED_DIFFERENCE": _squared,
    "SUB": partial(_add_or_subtract, "Sub"),
    "SUM": _sum_or_mean,
}
