"""Output shapes of TFLite operators, from input shapes, options and known values.

A rule returns the shapes. It raises `Unknown` where they depend on data, and `Damaged` where the
operator cannot run on these inputs. The rules agree with TFLite's own interpreter. Images are
batch, height, width, depth.
"""

from __future__ import annotations

from collections.abc import Callable

from qnnmem.errors import Damaged
from qnnmem.loader.tflite.derive import arrange
from qnnmem.loader.tflite.derive.call import Call, Shape, Unknown, broadcast, elements, written
from qnnmem.loader.tflite.ops import ELEMENTWISE

Rule = Callable[[Call], list[Shape]]

_PADDING_SAME = 0  # of Padding in the schema


def derive(call: Call) -> list[Shape]:
    """The shapes of all outputs."""
    rule = None if call.op.custom else _RULES.get(call.op.type)
    if rule is None:
        raise Unknown
    found = rule(call)
    if len(found) != len(call.outputs):
        raise Damaged(f"has {len(call.outputs)} outputs where {len(found)} are made")
    return found


def _spread(call: Call) -> list[Shape]:
    return [broadcast([call.shape(at) for at in range(len(call.inputs))])]


def _same(call: Call) -> list[Shape]:
    return [call.shape(0)]


def _choice(call: Call) -> list[Shape]:
    return [call.shape(1)]  # of the older SELECT, whose condition may be one for each row


def _connect(call: Call) -> list[Shape]:
    shape, (units, width) = call.shape(0), call.of_rank(1, 2)
    if call.option("KeepNumDims"):
        if not shape or shape[-1] != width:
            raise Damaged(f"multiplies {written(shape)} by weights for {width:,}")
        return [(*shape[:-1], units)]
    rows, rest = divmod(elements(shape), width) if width else (0, 1)
    if rest:
        raise Damaged(f"multiplies {written(shape)} by weights for {width:,}")
    return [(rows, units)]


def _multiply(call: Call) -> list[Shape]:
    left, right = call.shape(0), call.shape(1)
    if len(left) < 2 or len(right) < 2:
        raise Damaged(f"multiplies {written(left)} by {written(right)}")
    rows, inner = left[-2:][:: -1 if call.option("AdjX") else 1]
    other, columns = right[-2:][:: -1 if call.option("AdjY") else 1]
    if inner != other:
        raise Damaged(f"multiplies {written(left)} by {written(right)}")
    return [(*broadcast((left[:-2], right[:-2])), rows, columns)]


def _reduce(call: Call) -> list[Shape]:
    shape = call.shape(0)
    axes = {call.axis(axis, len(shape)) for axis in call.value(1)} if shape else set()
    if call.option("KeepDims"):
        return [tuple(1 if at in axes else size for at, size in enumerate(shape))]
    return [tuple(size for at, size in enumerate(shape) if at not in axes)]


def _place(call: Call) -> list[Shape]:
    shape = call.shape(0)
    axis = call.axis(call.number(1), len(shape))
    return [(*shape[:axis], *shape[axis + 1 :])]


