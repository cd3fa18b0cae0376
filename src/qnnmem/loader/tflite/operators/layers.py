"""TFLite convolutions, products and pooling as ONNX nodes; images have their channels last."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from qnnmem.ir import DType
from qnnmem.loader.onnx.draft import NCHW, NHWC, onnx_type_of
from qnnmem.loader.tflite.integers import rescale, split_bytes, to_output_type, unsigned
from qnnmem.loader.tflite.shapes import Shape
from qnnmem.loader.tflite.step import TfliteStep, Translation

if TYPE_CHECKING:
    from numpy.typing import NDArray

_SAME = 0  # value of Padding in the schema
_FILTERS = {"CONV_2D": (0, 3, 1, 2), "DEPTHWISE_CONV_2D": (3, 0, 1, 2)}  # axis order for ONNX


def _channels_second(step: TfliteStep, value: str) -> str:
    return step.emit("Transpose", value, perm=NCHW)


def _channels_last(step: TfliteStep, value: str) -> str:
    return step.emit("Transpose", value, perm=NHWC)


def _window(step: TfliteStep, image: Shape, result: Shape, size: Shape) -> dict[str, Any]:
    """Return strides, dilations and pads; for SAME, the pads are computed as in TFLite."""
    strides = [step.option("StrideH", 1), step.option("StrideW", 1)]
    dilations = [step.option("DilationHFactor", 1), step.option("DilationWFactor", 1)]
    before, after = [], []
    for axis in range(2):
        covered = (size[axis] - 1) * dilations[axis] + 1
        total = max((result[axis] - 1) * strides[axis] + covered - image[axis], 0)
        total = total if step.option("Padding") == _SAME else 0
        before.append(total // 2)
        after.append(total - total // 2)
    window: dict[str, Any] = {"strides": strides, "pads": [*before, *after]}
    return window | ({"dilations": dilations} if "DilationHFactor" in step.op.options else {})


def _filter_factors(step: TfliteStep) -> list[float]:
    """For each output channel, return the product scale divided by the output scale."""
    source_scale, result_scale = step.scales
    return [source_scale * scale / result_scale for scale in step.tensor(1).scales]


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
    attributes = _window(step, image[1:3], step.result_shape()[1:3], filters[1:3])
    attributes |= {"group": group, "kernel_shape": filters[1:3]}
    order = _FILTERS[step.op.type]
    if not step.is_integer:
        inputs = (step.read(0, NCHW), step.weights(order), *step.bias())
        step.write(step.emit("Conv", *inputs, **attributes), perm=NHWC)
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
    """Compute the sums of products of inputs and weights; return the name of the result.

    16-bit integers are multiplied byte by byte.
    """
    if step.dtype(step.tensor()).bits == 8:
        value, zero = unsigned(step, 0)
        return _products(step, (shaped(step, value), zero), kind, order, **attributes)
    upper, lower = split_bytes(step)
    high = _products(step, (shaped(step, upper), 128), kind, order, **attributes)
    low = _products(step, (shaped(step, lower), 0), kind, order, **attributes)
    return step.emit("Add", step.emit("Mul", high, step.constant(256, "i8")), low)


def _products(
    step: TfliteStep, source: tuple[str, int], kind: str, order: tuple[int, ...], **attributes: Any
) -> str:
    """Compute sums of products of 8-bit integers; return the name of the 64-bit result."""
    value, zero = source
    weights, offset = _weights(step, order)
    zeros = (step.constant(zero, "u1"), step.constant(offset, "u1"))
    product = step.emit(kind, value, step.constant(weights), *zeros, **attributes)
    return step.emit("Cast", product, to=7)


def _weights(step: TfliteStep, order: tuple[int, ...]) -> tuple[NDArray[Any], int]:
    """Return constant weights as unsigned integers in ONNX's axis order, and their zero point."""
    values, tensor = step.required_value(1), step.tensor(1)
    if len(set(tensor.zeros)) > 1:
        raise step.refuse("has a zero point for each channel")
    zero = tensor.zeros[0] if tensor.zeros else 0
    if step.dtype(tensor) is DType.INT8:
        values, zero = (values.astype("i2") + 128).astype("u1"), zero + 128
    elif step.dtype(tensor) is not DType.UINT8:
        raise step.refuse(f"has weights of {step.dtype(tensor).value}")
    return values.transpose(order), zero


