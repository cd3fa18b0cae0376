"""What of its inputs a node reads for some rows of its outputs, and how it is told to.

A rule answers for one node; what no rule understands is refused with the reason, never guessed.
"""

from __future__ import annotations

from collections.abc import Mapping

from qnnmem.fix.tiling.facts import BandStep, NodeFacts, Rule, rows_of
from qnnmem.fix.tiling.rows import Rows
from qnnmem.fix.tiling.scaling import SCALING
from qnnmem.fix.tiling.windows import WINDOWS
from qnnmem.loader.onnx.graph import integer, is_op, is_quant
from qnnmem.loader.onnx.passes.build import ELEMENTWISE
from qnnmem.loader.onnx.scope import is_deterministic

# Work on each element, or on all elements of one row, whatever the other rows hold.
_ALIKE = frozenset({*ELEMENTWISE, "Cast", "CastLike", "Identity", "Dropout", "LRN"})
_SOFTMAX_OF_ONE_AXIS = 13  # operator set; before, all axes behind were one


def band_step(facts: NodeFacts, need: Rows) -> BandStep | str:
    """What a node does for at least the rows `need` of its outputs, or why that is not known."""
    node = facts.node
    if is_quant(node, "QuantizeLinear") or is_quant(node, "DequantizeLinear"):
        return _quantize(facts, need)
    rule = _RULES.get(node.op_type)
    if rule is None or not is_op(node, node.op_type):
        return f"{node.op_type} is not known to work row by row"
    if len(facts.result) < -facts.axis:
        return f"{node.op_type} has a result without rows"
    return rule(facts, need)


def _alike(facts: NodeFacts, need: Rows) -> BandStep | str:
    """Operands of all rows are read in the same rows, operands of one row whole."""
    node, size = facts.node, rows_of(facts.result, facts.axis)
    if node.op_type == "Dropout" and not is_deterministic(node):
        return "Dropout that drops is random"
    if node.op_type == "LRN" and len(facts.result) + facts.axis < 2:
        return "LRN across the axis"
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
        return "BatchNormalization along the axis"
    return BandStep(need, {0: need})


def _quantize(facts: NodeFacts, need: Rows) -> BandStep | str:
    node, rank = facts.node, len(facts.result)
    if rank < -facts.axis or integer(node, "block_size", 0):
        return f"{node.op_type} in blocks"
    scales = facts.shape(1)
    if scales and scales != (1,) and integer(node, "axis", 1) % rank == rank + facts.axis:
        return f"{node.op_type} with scales along the axis"
    return BandStep(need, {0: need})


def _one_axis(facts: NodeFacts, need: Rows) -> BandStep | str:
    """Softmax along another axis."""
    if facts.graph.opset < _SOFTMAX_OF_ONE_AXIS:
        return f"{facts.node.op_type} of an old operator set"
    return _along_another(facts, need, -1)


def _along_another(facts: NodeFacts, need: Rows, usual: int) -> BandStep | str:
    rank = len(facts.result)
    if integer(facts.node, "axis", usual) % rank == rank + facts.axis:
        return f"{facts.node.op_type} along the axis"
    size = rows_of(facts.result, facts.axis)
    slots = [slot for slot in range(len(facts.node.input)) if facts.has(slot)]
    reads = {slot: need for slot in slots if len(facts.shape(slot)) == rank}
    if any(facts.size(slot) != size for slot in reads):
        return f"{facts.node.op_type} of different rows"
    return BandStep(need, reads)


def _concat(facts: NodeFacts, need: Rows) -> BandStep | str:
    return _along_another(facts, need, 0)


def _split(facts: NodeFacts, need: Rows) -> BandStep | str:
    return _along_another(facts, need, 0)


def _slice(facts: NodeFacts, need: Rows) -> BandStep | str:
    """A part along other axes."""
    rank = len(facts.result)
    if any(facts.has(slot) and facts.numbers(slot) is None for slot in range(1, 5)):
        return "Slice by numbers that are computed"
    if facts.has(1):
        starts, axes = facts.numbers(1), facts.numbers(3)
        count = 0 if starts is None else starts.size
        found = [*range(count)] if axes is None else [int(axis) for axis in axes.reshape(-1)]
    else:
        found = [*(facts.ints("axes") or range(len(facts.ints("starts") or ())))]
    if any(axis % rank == rank + facts.axis for axis in found):
        return "Slice along the axis"
    return BandStep(need, {0: need})


def _transpose(facts: NodeFacts, need: Rows) -> BandStep | str:
    """The axis that is cut and those behind it stay where they are."""
    rank = len(facts.result)
    order = facts.ints("perm") or tuple(range(rank))[::-1]
    if order[facts.axis :] != tuple(range(rank))[facts.axis :]:
        return "Transpose that moves the axis"
    return BandStep(need, {0: need})


def _reshape(facts: NodeFacts, need: Rows) -> BandStep | str:
    """Only axes before the one that is cut change."""
    import numpy

    before, after = facts.shape(0), facts.result
    if min(len(before), len(after)) < -facts.axis or before[facts.axis :] != after[facts.axis :]:
        return "Reshape that moves the axis"
    if 0 in before or not facts.has(1):
        return "Reshape of nothing, or of an old operator set"
    shape = [*after]
    shape[facts.axis] = need.height
    return BandStep(need, {0: need}, {"allowzero": None}, {1: numpy.array(shape, numpy.int64)})


def _matmul(facts: NodeFacts, need: Rows) -> BandStep | str:
    """Rows of the product are those of the first factor."""
    if facts.axis != -2 or len(facts.shape(0)) < 2 or len(facts.shape(1)) < 2:
        return "MatMul along the axis"
    return BandStep(need, {0: need})


_RULES: Mapping[str, Rule] = {
    **WINDOWS,
    **SCALING,
    **dict.fromkeys(_ALIKE, _alike),
    **dict.fromkeys(("Softmax", "LogSoftmax"), _one_axis),
    "BatchNormalization": _normalise,
    "Concat": _concat,
    "MatMul": _matmul,
    "Reshape": _reshape,
    "Slice": _slice,
    "Split": _split,
    "Transpose": _transpose,
}
