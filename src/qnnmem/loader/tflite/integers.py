"""Arithmetic on quantized integers, identical to TFLite's reference kernels.

A real factor is stored as a 31-bit integer and a power of two. Its products are rounded twice: the
upper 32 of 64 bits are taken with halves rounded up, then shifted right with halves rounded away
from zero. FULLY_CONNECTED rounds once, and so do convolutions of 16-bit integers, whose factors
have 15 bits. The nodes compute in 64 bits, which hold every intermediate value. `rescale_values`
does the same to numbers that are known before the model runs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from qnnmem.ir import DType
from qnnmem.loader.onnx.draft import onnx_type_of
from qnnmem.loader.tflite.raw_graph import RawTensor
from qnnmem.loader.tflite.step import TfliteStep, round_half_away

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
    whole = round_half_away(fraction * (1 << 31))
    if whole == 1 << 31:
        whole, shift = whole // 2, shift + 1
    return (0, 0) if shift < -31 else (whole, shift)


def rescale_values(values: NDArray[Any], factor: float) -> NDArray[Any]:
    """Return integers multiplied by a real factor and rounded."""
    whole, shift = fixed_point(factor)
    product = rounded_product(values.astype("i8") * (1 << max(shift, 0)), whole)
    return rounded_shift(product, max(-shift, 0))


def rounded_product(values: NDArray[Any], factor: NDArray[Any] | int) -> NDArray[Any]:
    """Return the upper bits of products with a 31-bit factor; halves are rounded up."""
    return (values * factor + _HALF) >> 31


def rounded_shift(values: NDArray[Any], right: int) -> NDArray[Any]:
    """Return integers shifted right; halves are rounded away from zero."""
    import numpy

    half = (1 << right) >> 1
    shifted: NDArray[Any] = numpy.sign(values) * ((numpy.abs(values) + half) >> right)
    return shifted


def rescale(
    step: TfliteStep,
    value: str,
    factors: Sequence[float],
    along: Sequence[int] = (),
    *,
    once: int = 0,
) -> str:
    """Add nodes that multiply integers by a real factor; return the name of the 64-bit result.

    If there are several factors, each applies to one channel, and `along` is the shape in which
    the factors are broadcast. By default, the product is rounded twice. If `once` is not 0,
    the factor is cut to `once` bits, and the product is rounded only once, with halves rounded up.
    """
    import numpy

    pairs = [fixed_point(factor) for factor in factors]

    def constant(numbers: Sequence[int]) -> str:
        if len(set(numbers)) == 1:
            return step.constant(numbers[0], "i8")
        return step.constant(numpy.asarray(numbers, "i8").reshape(along))

    def shifted(rights: Sequence[int], product: str) -> str:
        """Shift products right, with halves rounded up; return the name of the result."""
        ups = constant([_UP + (1 << right >> 1) for right in rights])
        powers = constant([1 << right for right in rights])
        quotient = step.emit("Div", step.emit("Add", product, ups), powers)
        return step.emit("Sub", quotient, constant([_UP >> right for right in rights]))

    if once:
        wholes = constant([_fewer_bits(whole, 31 - once) for whole, _ in pairs])
        return shifted([once - shift for _, shift in pairs], step.emit("Mul", value, wholes))
    wholes = constant([whole for whole, _ in pairs])
    if any(shift > 0 for _, shift in pairs):
        value = step.emit("Mul", value, constant([1 << max(shift, 0) for _, shift in pairs]))
    value = shifted([31] * len(pairs), step.emit("Mul", value, wholes))
    rights = [max(-shift, 0) for _, shift in pairs]
    if not any(rights):
        return value
    # Round halves away from zero; ONNX integer division truncates towards zero.
    halves = constant([1 << right >> 1 for right in rights])
    half = step.emit("Mul", step.emit("Sign", value), halves)
    powers = constant([1 << right for right in rights])
    return step.emit("Div", step.emit("Add", value, half), powers)


def _fewer_bits(whole: int, dropped: int) -> int:
    """Return the upper bits of a factor, rounded."""
    return min((whole + (1 << dropped >> 1)) >> dropped, (1 << (31 - dropped)) - 1)


def high_bits(step: TfliteStep, product: str) -> str:
    """Divide products by 2^31, with halves rounded up; return the name of the result."""
    positive = step.emit("Add", product, step.constant(_UP + _HALF, "i8"))
    quotient = step.emit("Div", positive, step.constant(1 << 31, "i8"))
    return step.emit("Sub", quotient, step.constant(_UP >> 31, "i8"))


def as_int64(step: TfliteStep, position: int) -> str:
    """Subtract the zero point of an input in 64-bit integers; return the name of the result."""
    _, zero = step.encoding(step.tensor(position))
    value = step.emit("Cast", step.raw(position), to=_INT64)
    return step.emit("Sub", value, step.constant(zero, "i8")) if zero else value


def to_output_type(step: TfliteStep, value: str, tensor: RawTensor) -> str:
    """Add the zero point, clip, and cast to an output's type; return the name of the result."""
    _, zero = step.encoding(tensor)
    if zero:
        value = step.emit("Add", value, step.constant(zero, "i8"))
    low, high = (step.constant(limit, "i8") for limit in step.limits(tensor))
    return step.emit(
        "Cast", step.emit("Clip", value, low, high), to=onnx_type_of(step.dtype(tensor))
    )


def emit_table_lookup(step: TfliteStep, function: Callable[[NDArray[Any]], NDArray[Any]]) -> None:
    """Add a table lookup that computes a function of each integer."""
    import numpy

    source, result = step.tensor(), step.result()
    limits = numpy.iinfo(step.dtype(source).value)
    _, zero = step.encoding(source)
    _, offset = step.encoding(result)
    values = numpy.arange(limits.min, limits.max + 1, dtype="i8")
    low, high = step.limits(result)
    table = numpy.clip(function(values - zero) + offset, low, high)
    # A negative index counts from the end.
    table = numpy.roll(table, limits.min).astype(step.dtype(result).value)
    indices = step.emit("Cast", step.raw(), to=6)
    step.write_raw(step.emit("Gather", step.constant(table), indices))


def unsigned(step: TfliteStep, position: int) -> tuple[str, int]:
    """Convert an 8-bit input to unsigned integers; return their name and their zero point.

    Products of unsigned integers are exact on every processor; products of signed with unsigned
    integers can saturate.
    """
    tensor = step.tensor(position)
    zero = tensor.zeros[0] if tensor.zeros else 0
    value = step.value(position)
    if step.dtype(tensor) is DType.UINT8:
        return step.raw(position), zero
    if step.dtype(tensor) is not DType.INT8:
        raise step.refuse(f"reads {step.dtype(tensor).value} where 8 bits are required")
    if value is not None:
        return step.constant((value.astype("i2") + 128).astype("u1")), zero + 128
    bits = step.emit("Cast", step.raw(position), to=2)
    return step.emit("BitwiseXor", bits, step.constant(128, "u1")), zero + 128


def split_bytes(step: TfliteStep) -> tuple[str, str]:
    """Split a 16-bit input; return the names of the upper bytes and of the lower bytes.

    The zero point of the upper bytes is 128, that of the lower bytes 0.
    """
    value = step.emit("Cast", step.raw(), to=6)
    lower = step.emit("BitwiseAnd", value, step.constant(255, "i4"))
    rest = step.emit("Div", step.emit("Sub", value, lower), step.constant(256, "i4"))
    upper_byte = step.emit("Add", rest, step.constant(128, "i4"))
    return step.emit("Cast", upper_byte, to=2), step.emit("Cast", lower, to=2)
