"""ONNX nodes for one QNN operator, with QNN's semantics.

Fixed-point tensors are dequantized when they are read and rounded when they are written. So results
differ from real arithmetic by at most one quantization step of the output.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from qnnmem.loader.onnx.draft import NodeDraft, NodeWriter, NotTranslated
from qnnmem.qnn.enums import DataType
from qnnmem.qnn.graph import ComposedOp, ComposedTensor
from qnnmem.text import quote

if TYPE_CHECKING:
    from numpy.typing import NDArray

_SCALED = frozenset({0, 1})  # encodings with known scales: per tensor, or along an axis


@dataclass
class QnnDraft(NodeDraft):
    """The ONNX graph under construction, with the QNN tensors from which it is made."""

    tensors: Mapping[int, ComposedTensor] = field(default_factory=dict)
    names: Mapping[int, str] = field(default_factory=dict)


class Step(NodeWriter):
    """The translation of one operator: its inputs, and the nodes that replace it."""

    def __init__(self, draft: QnnDraft, position: int, op: ComposedOp) -> None:
        super().__init__(draft, position)
        self.op, self._draft = op, draft
        self._used: set[str] = set()  # names of the parameters read so far

    def tensor(self, position: int) -> ComposedTensor:
        """Return an input as recorded: its type, shape and encoding."""
        return self._draft.tensors[self.op.inputs[position]]

    def result(self, position: int = 0) -> ComposedTensor:
        """Return an output as recorded: its type, shape and encoding."""
        return self._draft.tensors[self.op.outputs[position]]

    def refuse(self, reason: str) -> NotTranslated:
        """Return an error that says why this operator has no translation."""
        return NotTranslated(f"{quote(self.op.type)} {reason}")

    def has(self, position: int) -> bool:
        """Return whether an input is given; optional inputs can be missing or null."""
        return position < len(self.op.inputs) and self.op.inputs[position] in self._draft.names

    def shape(self, position: int = 0) -> tuple[int, ...]:
        """Return the dimensions of an input."""
        return self.tensor(position).dimensions

    def scalar(self, name: str, default: Any = None) -> Any:
        """Return a scalar parameter; raise NotTranslated if it is missing and has no default."""
        self._used.add(name)
        value = self.op.scalars.get(name, default)
        if value is None:
            raise self.refuse(f"has no parameter {quote(name)}")
        return value

    def array(self, name: str, default: Sequence[Any] | None = None) -> NDArray[Any]:
        """Return a tensor parameter; raise NotTranslated if it is missing and has no default."""
        import numpy

        self._used.add(name)
        tensor = self.op.arrays.get(name)
        if tensor is None or tensor.data is None:
            if default is None:
                raise self.refuse(f"has no parameter {quote(name)}")
            return numpy.asarray(default)
        values = numpy.frombuffer(tensor.data, tensor.data_type.numpy_name)
        if values.size != math.prod(tensor.dimensions):
            raise NotTranslated(f"the size of parameter {quote(name)} differs from its data")
        return values.reshape(tensor.dimensions)

    def numbers(self, name: str, default: Sequence[int]) -> list[int]:
        """Return a parameter with one number per axis; a scalar counts as one axis."""
        if name in self.op.scalars:
            return [int(self.scalar(name))]
        return [int(number) for number in self.array(name, default).reshape(-1)]

    def require(self, **allowed: Sequence[Any]) -> None:
        """Raise NotTranslated if a parameter has a value that is not allowed."""
        for name, values in allowed.items():
            self._used.add(name)
            value = self.op.scalars.get(name, values[0])
            if value not in values:
                raise self.refuse(f"with {name} {value} is not supported")

    def refuse_unused(self, silent: Collection[str]) -> None:
        """Raise NotTranslated for parameters that were never read, except those in `silent`."""
        for name in (*self.op.scalars, *self.op.arrays):
            if name not in self._used and name not in silent:
                parameter = f"parameter {quote(name)} of {quote(self.op.type)}"
                raise NotTranslated(f"{parameter} is not supported")

    def read(self, position: int) -> str:
        """Return the name of a tensor with an input's values, dequantized if they are quantized."""
        tensor = self.tensor(position)
        name = self.raw(position)
        if tensor.data_type.is_quantized:
            scale, zero, axis = self._encoding(tensor)
            return self.emit("DequantizeLinear", name, scale, zero, **axis)
        if tensor.data_type is DataType.FLOAT_16:
            return self.emit("Cast", name, to=1)
        return name

    def raw(self, position: int) -> str:
        """Return the name of an input's tensor as stored, not dequantized."""
        if not self.has(position):
            raise self.refuse(f"lacks input {position}")
        return self._draft.names[self.op.inputs[position]]

    def write(self, value: str, position: int = 0) -> None:
        """Write a computed value to an output, quantized or cast to its type."""
        tensor = self.result(position)
        if tensor.data_type.is_quantized:
            scale, zero, axis = self._encoding(tensor)
            value = self.emit("QuantizeLinear", value, scale, zero, **axis)
        elif tensor.data_type is DataType.FLOAT_16:
            value = self.emit("Cast", value, to=10)
        self.write_raw(value, position)

    def write_raw(self, value: str, position: int = 0) -> None:
        """Write elements to an output unchanged."""
        self.name_result(value, self._draft.names[self.op.outputs[position]])

    def same_encoding(self, *positions: int) -> bool:
        """Return whether these inputs and all outputs have the same type and quantization."""
        inputs = (self.tensor(position) for position in positions)
        outputs = (self._draft.tensors[number] for number in self.op.outputs)
        encodings = [(tensor.data_type, tensor.quantization) for tensor in (*inputs, *outputs)]
        return all(encoding == encodings[0] for encoding in encodings)

    def movement(self, *positions: int) -> tuple[Callable[[int], str], Callable[..., None]]:
        """Return two functions for an op that moves elements: to read an input, to write an output.

        The functions keep the stored elements unless input and output encodings differ.
        """
        if self.same_encoding(*positions):
            return self.raw, self.write_raw
        return self.read, self.write

    def _encoding(self, tensor: ComposedTensor) -> tuple[str, str, dict[str, int]]:
        """Return scale, zero point and axis for an ONNX quantize or dequantize node."""
        quant = tensor.quantization
        if quant is None or quant.encoding not in _SCALED or not quant.scales:
            kind = "none" if quant is None else str(quant.encoding)
            raise NotTranslated(
                f"tensor {quote(tensor.name)} has quantization {kind}, which is not supported"
            )
        if tensor.data_type.bits < 8:
            raise NotTranslated(
                f"tensor {quote(tensor.name)} has {tensor.data_type.bits}-bit elements, which "
                "are not supported"
            )
        dtype = tensor.data_type.numpy_name
        zeros = [-offset for offset in quant.offsets]
        if quant.axis is None:
            return self.constant(quant.scales[0], "f4"), self.constant(zeros[0], dtype), {}
        return self.constant(quant.scales, "f4"), self.constant(zeros, dtype), {"axis": quant.axis}
