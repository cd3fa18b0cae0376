"""Recurrent cells: gates come one by one in QNN, as one matrix in ONNX."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from qnnmem.loader.dlc.draft import NotTranslated, Step
from qnnmem.text import quote

_SEQUENCE = 3  # dimensions of an input with steps of time
_DIRECTIONS = ("forward", "reverse")
# Inputs in ONNX's order of gates: input, output, forget, cell; of the GRU update, reset, new.
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
    """What the nodes of ONNX have not."""
    given = next((place for place in (*places, most) if step.has(place)), None)
    if given is not None:
        raise NotTranslated(f"{quote(step.op.type)} with input {given} is not in the table")
    if len(step.op.outputs) > outputs:
        raise NotTranslated(f"{quote(step.op.type)} with output {outputs} is not in the table")


def _direction(step: Step) -> str:
    step.only(direction=(0, 1))
    return _DIRECTIONS[int(step.scalar("direction", 0))]


def _batch_first(step: Step) -> bool:
    return len(step.shape()) == _SEQUENCE and not step.scalar("time_major", False)


def _steps(step: Step) -> str:
    """The input as steps, batch, features."""
    value = step.read(0)
    if len(step.shape()) < _SEQUENCE:
        return step.one("Unsqueeze", value, step.constant([0], "i8"))
    return step.one("Transpose", value, perm=(1, 0, 2)) if _batch_first(step) else value


def _joined(step: Step, places: Sequence[int], size: int, more: int = 0) -> str:
    """Gates one after another behind an axis for the direction; those that are left out are 0."""
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
    """Results of ONNX to outputs, of which the last ones may be left out."""
    for place, value in zip(range(len(step.op.outputs)), order, strict=False):
        result = made[value]
        if value == 0 and _batch_first(step):
            result = step.one("Transpose", result, perm=(2, 1, 0, 3))
        shape = step.constant(step.result(place).dimensions, "i8")
        step.write(step.one("Reshape", result, shape), place)


RECURRENT: dict[str, Callable[[Step], None]] = {"Gru": _gru, "Lstm": _lstm}