def _write_sums(step: TfliteStep, total: str, along: Shape) -> None:
    """Add the bias to the sums, scale the result, and write it to the output."""
    if step.has(2):
        bias = step.required_value(2).astype("i8")
        total = step.emit("Add", total, step.constant(bias.reshape(along)))
    is_image = len(along) == 3
    factors = _filter_factors(step)
    narrow = step.dtype(step.tensor()).bits == 8
    once = (0 if narrow else 15) if is_image else 31
    scaled = to_output_type(step, rescale(step, total, factors, along, once=once), step.result())
    step.write_raw(_channels_last(step, scaled) if is_image else _reshaped(step, scaled))


def _reshaped(step: TfliteStep, value: str) -> str:
    return step.emit("Reshape", value, step.constant(step.result_shape(), "i8"))


def _fully_connected(step: TfliteStep) -> None:
    """Add the nodes of FULLY_CONNECTED: rows of the input times the transposed weights."""
    _check_filter(step)
    if step.option("WeightsFormat"):
        raise step.refuse("has shuffled weights")
    rows = step.constant([-1, step.shape(1)[1]], "i8")
    if not step.is_integer:
        value = step.emit("Reshape", step.read(0), rows)
        if step.value(1) is None:
            weights = step.emit("Transpose", step.read(1), perm=(1, 0))
        else:
            weights = step.weights((1, 0))
        step.write(_reshaped(step, step.emit("Gemm", value, weights, *step.bias())))
        return
    total = _sums(step, "MatMulInteger", (1, 0), lambda _, value: step.emit("Reshape", value, rows))
    _write_sums(step, total, (1, -1))


def _batch_matmul(step: TfliteStep) -> None:
    """Add the nodes of BATCH_MATMUL, with transposes for `AdjX` and `AdjY`."""
    parts = []
    for position, name in enumerate(("AdjX", "AdjY")):
        value, rank = step.read(position), len(step.shape(position))
        if step.option(name):
            value = step.emit("Transpose", value, perm=[*range(rank - 2), rank - 1, rank - 2])
        parts.append(value)
    step.write(step.emit("MatMul", *parts))


