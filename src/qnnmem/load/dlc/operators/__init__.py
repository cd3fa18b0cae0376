"""Operators of QNN as nodes of ONNX: the one table, a row an operator.

layers       with weights: convolutions, products, normalizations, pooling
pointwise    element by element
movement     elements elsewhere: shapes, slices, pads, resizing, gathering
reduction    sums, extremes and softmax along axes
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from qnnmem.load.dlc.draft import Step
from qnnmem.load.dlc.operators.layers import LAYERS
from qnnmem.load.dlc.operators.movement import MOVEMENT
from qnnmem.load.dlc.operators.pointwise import POINTWISE
from qnnmem.load.dlc.operators.reduction import REDUCTION

__all__ = ["OPERATORS"]

OPERATORS: Mapping[str, Callable[[Step], None]] = LAYERS | POINTWISE | MOVEMENT | REDUCTION
