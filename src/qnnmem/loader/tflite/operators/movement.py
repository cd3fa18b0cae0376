"""TFLite operators that move elements without changing them, as ONNX nodes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from qnnmem.loader.tflite.shapes import selection
from qnnmem.loader.tflite.step import TfliteStep, Translation

_FIRST = -(1 << 62)  # before the first element


def _move(step: TfliteStep, op_type: str, *inputs: str, **attributes: Any) -> None:
    """Add a node that moves elements; round them only if input and output encodings differ."""
    read, write = step.movement()
    write(step.emit(op_type, read(0), *inputs, **attributes))


def _reshape(step: TfliteStep) -> None:
    _move(step, "Reshape", step.constant(step.result_shape(), "i8"))


def _transpose(step: TfliteStep) -> None:
    _move(step, "Transpose", perm=step.numbers(1))


def _tile(step: TfliteStep) -> None:
    _move(step, "Tile", step.constant(step.numbers(1), "i8"))


def _expand(step: TfliteStep) -> None:
    _move(step, "Expand", step.constant(step.result_shape(), "i8"))


def _concat(step: TfliteStep) -> None:
    read, write = step.movement()
    parts = map(read, range(len(step.op.inputs)))
    write = step.write if step.option("FusedActivationFunction") else write
    write(step.emit("Concat", *parts, axis=step.option("Axis")))


def _pack(step: TfliteStep) -> None:
    read, write = step.movement()
    axis = step.constant([step.option("Axis")], "i8")
    inputs = map(read, range(len(step.op.inputs)))
    parts = [step.emit("Unsqueeze", name, axis) for name in inputs]
    write(step.emit("Concat", *parts, axis=step.option("Axis")))


def _split(value_position: int, axis_position: int, step: TfliteStep) -> None:
    (axis,) = step.numbers(axis_position)
    count = len(step.op.outputs)
    sizes = step.constant([step.result_shape(part)[axis] for part in range(count)], "i8")
    parts = step.emit_many("Split", [step.raw(value_position), sizes], count, axis=axis)
    _write_parts(step, parts)


def _unpack(step: TfliteStep) -> None:
    axis, count = step.option("Axis"), len(step.op.outputs)
    parts = step.emit_many(
        "Split", [step.raw(0), step.constant([1] * count, "i8")], count, axis=axis
    )
    axes = step.constant([axis], "i8")
    _write_parts(step, [step.emit("Squeeze", part, axes) for part in parts])


def _write_parts(step: TfliteStep, parts: list[str]) -> None:
    if not step.same_encoding():
        raise step.refuse("has parts with different scales")
    for position, part in enumerate(parts):
        step.write_raw(part, position)


def _slice(step: TfliteStep) -> None:
    begins, sizes = step.numbers(1), step.numbers(2)
    shape = step.shape()
    ends = [
        have if size == -1 else begin + size
        for have, begin, size in zip(shape, begins, sizes, strict=True)
    ]
    _move(step, "Slice", *_constants(step, begins, ends, range(len(shape))))


def _constants(step: TfliteStep, *lists: Sequence[int]) -> list[str]:
    """Return the names of constants with these integers."""
    return [step.constant(numbers, "i8") for numbers in lists]


def _strided(step: TfliteStep) -> None:
    shape, axis = step.shape(), 0
    begins, ends, axes, strides = [], [], [], []
    for chosen in selection(step.call):
        if chosen is None:
            continue
        if isinstance(chosen, int):
            first = chosen % max(shape[axis], 1)
            chosen = slice(first, first + 1, 1)
        start, stop, stride = chosen.indices(shape[axis])
        begins.append(start)
        ends.append(_FIRST if stride < 0 and stop < 0 else stop)
        axes.append(axis)
        strides.append(stride)
        axis += 1
    read, write = step.movement()
    part = step.emit("Slice", read(0), *_constants(step, begins, ends, axes, strides))
    write(step.emit("Reshape", part, step.constant(step.result_shape(), "i8")))


def _pad(step: TfliteStep) -> None:
    pads = _pads(step)
    dtype = step.dtype(step.tensor()).value
    if step.has(2):
        padding = step.emit("Reshape", step.raw(2), step.constant([], "i8"))
    elif step.is_quantized(step.tensor()):
        padding = step.constant(step.encoding(step.result())[1], dtype)
    else:
        padding = step.constant(0, dtype)
    if not step.same_encoding():
        raise step.refuse("has different scales for input and output")
    step.write_raw(step.emit("Pad", step.raw(), pads, padding))


def _pads(step: TfliteStep) -> str:
    """Return the name of the pads in ONNX's order: before all axes, then after all axes."""
    margins = step.required_value(1).reshape(-1, 2)
    return step.constant([*margins[:, 0], *margins[:, 1]], "i8")


def _mirror_pad(step: TfliteStep) -> None:
    if step.option("Mode"):
        raise step.refuse("is not supported with mode SYMMETRIC")
    _move(step, "Pad", _pads(step), mode="reflect")


def _gather(step: TfliteStep) -> None:
    if step.option("BatchDims"):
        raise step.refuse("is not supported with batch dimensions")
    _move(step, "Gather", step.raw(1), axis=step.option("Axis"))


def _gather_nd(step: TfliteStep) -> None:
    _move(step, "GatherND", step.emit("Cast", step.raw(1), to=7))


def _reverse(step: TfliteStep) -> None:
    axes = step.numbers(1)
    count = len(axes)
    _move(step, "Slice", *_constants(step, [-1] * count, [_FIRST] * count, axes, [-1] * count))


MOVEMENT: dict[str, Translation] = {
    "BROADCAST_TO": _expand,
    "CONCATENATION": _concat,
    "EXPAND_DIMS": _reshape,
    "GATHER": _gather,
    "GATHER_ND": _gather_nd,
    "MIRROR_PAD": _mirror_pad,
    "PACK": _pack,
    "PAD": _pad,
    "PADV2": _pad,
    "RESHAPE": _reshape,
    "REVERSE_V2": _reverse,
    "SLICE": _slice,
    "SPLIT": partial(_split, 1, 0),
    "SPLIT_V": partial(_split, 0, 2),
    "SQUEEZE": _reshape,
    "STRIDED_SLICE": _strided,
    "TILE": _tile,
    "TRANSPOSE": _transpose,
    "UNPACK": _unpack,
}
