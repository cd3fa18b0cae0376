"""Where fewer rows would be summed in another order, and so be rounded to other last bits.

The float kernels of onnxruntime multiply matrices of  filters x K  and  K x pixels, and sum up K in
pieces of 128 numbers. Where there are few pixels and many numbers to sum, pieces are longer:

    pixels      more than 64   33 to 64   17 to 32   up to 16
    piece       128            256        512        1024

A band whose pieces are those of the whole is likely the same bit by bit; the proof decides.
"""

from __future__ import annotations

import math

from qnnmem.fix.tiling.facts import BandStep, NodeFacts, rows_of
from qnnmem.fix.tiling.windows import WEIGHTS
from qnnmem.loader.onnx.graph import integer

_PIECE, _WIDTH, _NARROWEST = 128, 128, 16


def sums_alike(facts: NodeFacts, step: BandStep) -> bool:
    """Whether a node sums up in the same pieces for a band as for the whole."""
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
    """How many numbers are summed up at once."""
    piece, width = _PIECE, _WIDTH
    if pixels < length:
        while width > _NARROWEST and width // 2 >= pixels:
            piece, width = piece * 2, width // 2
    return min(piece, length)
