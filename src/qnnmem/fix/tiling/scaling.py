"""Rows that are read by what makes pictures larger or smaller by a whole factor, and by padding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from qnnmem.fix.tiling.facts import BandStep, NodeFacts, Rule, rows_of
from qnnmem.fix.tiling.rows import Rows
from qnnmem.loader.onnx.graph import attribute, integer

_RESIZE_WITH_SIZES = 11  # operator set
_HALF = ("half_pixel", "pytorch_half_pixel")


def _resize(facts: NodeFacts, need: Rows) -> BandStep | str:
    """Copies or mixes rows; a factor that is whole makes every band alike."""
    before, after = facts.shape(0), facts.result
    if len(before) != len(after) or 0 in before:
        return f"{facts.node.op_type} that changes the rank"
    if any(large % small for small, large in zip(before, after, strict=True)):
        return f"{facts.node.op_type} by a factor that is not whole"
    if facts.ints("axes") is not None or integer(facts.node, "exclude_outside", 0):
        return f"{facts.node.op_type} of some axes"
    factors = [large // small for small, large in zip(before, after, strict=True)]
    margin = _margin(facts, factors)
    if isinstance(margin, str):
        return margin
    factor, size = factors[facts.axis], before[facts.axis]
    there = Rows(need.first // factor - margin, -(-need.end // factor) + margin).within(size)
    makes = Rows(there.first * factor, there.end * factor)
    return BandStep(makes, {0: there}, {}, _scales(facts, factors))


def _margin(facts: NodeFacts, factors: Sequence[int]) -> int | str:
    """Rows beside its own that a row of the output is mixed from."""
    node = facts.node
    mode = facts.text("mode", "nearest")
    simple = node.op_type == "Upsample" or facts.graph.opset < _RESIZE_WITH_SIZES
    usual = "asymmetric" if simple else "half_pixel"
    where = facts.text("coordinate_transformation_mode", usual)
    how = facts.text("nearest_mode", "floor" if simple else "round_prefer_floor")
    if mode == "nearest":
        halves = where in _HALF and how in ("round_prefer_floor", "round_prefer_ceil")
        starts = where == "asymmetric" and (how == "floor" or max(factors) <= 2)
        if halves or (starts and how in ("floor", "round_prefer_floor")):
            return 0
    elif mode == "linear" and where in (*_HALF, "asymmetric"):
        # Only parts of a power of two are the same numbers in every band: thirds are rounded.
        if all(factor & (factor - 1) == 0 for factor in factors):
            return 1
        return f"{node.op_type} that mixes in parts that are rounded"
    return f"{node.op_type} with {mode}, {where}, {how}"


def _scales(facts: NodeFacts, factors: list[int]) -> dict[int, Any]:
    """Factors in the place of sizes, which are those of the whole."""
    import numpy

    if not facts.has(3):
        return {}
    return {2: numpy.array(factors, numpy.float32), 3: None}


def _pad(facts: NodeFacts, need: Rows) -> BandStep | str:
    """Constant rows around, which a band has only at the ends."""
    import numpy

    rank = len(facts.result)
    if facts.text("mode", "constant") != "constant" or facts.has(3):
        return "Pad that is not constant on all axes"
    stored = facts.numbers(1)
    ends = facts.ints("pads") if stored is None else tuple(int(end) for end in stored.reshape(-1))
    if ends is None or len(ends) != 2 * rank or min(ends) < 0:
        return "Pad by numbers that are computed"
    if attribute(facts.node, "paddings") is not None:
        return "Pad of an old operator set"
    at = rank + facts.axis
    wanted = Rows(need.first - ends[at], need.end - ends[at])
    there = wanted.within(rows_of(facts.shape(0), facts.axis))
    if there.height < 1:
        return "Pad with rows that are padding alone"
    new = [*ends]
    new[at], new[at + rank] = there.first - wanted.first, wanted.end - there.end
    if stored is None:
        return BandStep(need, {0: there}, {"pads": new})
    return BandStep(need, {0: there}, {}, {1: numpy.array(new, numpy.int64)})


def _depth_to_space(facts: NodeFacts, need: Rows) -> BandStep | str:
    block = integer(facts.node, "blocksize", 0)
    if len(facts.result) != 4 or block < 1:
        return "DepthToSpace of something that is no picture"
    there = Rows(need.first // block, -(-need.end // block))
    return BandStep(Rows(there.first * block, there.end * block), {0: there})


def _space_to_depth(facts: NodeFacts, need: Rows) -> BandStep | str:
    block = integer(facts.node, "blocksize", 0)
    if len(facts.result) != 4 or block < 1:
        return "SpaceToDepth of something that is no picture"
    return BandStep(need, {0: Rows(need.first * block, need.end * block)})


SCALING: Mapping[str, Rule] = {
    **dict.fromkeys(("Resize", "Upsample"), _resize),
    "Pad": _pad,
    "DepthToSpace": _depth_to_space,
    "SpaceToDepth": _space_to_depth,
}
