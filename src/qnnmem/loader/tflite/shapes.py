"""Output shapes of TFLite operators, from input shapes, options and known values.

A rule returns the shapes. It raises `Unknown` if they depend on data, and `Damaged` if the operator
cannot run on these inputs. The rules agree with TFLite's own interpreter. Images are batch, height,
width, depth.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from qnnmem.errors import Damaged
from qnnmem.loader.tflite.raw_graph import ELEMENTWISE, RawOp, RawTensor
from qnnmem.text import by_sizes

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Operand:
    """Shape and value of a tensor, if known before the model runs."""

    shape: Shape
    value: Any = None  # array of few numbers, if they follow from shapes and constants


@dataclass(frozen=True, slots=True)
class Call:
    """An operator with its operands; an absent input is None."""

    op: RawOp
    inputs: Sequence[Operand | None]
    outputs: Sequence[RawTensor]

    def shape(self, position: int) -> Shape:
        """Return the shape of an input."""
        return self._operand(position).shape

    @property
    def shapes(self) -> list[Shape]:
        """Shapes of all inputs."""
        return [self.shape(position) for position in range(len(self.inputs))]

    def value(self, position: int) -> list[int]:
        """Return the integers in an input; raise Unknown if they depend on data."""
        value = self._operand(position).value
        if value is None or value.dtype.kind == "f":
            raise Unknown
        return [int(number) for number in value.reshape(-1).tolist()]

    def number(self, position: int) -> int:
        """Return the single number in an input; raise Damaged if there are several."""
        numbers = self.value(position)
        if len(numbers) != 1:
            raise Damaged(f"has {len(numbers)} numbers where one is needed")
        return numbers[0]

    def has(self, position: int) -> bool:
        """Return whether the input is present."""
        return position < len(self.inputs) and self.inputs[position] is not None

    def option(self, name: str) -> Any:
        """Return an option of the operator; raise Unknown if it is absent."""
        if name not in self.op.options:
            raise Unknown
        return self.op.options[name]

    def axis(self, axis: int, rank: int) -> int:
        """Return an axis counted from the front; raise Damaged if it is out of range."""
        if not -rank <= axis < rank:
            raise Damaged(f"has axis {axis} for {rank} dimensions")
        return axis % rank

    def of_rank(self, position: int, rank: int) -> Shape:
        """Return the shape of an input; raise Damaged for another rank."""
        shape = self.shape(position)
        if len(shape) != rank:
            raise Damaged(f"reads {written(shape)} where {rank} dimensions are needed")
        return shape

    def _operand(self, position: int) -> Operand:
        operand = self.inputs[position] if position < len(self.inputs) else None
        if operand is None:
            raise Damaged(f"lacks its input {position}")
        return operand


class Unknown(Exception):
    """Raised by a rule that needs a value which depends on data."""


def written(shape: Sequence[int]) -> str:
    """Return a shape as text, with `?` for an open size."""
    return by_sizes(("?" if size == -1 else size for size in shape), "a scalar")


def broadcast(shapes: Sequence[Shape]) -> Shape:
    """Return the common broadcast shape; raise Damaged if there is none."""
    rank = max(map(len, shapes))
    sizes = []
    for axis in range(-rank, 0):
        distinct = {shape[axis] for shape in shapes if -axis <= len(shape)} - {1}
        if len(distinct) > 1:
            raise Damaged(f"reads {' and '.join(map(written, shapes))}, which are inconsistent")
        sizes.append(distinct.pop() if distinct else 1)
    return tuple(sizes)


def reshape(call: Call) -> list[Shape]:
    """Return the output shape of RESHAPE, in which one size can be inferred."""
    have, wanted = call.shape(0), _target(call)
    fixed = [size for size in wanted if size != -1]
    if len(wanted) - len(fixed) > 1 or min(fixed, default=0) < 0:
        raise Unknown
    if len(fixed) == len(wanted):
        sizes = tuple(wanted)
    else:
        left, rest = divmod(math.prod(have), math.prod(fixed)) if math.prod(fixed) else (0, 0)
        if rest:
            raise Damaged(f"cannot turn {written(have)} into {written(wanted)}")
        sizes = tuple(left if size == -1 else size for size in wanted)
    if math.prod(sizes) != math.prod(have):
        raise Damaged(f"cannot turn {written(have)} into {written(sizes)}")
    return [sizes]


def _target(call: Call) -> list[int]:
    if call.has(1):
        return call.value(1)
    if "NewShape" in call.op.options:
        return list(call.option("NewShape"))
    # The signature has the fixed sizes; more than one open size would be a guess.
    return list(call.outputs[0].signature or call.outputs[0].shape)


def squeeze(call: Call) -> list[Shape]:
    """Return the output shape of SQUEEZE: without the given axes, or without all axes of size 1."""
    shape = call.shape(0)
    named = call.op.options.get("SqueezeDims", ())
    axes = {call.axis(axis, len(shape)) for axis in named}
    if any(shape[axis] != 1 for axis in axes):
        raise Damaged(f"cannot squeeze {written(shape)} where a size is not 1")
    kept = (s for axis, s in enumerate(shape) if (axis not in axes if axes else s != 1))
    return [tuple(kept)]


def expand_dims(call: Call) -> list[Shape]:
    """Return the output shape of EXPAND_DIMS."""
    shape = call.shape(0)
    axis = call.axis(call.number(1), len(shape) + 1)
    return [(*shape[:axis], 1, *shape[axis:])]


def transpose(call: Call) -> list[Shape]:
    """Return the output shape of TRANSPOSE."""
    shape, order = call.shape(0), call.value(1)
    axes = [call.axis(axis, len(shape)) for axis in order]
    if sorted(axes) != list(range(len(shape))):
        raise Damaged(f"has a permutation that is not valid for {len(shape)} dimensions")
    return [tuple(shape[axis] for axis in axes)]


def concatenate(call: Call) -> list[Shape]:
    """Return the output shape of CONCATENATION."""
    shapes = call.shapes
    axis = call.axis(call.option("Axis"), len(shapes[0]))
    rests = {(len(shape), shape[:axis], shape[axis + 1 :]) for shape in shapes}
    if len(rests) > 1:
        raise Damaged(f"cannot join {' and '.join(map(written, shapes[:3]))}")
    joined = sum(shape[axis] for shape in shapes)
    return [(*shapes[0][:axis], joined, *shapes[0][axis + 1 :])]


def pack(call: Call) -> list[Shape]:
    """Return the output shape of PACK, which joins equal shapes along a new axis."""
    shapes = set(call.shapes)
    if len(shapes) != 1:
        raise Damaged("cannot pack tensors of different shapes")
    (shape,) = shapes
    axis = call.axis(call.option("Axis"), len(shape) + 1)
    return [(*shape[:axis], len(call.inputs), *shape[axis:])]


def unpack(call: Call) -> list[Shape]:
    """Return the output shapes of UNPACK."""
    shape = call.shape(0)
    axis = call.axis(call.option("Axis"), len(shape))
    if shape[axis] != len(call.outputs):
        raise Damaged(f"cannot unpack {written(shape)} into {len(call.outputs)} outputs")
    return [(*shape[:axis], *shape[axis + 1 :])] * len(call.outputs)


def split(call: Call) -> list[Shape]:
    """Return the output shapes of SPLIT into equal parts; its first input is the axis."""
    shape, parts = call.shape(1), len(call.outputs)
    axis = call.axis(call.number(0), len(shape))
    if shape[axis] % parts:
        raise Damaged(f"cannot split {shape[axis]:,} into {parts} equal parts")
    return [(*shape[:axis], shape[axis] // parts, *shape[axis + 1 :])] * parts


def split_at(call: Call) -> list[Shape]:
    """Return the output shapes of SPLIT_V into given sizes, one of which can be inferred."""
    shape, sizes = call.shape(0), call.value(1)
    axis = call.axis(call.number(2), len(shape))
    rest = shape[axis] - sum(size for size in sizes if size != -1)
    known = [rest if size == -1 else size for size in sizes]
    if sum(known) != shape[axis] or len(known) != len(call.outputs) or min(known) < 0:
        raise Damaged(f"cannot split {shape[axis]:,} into parts with a different sum")
    return [(*shape[:axis], size, *shape[axis + 1 :]) for size in known]


def slice_out(call: Call) -> list[Shape]:
    """Return the output shape of SLICE; size -1 means up to the end."""
    shape, begin, size = call.shape(0), call.value(1), call.value(2)
    if not len(shape) == len(begin) == len(size):
        raise Damaged(f"cannot slice {written(shape)} in {len(begin)} dimensions")
    sizes = []
    for have, start, wanted in zip(shape, begin, size, strict=True):
        length = have - start if wanted == -1 else wanted
        if start < 0 or length < 0 or start + length > have:
            raise Damaged(f"cannot slice {start} to {start + length} out of {have}")
        sizes.append(length)
    return [tuple(sizes)]


def strided_slice(call: Call) -> list[Shape]:
    """Return the output shape of STRIDED_SLICE."""
    return [tuple(size for size in _strided(call) if size is not None)]


def selection(call: Call) -> tuple[slice | int | None, ...]:
    """Return the selection of STRIDED_SLICE as Python slices; None is a new axis."""
    shape = call.shape(0)
    begin, end, step = call.value(1), call.value(2), call.value(3)
    masks = {name: call.option(name) for name in _MASKS}
    if masks["EllipsisMask"] or call.option("Offset"):
        raise Unknown
    chosen: list[slice | int | None] = []
    for index, (first, last, stride) in enumerate(zip(begin, end, step, strict=True)):
        bit = 1 << index
        if stride == 0:
            raise Damaged("cannot slice with a step of 0")
        if masks["NewAxisMask"] & bit:
            chosen.append(None)
        elif masks["ShrinkAxisMask"] & bit:
            chosen.append(first)
        else:
            lower = None if masks["BeginMask"] & bit else first
            upper = None if masks["EndMask"] & bit else last
            chosen.append(slice(lower, upper, stride))
    if len(chosen) - chosen.count(None) > len(shape):
        raise Damaged(f"cannot slice {written(shape)} in {len(chosen)} dimensions")
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
            raise Damaged(f"cannot take element {chosen} of {size}")
    yield from left


def gather(call: Call) -> list[Shape]:
    """Return the output shape of GATHER."""
    source, indices = call.shape(0), call.shape(1)
    axis = call.axis(call.option("Axis"), len(source))
    batch = call.option("BatchDims")
    if batch < 0:
        batch += len(indices)
    if not 0 <= batch <= min(axis, len(indices)) or source[:batch] != indices[:batch]:
        raise Damaged(f"cannot gather from {written(source)} at {written(indices)}")
    return [(*source[:axis], *indices[batch:], *source[axis + 1 :])]


def gather_nd(call: Call) -> list[Shape]:
    """Return the output shape of GATHER_ND."""
    source, indices = call.shape(0), call.shape(1)
    if not indices or indices[-1] > len(source):
        raise Damaged(f"cannot gather from {written(source)} at {written(indices)}")
    return [(*indices[:-1], *source[indices[-1] :])]


def look_up(call: Call) -> list[Shape]:
    """Return the output shape of EMBEDDING_LOOKUP, which selects rows of a table."""
    return [(*call.shape(0), *call.shape(1)[1:])]


def pad(call: Call) -> list[Shape]:
    """Return the output shape of PAD, PADV2 or MIRROR_PAD."""
    shape, margins = call.shape(0), call.value(1)
    if len(margins) != 2 * len(shape) or min(margins, default=0) < 0:
        raise Damaged(f"needs two margins of at least 0 for each dimension of {written(shape)}")
    return [tuple(size + sum(both) for size, both in zip(shape, _pairs(margins), strict=True))]


def _pairs(margins: list[int]) -> list[tuple[int, int]]:
    """Return the margins before and after each axis."""
    return list(zip(margins[::2], margins[1::2], strict=True))


def tile(call: Call) -> list[Shape]:
    """Return the output shape of TILE."""
    shape, times = call.shape(0), call.value(1)
    if len(times) != len(shape) or min(times, default=0) < 0:
        raise Damaged(f"cannot repeat {written(shape)} along {len(times)} axes")
    return [tuple(size * count for size, count in zip(shape, times, strict=True))]


def broadcast_to(call: Call) -> list[Shape]:
    """Return the output shape of BROADCAST_TO."""
    shape, wanted = call.shape(0), tuple(call.value(1))
    if broadcast((shape, wanted)) != wanted:
        raise Damaged(f"cannot expand {written(shape)} to {written(wanted)}")
    return [wanted]


def fill(call: Call) -> list[Shape]:
    """Return the output shape of FILL, and of other ops whose first input is the output shape."""
    return [_sizes(call.value(0))]


def _sizes(numbers: list[int]) -> Shape:
    if min(numbers, default=0) < 0:
        raise Damaged("has a negative size")
    return tuple(numbers)


def count_up(call: Call) -> list[Shape]:
    """Return the output shape of RANGE for integers."""
    start, stop, step = (call.number(position) for position in range(3))
    if step == 0:
        raise Damaged("cannot count with a step of 0")
    return [(len(range(start, stop, step)),)]


def one_hot(call: Call) -> list[Shape]:
    """Return the output shape of ONE_HOT."""
    shape, depth = call.shape(0), call.number(1)
    axis = call.axis(call.option("Axis"), len(shape) + 1)
    return [(*shape[:axis], *_sizes([depth]), *shape[axis:])]


def largest(call: Call) -> list[Shape]:
    """Return the output shapes of TOPK_V2: values and indices."""
    shape, count = call.shape(0), call.number(1)
    if not shape or not 0 <= count <= shape[-1]:
        raise Damaged(
            f"cannot take the {count} largest elements of a tensor of shape {written(shape)}"
        )
    return [(*shape[:-1], count)] * 2


Rule = Callable[[Call], list[Shape]]

_PADDING_SAME = 0  # value of Padding in the schema


def derive(call: Call) -> list[Shape]:
    """Return the shapes of all outputs; raise Unknown if they cannot be derived."""
    rule = None if call.op.custom else _RULES.get(call.op.type)
    if rule is None:
        raise Unknown
    shapes = rule(call)
    if len(shapes) != len(call.outputs):
        raise Damaged(f"has {len(call.outputs)} outputs instead of {len(shapes)}")
    return shapes


def _broadcast(call: Call) -> list[Shape]:
    return [broadcast(call.shapes)]


def _same(call: Call) -> list[Shape]:
    return [call.shape(0)]


def _select(call: Call) -> list[Shape]:
    return [call.shape(1)]  # the older SELECT may have one condition per row


def _fully_connected(call: Call) -> list[Shape]:
    shape, (units, width) = call.shape(0), call.of_rank(1, 2)
    if call.option("KeepNumDims"):
        if not shape or shape[-1] != width:
            raise Damaged(f"cannot multiply {written(shape)} by weights for {width:,} inputs")
        return [(*shape[:-1], units)]
    rows, rest = divmod(math.prod(shape), width) if width else (0, 1)
    if rest:
        raise Damaged(f"cannot multiply {written(shape)} by weights for {width:,} inputs")
    return [(rows, units)]


def _batch_matmul(call: Call) -> list[Shape]:
    left, right = call.shape(0), call.shape(1)
    if len(left) < 2 or len(right) < 2:
        raise Damaged(f"cannot multiply {written(left)} by {written(right)}")
    rows, inner = left[-2:][:: -1 if call.option("AdjX") else 1]
    other, columns = right[-2:][:: -1 if call.option("AdjY") else 1]
    if inner != other:
        raise Damaged(f"cannot multiply {written(left)} by {written(right)}")
    return [(*broadcast((left[:-2], right[:-2])), rows, columns)]


def _reduce(call: Call) -> list[Shape]:
    shape = call.shape(0)
    axes = {call.axis(axis, len(shape)) for axis in call.value(1)} if shape else set()
    if call.option("KeepDims"):
        return [tuple(1 if axis in axes else size for axis, size in enumerate(shape))]
    return [tuple(size for axis, size in enumerate(shape) if axis not in axes)]


def _arg_max(call: Call) -> list[Shape]:
    shape = call.shape(0)
    axis = call.axis(call.number(1), len(shape))
    return [(*shape[:axis], *shape[axis + 1 :])]


def _rfft2d(call: Call) -> list[Shape]:
    shape, length = call.shape(0), call.value(1)
    if len(shape) < 2 or len(length) != 2 or min(length) < 1:
        raise Damaged(f"needs at least two dimensions and two lengths, but has {written(shape)}")
    return [(*shape[:-2], length[0], length[1] // 2 + 1)]


def convolve(call: Call) -> list[Shape]:
    """Return the output shape of CONV_2D or DEPTHWISE_CONV_2D."""
    batch, *size, _ = call.of_rank(0, 4)
    filters = call.of_rank(1, 4)
    depth = filters[0 if call.op.type == "CONV_2D" else 3]
    return [(batch, *_positions(call, size, filters[1:3], dilated=True), depth)]


def pool(call: Call) -> list[Shape]:
    """Return the output shape of AVERAGE_POOL_2D, MAX_POOL_2D or L2_POOL_2D."""
    batch, *size, depth = call.of_rank(0, 4)
    window = (call.option("FilterHeight"), call.option("FilterWidth"))
    return [(batch, *_positions(call, size, window, dilated=False), depth)]


def resize(call: Call) -> list[Shape]:
    """Return the output shape of RESIZE_BILINEAR or RESIZE_NEAREST_NEIGHBOR."""
    batch, _, _, depth = call.of_rank(0, 4)
    size = call.value(1)
    if len(size) != 2 or min(size) < 1:
        raise Damaged("has no height and width to resize")
    return [(batch, *size, depth)]


def space_to_depth(call: Call) -> list[Shape]:
    """Return the output shape of SPACE_TO_DEPTH: a block of pixels becomes one pixel."""
    batch, height, width, depth = call.of_rank(0, 4)
    block = _block(call)
    return [(batch, _divided(height, block), _divided(width, block), depth * block * block)]


def depth_to_space(call: Call) -> list[Shape]:
    """Return the output shape of DEPTH_TO_SPACE: a pixel becomes a block of pixels."""
    batch, height, width, depth = call.of_rank(0, 4)
    block = _block(call)
    return [(batch, height * block, width * block, _divided(depth, block * block))]


def space_to_batch(call: Call) -> list[Shape]:
    """Return the output shape of SPACE_TO_BATCH_ND: each position in a block becomes a batch."""
    shape, blocks, margins = call.shape(0), call.value(1), call.value(2)
    sides = zip(_inner(shape, blocks, margins), blocks, _pairs(margins), strict=True)
    sizes = tuple(_divided(size + sum(both), block) for size, block, both in sides)
    return [(shape[0] * math.prod(blocks), *sizes, *shape[1 + len(blocks) :])]


def batch_to_space(call: Call) -> list[Shape]:
    """Return the output shape of BATCH_TO_SPACE_ND, the inverse of SPACE_TO_BATCH_ND."""
    shape, blocks, margins = call.shape(0), call.value(1), call.value(2)
    sides = zip(_inner(shape, blocks, margins), blocks, _pairs(margins), strict=True)
    sizes = tuple(size * block - sum(both) for size, block, both in sides)
    return [(_divided(shape[0], math.prod(blocks)), *sizes, *shape[1 + len(blocks) :])]


def _positions(call: Call, size: Sequence[int], window: Shape, *, dilated: bool) -> Shape:
    """Return the number of window positions along the height and the width."""
    strides = (call.option("StrideH"), call.option("StrideW"))
    dilations = (1, 1)
    if dilated:
        dilations = (call.option("DilationHFactor"), call.option("DilationWFactor"))
    same = call.option("Padding") == _PADDING_SAME
    axes = zip(size, window, strides, dilations, strict=True)
    return tuple(_position_count(*axis, same=same) for axis in axes)


def _position_count(size: int, window: int, stride: int, dilation: int, *, same: bool) -> int:
    if min(window, stride, dilation) < 1:
        raise Damaged("has a window or a step of size 0")
    covered = 1 if same else (window - 1) * dilation + 1
    if covered > size:
        raise Damaged(f"needs an input size of at least {covered:,} but has {size:,}")
    return -(-(size - covered + 1) // stride)


def _block(call: Call) -> int:
    block = int(call.option("BlockSize"))
    if block < 1:
        raise Damaged("has a block of size 0")
    return block


def _inner(shape: Shape, blocks: list[int], margins: list[int]) -> Shape:
    if len(margins) != 2 * len(blocks) or len(shape) < 1 + len(blocks) or min(blocks) < 1:
        raise Damaged("has block sizes or margins that do not match its input")
    return shape[1 : 1 + len(blocks)]


def _divided(size: int, divisor: int) -> int:
    if size % divisor:
        raise Damaged(f"cannot divide a dimension of {size:,} evenly by {divisor:,}")
    return size // divisor


_SAME = (
    *("COMPLEX_ABS", "CUMSUM", "DENSIFY", "DYNAMIC_UPDATE_SLICE", "FAKE_QUANT", "IMAG"),
    *("L2_NORMALIZATION", "LOCAL_RESPONSE_NORMALIZATION", "LOG_SOFTMAX", "REAL"),
    *("REVERSE_SEQUENCE", "REVERSE_V2", "SOFTMAX", "ZEROS_LIKE"),
)
_REDUCING = ("MEAN", "REDUCE_ALL", "REDUCE_ANY", "REDUCE_MAX", "REDUCE_MIN", "REDUCE_PROD", "SUM")
_RULES: dict[str, Rule] = {
    **dict.fromkeys((*ELEMENTWISE, "ATAN2"), _broadcast),
    **dict.fromkeys(_SAME, _same),
    **dict.fromkeys(_REDUCING, _reduce),
    **dict.fromkeys(("AVERAGE_POOL_2D", "L2_POOL_2D", "MAX_POOL_2D"), pool),
    **dict.fromkeys(("RESIZE_BILINEAR", "RESIZE_NEAREST_NEIGHBOR"), resize),
    **dict.fromkeys(("MIRROR_PAD", "PAD", "PADV2"), pad),
    **dict.fromkeys(("ARG_MAX", "ARG_MIN"), _arg_max),
    "BATCH_MATMUL": _batch_matmul,
    "BATCH_TO_SPACE_ND": batch_to_space,
    "BROADCAST_ARGS": lambda call: [(max(len(call.value(0)), len(call.value(1))),)],
    "BROADCAST_TO": broadcast_to,
    "CONCATENATION": concatenate,
    "CONV_2D": convolve,
    "DEPTHWISE_CONV_2D": convolve,
    "DEPTH_TO_SPACE": depth_to_space,
    "EMBEDDING_LOOKUP": look_up,
    "EXPAND_DIMS": expand_dims,
    "FILL": fill,
    "FULLY_CONNECTED": _fully_connected,
    "GATHER": gather,
    "GATHER_ND": gather_nd,
    "ONE_HOT": one_hot,
    "PACK": pack,
    "RANGE": count_up,
    "RANK": lambda _: [()],
    "RESHAPE": reshape,
    "RFFT2D": _rfft2d,
    "SELECT": _select,
    "SHAPE": lambda call: [(len(call.shape(0)),)],
    "SLICE": slice_out,
    "SPACE_TO_BATCH_ND": space_to_batch,
    "SPACE_TO_DEPTH": space_to_depth,
    "SPLIT": split,
    "SPLIT_V": split_at,
    "SQUEEZE": squeeze,
    "STRIDED_SLICE": strided_slice,
    "TILE": tile,
    "TOPK_V2": largest,
    "TRANSPOSE": transpose,
    "TRANSPOSE_CONV": fill,
    "UNPACK": unpack,
}
