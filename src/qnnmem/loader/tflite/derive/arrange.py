"""Shapes of operators that arrange, select, join or split elements."""

from __future__ import annotations

from collections.abc import Iterator

from qnnmem.errors import Damaged
from qnnmem.loader.tflite.derive.call import Call, Shape, Unknown, broadcast, elements, written


def reshape(call: Call) -> list[Shape]:
    """RESHAPE: one size may be left to follow from the others."""
    have, wanted = call.shape(0), _target(call)
    fixed = [size for size in wanted if size != -1]
    if len(wanted) - len(fixed) > 1 or min(fixed, default=0) < 0:
        raise Unknown
    if len(fixed) == len(wanted):
        sizes = tuple(wanted)
    else:
        left, rest = divmod(elements(have), elements(fixed)) if elements(fixed) else (0, 0)
        if rest:
            raise Damaged(f"cannot turn {written(have)} into {_open(wanted)}")
        sizes = tuple(left if size == -1 else size for size in wanted)
    if elements(sizes) != elements(have):
        raise Damaged(f"cannot turn {written(have)} into {written(sizes)}")
    return [sizes]


def _target(call: Call) -> list[int]:
    if call.has(1):
        return call.value(1)
    if "NewShape" in call.op.options:
        return list(call.option("NewShape"))
    # The signature says what stays; more than one open size would be a guess.
    return list(call.outputs[0].signature or call.outputs[0].shape)


def _open(shape: list[int]) -> str:
    return "x".join("?" if size == -1 else str(size) for size in shape)


def squeeze(call: Call) -> list[Shape]:
    """SQUEEZE: the sizes named, or all of one."""
    shape = call.shape(0)
    named = call.op.options.get("SqueezeDims", ())
    axes = {call.axis(axis, len(shape)) for axis in named}
    if any(shape[axis] != 1 for axis in axes):
        raise Damaged(f"squeezes {written(shape)} where a size is not 1")
    kept = (s for at, s in enumerate(shape) if (at not in axes if axes else s != 1))
    return [tuple(kept)]


def expand_dims(call: Call) -> list[Shape]:
    """EXPAND_DIMS."""
    shape = call.shape(0)
    axis = call.axis(call.number(1), len(shape) + 1)
    return [(*shape[:axis], 1, *shape[axis:])]


def transpose(call: Call) -> list[Shape]:
    """TRANSPOSE."""
    shape, order = call.shape(0), call.value(1)
    axes = [call.axis(axis, len(shape)) for axis in order]
    if sorted(axes) != list(range(len(shape))):
        raise Damaged(f"does not order the {len(shape)} dimensions of its input")
    return [tuple(shape[axis] for axis in axes)]


def concatenate(call: Call) -> list[Shape]:
    """CONCATENATION."""
    shapes = [call.shape(at) for at in range(len(call.inputs))]
    axis = call.axis(call.option("Axis"), len(shapes[0]))
    rests = {(len(shape), shape[:axis], shape[axis + 1 :]) for shape in shapes}
    if len(rests) > 1:
        raise Damaged(f"joins {' and '.join(map(written, shapes[:3]))}")
    joined = sum(shape[axis] for shape in shapes)
    return [(*shapes[0][:axis], joined, *shapes[0][axis + 1 :])]


def pack(call: Call) -> list[Shape]:
    """PACK: tensors of one shape along a new axis."""
    shapes = {call.shape(at) for at in range(len(call.inputs))}
    if len(shapes) != 1:
        raise Damaged("packs tensors of several shapes")
    (shape,) = shapes
    axis = call.axis(call.option("Axis"), len(shape) + 1)
    return [(*shape[:axis], len(call.inputs), *shape[axis:])]


def unpack(call: Call) -> list[Shape]:
    """UNPACK."""
    shape = call.shape(0)
    axis = call.axis(call.option("Axis"), len(shape))
    if shape[axis] != len(call.outputs):
        raise Damaged(f"unpacks {written(shape)} into {len(call.outputs)}")
    return [(*shape[:axis], *shape[axis + 1 :])] * len(call.outputs)


