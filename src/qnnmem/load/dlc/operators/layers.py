"""Operators with weights, normalizations and pooling; images have their channels last."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from qnnmem.load.dlc.draft import NCHW, NHWC, NotTranslated, Step
from qnnmem.text import quote

_IMAGE = 4


def _image(step: Step) -> str:
    """The first input with its channels second, as ONNX has them."""
    if len(step.shape()) != _IMAGE:
        raise NotTranslated(f"{quote(step.op.type)} of {len(step.shape())} dimensions")
    return step.one("Transpose", step.read(0), perm=NCHW)


def _back(step: Step, value: str) -> None:
    step.write(step.one("Transpose", value, perm=NHWC))


def _window(step: Step) -> dict[str, Any]:
    """Strides, pads and dilations; pads of QNN are before and after, axis by axis."""
    (top, bottom), (left, right) = step.array("pad_amount", ((0, 0), (0, 0))).tolist()
    return {
        "pads": [top, left, bottom, right],
        "strides": step.array("stride", (1, 1)).tolist(),
    }


def _convolution(step: Step) -> None:
    height, width, _, _ = step.shape(1)
    group = int(step.scalar("group", 1))
    if step.op.type == "DepthWiseConv2d":
        group = step.shape()[3]
    weights = step.one("Transpose", step.read(1), perm=(3, 2, 0, 1))
    inputs = [_image(step), weights, *([step.read(2)] if step.has(2) else [])]
    window = _window(step) | {"dilations": step.array("dilation", (1, 1)).tolist()}
    made = step.one("Conv", *inputs, group=group, kernel_shape=[height, width], **window)
    _back(step, made)


def _transposed_convolution(step: Step) -> None:
    height, width, _, _ = step.shape(1)
    weights = step.one("Transpose", step.read(1), perm=(2, 3, 0, 1))
    inputs = [_image(step), weights, *([step.read(2)] if step.has(2) else [])]
    made = step.one(
        "ConvTranspose",
        *inputs,
        group=int(step.scalar("group", 1)),
        kernel_shape=[height, width],
        output_padding=step.array("output_padding", (0, 0)).tolist(),
        **_window(step),
    )
    _back(step, made)


def _fully_connected(step: Step) -> None:
    _, features = step.shape(1)
    flat = step.one("Reshape", step.read(0), step.constant((-1, features), "i8"))
    inputs = [flat, step.read(1), *([step.read(2)] if step.has(2) else [])]
    made = step.one("Gemm", *inputs, transB=1)
    step.write(step.one("Reshape", made, step.constant(step.result().dimensions, "i8")))


def _product(step: Step) -> None:
    values = []
    for place in range(2):
        value, rank = step.read(place), len(step.shape(place))
        if step.scalar(f"transpose_in{place}", False):
            value = step.one("Transpose", value, perm=(*range(rank - 2), rank - 1, rank - 2))
        values.append(value)
    made = step.one("MatMul", *values)
    step.write(step.one("Add", made, step.read(2)) if step.has(2) else made)


def _scaled(step: Step) -> None:
    """Batch normalization: a factor and a summand for each channel, which is last."""
    made = step.one("Mul", step.read(0), step.read(1))
    step.write(step.one("Add", made, step.read(2)) if step.has(2) else made)


def _affine(step: Step, value: str) -> None:
    for place, kind in ((1, "Mul"), (2, "Add")):
        if step.has(place):
            value = step.one(kind, value, step.read(place))
    step.write(value)


def _normalized(step: Step, axes: list[int], *, centred: bool = True) -> str:
    """Values over axes brought to mean 0, if `centred`, and variance 1."""
    listed = step.constant(axes, "i8")
    value = step.read(0)
    if centred:
        value = step.one("Sub", value, step.one("ReduceMean", value, listed, keepdims=1))
    squares = step.one("ReduceMean", step.one("Mul", value, value), listed, keepdims=1)
    epsilon = step.constant(step.scalar("epsilon", 1e-5), "f4")
    return step.one("Div", value, step.one("Sqrt", step.one("Add", squares, epsilon)))


def _layer_norm(step: Step) -> None:
    _affine(step, _normalized(step, _last(step)))


def _rms_norm(step: Step) -> None:
    _affine(step, _normalized(step, _last(step), centred=False))


def _last(step: Step) -> list[int]:
    """The axes of a normalization; gains fit them only if they are the last ones."""
    axes = sorted(int(axis) for axis in step.array("axes").reshape(-1))
    if axes != list(range(len(step.shape()) - len(axes), len(step.shape()))):
        raise NotTranslated(f"{quote(step.op.type)} over axes {axes} is not in the table")
    return axes


def _instance_norm(step: Step) -> None:
    step.only(mode=(0,), normalize_variance=(True,), region=(0,))
    _affine(step, _normalized(step, list(range(1, len(step.shape()) - 1))))


def _l2_norm(step: Step) -> None:
    axes = step.array("axes", [int(step.scalar("axis", len(step.shape()) - 1))])
    listed = step.constant(axes.reshape(-1), "i8")
    value = step.read(0)
    length = step.one("ReduceL2", value, listed, keepdims=1)
    least = step.constant(step.scalar("epsilon", 1e-12), "f4")
    step.write(step.one("Div", value, step.one("Max", length, least)))


def _pool(kind: str, step: Step) -> None:
    attributes = _window(step) | {"kernel_shape": step.array("filter_size").tolist()}
    step.only(rounding_mode=(0, 1))
    if step.scalar("rounding_mode", 0):
        attributes["ceil_mode"] = 1
    if kind == "AveragePool":
        attributes["count_include_pad"] = int(step.scalar("count_pad_for_edges", False))
    _back(step, step.one(kind, _image(step), **attributes))


def _local_response(step: Step) -> None:
    step.only(region=(0,))
    size = 2 * int(step.scalar("radius")) + 1
    made = step.one(
        "LRN",
        _image(step),
        size=size,
        alpha=float(step.scalar("alpha")) * size,  # ONNX divides it by the size
        beta=float(step.scalar("beta")),
        bias=float(step.scalar("bias")),
    )
    _back(step, made)


LAYERS: dict[str, Callable[[Step], None]] = {
    "Batchnorm": _scaled,
    "Conv2d": _convolution,
    "DepthWiseConv2d": _convolution,
    "FullyConnected": _fully_connected,
    "InstanceNorm": _instance_norm,
    "L2Norm": _l2_norm,
    "LayerNorm": _layer_norm,
    "Lrn": _local_response,
    "MatMul": _product,
    "PoolAvg2d": partial(_pool, "AveragePool"),
    "PoolMax2d": partial(_pool, "MaxPool"),
    "RmsNorm": _rms_norm,
    "TransposeConv2d": _transposed_convolution,
}
