"""Arithmetic on quantized integers, identical to TFLite's reference kernels.

A real factor is stored as a 31-bit integer and a power of two. Its products are rounded twice: the
upper 32 of 64 bits are taken with halves rounded up, then shifted right with halves rounded away
from zero. FULLY_CONNECTED rounds once, and so do convolutions of 16-bit integers, whose factors
have 15 bits. The nodes compute in 64 bits, which hold every intermediate value. `scaled_now` does
the same to numbers that are known before the model runs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from qnnmem.ir import DType
from qnnmem.loader.tflite.raw_graph import RawTensor
from qnnmem.loader.tflite.step import TfliteStep, away, element

if TYPE_CHECKING:
    from numpy.typing import NDArray

_HALF = 1 << 30
_UP = 1 << 62  # makes every product positive, so that division rounds down
_INT64 = 7


def fixed_point(factor: float) -> tuple[int, int]:
    """Return integer and shift of a positive factor: `integer * 2 ** (shift - 31)`."""
    if factor == 0:
        return 0, 0
    fraction, shift = math.frexp(factor)
    whole = away(fraction * (1 << 31))
    if whole == 1 << 31:
        whole, shift = whole // 2, shift + 1
    return (0, 0) if shift < -31 else (whole, shift)


def scaled_now(value: NDArray[Any], factor: float) -> NDArray[Any]:
    """Return integers multiplied by a real factor and rounded."""
    import numpy

    whole, shift = fixed_point(factor)
    high = (value.astype("i8") * (1 << max(shift, 0)) * whole + _HALF) >> 31
    right = max(-shift, 0)
    half = (1 << right) >> 1
    found: NDArray[Any] = numpy.sign(high) * ((numpy.abs(high) + half) >> right)
    return found


def scaled(
    step: TfliteStep,
    value: str,
    factors: Sequence[float],
    along: Sequence[int] = (),
    *,
    once: int = 0,
) -> str:
    """Add nodes that multiply integers by a real factor; return the name of the 64-bit result.

    Several factors apply per channel; `along` is their shape. By default, the product is rounded
    twice. If `once` is not 0, the factor is cut to `once` bits, and the product is rounded only
    once, with halves rounded up.
    """
    import numpy

    pairs = [fixed_point(factor) for factor in factors]

    def numbers(found: Sequence[int]) -> str:
        same = len(set(found)) == 1
        shaped = numpy.asarray(found[0] if same else found, "i8")
        return step.constant(shaped if same else shaped.reshape(along))

    def moved(rights: Sequence[int], product: str) -> str:
        """Return the name of products shifted right, with halves rounded up."""
        ups = numbers([_UP + (1 << right >> 1) for right in rights])
        quotient = step.one("Div", step.one("Add", product, ups), numbers([1 << r for r in rights]))
        return step.one("Sub", quotient, numbers([_UP >> right for right in rights]))

    if once:
        less = [_fewer_bits(whole, 31 - once) for whole, _ in pairs]
        product = step.one("Mul", value, numbers(less))
        return moved([once - shift for _, shift in pairs], product)
    wholes = numbers([whole for whole, _ in pairs])
    if any(shift > 0 for _, shift in pairs):
        value = step.one("Mul", value, numbers([1 << max(shift, 0) for _, shift in pairs]))
    value = moved([31] * len(pairs), step.one("Mul", value, wholes))
    rights = [max(-shift, 0) for _, shift in pairs]
    if not any(rights):
        return value
    # Round halves away from zero; ONNX integer division truncates towards zero.
    half = step.one("Mul", step.one("Sign", value), numbers([1 << right >> 1 for right in rights]))
    return step.one("Div", step.one("Add", value, half), numbers([1 << right for right in rights]))


def _fewer_bits(whole: int, dropped: int) -> int:
    """Return the upper bits of a factor, rounded."""
    return min((whole + (1 << dropped >> 1)) >> dropped, (1 << (31 - dropped)) - 1)


def upper(step: TfliteStep, product: str) -> str:
    """Return the name of products without their lower 31 bits; halves are rounded up."""
    positive = step.one("Add", product, step.constant(_UP + _HALF, "i8"))
    quotient = step.one("Div", positive, step.constant(1 << 31, "i8"))
    return step.one("Sub", quotient, step.constant(_UP >> 31, "i8"))


def wide(step: TfliteStep, place: int) -> str:
    """Return the name of an input as 64-bit integers, minus their zero point."""
    _, zero = step.encoding(step.tensor(place))
    value = step.one("Cast", step.raw(place), to=_INT64)
    return step.one("Sub", value, step.constant(zero, "i8")) if zero else value


def kept(step: TfliteStep, value: str, tensor: RawTensor) -> str:
    """Return the name of values in an output's integer type, clipped, with its zero point added."""
    import numpy

    _, zero = step.encoding(tensor)
    if zero:
        value = step.one("Add", value, step.constant(zero, "i8"))
    low, high = (step.constant(limit, "i8") for limit in step.limits(tensor))
    return step.one(
        "Cast",
        step.one("Clip", value, low, high),
        to=element(numpy.dtype(step.dtype(tensor).value)),
    )


def look_up(step: TfliteStep, function: Callable[[NDArray[Any]], NDArray[Any]]) -> None:
    """Add a table lookup that computes a function of each integer."""
    import numpy

    tensor, made = step.tensor(), step.result()
    kind = numpy.iinfo(step.dtype(tensor).value)
    _, zero = step.encoding(tensor)
    _, offset = step.encoding(made)
    values = numpy.arange(kind.min, kind.max + 1, dtype="i8")
    low, high = step.limits(made)
    table = numpy.clip(function(values - zero) + offset, low, high)
    # A negative index counts from the end.
    table = numpy.roll(table, kind.min).astype(step.dtype(made).value)
    places = step.one("Cast", step.raw(), to=6)
    step.write_raw(step.one("Gather", step.constant(table), places))


def unsigned(step: TfliteStep, place: int) -> tuple[str, int]:
    """Return the name of an 8-bit input as unsigned integers, and their zero point.

    Products of unsigned integers are exact on every processor; mixed products can saturate.
    """
    tensor = step.tensor(place)
    zero = tensor.zeros[0] if tensor.zeros else 0
    value = step.value(place)
    if step.dtype(tensor) is DType.UINT8:
        return step.raw(place), zero
    if step.dtype(tensor) is not DType.INT8:
        raise step.refuse(f"reads {step.dtype(tensor).value} where 8 bits are required")
    if value is not None:
        return step.constant((value.astype("i2") + 128).astype("u1")), zero + 128
    bits = step.one("Cast", step.raw(place), to=2)
    return step.one("BitwiseXor", bits, step.constant(128, "u1")), zero + 128


def halves(step: TfliteStep) -> tuple[str, str]:
    """Return the names of a 16-bit input's upper bytes (zero point 128) and lower bytes (0)."""
    value = step.one("Cast", step.raw(), to=6)
    lower = step.one("BitwiseAnd", value, step.constant(255, "i4"))
    rest = step.one("Div", step.one("Sub", value, lower), step.constant(256, "i4"))
    upper_byte = step.one("Add", rest, step.constant(128, "i4"))
    return step.one("Cast", upper_byte, to=2), step.one("Cast", lower, to=2)
