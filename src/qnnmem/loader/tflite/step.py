"""One operator of a TFLite graph, and the ONNX nodes that replace it.

Values are passed on in TFLite's stored form. `read` dequantizes integers and `write` quantizes real
numbers. Where TFLite's kernels compute with integers, `integers` does the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from qnnmem.errors import Damaged
from qnnmem.ir import DType, Tensor
from qnnmem.loader.onnx.draft import NodeDraft, NodeWriter, NotTranslated
from qnnmem.loader.tflite.raw_graph import DTYPES, RawGraph, RawOp, RawTensor
from qnnmem.loader.tflite.shapes import Call, Operand, Shape, Unknown, derive, elements, written
from qnnmem.loader.tflite.values import evaluate
from qnnmem.text import quote

if TYPE_CHECKING:
    from numpy.typing import NDArray

NONE, RELU, RELU_N1, RELU6 = 0, 1, 2, 3  # values of ActivationFunctionType in the schema
_REAL_LIMITS = {NONE: (None, None), RELU: (0.0, None), RELU_N1: (-1.0, 1.0), RELU6: (0.0, 6.0)}
_MOST_COMPUTED = 1 << 26  # elements of constants that are computed from constants
INTEGERS = frozenset({DType.INT8, DType.UINT8, DType.INT16})  # types that may be quantized


@dataclass
class TfliteDraft(NodeDraft):
    """The ONNX graph under construction for the main graph of a file."""

    graph: RawGraph = field(default_factory=lambda: RawGraph("", (), (), (), ()))
    names: tuple[str, ...] = ()  # names of the graph's tensors
    tensors: Mapping[str, Tensor] = field(default_factory=dict)  # tensors of the model
    made: set[int] = field(default_factory=set)  # tensors that depend on inputs or variables
    reals: bool = False  # compute with real numbers between DequantizeLinear and QuantizeLinear
    _values: dict[int, Any] = field(default_factory=dict)
    _left: int = _MOST_COMPUTED

    def shape(self, index: int) -> Shape:
        """Return the shape of a tensor in the model, which may differ from the stored one."""
        tensor = self.tensors.get(self.names[index]) if index in self.made else None
        return self.graph.tensors[index].shape if tensor is None else tensor.shape

    def value(self, index: int) -> NDArray[Any] | None:
        """Return the elements of a tensor if known before the model runs; else None."""
        raw = self.graph.tensors[index]
        if index not in self._values and index not in self.made and not raw.variable:
            self._values[index] = stored_array(raw) if raw.stored or 0 in raw.shape else None
        return self._values.get(index)

    def fold(self, op: RawOp) -> None:
        """Compute and store the outputs of an operator that depends on constants only."""
        call = self.call(op)
        try:
            if op.type == "DEQUANTIZE":
                found = _real(self.graph.tensors[op.inputs[0]], call.inputs[0])
                made: list[Any] | None = None if found is None else [found]
            else:
                shapes = derive(call)
                self._left -= sum(map(elements, shapes))
                made = evaluate(call, shapes) if self._left >= 0 else None
        except (Unknown, Damaged):
            made = None
        values = [None] * len(op.outputs) if made is None else made
        self._values.update(zip(op.outputs, values, strict=True))

    def call(self, op: RawOp) -> Call:
        """Return an operator with the known shapes and values of its operands."""
        operands = [
            None if index == -1 else Operand(self._known_shape(index), self.value(index))
            for index in op.inputs
        ]
        return Call(op, operands, [self.graph.tensors[index] for index in op.outputs])

    def _known_shape(self, index: int) -> Shape:
        value = self.value(index)
        return self.shape(index) if value is None else value.shape


def stored_array(raw: RawTensor) -> NDArray[Any]:
    """Return the elements of a constant; raise NotTranslated if its format is not supported."""
    import numpy

    kind = DTYPES.get(raw.type)
    if kind is None or kind.bits < 8 or kind is DType.BFLOAT16 or raw.sparse:
        what = "a sparse constant" if raw.sparse else "elements that are not whole bytes"
        raise NotTranslated(f"tensor {quote(raw.name)} holds {what}")
    count = math.prod(raw.shape)
    dtype = numpy.dtype(kind.value).newbyteorder("<")
    return numpy.frombuffer(raw.data, dtype, count).reshape(raw.shape)


def _real(raw: RawTensor, operand: Operand | None) -> NDArray[Any] | None:
    """Return a quantized or half-precision constant as real numbers, or None if unknown."""
    import numpy

    value = None if operand is None else operand.value
    if value is None or value.dtype.kind == "f":
        return None if value is None else value.astype("f4")
    if not raw.scales:
        raise NotTranslated(f"tensor {quote(raw.name)} has no scale")
    along = [1] * value.ndim
    if len(raw.scales) > 1:
        along[raw.axis] = -1
    scales, zeros = (
        numpy.asarray(numbers, kind).reshape(along if len(numbers) > 1 else ())
        for numbers, kind in ((raw.scales, "f4"), (raw.zeros or (0,), "i4"))
    )
    found: NDArray[Any] = (value.astype("i4") - zeros).astype("f4") * scales
    return found


class TfliteStep(NodeWriter):
    """The translation of one operator: its inputs, and the nodes that replace it."""

    def __init__(self, draft: TfliteDraft, place: int, op: RawOp) -> None:
        super().__init__(draft, place)
        self.op, self._draft = op, draft
        self.call = draft.call(op)

    def refuse(self, what: str) -> NotTranslated:
        """Return an error that says why this operator cannot be translated."""
        return NotTranslated(f"operator {quote(self.op.type)} {what}")

    def option(self, name: str, default: Any = 0) -> Any:
        """Return an option, or the given default."""
        return self.op.options.get(name, default)

    def has(self, place: int) -> bool:
        """Return whether an input is given; optional inputs can be missing."""
        return place < len(self.op.inputs) and self.op.inputs[place] != -1

    def tensor(self, place: int = 0) -> RawTensor:
        """Return an input as stored in the file."""
        if not self.has(place):
            raise self.refuse(f"lacks input {place}")
        return self._draft.graph.tensors[self.op.inputs[place]]

    def result(self, place: int = 0) -> RawTensor:
        """Return an output as stored in the file."""
        return self._draft.graph.tensors[self.op.outputs[place]]

    def dtype(self, raw: RawTensor) -> DType:
        """Return the element type of a tensor."""
        if raw.type not in DTYPES:
            raise self.refuse(f"has elements of type {raw.type}")
        return DTYPES[raw.type]

    def has_type(self, dtype: DType) -> bool:
        """Return whether an input or output has elements of a type."""
        held = (at for at in (*self.op.inputs, *self.op.outputs) if at != -1)
        return any(DTYPES.get(self._draft.graph.tensors[at].type) is dtype for at in held)

    def is_quantized(self, raw: RawTensor) -> bool:
        """Return whether the integers of a tensor represent real numbers."""
        return bool(raw.scales) and self.dtype(raw) in INTEGERS

    @property
    def is_integer(self) -> bool:
        """True if the nodes compute with quantized integers, as in TFLite."""
        ends = self.tensor(), self.result()
        return not self._draft.reals and all(map(self.is_quantized, ends))

    def encoding(self, raw: RawTensor) -> tuple[float, int]:
        """Return the scale and the zero point of a tensor with a per-tensor encoding."""
        if len(raw.scales) != 1 or len(raw.zeros) > 1:
            raise self.refuse(f"reads or writes {quote(raw.name)}, which has several scales")
        if not raw.scales[0] > 0 or not math.isfinite(raw.scales[0]):
            raise self.refuse(f"reads or writes {quote(raw.name)} of scale {raw.scales[0]}")
        return raw.scales[0], raw.zeros[0] if raw.zeros else 0

    def shape(self, place: int = 0) -> Shape:
        """Return the shape of an input."""
        return self.call.shape(place)

    def made_shape(self, place: int = 0) -> Shape:
        """Return the shape of an output."""
        return self._draft.shape(self.op.outputs[place])

    def value(self, place: int) -> NDArray[Any] | None:
        """Return the elements of a constant input; None for other inputs."""
        operand = self.call.inputs[place] if self.has(place) else None
        found: NDArray[Any] | None = None if operand is None else operand.value
        return found

    def known(self, place: int) -> NDArray[Any]:
        """Return the elements of an input; raise NotTranslated if it is not a constant."""
        found = self.value(place)
        if found is None:
            raise self.refuse(f"has an input {place} that must be constant but is not")
        return found

    def numbers(self, place: int) -> list[int]:
        """Return the whole numbers of a constant input."""
        return [int(number) for number in self.known(place).reshape(-1)]

    def raw(self, place: int = 0) -> str:
        """Return the name of an input in its stored form, without dequantization."""
        self.tensor(place)
        index = self.op.inputs[place]
        value = self._draft.value(index)
        if value is not None:
            return self.constant(value)
        if index not in self._draft.made:
            raise self.refuse(f"reads {quote(self._draft.names[index])}, whose value is unknown")
        return self._draft.names[index]

    def read(self, place: int = 0, perm: Sequence[int] = ()) -> str:
        """Return the name of an input as real numbers; whole numbers stay unchanged.

        `perm` transposes it first, while its elements still have their small stored size.
        """
        tensor = self.tensor(place)
        name = self.raw(place)
        name = self.one("Transpose", name, perm=perm) if perm else name
        if self.is_quantized(tensor):
            scale, zero = self.encoding(tensor)
            kind = self.dtype(tensor).value
            return self.one(
                "DequantizeLinear", name, self.constant(scale, "f4"), self.constant(zero, kind)
            )
        return self.one("Cast", name, to=1) if self.dtype(tensor) is DType.FLOAT16 else name

    def weights(self, order: Sequence[int]) -> str:
        """Return the name of constant weights as real numbers, with their axes in this order."""
        tensor, value = self.tensor(1), self.known(1)
        name = self.constant(value.transpose(order))
        if not self.is_quantized(tensor):
            return name
        zeros = tensor.zeros or (0,) * len(tensor.scales)
        return self._real(name, tensor.scales, zeros, order.index(tensor.axis), value.dtype)

    def bias(self) -> list[str]:
        """Return the name of the bias as real numbers in a list; empty without a bias."""
        if not self.has(2):
            return []
        value = self.value(2)
        if value is None or value.dtype.kind == "f":
            return [self.read(2)]
        scale, _ = self.encoding(self.tensor(0))
        scales = [scale * factor for factor in self.tensor(1).scales]
        if value.dtype.itemsize > 4:  # DequantizeLinear reads integers of at most 32 bits
            return [self.constant(value * scales, "f4")]
        return [self._real(self.constant(value), scales, [0] * len(scales), 0, value.dtype)]

    def _real(
        self, name: str, scales: Sequence[float], zeros: Sequence[int], axis: int, dtype: Any
    ) -> str:
        """Return the name of a constant's real numbers, dequantized channel by channel."""
        import numpy

        one = len(scales) == 1
        ends = (numpy.asarray(scales, "f4"), numpy.asarray(zeros, dtype))
        given = [self.constant(end.reshape(()) if one else end) for end in ends]
        return self.one("DequantizeLinear", name, *given, **({} if one else {"axis": axis}))

    def write(self, value: str, place: int = 0, perm: Sequence[int] = ()) -> None:
        """Write real numbers to an output after the fused activation and an optional transpose."""
        tensor = self.result(place)
        if self.is_quantized(tensor):
            value = self.rounded(value, tensor)
        elif self.dtype(tensor) is DType.FLOAT16:
            value = self.one("Cast", self.activated(value), to=10)
        elif self.dtype(tensor) is DType.FLOAT32:
            value = self.activated(value)
        elif self.option("FusedActivationFunction"):
            raise self.refuse("has an activation for integers, which is not supported")
        self.write_raw(self.one("Transpose", value, perm=perm) if perm else value, place)

    def activated(self, value: str) -> str:
        """Return the name of real numbers after the fused activation."""
        kind = self.option("FusedActivationFunction")
        if kind not in _REAL_LIMITS:
            raise self.refuse(f"has the fused activation {kind}, which is not supported")
        low, high = _REAL_LIMITS[kind]
        if low is None:
            return value
        limits = [self.constant(low, "f4"), *([] if high is None else [self.constant(high, "f4")])]
        return self.one("Clip", value, *limits)

    def rounded(self, value: str, tensor: RawTensor) -> str:
        """Return the name of real numbers after quantization; halves are rounded away from zero."""
        import numpy

        scale, zero = self.encoding(tensor)
        low, high = self.limits(tensor)
        if self._draft.reals:
            kind = numpy.iinfo(self.dtype(tensor).value)
            ends = self.constant(scale, "f4"), self.constant(zero, kind.dtype.str)
            if kind.bits > 8:  # onnxruntime clips only 8-bit integers
                return self.one("QuantizeLinear", self.activated(value), *ends)
            found = self.one("QuantizeLinear", value, *ends)
            if (low, high) == (kind.min, kind.max):
                return found
            limits = (self.constant(limit, kind.dtype.str) for limit in (low, high))
            return self.one("Clip", found, *limits)
        steps = self.one("Cast", self.one("Div", value, self.constant(scale, "f4")), to=11)
        half = self.one("Add", self.one("Abs", steps), self.constant(0.5, "f8"))
        whole = self.one("Mul", self.one("Sign", steps), self.one("Floor", half))
        moved = self.one("Add", whole, self.constant(zero, "f8"))
        kept = self.one("Clip", moved, self.constant(low, "f8"), self.constant(high, "f8"))
        return self.one("Cast", kept, to=element(numpy.dtype(self.dtype(tensor).value)))

    def limits(self, tensor: RawTensor) -> tuple[int, int]:
        """Return the smallest and largest integer that the fused activation allows."""
        import numpy

        scale, zero = self.encoding(tensor)
        kind = numpy.iinfo(self.dtype(tensor).value)
        activation = self.option("FusedActivationFunction")
        if activation not in _REAL_LIMITS:
            raise self.refuse(f"has the fused activation {activation}, which is not supported")
        low, high = _REAL_LIMITS[activation]
        least, most = int(kind.min), int(kind.max)
        if low is not None:
            least = max(least, zero + away(numpy.float32(low) / numpy.float32(scale)))
        if high is not None:
            most = min(most, zero + away(numpy.float32(high) / numpy.float32(scale)))
        return least, most

    def write_raw(self, value: str, place: int = 0) -> None:
        """Write elements to an output unchanged."""
        self.give(value, self._draft.names[self.op.outputs[place]])

    def moves(self) -> bool:
        """Return True if elements can be copied: inputs of the output's type have its encoding."""
        first = self.result()
        held = [
            self._draft.graph.tensors[at] for at in (*self.op.inputs, *self.op.outputs) if at >= 0
        ]
        alike = [raw for raw in held if raw.type == first.type]
        return all((raw.scales, raw.zeros) == (first.scales, first.zeros) for raw in alike)

    def check_shapes(self) -> None:
        """Raise Damaged if output shapes in the file contradict the inputs."""
        try:
            shapes = derive(self.call)
        except Unknown:
            return
        for place, shape in enumerate(shapes):
            stated = self.made_shape(place)
            if stated != shape:
                raise Damaged(f"returns {written(shape)}, but the file states {written(stated)}")


def element(dtype: Any) -> int:
    """Return ONNX's number for a NumPy element type."""
    from onnx import helper

    return int(helper.np_dtype_to_tensor_dtype(dtype))


def away(value: Any) -> int:
    """Return the nearest integer; halves are rounded away from zero."""
    return math.floor(abs(float(value)) + 0.5) * (1 if value >= 0 else -1)


Row = Callable[[TfliteStep], None]
