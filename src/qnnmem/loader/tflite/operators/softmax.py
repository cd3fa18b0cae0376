"""SOFTMAX of quantized integers, bit for bit as TFLite's reference kernel computes it.

Exponentials of the 256 possible differences are a table. For each row, Newton's method in fixed
point finds the reciprocal of their sum.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from qnnmem.loader.tflite.integers import fixed_point, kept, upper
from qnnmem.loader.tflite.step import TfliteStep

if TYPE_CHECKING:
    from numpy.typing import NDArray

_INTEGER_BITS = 5  # integer bits of a scaled difference: e ** -32 is 0
_SUM_BITS = 12  # integer bits of a sum of exponentials
_ONE = (1 << 31) - 1
# exp(-1/8), and exp(-2 ** k) for k from -2 on; gemmlowp's constants of 31 bits.
_EIGHTH, _THIRD = 1895147668, 715827883
_POWERS = (1672461947, 1302514674, 790015084, 290630308, 39332535, 720401, 242)
_48_17, _32_17 = 1515870810, -1010580540  # constants of Newton's first guess, with 29 bits
_NEWTON_STEPS = 3
_QUARTER = 1 << (31 - _INTEGER_BITS - 2)


def softmax(step: TfliteStep) -> None:
    """Write the node form of a quantized SOFTMAX."""
    tensor, made = step.tensor(), step.result()
    if step.dtype(tensor).bits != 8 or step.dtype(made).bits != 8:
        raise step.refuse("of 16 bits is not in the table")
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
    """Return the exponentials of -255 to 0 steps, 0 first, with 31 bits."""
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
    """Return e to a negative power, given with 26 fractional bits."""
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
    """Return how many bits positive numbers have; their last axis is 1."""
    reached = step.one("GreaterOrEqual", value, step.constant([1 << at for at in range(32)], "i8"))
    ones = step.one("Cast", reached, to=7)
    return step.one("ReduceSum", ones, step.constant([-1], "i8"), keepdims=1)


def _reciprocal(step: TfliteStep, value: str, bits: str) -> str:
    """Return 1 / x with 31 bits, for x normalized to between 1 and 2."""
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
