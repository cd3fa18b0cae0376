"""QNN operators that move elements without changing them, and resizing, as ONNX nodes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from qnnmem.loader.dlc.draft import Step
from qnnmem.loader.onnx.draft import NCHW, NHWC, NotTranslated
from qnnmem.qnn.enums import DataType
from qnnmem.text import quote

_FIRST = -(1 << 62)  # before the first element
_PADS = {0: "constant", 2: "reflect", 3: "edge"}
_COORDINATES = ("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric")
_ROUNDING = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
_INTERPOLATIONS = ("nearest", "linear", "cubic")


def _moved(step: Step, kind: str, more: tuple[str, ...] = (), **attributes: Any) -> None:
    """Add a node that moves elements; it rounds them only if the output's encoding differs."""
    if step.moves():
        step.write_raw(step.one(kind, step.raw(0), *more, **attributes))
    else:
        step.write(step.one(kind, step.read(0), *more, **attributes))


def _reshape(step: Step) -> None:
    _moved(step, "Reshape", (step.constant(step.result().dimensions, "i8"),))


def _transpose(step: Step) -> None:
    _moved(step, "Transpose", perm=step.array("perm").tolist())


def _tile(step: Step) -> None:
    _moved(step, "Tile", (step.constant(step.array("multiples"), "i8"),))


def _concat(step: Step) -> None:
    places = range(len(step.op.inputs))
    axis = int(step.scalar("axis"))
    if step.moves(*places):
        step.write_raw(step.one("Concat", *map(step.raw, places), axis=axis))
    else:
        step.write(step.one("Concat", *map(step.read, places), axis=axis))


def _pack(step: Step) -> None:
    axis = int(step.scalar("axis"))
    listed = step.constant([axis], "i8")
    parts = [
        step.one("Unsqueeze", step.read(place), listed) for place in range(len(step.op.inputs))
    ]
    step.write(step.one("Concat", *parts, axis=axis))


def _split(step: Step) -> None:
    """Add a split with the sizes of the outputs, which agree with the index parameter."""
    axis = int(step.scalar("axis"))
    count = len(step.op.outputs)
    sizes = [step.result(place).dimensions[axis] for place in range(count)]
    listed = step.constant(sizes, "i8")
    raw = step.moves()
    parts = step.node("Split", [step.raw(0) if raw else step.read(0), listed], count, axis=axis)
    for place, part in enumerate(parts):
        (step.write_raw if raw else step.write)(part, place)


def _unpack(step: Step) -> None:
    axis = int(step.scalar("axis"))
    count = len(step.op.outputs)
    listed = step.constant([1] * count, "i8")
    parts = step.node("Split", [step.read(0), listed], count, axis=axis)
    for place, part in enumerate(parts):
        step.write(step.one("Squeeze", part, step.constant([axis], "i8")), place)


def _slice(step: Step) -> None:
    step.only(begin_mask=(0,), end_mask=(0,), new_axes_mask=(0,))
    ranges = step.array("ranges").reshape(-1, 3)
    ends = [_FIRST if by < 0 and end < 0 else end for _, end, by in ranges.tolist()]
    limits = (ranges[:, 0], ends, range(len(ranges)), ranges[:, 2])
    listed = [step.constant(list(values), "i8") for values in limits]
    raw = step.moves()
    part = step.one("Slice", step.raw(0) if raw else step.read(0), *listed)
    made = step.one("Reshape", part, step.constant(step.result().dimensions, "i8"))
    (step.write_raw if raw else step.write)(made)


def _pad(step: Step) -> None:
    scheme = int(step.scalar("scheme"))
    if scheme not in _PADS:
        raise NotTranslated(f"{quote(step.op.type)} with scheme {scheme} is not supported")
    amounts = step.array("pad_amount").reshape(-1, 2)
    listed = step.constant([*amounts[:, 0], *amounts[:, 1]], "i8")
    value = step.read(0)
    more = () if scheme else (step.constant(_filling(step), _float_or_own(step)),)
    step.write(step.one("Pad", value, listed, *more, mode=_PADS[scheme]))


