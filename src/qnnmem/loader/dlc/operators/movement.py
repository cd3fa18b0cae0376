"""QNN operators that move elements without changing them, and resizing, as ONNX nodes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from qnnmem.loader.dlc.draft import Step
from qnnmem.loader.onnx.draft import NCHW, NHWC
from qnnmem.qnn.enums import DataType

_FIRST = -(1 << 62)  # before the first element
_PADS = {0: "constant", 2: "reflect", 3: "edge"}
_COORDINATES = ("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric")
_ROUNDING = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
_INTERPOLATIONS = ("nearest", "linear", "cubic")


def _move(step: Step, op_type: str, *inputs: str, **attributes: Any) -> None:
    """Add nodes that move elements, and round them only if input and output encodings differ."""
    read, write = step.movement(0)
    write(step.emit(op_type, read(0), *inputs, **attributes))


def _reshape(step: Step) -> None:
    _move(step, "Reshape", step.constant(step.result().dimensions, "i8"))


def _transpose(step: Step) -> None:
    _move(step, "Transpose", perm=step.array("perm").tolist())


def _tile(step: Step) -> None:
    _move(step, "Tile", step.constant(step.array("multiples"), "i8"))


def _concat(step: Step) -> None:
    positions = range(len(step.op.inputs))
    read, write = step.movement(*positions)
    write(step.emit("Concat", *map(read, positions), axis=int(step.scalar("axis"))))


def _pack(step: Step) -> None:
    axis = int(step.scalar("axis"))
    axes = step.constant([axis], "i8")
    inputs = map(step.read, range(len(step.op.inputs)))
    parts = [step.emit("Unsqueeze", name, axes) for name in inputs]
    step.write(step.emit("Concat", *parts, axis=axis))


def _split(step: Step) -> None:
    """Add a Split with the sizes of the outputs; QNN's index parameter is redundant."""
    axis = int(step.scalar("axis"))
    count = len(step.op.outputs)
    sizes = [step.result(position).dimensions[axis] for position in range(count)]
    read, write = step.movement(0)
    parts = step.emit_many("Split", [read(0), step.constant(sizes, "i8")], count, axis=axis)
    for position, part in enumerate(parts):
        write(part, position)


def _unpack(step: Step) -> None:
    axis = int(step.scalar("axis"))
    count = len(step.op.outputs)
    sizes = step.constant([1] * count, "i8")
    parts = step.emit_many("Split", [step.read(0), sizes], count, axis=axis)
    for position, part in enumerate(parts):
        step.write(step.emit("Squeeze", part, step.constant([axis], "i8")), position)


def _slice(step: Step) -> None:
    step.require(begin_mask=(0,), end_mask=(0,), new_axes_mask=(0,))
    ranges = step.array("ranges").reshape(-1, 3)
    ends = [_FIRST if by < 0 and end < 0 else end for _, end, by in ranges.tolist()]
    limits = (ranges[:, 0], ends, range(len(ranges)), ranges[:, 2])
    names = [step.constant(list(values), "i8") for values in limits]
    read, write = step.movement(0)
    part = step.emit("Slice", read(0), *names)
    write(step.emit("Reshape", part, step.constant(step.result().dimensions, "i8")))


def _pad(step: Step) -> None:
    scheme = int(step.scalar("scheme"))
    if scheme not in _PADS:
        raise step.refuse(f"with scheme {scheme} is not supported")
    amounts = step.array("pad_amount").reshape(-1, 2)
    pads = step.constant([*amounts[:, 0], *amounts[:, 1]], "i8")
    value = step.read(0)
    constant = () if scheme else (_padding_value(step),)
    step.write(step.emit("Pad", value, pads, *constant, mode=_PADS[scheme]))


def _padding_value(step: Step) -> str:
    """Return the name of the padding value; an integer value has the encoding of the input."""
    value = step.scalar("pad_constant_value", 0.0)
    kind, quant = step.tensor(0).data_type, step.tensor(0).quantization
    if isinstance(value, int) and quant is not None and quant.scales:
        value = (value + quant.offsets[0]) * quant.scales[0]
    if kind.is_float or kind.is_quantized:
        return step.constant(float(value), "f4")
    return step.constant(int(value), kind.numpy_name)


def _gather(step: Step) -> None:
    _move(step, "Gather", _indices(step), axis=int(step.scalar("axis", 0)))


