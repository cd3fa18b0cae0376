"""TFLite convolutions, products and pooling as ONNX nodes; images have their channels last."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from qnnmem.ir import DType
from qnnmem.loader.onnx.draft import NCHW, NHWC
from qnnmem.loader.tflite.integers import halves, kept, scaled, unsigned
from qnnmem.loader.tflite.shapes import Shape
from qnnmem.loader.tflite.step import Row, TfliteStep

if TYPE_CHECKING:
    from numpy.typing import NDArray

_SAME = 0  # value of Padding in the schema
_FILTERS = {"CONV_2D": (0, 3, 1, 2), "DEPTHWISE_CONV_2D": (3, 0, 1, 2)}  # axis order for ONNX


def _channels_second(step: TfliteStep, value: str) -> str:
    return step.one("Transpose", value, perm=NCHW)


def _back(step: TfliteStep, value: str) -> str:
    return step.one("Transpose", value, perm=NHWC)


def _window(step: TfliteStep, image: Shape, made: Shape, size: Shape) -> dict[str, Any]:
    """Return strides, dilations and pads; for SAME, the pads are computed as in TFLite."""
    strides = [step.option("StrideH", 1), step.option("StrideW", 1)]
    spread = [step.option("DilationHFactor", 1), step.option("DilationWFactor", 1)]
    before, after = [], []
    for at in range(2):
        covered = (size[at] - 1) * spread[at] + 1
        total = max((made[at] - 1) * strides[at] + covered - image[at], 0)
        total = total if step.option("Padding") == _SAME else 0
        before.append(total // 2)
        after.append(total - total // 2)
    found: dict[str, Any] = {"strides": strides, "pads": [*before, *after]}
    return found | ({"dilations": spread} if "DilationHFactor" in step.op.options else {})


def _filter_factors(step: TfliteStep) -> list[float]:
    """Return the product scale divided by the output scale, for each output channel."""
    source, _ = step.encoding(step.tensor(0))
    made, _ = step.encoding(step.result())
    return [source * scale / made for scale in step.tensor(1).scales]


def _check_filter(step: TfliteStep) -> None:
    """Raise NotTranslated for float inputs with quantized filters: TFLite quantizes such inputs."""
    quantized = [step.is_quantized(raw) for raw in (step.tensor(0), step.tensor(1), step.result())]
    if any(quantized) and not all(quantized):
        raise step.refuse("computes with floats and quantized weights")
    if step.dtype(step.tensor(1)).bits < 8:
        raise step.refuse("has weights with fewer than 8 bits")


def _convolution(step: TfliteStep) -> None:
    _check_filter(step)
    image, filters = step.shape(0), step.shape(1)
    group = image[3] if step.op.type == "DEPTHWISE_CONV_2D" else image[3] // max(filters[3], 1)
    attributes = _window(step, image[1:3], step.made_shape()[1:3], filters[1:3])
    attributes |= {"group": group, "kernel_shape": filters[1:3]}
    order = _FILTERS[step.op.type]
    if not step.is_integer:
        ends = (step.read(0, NCHW), step.weights(order), *step.bias())
        step.write(step.one("Conv", *ends, **attributes), perm=NHWC)
        return
    total = _sums(step, "ConvInteger", order, _channels_second, **attributes)
    _write_sums(step, total, (-1, 1, 1))


def _sums(
    step: TfliteStep,
    kind: str,
    order: tuple[int, ...],
    shaped: Callable[[TfliteStep, str], str],
    **attributes: Any,
) -> str:
    """Return the name of the sums of the products of inputs and weights.

    16-bit integers are multiplied byte by byte.
    """
    if step.dtype(step.tensor()).bits == 8:
        value, zero = unsigned(step, 0)
        return _products(step, (shaped(step, value), zero), kind, order, **attributes)
    upper, lower = halves(step)
    high = _products(step, (shaped(step, upper), 128), kind, order, **attributes)
    low = _products(step, (shaped(step, lower), 0), kind, order, **attributes)
    return step.one("Add", step.one("Mul", high, step.constant(256, "i8")), low)


def _products(
    step: TfliteStep, source: tuple[str, int], kind: str, order: tuple[int, ...], **attributes: Any
) -> str:
    """Return the name of sums of products of 8-bit integers, as 64-bit integers."""
    value, zero = source
    weights, offset = _weights(step, order)
    zeros = (step.constant(zero, "u1"), step.constant(offset, "u1"))
    return step.one(
        "Cast", step.one(kind, value, step.constant(weights), *zeros, **attributes), to=7
    )


def _weights(step: TfliteStep, order: tuple[int, ...]) -> tuple[NDArray[Any], int]:
    """Return constant weights as unsigned integers in ONNX's axis order, and their zero point."""
    values, tensor = step.known(1), step.tensor(1)
    if len(set(tensor.zeros)) > 1:
        raise step.refuse("has a zero point for each channel")
    zero = tensor.zeros[0] if tensor.zeros else 0
    if step.dtype(tensor) is DType.INT8:
        values, zero = (values.astype("i2") + 128).astype("u1"), zero + 128
    elif step.dtype(tensor) is not DType.UINT8:
        raise step.refuse(f"has weights of {step.dtype(tensor).value}")
    return values.transpose(order), zero


