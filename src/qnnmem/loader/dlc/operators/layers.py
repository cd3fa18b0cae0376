"""QNN layers as ONNX nodes: convolution, products, normalisation, pooling, LSTM and GRU.

Images have their channels last. QNN has one tensor for each gate of a cell; ONNX has one matrix.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from qnnmem.loader.dlc.draft import Step
from qnnmem.loader.onnx.draft import NotTranslated
from qnnmem.text import quote

_LINE, _IMAGE = 3, 4


def _axes(step: Step) -> int:
    """Return the number of axes that a window moves along, without batch and channels."""
    wanted = _LINE if step.op.type.endswith("1d") else _IMAGE
    if len(step.shape()) != wanted:
        raise NotTranslated(
            f"{quote(step.op.type)} with {len(step.shape())} dimensions is not supported"
        )
    return wanted - 2


def _channels_second(step: Step) -> str:
    """Return the name of the first input with channels second, as ONNX expects."""
    inside = range(1, _axes(step) + 1)
    return step.one("Transpose", step.read(0), perm=(0, len(inside) + 1, *inside))


def _back(step: Step, value: str) -> None:
    """Write a value to the output, with channels moved back to the last axis."""
    inside = range(2, _axes(step) + 2)
    step.write(step.one("Transpose", value, perm=(0, *inside, 1)))


def _window(step: Step) -> dict[str, Any]:
    """Return strides and pads in ONNX's order; QNN stores the pads of each axis as a pair."""
    axes = _axes(step)
    amounts = step.numbers("pad_amount", (0, 0) * axes)
    return {
        "pads": [*amounts[0::2], *amounts[1::2]],
        "strides": step.numbers("stride", (1,) * axes),
    }


def _filtered(step: Step) -> tuple[tuple[int, ...], list[str]]:
    """Return the filter size and all inputs, with channels moved to ONNX's axes."""
    axes = _axes(step)
    if len(step.shape(1)) != axes + 2:
        raise NotTranslated(f"{quote(step.op.type)} with a filter of another rank is not supported")
    inside = range(axes)
    first = (axes, axes + 1) if step.op.type.startswith("Transpose") else (axes + 1, axes)
    weights = step.one("Transpose", step.read(1), perm=(*first, *inside))
    bias = [step.read(2)] if step.has(2) else []
    return step.shape(1)[:axes], [_channels_second(step), weights, *bias]


def _convolution(step: Step) -> None:
    size, inputs = _filtered(step)
    group = int(step.scalar("group", 1))
    if step.op.type.startswith("DepthWise"):
        group = step.shape()[-1]
    window = _window(step) | {"dilations": step.numbers("dilation", (1,) * len(size))}
    _back(step, step.one("Conv", *inputs, group=group, kernel_shape=size, **window))