def _transpose_convolution(step: TfliteStep) -> None:
    """Add the nodes of TRANSPOSE_CONV; integers are computed as real numbers and rounded."""
    image, filters, result = step.shape(2), step.shape(1), step.result_shape()
    strides = [step.option("StrideH", 1), step.option("StrideW", 1)]
    before, extra = [], []
    for axis in (1, 2):
        full = (image[axis] - 1) * strides[axis - 1] + filters[axis]
        is_same = step.option("Padding") == _SAME
        before.append(max(full - result[axis], 0) // 2 if is_same else 0)
        extra.append(result[axis] - (full - before[-1]))
    kernel = step.required_value(1)
    if step.is_quantized(step.tensor(1)):
        scales = step.tensor(1).scales
        kernel = kernel.astype("f4")
        for channel in range(kernel.shape[0]):
            kernel[channel] *= scales[channel % len(scales)]
    bias = []
    if step.has(3):
        values = step.required_value(3)
        if values.dtype.kind == "i":
            values = values.astype("f4") * step.tensor(3).scales
        bias = [step.constant(values, "f4")]
    transposed = step.emit(
        "ConvTranspose",
        step.read(2, NCHW),
        step.constant(kernel.transpose(3, 0, 1, 2)),
        *bias,
        strides=strides,
        pads=[*before, *(max(-rows, 0) for rows in extra)],
        output_padding=[max(rows, 0) for rows in extra],
    )
    step.write(transposed, perm=NHWC)


def _pool(kind: str, step: TfliteStep) -> None:
    image, result = step.shape(), step.result()
    size = (step.option("FilterHeight"), step.option("FilterWidth"))
    attributes = _window(step, image[1:3], step.result_shape()[1:3], size)
    attributes |= {"kernel_shape": size}
    if not step.is_integer:
        step.write(step.emit(kind, step.read(0, NCHW), **attributes), perm=NHWC)
    elif kind == "MaxPool":
        limits = [step.constant(limit, step.dtype(result).value) for limit in step.limits(result)]
        value = step.emit(kind, _channels_second(step, step.raw()), **attributes)
        step.write_raw(_channels_last(step, step.emit("Clip", value, *limits)))
    else:
        _average(step, attributes, image, size)


def _average(step: TfliteStep, attributes: dict[str, Any], image: Shape, size: Shape) -> None:
    """Add the nodes of AVERAGE_POOL_2D of integers: sums divided by the pixels of each window.

    Halves are rounded away from zero.
    """
    import numpy

    if not step.same_encoding():
        raise step.refuse("has different scales for input and output")
    value, zero = unsigned(step, 0)
    _, offset = step.encoding(step.tensor())
    ones = step.constant(numpy.ones((image[3], 1, *size), "u1"))
    zeros = (step.constant(zero - offset, "u1"), step.constant(0, "u1"))
    total = step.emit(
        "ConvInteger", _channels_second(step, value), ones, *zeros, group=image[3], **attributes
    )
    total = step.emit("Cast", total, to=7)
    counts = _counts(image[1:3], step.result_shape()[1:3], size, attributes)
    half = step.emit("Mul", step.emit("Sign", total), step.constant(counts // 2))
    mean = step.emit("Div", step.emit("Add", total, half), step.constant(counts))
    limits = [step.constant(limit, "i8") for limit in step.limits(step.result())]
    clipped = step.emit("Clip", mean, *limits)
    elem = onnx_type_of(step.dtype(step.result()))
    step.write_raw(_channels_last(step, step.emit("Cast", clipped, to=elem)))


def _counts(image: Shape, result: Shape, size: Shape, attributes: dict[str, Any]) -> NDArray[Any]:
    """Return an array with the number of image pixels in each window."""
    import numpy

    lines = []
    for axis in range(2):
        starts = numpy.arange(result[axis]) * attributes["strides"][axis] - attributes["pads"][axis]
        covered = numpy.minimum(starts + size[axis], image[axis]) - numpy.maximum(starts, 0)
        lines.append(numpy.maximum(covered, 1))
    counts: NDArray[Any] = numpy.outer(*lines).astype("i8")
    return counts


def _resized(mode: str, step: TfliteStep) -> None:
    coordinates = "half_pixel" if step.option("HalfPixelCenters") else "asymmetric"
    if step.option("AlignCorners"):
        coordinates = "align_corners"
    attributes = {"mode": mode, "coordinate_transformation_mode": coordinates}
    read, write = step.movement(exact=mode == "nearest")
    if mode == "nearest":
        # TFLite selects the pixel that contains the centre.
        is_floor = coordinates == "asymmetric"
        attributes["nearest_mode"] = "floor" if is_floor else "round_prefer_ceil"
    batch, height, width, channels = step.result_shape()
    value = _channels_second(step, read(0))
    sizes = step.constant((batch, channels, height, width), "i8")
    write(_channels_last(step, step.emit("Resize", value, "", "", sizes, **attributes)))


def _blocks(kind: str, step: TfliteStep) -> None:
    read, write = step.movement()
    value = _channels_second(step, read(0))
    write(_channels_last(step, step.emit(kind, value, blocksize=step.option("BlockSize", 1))))


LAYERS: dict[str, Translation] = {
    "AVERAGE_POOL_2D": partial(_pool, "AveragePool"),
    "BATCH_MATMUL": _batch_matmul,
    "CONV_2D": _convolution,
    "DEPTHWISE_CONV_2D": _convolution,
    "DEPTH_TO_SPACE": partial(_blocks, "DepthToSpace"),
    "FULLY_CONNECTED": _fully_connected,
    "MAX_POOL_2D": partial(_pool, "MaxPool"),
    "RESIZE_BILINEAR": partial(_resized, "linear"),
    "RESIZE_NEAREST_NEIGHBOR": partial(_resized, "nearest"),
    "SPACE_TO_DEPTH": partial(_blocks, "SpaceToDepth"),
    "TRANSPOSE_CONV": _transpose_convolution,
}