def _write_sums(step: TfliteStep, total: str, along: Shape) -> None:
    """Write sums to the output after adding the bias and scaling them."""
    if step.has(2):
        bias = step.known(2).astype("i8")
        total = step.one("Add", total, step.constant(bias.reshape(along)))
    is_image = len(along) == 3
    factors = _filter_factors(step)
    narrow = step.dtype(step.tensor()).bits == 8
    once = (0 if narrow else 15) if is_image else 31
    found = kept(step, scaled(step, total, factors, along, once=once), step.result())
    step.write_raw(_back(step, found) if is_image else _shaped(step, found))


def _shaped(step: TfliteStep, value: str) -> str:
    return step.one("Reshape", value, step.constant(step.made_shape(), "i8"))


def _connected(step: TfliteStep) -> None:
    """Add the nodes of FULLY_CONNECTED: rows of the input times the transposed weights."""
    _check_filter(step)
    if step.option("WeightsFormat"):
        raise step.refuse("has shuffled weights")
    rows = step.constant([-1, step.shape(1)[1]], "i8")
    if not step.is_integer:
        value = step.one("Reshape", step.read(0), rows)
        other = (
            step.one("Transpose", step.read(1), perm=(1, 0))
            if step.value(1) is None
            else step.weights((1, 0))
        )
        step.write(_shaped(step, step.one("Gemm", value, other, *step.bias())))
        return
    total = _sums(step, "MatMulInteger", (1, 0), lambda _, value: step.one("Reshape", value, rows))
    _write_sums(step, total, (1, -1))


def _multiplied(step: TfliteStep) -> None:
    """Add the nodes of BATCH_MATMUL, with transposes for `AdjX` and `AdjY`."""
    parts = []
    for place, name in enumerate(("AdjX", "AdjY")):
        value, rank = step.read(place), len(step.shape(place))
        if step.option(name):
            order = [*range(rank - 2), rank - 1, rank - 2]
            value = step.one("Transpose", value, perm=order)
        parts.append(value)
    step.write(step.one("MatMul", *parts))


def _transposed(step: TfliteStep) -> None:
    """Add the nodes of TRANSPOSE_CONV; integers are computed as real numbers and rounded."""
    image, filters, made = step.shape(2), step.shape(1), step.made_shape()
    strides = [step.option("StrideH", 1), step.option("StrideW", 1)]
    pads, extra = [], []
    for at in (1, 2):
        full = (image[at] - 1) * strides[at - 1] + filters[at]
        before = max(full - made[at], 0) // 2 if step.option("Padding") == _SAME else 0
        pads.append(before)
        extra.append(made[at] - (full - before))
    ends = [max(-more, 0) for more in extra]
    kernel = step.known(1)
    if step.is_quantized(step.tensor(1)):
        scales = step.tensor(1).scales
        kernel = kernel.astype("f4")
        for channel in range(kernel.shape[0]):
            kernel[channel] *= scales[channel % len(scales)]
    bias = []
    if step.has(3):
        values = step.known(3)
        if values.dtype.kind == "i":
            values = values.astype("f4") * step.tensor(3).scales
        bias = [step.constant(values, "f4")]
    found = step.one(
        "ConvTranspose",
        step.read(2, NCHW),
        step.constant(kernel.transpose(3, 0, 1, 2)),
        *bias,
        strides=strides,
        pads=[*pads, *ends],
        output_padding=[max(more, 0) for more in extra],
    )
    step.write(found, perm=NHWC)