def _transposed_convolution(step: Step) -> None:
    size, inputs = _filtered(step)
    made = step.one(
        "ConvTranspose",
        *inputs,
        group=int(step.scalar("group", 1)),
        kernel_shape=size,
        output_padding=step.numbers("output_padding", (0,) * len(size)),
        dilations=step.numbers("dilation", (1,) * len(size)),
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
    """Add the nodes of a batch normalization: a factor and an offset for each channel.

    Channels are the last axis.
    """
    made = step.one("Mul", step.read(0), step.read(1))
    step.write(step.one("Add", made, step.read(2)) if step.has(2) else made)


def _affine(step: Step, value: str) -> None:
    for place, kind in ((1, "Mul"), (2, "Add")):
        if step.has(place):
            value = step.one(kind, value, step.read(place))
    step.write(value)


def _normalized(step: Step, axes: list[int], *, centred: bool = True) -> str:
    """Add nodes that normalize values to variance 1 over axes, and return the result's name.

    With `centred` the mean becomes 0.
    """
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
    """Return the axes of a normalization; raise NotTranslated unless they are the last axes."""
    axes = sorted(int(axis) for axis in step.array("axes").reshape(-1))
    if axes != list(range(len(step.shape()) - len(axes), len(step.shape()))):
        raise NotTranslated(f"{quote(step.op.type)} over axes {axes} is not supported")
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
    _back(step, step.one(kind, _channels_second(step), **attributes))


def _local_response(step: Step) -> None:
    step.only(region=(0,))
    size = 2 * int(step.scalar("radius")) + 1
    made = step.one(
        "LRN",
        _channels_second(step),
        size=size,
        alpha=float(step.scalar("alpha")) * size,  # ONNX divides alpha by the size
        beta=float(step.scalar("beta")),
        bias=float(step.scalar("bias")),
    )
    _back(step, made)


LAYERS: dict[str, Callable[[Step], None]] = {
    "Batchnorm": _scaled,
    "Conv1d": _convolution,
    "Conv2d": _convolution,
    "DepthWiseConv1d": _convolution,
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
    "TransposeConv1d": _transposed_convolution,
    "TransposeConv2d": _transposed_convolution,
}

_SEQUENCE = 3  # dimensions of an input with time steps
_DIRECTIONS = ("forward", "reverse")
# Input positions in ONNX's order of gates: input, output, forget, cell; for GRU update, reset, new.
_LSTM_WEIGHTS, _LSTM_RECURRENT, _LSTM_BIASES = (16, 3, 1, 2), (17, 6, 4, 5), (21, 9, 7, 8)
_LSTM_HIDDEN, _LSTM_CELL = 10, 11
_LSTM_LAYERS = (12, 13, 14, 15)  # normalizations of the gates
_LSTM_PEEPHOLES, _LSTM_PROJECTION = (18, 19, 20), (22, 23)
_LSTM_MOST, _LSTM_OUTPUTS = 24, 3
_GRU_WEIGHTS, _GRU_RECURRENT = (1, 2, 3), (4, 5, 6)
_GRU_BIASES, _GRU_HIDDEN, _GRU_MOST, _GRU_OUTPUTS = (7, 8, 9, 10, 11, 12), 13, 14, 2


def _lstm(step: Step) -> None:
    step.only(cell_clip_threshold=(0.0,), output_clip_threshold=(0.0,))
    _refuse(step, (*_LSTM_LAYERS, *_LSTM_PEEPHOLES, *_LSTM_PROJECTION), _LSTM_MOST, _LSTM_OUTPUTS)
    size = step.shape(_LSTM_RECURRENT[1])[1]
    bias = _joined(step, _LSTM_BIASES, size, more=len(_LSTM_BIASES))
    states = [_state(step, place, size) for place in (_LSTM_HIDDEN, _LSTM_CELL)]
    weights = (_joined(step, _LSTM_WEIGHTS, size), _joined(step, _LSTM_RECURRENT, size), bias)
    made = step.node(
        "LSTM",
        [_steps(step), *weights, "", *states],
        3,
        hidden_size=size,
        direction=_direction(step),
    )
    _write(step, made, (0, 2, 1))


def _gru(step: Step) -> None:
    _refuse(step, (), _GRU_MOST, _GRU_OUTPUTS)
    size = step.shape(_GRU_RECURRENT[0])[1]
    weights = [_joined(step, places, size) for places in (_GRU_WEIGHTS, _GRU_RECURRENT)]
    weights.append(_joined(step, _GRU_BIASES, size))
    made = step.node(
        "GRU",
        [_steps(step), *weights, "", _state(step, _GRU_HIDDEN, size)],
        2,
        hidden_size=size,
        direction=_direction(step),
        linear_before_reset=int(step.scalar("linear_before_reset", 1)),
    )
    _write(step, made, (0, 1))


def _refuse(step: Step, places: Sequence[int], most: int, outputs: int) -> None:
    """Raise NotTranslated for inputs and outputs that the ONNX operator does not have."""
    given = next((place for place in (*places, most) if step.has(place)), None)
    if given is not None:
        raise NotTranslated(f"{quote(step.op.type)} with input {given} is not supported")
    if len(step.op.outputs) > outputs:
        raise NotTranslated(f"{quote(step.op.type)} with output {outputs} is not supported")


def _direction(step: Step) -> str:
    step.only(direction=(0, 1))
    return _DIRECTIONS[int(step.scalar("direction", 0))]


def _batch_first(step: Step) -> bool:
    return len(step.shape()) == _SEQUENCE and not step.scalar("time_major", False)


def _steps(step: Step) -> str:
    """Return the name of the input with its axes in the order steps, batch, features."""
    value = step.read(0)
    if len(step.shape()) < _SEQUENCE:
        return step.one("Unsqueeze", value, step.constant([0], "i8"))
    return step.one("Transpose", value, perm=(1, 0, 2)) if _batch_first(step) else value


def _joined(step: Step, places: Sequence[int], size: int, more: int = 0) -> str:
    """Return the name of the concatenated tensors of all gates; omitted tensors are 0.

    The result has an additional axis for the direction.
    """
    parts = [step.read(one) if step.has(one) else _nothing(step, size) for one in places]
    parts += [_nothing(step, size)] * more
    return step.one("Unsqueeze", step.one("Concat", *parts, axis=0), step.constant([0], "i8"))


def _nothing(step: Step, size: int) -> str:
    return step.constant([0.0] * size, "f4")


def _state(step: Step, place: int, size: int) -> str:
    if not step.has(place):
        return ""
    return step.one("Reshape", step.read(place), step.constant((1, -1, size), "i8"))


def _write(step: Step, made: Sequence[str], order: Sequence[int]) -> None:
    """Write ONNX results to the outputs; trailing outputs can be missing."""
    for place, value in zip(range(len(step.op.outputs)), order, strict=False):
        result = made[value]
        if value == 0 and _batch_first(step):
            result = step.one("Transpose", result, perm=(2, 1, 0, 3))
        shape = step.constant(step.result(place).dimensions, "i8")
        step.write(step.one("Reshape", result, shape), place)


RECURRENT: dict[str, Callable[[Step], None]] = {"Gru": _gru, "Lstm": _lstm}
