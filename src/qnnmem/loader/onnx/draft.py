"""ONNX nodes for the operators of another format, written operator by operator."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from qnnmem.errors import Fault
from qnnmem.ir import DType, Model

if TYPE_CHECKING:
    import onnx

_OPSET, _IR_VERSION = 21, 10
NCHW, NHWC = (0, 3, 1, 2), (0, 2, 3, 1)


def onnx_type_of(dtype: DType) -> int:
    """Return ONNX's number for an element type."""
    import numpy
    from onnx import helper

    return int(helper.np_dtype_to_tensor_dtype(numpy.dtype(dtype.value)))


class NotTranslated(Fault):
    """An operator, parameter or encoding has no translation."""


@dataclass
class NodeDraft:
    """An ONNX graph under construction."""

    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: list[onnx.TensorProto] = field(default_factory=list)
    _stored: dict[tuple[str, tuple[int, ...], bytes], str] = field(default_factory=dict)

    def constant(self, values: Any, dtype: str, name: str) -> str:
        """Store an array and return its name; equal arrays are stored once."""
        import hashlib

        import numpy
        from onnx import numpy_helper

        array = numpy.asarray(values, dtype or None)
        key = (array.dtype.str, array.shape, hashlib.sha256(array.tobytes()).digest())
        if key not in self._stored:
            self._stored[key] = name
            self.constants.append(numpy_helper.from_array(array, name))
        return self._stored[key]

    def proto(self, model: Model, stored: Iterable[onnx.TensorProto] = ()) -> onnx.ModelProto:
        """Return the drafted graph as an ONNX model, with the inputs and outputs of `model`."""
        import onnx
        from onnx import helper

        proto = onnx.ModelProto(ir_version=_IR_VERSION)
        proto.opset_import.append(helper.make_opsetid("", _OPSET))
        graph = proto.graph
        graph.name = model.name
        graph.node.extend(self.nodes)
        graph.initializer.extend([*stored, *self.constants])
        for names, infos in ((model.inputs, graph.input), (model.outputs, graph.output)):
            for name in names:
                tensor = model.tensors[name]
                elem = onnx_type_of(tensor.dtype)
                infos.append(helper.make_tensor_value_info(name, elem, tensor.shape))
        return proto


class NodeWriter:
    """Writer of the ONNX nodes that replace one operator."""

    def __init__(self, draft: NodeDraft, position: int) -> None:
        self._nodes, self._position = draft.nodes, position
        self._store = draft.constant
        self._first, self._names = len(draft.nodes), 0

    @property
    def sources(self) -> tuple[int, ...]:
        """Indexes of the nodes that were written for this operator."""
        return tuple(range(self._first, len(self._nodes)))

    def emit_many(
        self, op_type: str, inputs: Sequence[str], outputs: int, **attributes: Any
    ) -> list[str]:
        """Append a node and return the names of its outputs."""
        from onnx import helper

        names = [self._new_name() for _ in range(outputs)]
        self._nodes.append(helper.make_node(op_type, list(inputs), names, **attributes))
        return names

    def emit(self, op_type: str, *inputs: str, **attributes: Any) -> str:
        """Append a node with one output and return the output's name."""
        return self.emit_many(op_type, inputs, 1, **attributes)[0]

    def emit_clip(self, value: str, low: float, high: float | None = None) -> str:
        """Append a Clip of real numbers and return the name of its output."""
        limits = [self.constant(limit, "f4") for limit in (low, high) if limit is not None]
        return self.emit("Clip", value, *limits)

    def constant(self, values: Any, dtype: str = "") -> str:
        """Store a number or an array and return its name."""
        return self._store(values, dtype, self._new_name())

    def name_result(self, value: str, name: str) -> None:
        """Give a result the name of a graph output: rename it, or add an Identity node."""
        last = self._nodes[-1] if len(self._nodes) > self._first else None
        if last is not None and list(last.output) == [value]:
            last.output[0] = name
            return
        from onnx import helper

        self._nodes.append(helper.make_node("Identity", [value], [name]))

    def _new_name(self) -> str:
        self._names += 1
        return f"op {self._position}: {self._names}"