def _pool(kind: str, step: TfliteStep) -> None:
    image, made = step.shape(), step.made_shape()
    size = (step.option("FilterHeight"), step.option("FilterWidth"))
    attributes = _window(step, image[1:3], made[1:3], size) | {"kernel_shape": size}
    if not step.is_integer:
        step.write(step.one(kind, step.read(0, NCHW), **attributes), perm=NHWC)
    elif kind == "MaxPool":
        low, high = (
            step.constant(end, step.dtype(step.result()).value)
            for end in step.limits(step.result())
        )
        value = step.one(kind, _channels_second(step, step.raw()), **attributes)
        step.write_raw(_back(step, step.one("Clip", value, low, high)))
    else:
        _average(step, attributes, image, size)


def _average(step: TfliteStep, attributes: dict[str, Any], image: Shape, size: Shape) -> None:
    """Add the nodes of AVERAGE_POOL_2D of integers: sums divided by the pixels of each window.

    Halves are rounded away from zero.
    """
    import numpy

    if not step.moves():
        raise step.refuse("has different scales for input and output")
    value, zero = unsigned(step, 0)
    _, offset = step.encoding(step.tensor())
    ones = step.constant(numpy.ones((image[3], 1, *size), "u1"))
    zeros = (step.constant(zero - offset, "u1"), step.constant(0, "u1"))
    total = step.one(
        "ConvInteger", _channels_second(step, value), ones, *zeros, group=image[3], **attributes
    )
    total = step.one("Cast", total, to=7)
    counts = _counts(image[1:3], step.made_shape()[1:3], size, attributes)
    half = step.one("Mul", step.one("Sign", total), step.constant(counts // 2))
    mean = step.one("Div", step.one("Add", total, half), step.constant(counts))
    low, high = (step.constant(end, "i8") for end in step.limits(step.result()))
    kept_in = step.one("Clip", mean, low, high)
    number = {DType.INT8: 3, DType.UINT8: 2}[step.dtype(step.result())]
    step.write_raw(_back(step, step.one("Cast", kept_in, to=number)))


def _counts(image: Shape, made: Shape, size: Shape, attributes: dict[str, Any]) -> NDArray[Any]:
    """Return the number of image pixels in each window."""
    import numpy

    lines = []
    for at in range(2):
        starts = numpy.arange(made[at]) * attributes["strides"][at] - attributes["pads"][at]
        covered = numpy.minimum(starts + size[at], image[at]) - numpy.maximum(starts, 0)
        lines.append(numpy.maximum(covered, 1))
    found: NDArray[Any] = numpy.outer(*lines).astype("i8")
    return found


def _resized(mode: str, step: TfliteStep) -> None:
    if step.option("AlignCorners"):
        way = "align_corners"
    else:
        way = "half_pixel" if step.option("HalfPixelCenters") else "asymmetric"
    nearest = "floor" if way == "asymmetric" else "round_prefer_ceil"
    if mode == "nearest" and way == "half_pixel":
        # TFLite selects the pixel that contains the centre.
        way, nearest = "half_pixel", "round_prefer_ceil"
    moves = mode == "nearest" and step.moves()
    batch, high, wide, channels = step.made_shape()
    value = _channels_second(step, step.raw() if moves else step.read())
    sizes = step.constant((batch, channels, high, wide), "i8")
    more = {"nearest_mode": nearest} if mode == "nearest" else {}
    made = _back(
        step,
        step.one(
            "Resize", value, "", "", sizes, mode=mode, coordinate_transformation_mode=way, **more
        ),
    )
    (step.write_raw if moves else step.write)(made)


def _blocks(kind: str, step: TfliteStep) -> None:
    value = _channels_second(step, step.raw() if step.moves() else step.read())
    made = _back(step, step.one(kind, value, blocksize=step.option("BlockSize", 1)))
    (step.write_raw if step.moves() else step.write)(made)


LAYERS: dict[str, Row] = {
    "AVERAGE_POOL_2D": partial(_pool, "AveragePool"),
    "BATCH_MATMUL": _multiplied,
    "CONV_2D": _convolution,
    "DEPTHWISE_CONV_2D": _convolution,
    "DEPTH_TO_SPACE": partial(_blocks, "DepthToSpace"),
    "FULLY_CONNECTED": _connected,
    "MAX_POOL_2D": partial(_pool, "MaxPool"),
    "RESIZE_BILINEAR": partial(_resized, "linear"),
    "RESIZE_NEAREST_NEIGHBOR": partial(_resized, "nearest"),
    "SPACE_TO_DEPTH": partial(_blocks, "SpaceToDepth"),
    "TRANSPOSE_CONV": _transposed,
}
