"""Between real numbers and what a tensor stores."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from qnnmem.ir import Tensor
from qnnmem.lpai.compiled import Quant

if TYPE_CHECKING:
    from numpy.typing import NDArray


def to_native(values: NDArray[Any], tensor: Tensor, quant: Quant | None) -> NDArray[Any]:
    """Real numbers as the tensor stores them: scaled, rounded to even, limited to the type."""
    import numpy

    dtype = numpy.dtype(tensor.dtype.value)
    if dtype.kind not in "iu":
        return values.astype(dtype)
    if quant is not None:
        values = values.astype(numpy.float64) / quant.scale + quant.zero_point
    limits = numpy.iinfo(dtype)
    with numpy.errstate(invalid="ignore"):  # NaN becomes some integer
        clipped = numpy.clip(numpy.nan_to_num(numpy.rint(values)), limits.min, limits.max)
    native: NDArray[Any] = clipped.astype(dtype)
    return native


def to_float(values: NDArray[Any], quant: Quant | None) -> NDArray[Any]:
    """What stored values stand for, in 32-bit floating point."""
    import numpy

    if quant is None or values.dtype.kind not in "iu":
        return values.astype(numpy.float32)
    real = (values.astype(numpy.float64) - quant.zero_point) * quant.scale
    return real.astype(numpy.float32)