def _gather_elements(step: Step) -> None:
    _move(step, "GatherElements", _indices(step), axis=int(step.scalar("axis", 0)))


def _indices(step: Step) -> str:
    """Return the name of input 1 as 64-bit integers, the index type that ONNX needs."""
    name = step.raw(1)
    is_wide = step.tensor(1).data_type is DataType.INT_64
    return name if is_wide else step.emit("Cast", name, to=7)


def _gather_nd(step: Step) -> None:
    _move(step, "GatherND", _indices(step), batch_dims=int(step.scalar("batch_dims", 0)))


def _scatter(kind: str, step: Step) -> None:
    """Add a scatter node, which replaces elements, adds to them or multiplies them."""
    step.require(reduction=(0, 1, 2))
    reduction = ("none", "add", "mul")[int(step.scalar("reduction", 0))]
    axis = {"axis": int(step.scalar("axis", 0))} if kind == "ScatterElements" else {}
    inputs = (step.read(0), _indices(step), step.read(2))
    step.write(step.emit(kind, *inputs, reduction=reduction, **axis))


def _blocks(kind: str, step: Step) -> None:
    """Add nodes that move pixel blocks to channels or back; ONNX needs channels second."""
    height, width = step.array("block_size").tolist()
    if height != width:
        raise step.refuse(f"with blocks of {height}x{width} is not supported")
    attributes: dict[str, Any] = {"blocksize": height}
    if kind == "DepthToSpace":
        attributes["mode"] = ("DCR", "CRD")[int(step.scalar("mode", 0))]
    else:
        step.require(mode=(0,))
    image = step.emit(kind, step.emit("Transpose", step.read(0), perm=NCHW), **attributes)
    step.write(step.emit("Transpose", image, perm=NHWC))


def _resize_image(step: Step, **attributes: Any) -> None:
    """Add nodes that resize the height and the width of an image whose channels are last."""
    value = step.emit("Transpose", step.read(0), perm=NCHW)
    batch, height, width, channels = step.result().dimensions
    sizes = step.constant((batch, channels, height, width), "i8")
    image = step.emit("Resize", value, "", "", sizes, **attributes)
    step.write(step.emit("Transpose", image, perm=NHWC))


def _resize_by(mode: str, step: Step) -> None:
    step.require(antialias=(False,))
    half = bool(step.scalar("half_pixel_centers", False))
    corners = bool(step.scalar("align_corners", False))
    coordinates = "half_pixel" if half else "align_corners" if corners else "asymmetric"
    attributes = {"mode": mode, "coordinate_transformation_mode": coordinates}
    if mode == "nearest":
        is_floor = coordinates == "asymmetric"
        attributes["nearest_mode"] = "floor" if is_floor else "round_prefer_floor"
    _resize_image(step, **attributes)


def _resize(step: Step) -> None:
    mode = _INTERPOLATIONS[int(step.scalar("interpolation_mode", 0))]
    attributes: dict[str, Any] = {"exclude_outside": int(step.scalar("exclude_outside", False))}
    if mode == "nearest":
        attributes["nearest_mode"] = _ROUNDING[int(step.scalar("nearest_mode", 0))]
    if mode == "cubic":
        attributes["cubic_coeff_a"] = float(step.scalar("cubic_coeff", -0.75))
    coordinates = _COORDINATES[int(step.scalar("transformation_mode", 0))]
    _resize_image(step, mode=mode, coordinate_transformation_mode=coordinates, **attributes)


MOVEMENT: dict[str, Callable[[Step], None]] = {
    "Concat": _concat,
    "DepthToSpace": partial(_blocks, "DepthToSpace"),
    "ExpandDims": _reshape,
    "Gather": _gather,
    "GatherElements": _gather_elements,
    "GatherNd": _gather_nd,
    "Pack": _pack,
    "Pad": _pad,
    "Reshape": _reshape,
    "Resize": _resize,
    "ResizeBilinear": partial(_resize_by, "linear"),
    "ResizeNearestNeighbor": partial(_resize_by, "nearest"),
    "ScatterElements": partial(_scatter, "ScatterElements"),
    "ScatterNd": partial(_scatter, "ScatterND"),
    "SpaceToDepth": partial(_blocks, "SpaceToDepth"),
    "Split": _split,
    "Squeeze": _reshape,
    "StridedSlice": _slice,
    "Tile": _tile,
    "Transpose": _transpose,
    "UnPack": _unpack,
}
