"""A QNN graph as equivalent ONNX nodes: one table, with a row for each operator.

layers       convolutions, products, normalisation, pooling, recurrent cells
arithmetic   element-wise operators and reductions along axes
movement     reshaping, slicing, padding, resizing, gathering
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from qnnmem.ir import Model
from qnnmem.loader.dlc.draft import QnnDraft, Step
from qnnmem.loader.dlc.model import names_of
from qnnmem.loader.dlc.operators.arithmetic import POINTWISE, REDUCTION
from qnnmem.loader.dlc.operators.layers import LAYERS, RECURRENT
from qnnmem.loader.dlc.operators.movement import MOVEMENT
from qnnmem.loader.onnx.draft import NotTranslated
from qnnmem.qnn.graph import PACKAGE, ComposedGraph, ComposedTensor
from qnnmem.text import quote

if TYPE_CHECKING:
    import onnx


__all__ = ["OPERATORS", "SILENT", "translate"]

OPERATORS: Mapping[str, Callable[[Step], None]] = (
    LAYERS | POINTWISE | MOVEMENT | RECURRENT | REDUCTION
)
_CELL = ("time_major",)  # a single time step has no order
# Parameters that change no result here: hints, facts that output shapes already state, and
# parameters of another mode of the operator. Any other unused parameter is refused.
SILENT: Mapping[str, tuple[str, ...]] = {
    "Conv2d": ("reuse_sparse_indices", "reuse_sparse_indicies"),
    "ElementWiseNeuron": ("alpha", "beta", "max_value", "min_value", "threshold"),
    "ExpandDims": ("axes", "axis"),
    "FullyConnected": ("keep_dims",),
    "Gru": _CELL,
    # Gates are computed as real numbers, so no rounding happens between them.
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


def translate(graph: ComposedGraph, model: Model) -> tuple[Model, onnx.ModelProto]:
    """Return the model, whose ops refer to ONNX nodes, and an ONNX model with these nodes.

    Raise NotTranslated, with the reason, if an operator has no translation.
    """
    tensors = {tensor.id: tensor for tensor in graph.tensors}
    draft = QnnDraft(tensors=tensors, names=names_of(graph))
    ops = []
    for position, op in enumerate(graph.ops):
        if op.package != PACKAGE or op.type not in OPERATORS:
            own = "" if op.package == PACKAGE else f" of package {quote(op.package)}"
            raise NotTranslated(f"operator {quote(op.type)}{own} is not supported")
        step = Step(draft, position, op)
        OPERATORS[op.type](step)
        step.refuse_unused(SILENT.get(op.type, ()))
        ops.append(replace(model.ops[position], sources=step.sources))
    return replace(model, ops=tuple(ops)), _proto(graph, model, draft)


def _proto(graph: ComposedGraph, model: Model, draft: QnnDraft) -> onnx.ModelProto:
    io = {*model.inputs, *model.outputs}
    stored = []
    for tensor in graph.tensors:
        name = draft.names.get(tensor.id)
        if name in io and tensor.data_type.is_quantized and name not in model.encodings:
            raise NotTranslated(
                f"tensor {quote(tensor.name)} has no single scale for all its elements"
            )
        if name is not None and name in model.constants:
            stored.append(_stored(name, tensor))
    return draft.proto(model, stored)


def _stored(name: str, tensor: ComposedTensor) -> onnx.TensorProto:
    import numpy
    from onnx import numpy_helper

    if tensor.data is None or len(tensor.data) != tensor.nbytes or tensor.data_type.bits < 8:
        raise NotTranslated(
            f"constant {quote(tensor.name)} has packed elements, which are not supported"
        )
    values = numpy.frombuffer(tensor.data, tensor.data_type.numpy_name)
    return numpy_helper.from_array(values.reshape(tensor.dimensions), name)
