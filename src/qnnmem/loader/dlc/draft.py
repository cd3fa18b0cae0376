"""ONNX nodes for one QNN operator: they read, compute and write tensors with QNN's semantics.

Fixed-point tensors are dequantized before they are used and rounded when they are written. So
results differ from real arithmetic by at most one quantization step of the output.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
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
    """The ONNX graph under construction, with the QNN tensors that it translates."""

    tensors: Mapping[int, ComposedTensor] = field(default_factory=dict)
    names: Mapping[int, str] = field(default_factory=dict)


class Step(NodeWriter):
    """The translation of one operator: its inputs, and the nodes that replace it."""

    def __init__(self, draft: QnnDraft, place: int, op: ComposedOp) -> None:
        super().__init__(draft, place)
        self.op, self._draft = op, draft
        self._asked: set[str] = set()

    def tensor(self, place: int) -> ComposedTensor:
        """Return the description of an input."""
        return self._draft.tensors[self.op.inputs[place]]

    def result(self, place: int = 0) -> ComposedTensor:
        """Return the description of an output."""
        return self._draft.tensors[self.op.outputs[place]]

    def has(self, place: int) -> bool:
        """Return whether an input is given; optional inputs can be missing or null."""
        return place < len(self.op.inputs) and self.op.inputs[place] in self._draft.names

    def shape(self, place: int = 0) -> tuple[int, ...]:
        """Return the dimensions of an input."""
        return self.tensor(place).dimensions

    def scalar(self, name: str, default: Any = None) -> Any:
        """Return a scalar parameter; raise NotTranslated if it is missing and has no default."""
        self._asked.add(name)
        found = self.op.scalars.get(name, default)
        if found is None:
            raise NotTranslated(f"{quote(self.op.type)} has no parameter {quote(name)}")
        return found

    def array(self, name: str, default: Sequence[Any] | None = None) -> NDArray[Any]:
        """Return a tensor parameter; raise NotTranslated if it is missing and has no default."""
        import numpy

        self._asked.add(name)
        found = self.op.arrays.get(name)
        if found is None or found.data is None:
            if default is None:
                raise NotTranslated(f"{quote(self.op.type)} has no parameter {quote(name)}")
            return numpy.asarray(default)
        values = numpy.frombuffer(found.data, found.data_type.numpy_name)
        if values.size != _elements(found.dimensions):
            raise NotTranslated(f"the size of parameter {quote(name)} differs from its data")
        return values.reshape(found.dimensions)

    def numbers(self, name: str, default: Sequence[int]) -> list[int]:
        """Return a parameter with one number per axis; a scalar counts as one axis."""
        if name in self.op.scalars:
            return [int(self.scalar(name))]
        return [int(one) for one in self.array(name, default).reshape(-1)]

    def only(self, **allowed: Sequence[Any]) -> None:
        """Raise NotTranslated for parameter values that have no translation."""
        for name, values in allowed.items():
            self._asked.add(name)
            given = self.op.scalars.get(name, values[0])
            if given not in values:
                what = f"{quote(self.op.type)} with {name} {given}"
                raise NotTranslated(f"{what} is not supported")

    def refuse_unknown(self, silent: Collection[str]) -> None:
        """Raise NotTranslated for parameters that were never read, except those in `silent`."""
        given = (*self.op.scalars, *self.op.arrays)
        for name in given:
            if name not in self._asked and name not in silent:
                what = f"parameter {quote(name)} of {quote(self.op.type)}"
                raise NotTranslated(f"{what} is not supported")

    def read(self, place: int) -> str:
        """Return the name of an input as real numbers; integers and booleans stay unchanged."""
        tensor = self.tensor(place)
        name = self.raw(place)
        if tensor.data_type.is_quantized:
            scale, zero, axis = self._encoding(tensor)
            return self.one("DequantizeLinear", name, scale, zero, **axis)
        if tensor.data_type is DataType.FLOAT_16:
            return self.one("Cast", name, to=1)
        return name

    def raw(self, place: int) -> str:
        """Return the name of an input in its stored form, without dequantization."""
        if not self.has(place):
            raise NotTranslated(f"{quote(self.op.type)} lacks input {place}")
        return self._draft.names[self.op.inputs[place]]

    def write(self, value: str, place: int = 0) -> None:
        """Write a computed value to an output, quantized or cast to its type."""
        tensor = self.result(place)
        if tensor.data_type.is_quantized:
            scale, zero, axis = self._encoding(tensor)
            value = self.one("QuantizeLinear", value, scale, zero, **axis)
        elif tensor.data_type is DataType.FLOAT_16:
            value = self.one("Cast", value, to=10)
        self.write_raw(value, place)

    def write_raw(self, value: str, place: int = 0) -> None:
        """Write elements to an output unchanged."""
        self.give(value, self._draft.names[self.op.outputs[place]])

    def moves(self, *others: int) -> bool:
        """Return whether elements can be copied: inputs and outputs have the same encoding."""
        first = self.result()
        inputs = (self.tensor(place) for place in (others or (0,)))
        outputs = (self._draft.tensors[one] for one in self.op.outputs)
        return all(
            (one.data_type, one.quantization) == (first.data_type, first.quantization)
            for one in (*inputs, *outputs)
        )

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
        kind = tensor.data_type.numpy_name
        zeros = [-offset for offset in quant.offsets]
        if quant.axis is None:
            return self.constant(quant.scales[0], "f4"), self.constant(zeros[0], kind), {}
        return self.constant(quant.scales, "f4"), self.constant(zeros, kind), {"axis": quant.axis}


def _elements(shape: Sequence[int]) -> int:
    found = 1
    for size in shape:
        found *= size
    return found