def _filling(step: Step) -> float | int:
    """Return the padding value; an integer is a stored value in the tensor's encoding."""
    given = step.scalar("pad_constant_value", 0.0)
    quant = step.tensor(0).quantization
    if isinstance(given, int) and quant is not None and quant.scales:
        return (given + quant.offsets[0]) * quant.scales[0]
    return float(given) if _float_or_own(step) == "f4" else int(given)


def _float_or_own(step: Step) -> str:
    kind = step.tensor(0).data_type
    return "f4" if kind.is_float or kind.is_quantized else kind.numpy_name


def _gather(step: Step) -> None:
    axis = int(step.scalar("axis", 0))
    _moved(step, "Gather", (_whole(step, 1),), axis=axis)


def _gather_elements(step: Step) -> None:
    _moved(step, "GatherElements", (_whole(step, 1),), axis=int(step.scalar("axis", 0)))


def _whole(step: Step, place: int) -> str:
    """Return the name of an input of indices as 64-bit integers, the type that ONNX needs."""
    name = step.raw(place)
    kind = step.tensor(place).data_type
    return name if kind is DataType.INT_64 else step.one("Cast", name, to=7)


def _gather_places(step: Step) -> None:
    batch = int(step.scalar("batch_dims", 0))
    _moved(step, "GatherND", (_whole(step, 1),), batch_dims=batch)


def _scatter(kind: str, step: Step) -> None:
    """Add a scatter that replaces, adds to or multiplies elements."""
    step.only(reduction=(0, 1, 2))
    way = ("none", "add", "mul")[int(step.scalar("reduction", 0))]
    more = {"axis": int(step.scalar("axis", 0))} if kind == "ScatterElements" else {}
    inputs = (step.read(0), _whole(step, 1), step.read(2))
    step.write(step.one(kind, *inputs, reduction=way, **more))


def _blocks(kind: str, step: Step) -> None:
    """Add nodes that move pixel blocks to channels or back; ONNX needs channels second."""
    high, wide = step.array("block_size").tolist()
    if high != wide:
        raise NotTranslated(f"{quote(step.op.type)} with blocks of {high}x{wide} is not supported")
    attributes: dict[str, Any] = {"blocksize": high}
    if kind == "DepthToSpace":
        attributes["mode"] = ("DCR", "CRD")[int(step.scalar("mode", 0))]
    else:
        step.only(mode=(0,))
    made = step.one(kind, step.one("Transpose", step.read(0), perm=NCHW), **attributes)
    step.write(step.one("Transpose", made, perm=NHWC))


def _resize_image(step: Step, **attributes: Any) -> None:
    """Add a resize of the height and the width of an image whose channels are last."""
    value = step.one("Transpose", step.read(0), perm=NCHW)
    batch, height, width, channels = step.result().dimensions
    sizes = step.constant((batch, channels, height, width), "i8")
    made = step.one("Resize", value, "", "", sizes, **attributes)
    step.write(step.one("Transpose", made, perm=NHWC))


def _resize_by(mode: str, step: Step) -> None:
    step.only(antialias=(False,))
    half = bool(step.scalar("half_pixel_centers", False))
    corners = bool(step.scalar("align_corners", False))
    way = "half_pixel" if half else "align_corners" if corners else "asymmetric"
    nearest = "floor" if way == "asymmetric" else "round_prefer_floor"
    more = {"nearest_mode": nearest} if mode == "nearest" else {}
    _resize_image(step, mode=mode, coordinate_transformation_mode=way, **more)


def _resize(step: Step) -> None:
    mode = _INTERPOLATIONS[int(step.scalar("interpolation_mode", 0))]
    more: dict[str, Any] = {"exclude_outside": int(step.scalar("exclude_outside", False))}
    if mode == "nearest":
        more["nearest_mode"] = _ROUNDING[int(step.scalar("nearest_mode", 0))]
    if mode == "cubic":
        more["cubic_coeff_a"] = float(step.scalar("cubic_coeff", -0.75))
    way = _COORDINATES[int(step.scalar("transformation_mode", 0))]
    _resize_image(step, mode=mode, coordinate_transformation_mode=way, **more)


MOVEMENT: dict[str, Callable[[Step], None]] = {
    "Concat": _concat,
    "DepthToSpace": partial(_blocks, "DepthToSpace"),
    "ExpandDims": _reshape,
    "Gather": _gather,
    "GatherElements": _gather_elements,
    "GatherNd": _gather_places,
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
