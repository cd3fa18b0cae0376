"""QNN layers as ONNX nodes: convolution, products, normalisation, pooling, LSTM and GRU.

Images have their channels last. QNN has one tensor for each gate of a cell; ONNX has one matrix.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from qnnmem.loader.dlc.draft import Step

_LINE, _IMAGE = 3, 4


def _axes(step: Step) -> int:
    """Return the number of axes that a window moves along, without batch and channels."""
    wanted = _LINE if step.op.type.endswith("1d") else _IMAGE
    if len(step.shape()) != wanted:
        raise step.refuse(f"with {len(step.shape())} dimensions is not supported")
    return wanted - 2


def _channels_second(step: Step) -> str:
    """Move the channels of the first input to axis 1, as in ONNX; return the name of the result."""
    spatial = range(1, _axes(step) + 1)
    return step.emit("Transpose", step.read(0), perm=(0, len(spatial) + 1, *spatial))


def _write_image(step: Step, value: str) -> None:
    """Write a value to the output, with channels moved back to the last axis."""
    spatial = range(2, _axes(step) + 2)
    step.write(step.emit("Transpose", value, perm=(0, *spatial, 1)))


def _window(step: Step) -> dict[str, Any]:
    """Return strides and pads in ONNX's order; QNN stores the pads of each axis as a pair."""
    axes = _axes(step)
    amounts = step.numbers("pad_amount", (0, 0) * axes)
    return {
        "pads": [*amounts[0::2], *amounts[1::2]],
        "strides": step.numbers("stride", (1,) * axes),
    }


def _filter(step: Step) -> tuple[tuple[int, ...], list[str]]:
    """Return the filter size and the names of all inputs, transposed to ONNX's axis order."""
    axes = _axes(step)
    if len(step.shape(1)) != axes + 2:
        raise step.refuse(f"with a filter of {len(step.shape(1))} dimensions is not supported")
    channels = (axes, axes + 1) if step.op.type.startswith("Transpose") else (axes + 1, axes)
    weights = step.emit("Transpose", step.read(1), perm=(*channels, *range(axes)))
    bias = [step.read(2)] if step.has(2) else []
    return step.shape(1)[:axes], [_channels_second(step), weights, *bias]


def _convolution(step: Step) -> None:
    size, inputs = _filter(step)
    group = int(step.scalar("group", 1))
    if step.op.type.startswith("DepthWise"):
        group = step.shape()[-1]
    window = _window(step) | {"dilations": step.numbers("dilation", (1,) * len(size))}
    _write_image(step, step.emit("Conv", *inputs, group=group, kernel_shape=size, **window))


def _transposed_convolution(step: Step) -> None:
    size, inputs = _filter(step)
    image = step.emit(
        "ConvTranspose",
        *inputs,
        group=int(step.scalar("group", 1)),
        kernel_shape=size,
        output_padding=step.numbers("output_padding", (0,) * len(size)),
        dilations=step.numbers("dilation", (1,) * len(size)),
        **_window(step),
    )
    _write_image(step, image)


def _fully_connected(step: Step) -> None:
    _, features = step.shape(1)
    flat = step.emit("Reshape", step.read(0), step.constant((-1, features), "i8"))
    inputs = [flat, step.read(1), *([step.read(2)] if step.has(2) else [])]
    rows = step.emit("Gemm", *inputs, transB=1)
    step.write(step.emit("Reshape", rows, step.constant(step.result().dimensions, "i8")))


def _product(step: Step) -> None:
    values = []
    for position in range(2):
        value, rank = step.read(position), len(step.shape(position))
        if step.scalar(f"transpose_in{position}", False):
            value = step.emit("Transpose", value, perm=(*range(rank - 2), rank - 1, rank - 2))
        values.append(value)
    _write_sum(step, step.emit("MatMul", *values))


def _write_sum(step: Step, value: str) -> None:
    """Write a value to the output after adding the bias, if there is one."""
    step.write(step.emit("Add", value, step.read(2)) if step.has(2) else value)


def _batch_norm(step: Step) -> None:
    """Multiply each channel (the last axis) by a factor and add an offset."""
    _write_sum(step, step.emit("Mul", step.read(0), step.read(1)))


def _write_affine(step: Step, value: str) -> None:
    """Write a value to the output after applying the optional factor and offset."""
    if step.has(1):
        value = step.emit("Mul", value, step.read(1))
    _write_sum(step, value)


def _normalized(step: Step, axes: list[int], *, centred: bool = True) -> str:
    """Normalize the first input to variance 1 over `axes`; return the name of the result.

    With `centred`, the result has the mean 0; otherwise "variance" means the mean square.
    """
    axes_name = step.constant(axes, "i8")
    value = step.read(0)
    if centred:
        value = step.emit("Sub", value, step.emit("ReduceMean", value, axes_name, keepdims=1))
    squares = step.emit("ReduceMean", step.emit("Mul", value, value), axes_name, keepdims=1)
    epsilon = step.constant(step.scalar("epsilon", 1e-5), "f4")
    return step.emit("Div", value, step.emit("Sqrt", step.emit("Add", squares, epsilon)))


def _layer_norm(step: Step) -> None:
    _write_affine(step, _normalized(step, _last_axes(step)))


def _rms_norm(step: Step) -> None:
    _write_affine(step, _normalized(step, _last_axes(step), centred=False))


def _last_axes(step: Step) -> list[int]:
    """Return the axes of a normalization; raise NotTranslated unless they are the last axes."""
    axes = sorted(int(axis) for axis in step.array("axes").reshape(-1))
    if axes != list(range(len(step.shape()) - len(axes), len(step.shape()))):
        raise step.refuse(f"over axes {axes} is not supported")
    return axes


