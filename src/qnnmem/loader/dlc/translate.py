"""A graph of QNN as nodes of ONNX that compute the same, for those who execute it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from qnnmem.ir import Model
from qnnmem.loader.dlc.draft import NodeDraft, NotTranslated, Step
from qnnmem.loader.dlc.model import names_of
from qnnmem.loader.dlc.operators import OPERATORS, SILENT
from qnnmem.qnn.graph import ComposedGraph, ComposedTensor
from qnnmem.text import quote

if TYPE_CHECKING:
    import onnx

_OPSET, _IR_VERSION = 21, 10
_OWN_PACKAGE = "qti.aisw"


def translate(graph: ComposedGraph, model: Model) -> tuple[Model, onnx.ModelProto]:
    """The model of a graph with its ops pointing at nodes; NotTranslated says what has none."""
    draft = NodeDraft({one.id: one for one in graph.tensors}, names_of(graph))
    ops = []
    for place, op in enumerate(graph.ops):
        if op.package != _OWN_PACKAGE or op.type not in OPERATORS:
            own = "" if op.package == _OWN_PACKAGE else f" of package {quote(op.package)}"
            raise NotTranslated(f"operator {quote(op.type)}{own} is not in the table")
        step = Step(draft, place, op)
        OPERATORS[op.type](step)
        step.refuse_unknown(SILENT.get(op.type, ()))
        ops.append(replace(model.ops[place], sources=step.sources))
    return replace(model, ops=tuple(ops)), _proto(graph, model, draft)


def _proto(graph: ComposedGraph, model: Model, draft: NodeDraft) -> onnx.ModelProto:
    import onnx
    from onnx import helper

    border = {*model.inputs, *model.outputs}
    for one in graph.tensors:
        if one.data_type.is_quantized and draft.names.get(one.id) in border - {*model.encodings}:
            raise NotTranslated(f"tensor {quote(one.name)} has no scale for all of its elements")
    stored = [
        _stored(draft.names[one.id], one)
        for one in graph.tensors
        if one.id in draft.names and draft.names[one.id] in model.constants
    ]
    made = onnx.ModelProto(ir_version=_IR_VERSION)
    made.opset_import.append(helper.make_opsetid("", _OPSET))
    made.graph.name = model.name
    made.graph.node.extend(draft.nodes)
    made.graph.initializer.extend([*stored, *draft.constants])
    for names, listed in ((model.inputs, made.graph.input), (model.outputs, made.graph.output)):
        for name in names:
            tensor = model.tensors[name]
            kind = helper.np_dtype_to_tensor_dtype(_numpy(tensor.dtype.value))
            listed.append(helper.make_tensor_value_info(name, kind, tensor.shape))
    return made


def _numpy(name: str) -> object:
    import numpy

    return numpy.dtype(name)


def _stored(name: str, tensor: ComposedTensor) -> onnx.TensorProto:
    import numpy
    from onnx import numpy_helper

    if tensor.data is None or len(tensor.data) != tensor.nbytes or tensor.data_type.bits < 8:
        raise NotTranslated(f"constant {quote(tensor.name)} is not stored element by element")
    values = numpy.frombuffer(tensor.data, tensor.data_type.numpy_name)
    return numpy_helper.from_array(values.reshape(tensor.dimensions), name)
