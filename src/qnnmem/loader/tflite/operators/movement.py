"""TFLite operators that move elements without changing them, as ONNX nodes."""

from __future__ import annotations

from functools import partial
from typing import Any

from qnnmem.loader.tflite.shapes import selection
from qnnmem.loader.tflite.step import Row, TfliteStep

_FIRST = -(1 << 62)  # before the first element


def _moved(
    step: TfliteStep, kind: str, value_at: int = 0, more: tuple[str, ...] = (), **options: Any
) -> None:
    """Add a node that moves elements; it rounds them only if the output's encoding differs."""
    raw = step.moves()
    made = step.one(kind, (step.raw if raw else step.read)(value_at), *more, **options)
    (step.write_raw if raw else step.write)(made)


def _reshape(step: TfliteStep) -> None:
    _moved(step, "Reshape", 0, (step.constant(step.made_shape(), "i8"),))


def _transpose(step: TfliteStep) -> None:
    _moved(step, "Transpose", perm=step.numbers(1))


def _tile(step: TfliteStep) -> None:
    _moved(step, "Tile", 0, (step.constant(step.numbers(1), "i8"),))


def _spread(step: TfliteStep) -> None:
    _moved(step, "Expand", 0, (step.constant(step.made_shape(), "i8"),))


def _concat(step: TfliteStep) -> None:
    raw = step.moves()
    parts = [(step.raw if raw else step.read)(at) for at in range(len(step.op.inputs))]
    made = step.one("Concat", *parts, axis=step.option("Axis"))
    (step.write_raw if raw and not step.option("FusedActivationFunction") else step.write)(made)


def _pack(step: TfliteStep) -> None:
    raw, axis = step.moves(), step.constant([step.option("Axis")], "i8")
    parts = [
        step.one("Unsqueeze", (step.raw if raw else step.read)(at), axis)
        for at in range(len(step.op.inputs))
    ]
    (step.write_raw if raw else step.write)(step.one("Concat", *parts, axis=step.option("Axis")))


def _split(value_at: int, axis_at: int, step: TfliteStep) -> None:
    (axis,) = step.numbers(axis_at)
    count = len(step.op.outputs)
    sizes = step.constant([step.made_shape(at)[axis] for at in range(count)], "i8")
    parts = step.node("Split", [step.raw(value_at), sizes], count, axis=axis)
    _parts(step, parts)


def _unpack(step: TfliteStep) -> None:
    axis, count = step.option("Axis"), len(step.op.outputs)
    parts = step.node("Split", [step.raw(0), step.constant([1] * count, "i8")], count, axis=axis)
    listed = step.constant([axis], "i8")
    _parts(step, [step.one("Squeeze", part, listed) for part in parts])


def _parts(step: TfliteStep, parts: list[str]) -> None:
    if not step.moves():
        raise step.refuse("has parts with different scales")
    for place, part in enumerate(parts):
        step.write_raw(part, place)


def _slice(step: TfliteStep) -> None:
    begins, sizes = step.numbers(1), step.numbers(2)
    shape = step.shape()
    ends = [
        have if size == -1 else begin + size
        for have, begin, size in zip(shape, begins, sizes, strict=True)
    ]
    limits = tuple(step.constant(listed, "i8") for listed in (begins, ends, range(len(shape))))
    _moved(step, "Slice", 0, limits)


def _strided(step: TfliteStep) -> None:
    shape, at = step.shape(), 0
    begins, ends, axes, by = [], [], [], []
    for chosen in selection(step.call):
        if chosen is None:
            continue
        if isinstance(chosen, int):
            first = chosen % max(shape[at], 1)
            chosen = slice(first, first + 1, 1)
        start, stop, stride = chosen.indices(shape[at])
        begins.append(start)
        ends.append(_FIRST if stride < 0 and stop < 0 else stop)
        axes.append(at)
        by.append(stride)
        at += 1
    value = step.raw() if step.moves() else step.read()
    listed = [step.constant(numbers, "i8") for numbers in (begins, ends, axes, by)]
    part = step.one("Slice", value, *listed)
    made = step.one("Reshape", part, step.constant(step.made_shape(), "i8"))
    (step.write_raw if step.moves() else step.write)(made)


def _pad(step: TfliteStep) -> None:
    margins = step.known(1).reshape(-1, 2)
    listed = step.constant([*margins[:, 0], *margins[:, 1]], "i8")
    kind = step.dtype(step.tensor()).value
    if step.has(2):
        filling = step.one("Reshape", step.raw(2), step.constant([], "i8"))
    elif step.is_quantized(step.tensor()):
        filling = step.constant(step.encoding(step.result())[1], kind)
    else:
        filling = step.constant(0, kind)
    if not step.moves():
        raise step.refuse("has different scales for input and output")
    step.write_raw(step.one("Pad", step.raw(), listed, filling))


def _mirror(step: TfliteStep) -> None:
    margins = step.known(1).reshape(-1, 2)
    listed = step.constant([*margins[:, 0], *margins[:, 1]], "i8")
    if step.option("Mode"):
        raise step.refuse("is not supported with mode SYMMETRIC")
    _moved(step, "Pad", 0, (listed,), mode="reflect")


def _gather(step: TfliteStep) -> None:
    if step.option("BatchDims"):
        raise step.refuse("is not supported with batch dimensions")
    _moved(step, "Gather", 0, (step.raw(1),), axis=step.option("Axis"))


def _gather_places(step: TfliteStep) -> None:
    _moved(step, "GatherND", 0, (step.one("Cast", step.raw(1), to=7),))


def _reversed(step: TfliteStep) -> None:
    axes = step.numbers(1)
    starts, ends, by = [-1] * len(axes), [_FIRST] * len(axes), [-1] * len(axes)
    limits = tuple(step.constant(listed, "i8") for listed in (starts, ends, axes, by))
    _moved(step, "Slice", 0, limits)


MOVEMENT: dict[str, Row] = {
    "BROADCAST_TO": _spread,
    "CONCATENATION": _concat,
    "EXPAND_DIMS": _reshape,
    "GATHER": _gather,
    "GATHER_ND": _gather_places,
    "MIRROR_PAD": _mirror,
    "PACK": _pack,
    "PAD": _pad,
    "PADV2": _pad,
    "RESHAPE": _reshape,
    "REVERSE_V2": _reversed,
    "SLICE": _slice,
    "SPLIT": partial(_split, 1, 0),
    "SPLIT_V": partial(_split, 0, 2),
    "SQUEEZE": _reshape,
    "STRIDED_SLICE": _strided,
    "TILE": _tile,
    "TRANSPOSE": _transpose,
    "UNPACK": _unpack,
}