def split(call: Call) -> list[Shape]:
    """SPLIT into equal parts; its first input is the axis."""
    shape, parts = call.shape(1), len(call.outputs)
    axis = call.axis(call.number(0), len(shape))
    if shape[axis] % parts:
        raise Damaged(f"splits {shape[axis]:,} into {parts} equal parts")
    return [(*shape[:axis], shape[axis] // parts, *shape[axis + 1 :])] * parts


def split_at(call: Call) -> list[Shape]:
    """SPLIT_V into parts of given sizes, one of which may follow from the others."""
    shape, sizes = call.shape(0), call.value(1)
    axis = call.axis(call.number(2), len(shape))
    rest = shape[axis] - sum(size for size in sizes if size != -1)
    known = [rest if size == -1 else size for size in sizes]
    if sum(known) != shape[axis] or len(known) != len(call.outputs) or min(known) < 0:
        raise Damaged(f"splits {shape[axis]:,} into parts of another sum")
    return [(*shape[:axis], size, *shape[axis + 1 :]) for size in known]


def slice_out(call: Call) -> list[Shape]:
    """SLICE: from a beginning, so many or all that follow."""
    shape, begin, size = call.shape(0), call.value(1), call.value(2)
    if not len(shape) == len(begin) == len(size):
        raise Damaged(f"slices {written(shape)} in {len(begin)} dimensions")
    sizes = tuple(
        have - at if wanted == -1 else wanted
        for have, at, wanted in zip(shape, begin, size, strict=True)
    )
    for have, at, wanted in zip(shape, begin, sizes, strict=True):
        if at < 0 or wanted < 0 or at + wanted > have:
            raise Damaged(f"slices {at} to {at + wanted} out of {have}")
    return [sizes]


def strided_slice(call: Call) -> list[Shape]:
    """STRIDED_SLICE."""
    return [tuple(size for size in _strided(call) if size is not None)]


def selection(call: Call) -> tuple[slice | int | None, ...]:
    """What STRIDED_SLICE selects, as Python writes it."""
    shape = call.shape(0)
    begin, end, step = call.value(1), call.value(2), call.value(3)
    masks = {name: call.option(name) for name in _MASKS}
    if masks["EllipsisMask"] or call.option("Offset"):
        raise Unknown
    chosen: list[slice | int | None] = []
    for at, (first, last, stride) in enumerate(zip(begin, end, step, strict=True)):
        bit = 1 << at
        if stride == 0:
            raise Damaged("slices in steps of 0")
        if masks["NewAxisMask"] & bit:
            chosen.append(None)
        elif masks["ShrinkAxisMask"] & bit:
            chosen.append(first)
        else:
            lower = None if masks["BeginMask"] & bit else first
            upper = None if masks["EndMask"] & bit else last
            chosen.append(slice(lower, upper, stride))
    if len(chosen) - chosen.count(None) > len(shape):
        raise Damaged(f"slices {written(shape)} in {len(chosen)} dimensions")
    return tuple(chosen)


_MASKS = ("BeginMask", "EndMask", "EllipsisMask", "NewAxisMask", "ShrinkAxisMask")


def _strided(call: Call) -> Iterator[int | None]:
    left = list(call.shape(0))
    for chosen in selection(call):
        if chosen is None:
            yield 1
            continue
        size = left.pop(0)
        if isinstance(chosen, slice):
            yield len(range(*chosen.indices(size)))
        elif not -size <= chosen < size:
            raise Damaged(f"takes element {chosen} of {size}")
    yield from left


def gather(call: Call) -> list[Shape]:
    """GATHER."""
    source, places = call.shape(0), call.shape(1)
    axis = call.axis(call.option("Axis"), len(source))
    batch = call.option("BatchDims")
    if batch < 0:
        batch += len(places)
    if not 0 <= batch <= min(axis, len(places)) or source[:batch] != places[:batch]:
        raise Damaged(f"gathers from {written(source)} at {written(places)}")
    return [(*source[:axis], *places[batch:], *source[axis + 1 :])]


def gather_nd(call: Call) -> list[Shape]:
    """GATHER_ND."""
    source, places = call.shape(0), call.shape(1)
    if not places or places[-1] > len(source):
        raise Damaged(f"gathers from {written(source)} at {written(places)}")
    return [(*places[:-1], *source[places[-1] :])]


def look_up(call: Call) -> list[Shape]:
    """EMBEDDING_LOOKUP: rows of a table."""
    return [(*call.shape(0), *call.shape(1)[1:])]


def pad(call: Call) -> list[Shape]:
    """PAD and its kin."""
    shape, margins = call.shape(0), call.value(1)
    if len(margins) != 2 * len(shape) or min(margins, default=0) < 0:
        raise Damaged(f"pads {written(shape)} by {len(margins)} numbers")
    return [tuple(s + sum(margins[2 * at : 2 * at + 2]) for at, s in enumerate(shape))]


def tile(call: Call) -> list[Shape]:
    """TILE."""
    shape, times = call.shape(0), call.value(1)
    if len(times) != len(shape) or min(times, default=0) < 0:
        raise Damaged(f"repeats {written(shape)} {len(times)} ways")
    return [tuple(size * count for size, count in zip(shape, times, strict=True))]


def broadcast_to(call: Call) -> list[Shape]:
    """BROADCAST_TO."""
    shape, wanted = call.shape(0), tuple(call.value(1))
    if broadcast((shape, wanted)) != wanted:
        raise Damaged(f"spreads {written(shape)} to {written(wanted)}")
    return [wanted]


def fill(call: Call) -> list[Shape]:
    """FILL, and what else is told its shape by its first input."""
    return [_sizes(call.value(0))]


def _sizes(numbers: list[int]) -> Shape:
    if min(numbers, default=0) < 0:
        raise Damaged("is told a negative size")
    return tuple(numbers)


def count_up(call: Call) -> list[Shape]:
    """RANGE of whole numbers."""
    start, stop, step = (call.number(at) for at in range(3))
    if step == 0:
        raise Damaged("counts in steps of 0")
    return [(len(range(start, stop, step)),)]


def one_hot(call: Call) -> list[Shape]:
    """ONE_HOT."""
    shape, depth = call.shape(0), call.number(1)
    axis = call.axis(call.option("Axis"), len(shape) + 1)
    return [(*shape[:axis], *_sizes([depth]), *shape[axis:])]


def largest(call: Call) -> list[Shape]:
    """TOPK_V2: values and places."""
    shape, count = call.shape(0), call.number(1)
    if not shape or not 0 <= count <= shape[-1]:
        raise Damaged(f"takes the {count} largest of {written(shape)}")
    return [(*shape[:-1], count)] * 2
