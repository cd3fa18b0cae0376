"""Shapes of operators over images, which are batch, height, width, depth."""

from __future__ import annotations

from qnnmem.errors import Damaged
from qnnmem.loader.tflite.derive.call import Call, Shape, elements

_SAME = 0  # of Padding in the schema


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
    same = call.option("Padding") == _SAME
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
