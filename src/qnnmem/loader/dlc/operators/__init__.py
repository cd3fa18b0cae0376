"""Operators of QNN as nodes of ONNX: the one table, a row an operator.

layers       with weights: convolutions, products, normalizations, pooling
pointwise    element by element
movement     elements elsewhere: shapes, slices, pads, resizing, gathering
recurrent    cells with state
reduction    sums, extremes and softmax along axes
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from qnnmem.loader.dlc.draft import Step
from qnnmem.loader.dlc.operators.layers import LAYERS
from qnnmem.loader.dlc.operators.movement import MOVEMENT
from qnnmem.loader.dlc.operators.pointwise import POINTWISE
from qnnmem.loader.dlc.operators.recurrent import RECURRENT
from qnnmem.loader.dlc.operators.reduction import REDUCTION

__all__ = ["OPERATORS", "SILENT"]

OPERATORS: Mapping[str, Callable[[Step], None]] = (
    LAYERS | POINTWISE | MOVEMENT | RECURRENT | REDUCTION
)
_CELL = ("time_major",)  # of a single step of time there is no order
# Parameters that compute nothing here: hints, what shapes of outputs say already, and what only
# another operation or mode of the operator reads. Any other that a row does not ask for is refused.
SILENT: Mapping[str, tuple[str, ...]] = {
    "Conv2d": ("reuse_sparse_indices", "reuse_sparse_indicies"),
    "ElementWiseNeuron": ("alpha", "beta", "max_value", "min_value", "threshold"),
    "ExpandDims": ("axes", "axis"),
    "FullyConnected": ("keep_dims",),
    "Gru": _CELL,
    # Gates are computed as real numbers, so that there is nothing to round between them.
    "Lstm": (
        *(f"{gate}_gate_qscale" for gate in ("input", "forget", "cell", "output")),
        *("hidden_state_offset", "hidden_state_qscale", *_CELL),
    ),
    "Pad": ("pad_constant_value",),
    "Reshape": ("shape",),
    "Resize": ("cubic_coeff", "nearest_mode"),
    "Split": ("split_index",),
    "Squeeze": ("axes", "axis"),
    "StridedSlice": ("shrink_axes",),
}