def _instance_norm(step: Step) -> None:
    step.require(mode=(0,), normalize_variance=(True,), region=(0,))
    _write_affine(step, _normalized(step, list(range(1, len(step.shape()) - 1))))


def _l2_norm(step: Step) -> None:
    axes = step.array("axes", [int(step.scalar("axis", len(step.shape()) - 1))])
    value = step.read(0)
    length = step.emit("ReduceL2", value, step.constant(axes.reshape(-1), "i8"), keepdims=1)
    least = step.constant(step.scalar("epsilon", 1e-12), "f4")
    step.write(step.emit("Div", value, step.emit("Max", length, least)))


def _pool(kind: str, step: Step) -> None:
    attributes = _window(step) | {"kernel_shape": step.array("filter_size").tolist()}
    step.require(rounding_mode=(0, 1))
    if step.scalar("rounding_mode", 0):
        attributes["ceil_mode"] = 1
    if kind == "AveragePool":
        attributes["count_include_pad"] = int(step.scalar("count_pad_for_edges", False))
    _write_image(step, step.emit(kind, _channels_second(step), **attributes))


def _local_response(step: Step) -> None:
    step.require(region=(0,))
    size = 2 * int(step.scalar("radius")) + 1
    image = step.emit(
        "LRN",
        _channels_second(step),
        size=size,
        alpha=float(step.scalar("alpha")) * size,  # ONNX divides alpha by the size
        beta=float(step.scalar("beta")),
        bias=float(step.scalar("bias")),
    )
    _write_image(step, image)


LAYERS: dict[str, Callable[[Step], None]] = {
    "Batchnorm": _batch_norm,
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
    step.require(cell_clip_threshold=(0.0,), output_clip_threshold=(0.0,))
    _refuse(step, (*_LSTM_LAYERS, *_LSTM_PEEPHOLES, *_LSTM_PROJECTION), _LSTM_MOST, _LSTM_OUTPUTS)
    size = step.shape(_LSTM_RECURRENT[1])[1]
    bias = _joined(step, _LSTM_BIASES, size, zeros=len(_LSTM_BIASES))
    states = [_state(step, position, size) for position in (_LSTM_HIDDEN, _LSTM_CELL)]
    weights = (_joined(step, _LSTM_WEIGHTS, size), _joined(step, _LSTM_RECURRENT, size), bias)
    results = step.emit_many(
        "LSTM",
        [_steps(step), *weights, "", *states],
        3,
        hidden_size=size,
        direction=_direction(step),
    )
    _write_results(step, [results[0], results[2], results[1]])


def _gru(step: Step) -> None:
    _refuse(step, (), _GRU_MOST, _GRU_OUTPUTS)
    size = step.shape(_GRU_RECURRENT[0])[1]
    groups = (_GRU_WEIGHTS, _GRU_RECURRENT, _GRU_BIASES)
    weights = [_joined(step, positions, size) for positions in groups]
    results = step.emit_many(
        "GRU",
        [_steps(step), *weights, "", _state(step, _GRU_HIDDEN, size)],
        2,
        hidden_size=size,
        direction=_direction(step),
        linear_before_reset=int(step.scalar("linear_before_reset", 1)),
    )
    _write_results(step, results)


def _refuse(step: Step, positions: Sequence[int], most: int, outputs: int) -> None:
    """Raise NotTranslated for inputs and outputs that the ONNX operator does not have."""
    present = next((position for position in (*positions, most) if step.has(position)), None)
    if present is not None:
        raise step.refuse(f"with input {present} is not supported")
    if len(step.op.outputs) > outputs:
        raise step.refuse(f"with more than {outputs} outputs is not supported")


def _direction(step: Step) -> str:
    step.require(direction=(0, 1))
    return _DIRECTIONS[int(step.scalar("direction", 0))]


def _batch_first(step: Step) -> bool:
    return len(step.shape()) == _SEQUENCE and not step.scalar("time_major", False)


def _steps(step: Step) -> str:
    """Transpose the input to the axes steps, batch, features; return the name of the result."""
    value = step.read(0)
    if len(step.shape()) < _SEQUENCE:
        return step.emit("Unsqueeze", value, step.constant([0], "i8"))
    return step.emit("Transpose", value, perm=(1, 0, 2)) if _batch_first(step) else value


def _joined(step: Step, positions: Sequence[int], size: int, zeros: int = 0) -> str:
    """Concatenate the tensors of all gates and add a direction axis; return the result's name.

    An omitted tensor counts as zeros. `zeros` is the number of zero tensors to append.
    """
    gates = [step.read(position) if step.has(position) else "" for position in positions]
    gates += [""] * zeros
    parts = [gate or step.constant([0.0] * size, "f4") for gate in gates]
    return step.emit("Unsqueeze", step.emit("Concat", *parts, axis=0), step.constant([0], "i8"))


def _state(step: Step, position: int, size: int) -> str:
    if not step.has(position):
        return ""
    return step.emit("Reshape", step.read(position), step.constant((1, -1, size), "i8"))


def _write_results(step: Step, results: Sequence[str]) -> None:
    """Write the results to the outputs; trailing outputs can be missing."""
    for position, result in zip(range(len(step.op.outputs)), results, strict=False):
        if position == 0 and _batch_first(step):
            result = step.emit("Transpose", result, perm=(2, 1, 0, 3))
        shape = step.constant(step.result(position).dimensions, "i8")
        step.write(step.emit("Reshape", result, shape), position)


RECURRENT: dict[str, Callable[[Step], None]] = {"Gru": _gru, "Lstm": _lstm}
