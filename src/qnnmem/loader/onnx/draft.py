"""ONNX nodes for the operators of another format, written operator by operator."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from qnnmem.errors import Fault
from qnnmem.ir import Model

if TYPE_CHECKING:
    import onnx

_OPSET, _IR_VERSION = 21, 10
NCHW, NHWC = (0, 3, 1, 2), (0, 2, 3, 1)


class NotTranslated(Fault):
    """An operator, parameter or encoding has no translation."""


@dataclass
class NodeDraft:
    """An ONNX graph under construction."""

    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: list[onnx.TensorProto] = field(default_factory=list)
    _stored: dict[tuple[str, tuple[int, ...], bytes], str] = field(default_factory=dict)

    def constant(self, values: Any, kind: str, name: str) -> str:
        """Store an array and return its name; equal arrays are stored once."""
        import hashlib

        import numpy
        from onnx import numpy_helper

        array = numpy.asarray(values, kind or None)
        key = (array.dtype.str, array.shape, hashlib.sha256(array.tobytes()).digest())
        if key not in self._stored:
            self._stored[key] = name
            self.constants.append(numpy_helper.from_array(array, name))
        return self._stored[key]

    def proto(self, model: Model, stored: Iterable[onnx.TensorProto] = ()) -> onnx.ModelProto:
        """Return the graph with the inputs and outputs of a model."""
        import numpy
        import onnx
        from onnx import helper

        made = onnx.ModelProto(ir_version=_IR_VERSION)
        made.opset_import.append(helper.make_opsetid("", _OPSET))
        made.graph.name = model.name
        made.graph.node.extend(self.nodes)
        made.graph.initializer.extend([*stored, *self.constants])
        for names, listed in ((model.inputs, made.graph.input), (model.outputs, made.graph.output)):
            for name in names:
                tensor = model.tensors[name]
                kind = helper.np_dtype_to_tensor_dtype(numpy.dtype(tensor.dtype.value))
                listed.append(helper.make_tensor_value_info(name, kind, tensor.shape))
        return made


class NodeWriter:
    """Writer of the ONNX nodes that replace one operator."""

    def __init__(self, draft: NodeDraft, place: int) -> None:
        self._nodes, self._place = draft, place
        self._first, self._made = len(draft.nodes), 0

    @property
    def sources(self) -> tuple[int, ...]:
        """Indexes of the nodes that were written for this operator."""
        return tuple(range(self._first, len(self._nodes.nodes)))

    def node(
        self, kind: str, inputs: Sequence[str], outputs: int = 1, **attributes: Any
    ) -> list[str]:
        """Append a node and return the names of its results."""
        from onnx import helper

        names = [self._fresh() for _ in range(outputs)]
        self._nodes.nodes.append(helper.make_node(kind, list(inputs), names, **attributes))
        return names

    def one(self, kind: str, *inputs: str, **attributes: Any) -> str:
        """Append a node with one result and return its name."""
        return self.node(kind, inputs, **attributes)[0]

    def constant(self, values: Any, kind: str = "") -> str:
        """Store a number or an array and return its name."""
        return self._nodes.constant(values, kind, self._fresh())

    def give(self, value: str, name: str) -> None:
        """Give a result the name of an output: rename it, or add an Identity node."""
        drawn = self._nodes.nodes
        last = drawn[-1] if len(drawn) > self._first else None
        if last is not None and list(last.output) == [value]:
            last.output[0] = name
            return
        from onnx import helper

        drawn.append(helper.make_node("Identity", [value], [name]))

    def _fresh(self) -> str:
        self._made += 1
        return f"op {self._place}: {self._made}"
