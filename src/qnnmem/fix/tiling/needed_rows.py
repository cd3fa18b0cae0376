"""Input rows that a node needs for some rows of its output, and changes to the node.

The cut axis is counted from the end, so that it means the same for operands with fewer dimensions:
-2 is rows of an image, -1 is columns, or time for audio. A rule exists for each supported kind of
node; other nodes are refused with a reason.

Convolution and pooling: output row r reads the input rows  r*stride - pad + k*dilation  for k <
kernel. Rows above the first and below the last are padding, which only the first and the last band
have.

Rounding: the float kernels of onnxruntime multiply matrices of  filters x K  and  K x pixels, and
sum K in pieces of 128 numbers. With few pixels and a long K the pieces are longer:

    pixels      more than 64   33 to 64   17 to 32   up to 16
    piece       128            256        512        1024

A band with the same pieces as the whole tensor is probably equal bit for bit; the proof decides.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from qnnmem.loader.onnx.graph import attribute, integer, is_op, is_quant
from qnnmem.loader.onnx.passes.build import ELEMENTWISE
from qnnmem.loader.onnx.scope import is_deterministic

if TYPE_CHECKING:
    import onnx
    from numpy.typing import NDArray

    from qnnmem.fix.tiling.tiled_graph import TiledGraph


class Rows(NamedTuple):
    """Rows `first <= row < end` of a tensor along the cut axis."""

    first: int
    end: int

    @property
    def height(self) -> int:
        """Number of rows."""
        return self.end - self.first

    def hull(self, other: Rows | None) -> Rows:
        """Return the smallest range that contains both ranges."""
        if other is None:
            return self
        return Rows(min(self.first, other.first), max(self.end, other.end))

    def within(self, size: int) -> Rows:
        """Return the rows that exist in a tensor of this size."""
        return Rows(max(self.first, 0), min(self.end, size))


def share(size: int, band: int, bands: int) -> Rows:
    """Return the rows of one band when `size` rows are split into bands of nearly equal height."""
    return Rows(size * band // bands, size * (band + 1) // bands)


@dataclass(frozen=True, slots=True)
class BandStep:
    """The work of a node for a band: rows written, rows read, changed attributes.

    Inputs missing from `reads` are read whole. `values` are new constants by input number; None
    removes the input.
    """

    makes: Rows
    reads: Mapping[int, Rows]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    values: Mapping[int, NDArray[Any] | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """Node with its graph and the cut axis; answers questions about its operands."""

    graph: TiledGraph
    node: onnx.NodeProto
    axis: int  # the cut axis, counted from the last: -1 or -2

    def shape(self, slot: int) -> tuple[int, ...]:
        """Return the shape of an input."""
        return self.graph.shape(self.node.input[slot]) or ()

    @property
    def result(self) -> tuple[int, ...]:
        """Shape of the first output."""
        return self.graph.shape(self.node.output[0]) or ()

    def has(self, slot: int) -> bool:
        """Return True if the node has this input."""
        return slot < len(self.node.input) and bool(self.node.input[slot])

    def size(self, slot: int) -> int:
        """Return the number of rows of an input; 1 if the input lacks the cut axis."""
        return rows_of(self.shape(slot), self.axis)

    def ints(self, name: str) -> tuple[int, ...] | None:
        """Return an attribute that is a list of integers; None if the node lacks the attribute."""
        item = attribute(self.node, name)
        return None if item is None else tuple(item.ints)

    def text(self, name: str, default: str) -> str:
        """Return a text attribute, or the default."""
        item = attribute(self.node, name)
        return default if item is None else item.s.decode("utf-8", "replace")

    def numbers(self, slot: int) -> NDArray[Any] | None:
        """Return the values of an input; None unless the input is a small stored constant."""
        return self.graph.numbers(self.node.input[slot]) if self.has(slot) else None


Rule = Callable[[NodeFacts, Rows], "BandStep | str"]


def rows_of(shape: tuple[int, ...], axis: int) -> int:
    """Return the size of a shape along the cut axis; 1 if the shape lacks this axis."""
    return shape[axis] if len(shape) >= -axis else 1


# Position of the weights input, for ops with weights.
WEIGHTS = {"Conv": 1, "ConvInteger": 1, "QLinearConv": 3, "ConvTranspose": 1}


class _Window(NamedTuple):
    """Window of a convolution or pooling along every spatial axis."""

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads: tuple[tuple[int, int], ...]

    def span(self, axis: int) -> int:
        """Return the number of input rows that one window covers along an axis."""
        return (self.kernel[axis] - 1) * self.dilations[axis] + 1


def _window(facts: NodeFacts) -> _Window | str:
    """Return the window as the attributes give it, or a reason why the node is unsupported."""
    node, before, after = facts.node, facts.shape(0), facts.result
    count = len(before) - 2
    if count < 1 or len(after) != len(before) or count + facts.axis < 0:
        return f"{node.op_type} of a tensor that is not an image"
    weights = WEIGHTS.get(node.op_type)
    kernel = facts.ints("kernel_shape") or (() if weights is None else facts.shape(weights)[2:])
    strides = facts.ints("strides") or (1,) * count
    dilations = facts.ints("dilations") or (1,) * count
    pad_numbers = facts.ints("pads") or (0,) * 2 * count
    if {len(kernel), len(strides), len(dilations), len(pad_numbers) // 2} != {count}:
        return f"{node.op_type} with unknown attributes"
    pads = tuple(zip(pad_numbers[:count], pad_numbers[count:], strict=True))
    return _Window(kernel, strides, dilations, pads)


def _padded(window: _Window, facts: NodeFacts) -> _Window | str:
    """Return the window with numbers for `auto_pad`, or a reason why the node is unsupported."""
    how = facts.text("auto_pad", "NOTSET")
    before, after = facts.shape(0)[2:], facts.result[2:]
    pads = []
    for axis, pad in enumerate(window.pads):
        span = window.span(axis)
        if how in ("SAME_UPPER", "SAME_LOWER"):
            total = max((after[axis] - 1) * window.strides[axis] + span - before[axis], 0)
            small = total // 2
            pad = (small, total - small) if how == "SAME_UPPER" else (total - small, small)
        elif how == "VALID":
            pad = (0, 0)
        elif how != "NOTSET":
            return f"{facts.node.op_type} with padding {how}"
        if min(pad) < 0:
            return f"{facts.node.op_type} whose windows do not cover the whole input"
        if (before[axis] + sum(pad) - span) // window.strides[axis] + 1 != after[axis]:
            return f"{facts.node.op_type} with windows that extend beyond the padding"
        pads.append(pad)
    return window._replace(pads=tuple(pads))


def _slide(facts: NodeFacts, need: Rows) -> BandStep | str:
    """Return the band step of a convolution or pooling, or a reason why the node is unsupported."""
    node = facts.node
    if len([*filter(None, node.output)]) > 1:
        return f"{node.op_type} that also returns positions"
    plain = _window(facts)
    window = plain if isinstance(plain, str) else _padded(plain, facts)
    if isinstance(window, str):
        return window
    cut = len(window.kernel) + facts.axis
    stride, (above, _below) = window.strides[cut], window.pads[cut]
    wanted = Rows(need.first * stride - above, (need.end - 1) * stride - above + window.span(cut))
    there = wanted.within(facts.size(0))
    if there.height < 1:
        return f"{node.op_type} with output rows that read only padding"
    pads = [*window.pads]
    pads[cut] = (there.first - wanted.first, wanted.end - there.end)
    attributes = {
        "auto_pad": None,
        "pads": [*(first for first, _ in pads), *(last for _, last in pads)],
    }
    if integer(node, "ceil_mode", 0):
        attributes["ceil_mode"] = None  # no effect on the whole tensor, but it could affect a band
    return BandStep(need, {0: there}, attributes)


def _spread(facts: NodeFacts, need: Rows) -> BandStep | str:
    """Return the band step of a ConvTranspose: row i adds to rows i*stride - pad + k*dilation."""
    window = _window(facts)
    if isinstance(window, str):
        return window
    if facts.text("auto_pad", "NOTSET") != "NOTSET" or facts.ints("output_shape"):
        return "ConvTranspose with padding computed from a shape"
    if any(facts.ints("output_padding") or ()) or min(map(min, window.pads)) < 0:
        return "ConvTranspose with output padding"
    cut = len(window.kernel) + facts.axis
    for axis, (first, last) in enumerate(window.pads):
        whole = (facts.shape(0)[2 + axis] - 1) * window.strides[axis] + window.span(axis)
        if whole - first - last != facts.result[2 + axis]:
            return "ConvTranspose with an output shape that its attributes do not determine"
    stride, (above, _below), span = window.strides[cut], window.pads[cut], window.span(cut)
    first = -((span - 1 - above - need.first) // stride)  # rounds up
    there = Rows(first, (need.end - 1 + above) // stride + 1).within(facts.size(0))
    if there.height < 1:
        return "ConvTranspose with output rows that no input row reaches"
    start = there.first * stride - above
    stop = (there.end - 1) * stride - above + span
    if need.first < start or need.end > stop:
        return "ConvTranspose with output rows that no input row reaches"
    pads = [*window.pads]
    pads[cut] = (need.first - start, stop - need.end)
    ends = [*(first for first, _ in pads), *(last for _, last in pads)]
    return BandStep(need, {0: there}, {"pads": ends})


def multiply_adds(facts: NodeFacts) -> int:
    """Return the multiply-adds of a node for one row of its output."""
    node = facts.node
    rows = max(rows_of(facts.result, facts.axis), 1)
    if node.op_type == "MatMul":
        return math.prod(facts.result) // rows * (facts.shape(0) or (1,))[-1]
    slot = WEIGHTS.get(node.op_type)
    if slot is None or not facts.has(slot):
        return 0
    weights = facts.shape(slot)
    if node.op_type == "ConvTranspose":
        return math.prod(facts.shape(0)) * math.prod(weights[1:]) // rows
    return math.prod(facts.result) // rows * math.prod(weights[1:])


WINDOWS: Mapping[str, Rule] = {
    **dict.fromkeys(("Conv", "ConvInteger", "QLinearConv", "MaxPool", "AveragePool"), _slide),
    "ConvTranspose": _spread,
}

_RESIZE_WITH_SIZES = 11  # operator set
_HALF = ("half_pixel", "pytorch_half_pixel")


def _resize(facts: NodeFacts, need: Rows) -> BandStep | str:
    """Return the band step of a Resize; only integer factors are supported."""
    before, after = facts.shape(0), facts.result
    if len(before) != len(after) or 0 in before:
        return f"{facts.node.op_type} that changes the rank"
    if any(large % small for small, large in zip(before, after, strict=True)):
        return f"{facts.node.op_type} by a fractional factor"
    if facts.ints("axes") is not None or integer(facts.node, "exclude_outside", 0):
        return f"{facts.node.op_type} of only some axes"
    factors = [large // small for small, large in zip(before, after, strict=True)]
    margin = _margin(facts, factors)
    if isinstance(margin, str):
        return margin
    factor, size = factors[facts.axis], before[facts.axis]
    there = Rows(need.first // factor - margin, -(-need.end // factor) + margin).within(size)
    makes = Rows(there.first * factor, there.end * factor)
    return BandStep(makes, {0: there}, {}, _scales(facts, factors))


def _margin(facts: NodeFacts, factors: Sequence[int]) -> int | str:
    """Return how many neighbouring rows an output row needs, or why the Resize is refused."""
    node = facts.node
    mode = facts.text("mode", "nearest")
    simple = node.op_type == "Upsample" or facts.graph.opset < _RESIZE_WITH_SIZES
    default = "asymmetric" if simple else "half_pixel"
    coordinates = facts.text("coordinate_transformation_mode", default)
    rounding = facts.text("nearest_mode", "floor" if simple else "round_prefer_floor")
    if mode == "nearest":
        halves = coordinates in _HALF and rounding in ("round_prefer_floor", "round_prefer_ceil")
        starts = coordinates == "asymmetric" and (rounding == "floor" or max(factors) <= 2)
        if halves or (starts and rounding in ("floor", "round_prefer_floor")):
            return 0
    elif mode == "linear" and coordinates in (*_HALF, "asymmetric"):
        # Only fractions with a power of two are exact in every band: thirds are rounded.
        if all(factor & (factor - 1) == 0 for factor in factors):
            return 1
        return f"{node.op_type} with an input that would be rounded differently"
    return f"{node.op_type} with {mode}, {coordinates}, {rounding}"


def _scales(facts: NodeFacts, factors: list[int]) -> dict[int, Any]:
    """Return inputs with scale factors in place of a Resize's sizes; empty if it has no sizes.

    The sizes describe the whole tensor, so they are wrong for a band.
    """
    import numpy

    if not facts.has(3):
        return {}
    return {2: numpy.array(factors, numpy.float32), 3: None}


def _pad(facts: NodeFacts, need: Rows) -> BandStep | str:
    """Return the band step of a Pad; only the first and the last band get padding rows."""
    import numpy

    rank = len(facts.result)
    if facts.text("mode", "constant") != "constant" or facts.has(3):
        return "Pad with an axes input, or in a mode other than constant"
    stored = facts.numbers(1)
    ends = facts.ints("pads") if stored is None else tuple(int(end) for end in stored.reshape(-1))
    if ends is None or len(ends) != 2 * rank or min(ends) < 0:
        return "Pad with computed or negative amounts"
    if attribute(facts.node, "paddings") is not None:
        return "Pad of an old operator set"
    cut = rank + facts.axis
    wanted = Rows(need.first - ends[cut], need.end - ends[cut])
    there = wanted.within(rows_of(facts.shape(0), facts.axis))
    if there.height < 1:
        return "Pad with a band that contains only padding"
    new = [*ends]
    new[cut], new[cut + rank] = there.first - wanted.first, wanted.end - there.end
    if stored is None:
        return BandStep(need, {0: there}, {"pads": new})
    return BandStep(need, {0: there}, {}, {1: numpy.array(new, numpy.int64)})


def _depth_to_space(facts: NodeFacts, need: Rows) -> BandStep | str:
    block = integer(facts.node, "blocksize", 0)
    if len(facts.result) != 4 or block < 1:
        return "DepthToSpace of a tensor that is not an image"
    there = Rows(need.first // block, -(-need.end // block))
    return BandStep(Rows(there.first * block, there.end * block), {0: there})


def _space_to_depth(facts: NodeFacts, need: Rows) -> BandStep | str:
    block = integer(facts.node, "blocksize", 0)
    if len(facts.result) != 4 or block < 1:
        return "SpaceToDepth of a tensor that is not an image"
    return BandStep(need, {0: Rows(need.first * block, need.end * block)})


SCALING: Mapping[str, Rule] = {
    **dict.fromkeys(("Resize", "Upsample"), _resize),
    "Pad": _pad,
    "DepthToSpace": _depth_to_space,
    "SpaceToDepth": _space_to_depth,
}

_PIECE, _WIDTH, _NARROWEST = 128, 128, 16


def sums_alike(facts: NodeFacts, step: BandStep) -> bool:
    """Return True if a node sums in the same pieces for a band as for the whole tensor."""
    if facts.node.op_type not in WEIGHTS or WEIGHTS[facts.node.op_type] >= len(facts.node.input):
        return True
    size = rows_of(facts.result, facts.axis)
    weights = facts.shape(WEIGHTS[facts.node.op_type])
    if facts.node.op_type == "ConvTranspose":
        length = weights[0] // max(integer(facts.node, "group", 1), 1)
        pixels, size, rows = math.prod(facts.shape(0)[2:]), facts.size(0), step.reads[0].height
    else:
        length, pixels, rows = (
            math.prod(weights[1:]),
            math.prod(facts.result[2:]),
            step.makes.height,
        )
    return _piece(length, pixels) == _piece(length, pixels // max(size, 1) * rows)


def _piece(length: int, pixels: int) -> int:
    """Return the number of products that a kernel sums in one piece."""
    piece, width = _PIECE, _WIDTH
    if pixels < length:
        while width > _NARROWEST and width // 2 >= pixels:
            piece, width = piece * 2, width // 2
    return min(piece, length)


# Ops whose output rows depend only on the same rows of their inputs.
_ALIKE = frozenset({*ELEMENTWISE, "Cast", "CastLike", "Identity", "Dropout", "LRN"})
_SOFTMAX_OF_ONE_AXIS = 13  # operator set; before it, Softmax flattened all later axes


def band_step(facts: NodeFacts, need: Rows) -> BandStep | str:
    """Return the band step of a node for output rows `need`, or why the node is refused."""
    node = facts.node
    if is_quant(node, "QuantizeLinear") or is_quant(node, "DequantizeLinear"):
        return _quantize(facts, need)
    rule = _RULES.get(node.op_type)
    if rule is None or not is_op(node, node.op_type):
        return f"{node.op_type} is not known to be computable row by row"
    if len(facts.result) < -facts.axis:
        return f"{node.op_type} has a result without rows"
    return rule(facts, need)


def _alike(facts: NodeFacts, need: Rows) -> BandStep | str:
    """Return the band step of an element-wise op; operands with one row are broadcast."""
    node, size = facts.node, rows_of(facts.result, facts.axis)
    if node.op_type == "Dropout" and not is_deterministic(node):
        return "Dropout with random results"
    if node.op_type == "LRN" and len(facts.result) + facts.axis < 2:
        return "LRN across the cut axis"
    reads = {}
    for slot in range(len(node.input)):
        if not facts.has(slot):
            continue
        own = facts.size(slot)
        if own == size:
            reads[slot] = need
        elif own != 1:
            return f"{node.op_type} with operands of {own} and {size} rows"
    return BandStep(need, reads)


def _normalise(facts: NodeFacts, need: Rows) -> BandStep | str:
    if integer(facts.node, "training_mode", 0) or len([*filter(None, facts.node.output)]) > 1:
        return "BatchNormalization in training"
    if len(facts.result) + facts.axis < 2:
        return "BatchNormalization along the cut axis"
    return BandStep(need, {0: need})


def _quantize(facts: NodeFacts, need: Rows) -> BandStep | str:
    node, rank = facts.node, len(facts.result)
    if rank < -facts.axis or integer(node, "block_size", 0):
        return f"{node.op_type} in blocks"
    scales = facts.shape(1)
    if scales and scales != (1,) and integer(node, "axis", 1) % rank == rank + facts.axis:
        return f"{node.op_type} with scales along the cut axis"
    return BandStep(need, {0: need})


def _one_axis(facts: NodeFacts, need: Rows) -> BandStep | str:
    """Return the band step of a Softmax along an axis other than the cut axis."""
    if facts.graph.opset < _SOFTMAX_OF_ONE_AXIS:
        return f"{facts.node.op_type} of an old operator set"
    return _along_another(facts, need, -1)


def _along_another(facts: NodeFacts, need: Rows, default_axis: int) -> BandStep | str:
    rank = len(facts.result)
    if integer(facts.node, "axis", default_axis) % rank == rank + facts.axis:
        return f"{facts.node.op_type} along the cut axis"
    size = rows_of(facts.result, facts.axis)
    slots = [slot for slot in range(len(facts.node.input)) if facts.has(slot)]
    reads = {slot: need for slot in slots if len(facts.shape(slot)) == rank}
    if any(facts.size(slot) != size for slot in reads):
        return f"{facts.node.op_type} with different numbers of rows"
    return BandStep(need, reads)


def _concat_or_split(facts: NodeFacts, need: Rows) -> BandStep | str:
    return _along_another(facts, need, 0)


def _slice(facts: NodeFacts, need: Rows) -> BandStep | str:
    """Return the band step of a Slice that does not slice the cut axis."""
    rank = len(facts.result)
    if any(facts.has(slot) and facts.numbers(slot) is None for slot in range(1, 5)):
        return "Slice with computed positions"
    if facts.has(1):
        starts, axes = facts.numbers(1), facts.numbers(3)
        count = 0 if starts is None else starts.size
        cut = [*range(count)] if axes is None else [int(axis) for axis in axes.reshape(-1)]
    else:
        cut = [*(facts.ints("axes") or range(len(facts.ints("starts") or ())))]
    if any(axis % rank == rank + facts.axis for axis in cut):
        return "Slice along the cut axis"
    return BandStep(need, {0: need})


def _transpose(facts: NodeFacts, need: Rows) -> BandStep | str:
    """Return the band step of a Transpose that keeps the cut axis and the axes after it."""
    rank = len(facts.result)
    order = facts.ints("perm") or tuple(range(rank))[::-1]
    if order[facts.axis :] != tuple(range(rank))[facts.axis :]:
        return "Transpose that moves the cut axis"
    return BandStep(need, {0: need})


def _reshape(facts: NodeFacts, need: Rows) -> BandStep | str:
    """Return the band step of a Reshape that changes only axes before the cut axis."""
    import numpy

    before, after = facts.shape(0), facts.result
    if min(len(before), len(after)) < -facts.axis or before[facts.axis :] != after[facts.axis :]:
        return "Reshape that moves the cut axis"
    if 0 in before or not facts.has(1):
        return "Reshape of an empty tensor, or of an old operator set"
    shape = [*after]
    shape[facts.axis] = need.height
    return BandStep(need, {0: need}, {"allowzero": None}, {1: numpy.array(shape, numpy.int64)})


def _matmul(facts: NodeFacts, need: Rows) -> BandStep | str:
    """Return the band step of a MatMul: row r of the product needs only row r of factor 1."""
    if facts.axis != -2 or len(facts.shape(0)) < 2 or len(facts.shape(1)) < 2:
        return "MatMul along the cut axis"
    return BandStep(need, {0: need})


_RULES: Mapping[str, Rule] = {
    **WINDOWS,
    **SCALING,
    **dict.fromkeys(_ALIKE, _alike),
    **dict.fromkeys(("Softmax", "LogSoftmax"), _one_axis),
    "BatchNormalization": _normalise,
    "Concat": _concat_or_split,
    "MatMul": _matmul,
    "Reshape": _reshape,
    "Slice": _slice,
    "Split": _concat_or_split,
    "Transpose": _transpose,
}
