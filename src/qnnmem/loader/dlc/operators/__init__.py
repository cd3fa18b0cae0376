"""QNN operators as ONNX nodes: one table, a row for each operator.

layers       convolutions, products, normalisation, pooling, recurrent cells
arithmetic   element-wise operators and reductions along axes
movement     reshaping, slicing, padding, resizing, gathering
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from qnnmem.loader.dlc.draft import Step
from qnnmem.loader.dlc.operators.arithmetic import POINTWISE, REDUCTION
from qnnmem.loader.dlc.operators.layers import LAYERS, RECURRENT
from qnnmem.loader.dlc.operators.movement import MOVEMENT

__all__ = ["OPERATORS", "SILENT"]

OPERATORS: Mapping[str, Callable[[Step], None]] = (
    LAYERS | POINTWISE | MOVEMENT | RECURRENT | REDUCTION
)
_CELL = ("time_major",)  # of a single step of time there is no order
# Parameters that change no result here: hints, facts that output shapes already state, and
# parameters of another mode of the operator. Any other unread parameter is refused.
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