def _transform(call: Call) -> list[Shape]:
    shape, length = call.shape(0), call.value(1)
    if len(shape) < 2 or len(length) != 2 or min(length) < 1:
        raise Damaged(f"transforms {written(shape)} by {len(length)} lengths")
    return [(*shape[:-2], length[0], length[1] // 2 + 1)]


def convolve(call: Call) -> list[Shape]:
    """CONV_2D."""
    batch, height, width, _ = call.of_rank(0, 4)
    depth, tall, wide, _ = call.of_rank(1, 4)
    return [(batch, *_positions(call, (height, width), (tall, wide), dilated=True), depth)]


def convolve_depthwise(call: Call) -> list[Shape]:
    """DEPTHWISE_CONV_2D."""
    batch, height, width, _ = call.of_rank(0, 4)
    _, tall, wide, depth = call.of_rank(1, 4)
    return [(batch, *_positions(call, (height, width), (tall, wide), dilated=True), depth)]


def pool(call: Call) -> list[Shape]:
    """Average, maximum or root of squares of each window."""
    batch, height, width, depth = call.of_rank(0, 4)
    window = (call.option("FilterHeight"), call.option("FilterWidth"))
    return [(batch, *_positions(call, (height, width), window, dilated=False), depth)]


def resize(call: Call) -> list[Shape]:
    """To a given height and width."""
    batch, _, _, depth = call.of_rank(0, 4)
    size = call.value(1)
    if len(size) != 2 or min(size) < 1:
        raise Damaged("has no height and width to resize to")
    return [(batch, *size, depth)]


def space_to_depth(call: Call) -> list[Shape]:
    """Each block of pixels becomes one pixel."""
    batch, height, width, depth = call.of_rank(0, 4)
    block = _block(call)
    return [(batch, _divided(height, block), _divided(width, block), depth * block * block)]


def depth_to_space(call: Call) -> list[Shape]:
    """Each pixel becomes a block of them."""
    batch, height, width, depth = call.of_rank(0, 4)
    block = _block(call)
    return [(batch, height * block, width * block, _divided(depth, block * block))]


def space_to_batch(call: Call) -> list[Shape]:
    """Pixels at equal places of their blocks become images of their own."""
    shape, blocks, margins = call.shape(0), call.value(1), call.value(2)
    inner = _inner(shape, blocks, margins)
    padded = [size + sum(margins[2 * at : 2 * at + 2]) for at, size in enumerate(inner)]
    sizes = tuple(_divided(size, block) for size, block in zip(padded, blocks, strict=True))
    return [(shape[0] * elements(blocks), *sizes, *shape[1 + len(blocks) :])]


def batch_to_space(call: Call) -> list[Shape]:
    """The reverse of that."""
    shape, blocks, margins = call.shape(0), call.value(1), call.value(2)
    inner = _inner(shape, blocks, margins)
    sizes = tuple(
        size * block - sum(margins[2 * at : 2 * at + 2])
        for at, (size, block) in enumerate(zip(inner, blocks, strict=True))
    )
    return [(_divided(shape[0], elements(blocks)), *sizes, *shape[1 + len(blocks) :])]


def _positions(call: Call, size: Shape, window: Shape, *, dilated: bool) -> Shape:
    steps = (call.option("StrideH"), call.option("StrideW"))
    spread = (1, 1)
    if dilated:
        spread = (call.option("DilationHFactor"), call.option("DilationWFactor"))
    same = call.option("Padding") == _PADDING_SAME
    return tuple(_fits(*one, same=same) for one in zip(size, window, steps, spread, strict=True))


def _fits(size: int, window: int, step: int, spread: int, *, same: bool) -> int:
    """How often a window fits."""
    if min(window, step, spread) < 1:
        raise Damaged("has a window or a step of no size")
    covered = 1 if same else (window - 1) * spread + 1
    if covered > size:
        raise Damaged(f"needs at least {covered:,} where there are {size:,}")
    return -(-(size - covered + 1) // step)


def _block(call: Call) -> int:
    block = int(call.option("BlockSize"))
    if block < 1:
        raise Damaged("has a block of no size")
    return block


def _inner(shape: Shape, blocks: list[int], margins: list[int]) -> Shape:
    if len(margins) != 2 * len(blocks) or len(shape) < 1 + len(blocks) or min(blocks) < 1:
        raise Damaged("has blocks that are not those of its input")
    return shape[1 : 1 + len(blocks)]


def _divided(size: int, by: int) -> int:
    if size % by:
        raise Damaged(f"divides {size:,} by {by:,}")
    return size // by


_SAME = (
    *("COMPLEX_ABS", "CUMSUM", "DENSIFY", "DYNAMIC_UPDATE_SLICE", "FAKE_QUANT", "IMAG"),
    *("L2_NORMALIZATION", "LOCAL_RESPONSE_NORMALIZATION", "LOG_SOFTMAX", "REAL"),
    *("REVERSE_SEQUENCE", "REVERSE_V2", "SOFTMAX", "ZEROS_LIKE"),
)
_REDUCING = (
    *("MEAN", "REDUCE_ALL", "REDUCE_ANY", "REDUCE_MAX", "REDUCE_MIN", "REDUCE_PROD", "SUM"),
)
_RULES: dict[str, Rule] = {
    **dict.fromkeys((*ELEMENTWISE, "ATAN2"), _spread),
    **dict.fromkeys(_SAME, _same),
    **dict.fromkeys(_REDUCING, _reduce),
    **dict.fromkeys(("AVERAGE_POOL_2D", "L2_POOL_2D", "MAX_POOL_2D"), pool),
    **dict.fromkeys(("RESIZE_BILINEAR", "RESIZE_NEAREST_NEIGHBOR"), resize),
    **dict.fromkeys(("MIRROR_PAD", "PAD", "PADV2"), arrange.pad),
    **dict.fromkeys(("ARG_MAX", "ARG_MIN"), _place),
    "BATCH_MATMUL": _multiply,
    "BATCH_TO_SPACE_ND": batch_to_space,
    "BROADCAST_ARGS": lambda call: [(max(len(call.value(0)), len(call.value(1))),)],
    "BROADCAST_TO": arrange.broadcast_to,
    "CONCATENATION": arrange.concatenate,
    "CONV_2D": convolve,
    "DEPTHWISE_CONV_2D": convolve_depthwise,
    "DEPTH_TO_SPACE": depth_to_space,
    "EMBEDDING_LOOKUP": arrange.look_up,
    "EXPAND_DIMS": arrange.expand_dims,
    "FILL": arrange.fill,
    "FULLY_CONNECTED": _connect,
    "GATHER": arrange.gather,
    "GATHER_ND": arrange.gather_nd,
    "ONE_HOT": arrange.one_hot,
    "PACK": arrange.pack,
    "RANGE": arrange.count_up,
    "RANK": lambda _: [()],
    "RESHAPE": arrange.reshape,
    "RFFT2D": _transform,
    "SELECT": _choice,
    "SHAPE": lambda call: [(len(call.shape(0)),)],
    "SLICE": arrange.slice_out,
    "SPACE_TO_BATCH_ND": space_to_batch,
    "SPACE_TO_DEPTH": space_to_depth,
    "SPLIT": arrange.split,
    "SPLIT_V": arrange.split_at,
    "SQUEEZE": arrange.squeeze,
    "STRIDED_SLICE": arrange.strided_slice,
    "TILE": arrange.tile,
    "TOPK_V2": arrange.largest,
    "TRANSPOSE": arrange.transpose,
    "TRANSPOSE_CONV": arrange.fill,
    "UNPACK": arrange.unpack,
}
