"""Rows that convolutions and pooling read: those under the windows of the rows they make.

    row r of the output reads the rows  r*stride - pad + k*dilation  of the input, k < kernel

What lies above the first or below the last row is padding, which a band has only at these ends.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from qnnmem.fix.tiling.facts import BandStep, NodeFacts, Rule, rows_of
from qnnmem.fix.tiling.rows import Rows
from qnnmem.loader.onnx.graph import integer

# The input that holds the weights, of ops that have some.
WEIGHTS = {"Conv": 1, "ConvInteger": 1, "QLinearConv": 3, "ConvTranspose": 1}


class _Window(NamedTuple):
    """Along every axis of a picture: size, stride, dilation, and padding before and after."""

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads: tuple[tuple[int, int], ...]

    def span(self, at: int) -> int:
        """Rows that one window covers."""
        return (self.kernel[at] - 1) * self.dilations[at] + 1


def _window(facts: NodeFacts) -> _Window | str:
    """Windows of a node whose padding is written out, checked against the shapes."""
    node, before, after = facts.node, facts.shape(0), facts.result
    count = len(before) - 2
    if count < 1 or len(after) != len(before) or count + facts.axis < 0:
        return f"{node.op_type} of something that is no picture"
    weights = WEIGHTS.get(node.op_type)
    kernel = facts.ints("kernel_shape") or (() if weights is None else facts.shape(weights)[2:])
    strides = facts.ints("strides") or (1,) * count
    dilations = facts.ints("dilations") or (1,) * count
    given = facts.ints("pads") or (0,) * 2 * count
    if {len(kernel), len(strides), len(dilations), len(given) // 2} != {count}:
        return f"{node.op_type} with odd attributes"
    pads = tuple(zip(given[:count], given[count:], strict=True))
    return _Window(kernel, strides, dilations, pads)


def _padded(window: _Window, facts: NodeFacts) -> _Window | str:
    """The same with the padding that `auto_pad` stands for."""
    how = facts.text("auto_pad", "NOTSET")
    before, after = facts.shape(0)[2:], facts.result[2:]
    pads = []
    for at, given in enumerate(window.pads):
        span = window.span(at)
        if how in ("SAME_UPPER", "SAME_LOWER"):
            total = max((after[at] - 1) * window.strides[at] + span - before[at], 0)
            small = total // 2
            given = (small, total - small) if how == "SAME_UPPER" else (total - small, small)
        elif how == "VALID":
            given = (0, 0)
        elif how != "NOTSET":
            return f"{facts.node.op_type} with padding {how}"
        if min(given) < 0:
            return f"{facts.node.op_type} that cuts its input"
        if (before[at] + sum(given) - span) // window.strides[at] + 1 != after[at]:
            return f"{facts.node.op_type} whose windows reach beyond the padding"
        pads.append(given)
    return window._replace(pads=tuple(pads))


def _slide(facts: NodeFacts, need: Rows) -> BandStep | str:
    """Convolution or pooling."""
    node = facts.node
    if len([*filter(None, node.output)]) > 1:
        return f"{node.op_type} that gives positions, too"
    plain = _window(facts)
    window = plain if isinstance(plain, str) else _padded(plain, facts)
    if isinstance(window, str):
        return window
    at = len(window.kernel) + facts.axis
    stride, (above, _below) = window.strides[at], window.pads[at]
    wanted = Rows(need.first * stride - above, (need.end - 1) * stride - above + window.span(at))
    there = wanted.within(facts.size(0))
    if there.height < 1:
        return f"{node.op_type} with rows that are padding alone"
    pads = [*window.pads]
    pads[at] = (there.first - wanted.first, wanted.end - there.end)
    attributes = {
        "auto_pad": None,
        "pads": [*(first for first, _ in pads), *(last for _, last in pads)],
    }
    if integer(node, "ceil_mode", 0):
        attributes["ceil_mode"] = None  # makes no difference for all rows, but may for some
    return BandStep(need, {0: there}, attributes)


def _spread(facts: NodeFacts, need: Rows) -> BandStep | str:
    """Transposed convolution: row i of the input adds to rows i*stride - pad + k*dilation."""
    window = _window(facts)
    if isinstance(window, str):
        return window
    if facts.text("auto_pad", "NOTSET") != "NOTSET" or facts.ints("output_shape"):
        return "ConvTranspose whose padding follows from a shape"
    if any(facts.ints("output_padding") or ()) or min(map(min, window.pads)) < 0:
        return "ConvTranspose with padding of its output"
    at = len(window.kernel) + facts.axis
    for one, (first, last) in enumerate(window.pads):
        whole = (facts.shape(0)[2 + one] - 1) * window.strides[one] + window.span(one)
        if whole - first - last != facts.result[2 + one]:
            return "ConvTranspose whose shape does not follow from its attributes"
    stride, (above, _below), span = window.strides[at], window.pads[at], window.span(at)
    first = -((span - 1 - above - need.first) // stride)  # rounds up
    there = Rows(first, (need.end - 1 + above) // stride + 1).within(facts.size(0))
    if there.height < 1:
        return "ConvTranspose with rows that nothing is added to"
    start = there.first * stride - above
    stop = (there.end - 1) * stride - above + span
    if need.first < start or need.end > stop:
        return "ConvTranspose with rows that nothing is added to"
    pads = [*window.pads]
    pads[at] = (need.first - start, stop - need.end)
    ends = [*(first for first, _ in pads), *(last for _, last in pads)]
    return BandStep(need, {0: there}, {"pads": ends})


def multiply_adds(facts: NodeFacts) -> int:
    """Multiply-adds of a node for one row of its output; 0 for what does not multiply."""
    from math import prod

    node = facts.node
    rows = max(rows_of(facts.result, facts.axis), 1)
    if node.op_type == "MatMul":
        return prod(facts.result) // rows * (facts.shape(0) or (1,))[-1]
    slot = WEIGHTS.get(node.op_type)
    if slot is None or not facts.has(slot):
        return 0
    weights = facts.shape(slot)
    if node.op_type == "ConvTranspose":
        return prod(facts.shape(0)) * prod(weights[1:]) // rows
    return prod(facts.result) // rows * prod(weights[1:])


WINDOWS: Mapping[str, Rule] = {
    **dict.fromkeys(("Conv", "ConvInteger", "QLinearConv", "MaxPool", "AveragePool"), _slide),
    "ConvTranspose": _spread,
}
