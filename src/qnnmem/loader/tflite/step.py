"""One operator of a TFLite graph, and the ONNX nodes that replace it.

Tensors between operators keep TFLite's stored form. `read` dequantizes integers and `write`
quantizes real numbers. Where TFLite's kernels compute with integers, the module `integers` does the
same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from qnnmem.errors import Damaged
from qnnmem.ir import DType, Tensor
from qnnmem.loader.onnx.draft import NodeDraft, NodeWriter, NotTranslated, onnx_type_of
from qnnmem.loader.tflite.raw_graph import DTYPES, RawGraph, RawOp, RawTensor
from qnnmem.loader.tflite.shapes import Call, Operand, Shape, Unknown, derive, written
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
    """The ONNX graph under construction, with the TFLite graph from which it is made."""

    graph: RawGraph = field(default_factory=lambda: RawGraph("", (), (), (), ()))
    names: tuple[str, ...] = ()  # names of the graph's tensors
    tensors: Mapping[str, Tensor] = field(default_factory=dict)  # tensors of the model
    made: set[int] = field(default_factory=set)  # tensors that depend on inputs or variables
    reals: bool = False  # compute with real numbers between DequantizeLinear and QuantizeLinear
    _values: dict[int, Any] = field(default_factory=dict)
    _left: int = _MOST_COMPUTED

    def shape(self, index: int) -> Shape:
        """Return the shape of a tensor in the model, which can differ from the stored shape."""
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
        values: list[Any] | None = None
        with suppress(Unknown, Damaged):
            if op.type == "DEQUANTIZE":
                values = [_dequantized(self.graph.tensors[op.inputs[0]], call.inputs[0])]
            else:
                shapes = derive(call)
                self._left -= sum(map(math.prod, shapes))
                values = evaluate(call, shapes) if self._left >= 0 else None
        values = [None] * len(op.outputs) if values is None else values
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
        content = "a sparse constant" if raw.sparse else "elements that are not whole bytes"
        raise NotTranslated(f"tensor {quote(raw.name)} holds {content}")
    count = math.prod(raw.shape)
    dtype = numpy.dtype(kind.value).newbyteorder("<")
    return numpy.frombuffer(raw.data, dtype, count).reshape(raw.shape)


def _dequantized(raw: RawTensor, operand: Operand | None) -> NDArray[Any] | None:
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
    reals: NDArray[Any] = (value.astype("i4") - zeros).astype("f4") * scales
    return reals


class TfliteStep(NodeWriter):
    """The translation of one operator: its inputs, and the nodes that replace it."""

    def __init__(self, draft: TfliteDraft, position: int, op: RawOp) -> None:
        super().__init__(draft, position)
        self.op, self._draft = op, draft
        self.call = draft.call(op)

    def refuse(self, reason: str) -> NotTranslated:
        """Return an error that says why this operator has no translation."""
        return NotTranslated(f"operator {quote(self.op.type)} {reason}")

    def option(self, name: str, default: Any = 0) -> Any:
        """Return an option of the operator, or the default."""
        return self.op.options.get(name, default)

    def has(self, position: int) -> bool:
        """Return whether an input is given; optional inputs can be missing."""
        return position < len(self.op.inputs) and self.op.inputs[position] != -1

    def tensor(self, position: int = 0) -> RawTensor:
        """Return an input as stored in the file."""
        if not self.has(position):
            raise self.refuse(f"lacks input {position}")
        return self._draft.graph.tensors[self.op.inputs[position]]

    def result(self, position: int = 0) -> RawTensor:
        """Return an output as stored in the file."""
        return self._draft.graph.tensors[self.op.outputs[position]]

    def dtype(self, raw: RawTensor) -> DType:
        """Return the element type of a tensor."""
        if raw.type not in DTYPES:
            raise self.refuse(f"has elements of type {raw.type}")
        return DTYPES[raw.type]

    def has_type(self, dtype: DType) -> bool:
        """Return whether an input or output has elements of this type."""
        return any(DTYPES.get(raw.type) is dtype for raw in self._operands())

    def _operands(self) -> list[RawTensor]:
        """Return all inputs and outputs as stored in the file."""
        indexes = (*self.op.inputs, *self.op.outputs)
        return [self._draft.graph.tensors[index] for index in indexes if index != -1]

    def is_quantized(self, raw: RawTensor) -> bool:
        """Return whether the integers of a tensor represent real numbers."""
        return bool(raw.scales) and self.dtype(raw) in INTEGERS

    @property
    def is_integer(self) -> bool:
        """True if the nodes compute with quantized integers, as in TFLite."""
        tensors = self.tensor(), self.result()
        return not self._draft.reals and all(map(self.is_quantized, tensors))

    def encoding(self, raw: RawTensor) -> tuple[float, int]:
        """Return the scale and the zero point of a tensor with a per-tensor encoding."""
        if len(raw.scales) != 1 or len(raw.zeros) > 1:
            raise self.refuse(f"reads or writes {quote(raw.name)}, which has several scales")
        if not raw.scales[0] > 0 or not math.isfinite(raw.scales[0]):
            raise self.refuse(
                f"reads or writes {quote(raw.name)}, whose scale {raw.scales[0]} is not valid"
            )
        return raw.scales[0], raw.zeros[0] if raw.zeros else 0

    @property
    def scales(self) -> tuple[float, float]:
        """Scales of the first input and the first output."""
        return self.encoding(self.tensor())[0], self.encoding(self.result())[0]

    def shape(self, position: int = 0) -> Shape:
        """Return the shape of an input."""
        return self.call.shape(position)

    def result_shape(self, position: int = 0) -> Shape:
        """Return the shape of an output."""
        return self._draft.shape(self.op.outputs[position])

    def value(self, position: int) -> NDArray[Any] | None:
        """Return the elements of a constant input; None for other inputs."""
        operand = self.call.inputs[position] if self.has(position) else None
        value: NDArray[Any] | None = None if operand is None else operand.value
        return value

    def required_value(self, position: int) -> NDArray[Any]:
        """Return the elements of an input; raise NotTranslated if it is not a constant."""
        value = self.value(position)
        if value is None:
            raise self.refuse(f"needs a constant as input {position}")
        return value

    def numbers(self, position: int) -> list[int]:
        """Return the whole numbers of a constant input."""
        return [int(number) for number in self.required_value(position).reshape(-1)]

    def raw(self, position: int = 0) -> str:
        """Return the name of an input in its stored form, without dequantization."""
        self.tensor(position)
        index = self.op.inputs[position]
        value = self._draft.value(index)
        if value is not None:
            return self.constant(value)
        if index not in self._draft.made:
            raise self.refuse(f"reads {quote(self._draft.names[index])}, whose value is unknown")
        return self._draft.names[index]

    def read(self, position: int = 0, perm: Sequence[int] = ()) -> str:
        """Convert a quantized or half-precision input to float32; return the name of the result.

        `perm` transposes the input first, while its elements still have their small stored size.
        """
        tensor = self.tensor(position)
        name = self.raw(position)
        name = self.emit("Transpose", name, perm=perm) if perm else name
        if self.is_quantized(tensor):
            scale, zero = self.encoding(tensor)
            encoding = self.constant(scale, "f4"), self.constant(zero, self.dtype(tensor).value)
            return self.emit("DequantizeLinear", name, *encoding)
        return self.emit("Cast", name, to=1) if self.dtype(tensor) is DType.FLOAT16 else name

    def weights(self, order: Sequence[int]) -> str:
        """Reorder the axes of the weights, dequantize them, and return the name of the result."""
        tensor, value = self.tensor(1), self.required_value(1)
        name = self.constant(value.transpose(order))
        if not self.is_quantized(tensor):
            return name
        zeros = tensor.zeros or (0,) * len(tensor.scales)
        return self._dequantize(name, tensor.scales, zeros, order.index(tensor.axis), value.dtype)

    def bias(self) -> list[str]:
        """Dequantize the bias if needed; return a list with its name, empty if there is no bias."""
        if not self.has(2):
            return []
        value = self.value(2)
        if value is None or value.dtype.kind == "f":
            return [self.read(2)]
        scale, _ = self.encoding(self.tensor(0))
        scales = [scale * factor for factor in self.tensor(1).scales]
        if value.dtype.itemsize > 4:  # DequantizeLinear reads integers of at most 32 bits
            return [self.constant(value * scales, "f4")]
        return [self._dequantize(self.constant(value), scales, [0] * len(scales), 0, value.dtype)]

    def _dequantize(
        self, name: str, scales: Sequence[float], zeros: Sequence[int], axis: int, dtype: Any
    ) -> str:
        """Dequantize a constant channel by channel; return the name of the dequantized tensor."""
        import numpy

        encoding = (numpy.asarray(scales, "f4"), numpy.asarray(zeros, dtype))
        if len(scales) == 1:
            names = [self.constant(array.reshape(())) for array in encoding]
            return self.emit("DequantizeLinear", name, *names)
        return self.emit("DequantizeLinear", name, *map(self.constant, encoding), axis=axis)

    def write(self, value: str, position: int = 0, perm: Sequence[int] = ()) -> None:
        """Write real numbers to an output, after the fused activation and the transpose `perm`."""
        tensor = self.result(position)
        if self.is_quantized(tensor):
            value = self.rounded(value, tensor)
        elif self.dtype(tensor) is DType.FLOAT16:
            value = self.emit("Cast", self.activated(value), to=10)
        elif self.dtype(tensor) is DType.FLOAT32:
            value = self.activated(value)
        elif self.option("FusedActivationFunction"):
            raise self.refuse("has an activation for integers, which is not supported")
        self.write_raw(self.emit("Transpose", value, perm=perm) if perm else value, position)

    def activated(self, value: str) -> str:
        """Apply the fused activation to real numbers; return the name of the result."""
        low, high = self._real_limits()
        return value if low is None else self.emit_clip(value, low, high)

    def _real_limits(self) -> tuple[float | None, float | None]:
        """Return the limits of the fused activation; None is no limit."""
        activation = self.option("FusedActivationFunction")
        if activation not in _REAL_LIMITS:
            raise self.refuse(f"has the fused activation {activation}, which is not supported")
        return _REAL_LIMITS[activation]

    def rounded(self, value: str, tensor: RawTensor) -> str:
        """Quantize a tensor of real numbers; return the name of the integer tensor.

        Halves are rounded away from zero. With `reals`, QuantizeLinear rounds them to even.
        """
        if self._draft.reals:
            return self._quantized(value, tensor)
        scale, zero = self.encoding(tensor)
        low, high = self.limits(tensor)
        steps = self.emit("Cast", self.emit("Div", value, self.constant(scale, "f4")), to=11)
        half = self.emit("Add", self.emit("Abs", steps), self.constant(0.5, "f8"))
        whole = self.emit("Mul", self.emit("Sign", steps), self.emit("Floor", half))
        moved = self.emit("Add", whole, self.constant(zero, "f8"))
        clipped = self.emit("Clip", moved, self.constant(low, "f8"), self.constant(high, "f8"))
        return self.emit("Cast", clipped, to=onnx_type_of(self.dtype(tensor)))

    def _quantized(self, value: str, tensor: RawTensor) -> str:
        """Quantize real numbers with QuantizeLinear, clipped to the limits of the activation."""
        import numpy

        scale, zero = self.encoding(tensor)
        dtype = numpy.iinfo(self.dtype(tensor).value)
        encoding = self.constant(scale, "f4"), self.constant(zero, dtype.dtype.str)
        if dtype.bits > 8:  # onnxruntime clips only 8-bit integers
            return self.emit("QuantizeLinear", self.activated(value), *encoding)
        quantized = self.emit("QuantizeLinear", value, *encoding)
        limits = self.limits(tensor)
        if limits == (dtype.min, dtype.max):
            return quantized
        names = (self.constant(limit, dtype.dtype.str) for limit in limits)
        return self.emit("Clip", quantized, *names)

    def limits(self, tensor: RawTensor) -> tuple[int, int]:
        """Return the smallest and largest integer that the fused activation allows."""
        import numpy

        scale, zero = self.encoding(tensor)
        dtype = numpy.iinfo(self.dtype(tensor).value)
        low, high = self._real_limits()
        least, most = int(dtype.min), int(dtype.max)
        if low is not None:
            least = max(least, zero + round_half_away(numpy.float32(low) / numpy.float32(scale)))
        if high is not None:
            most = min(most, zero + round_half_away(numpy.float32(high) / numpy.float32(scale)))
        return least, most

    def write_raw(self, value: str, position: int = 0) -> None:
        """Write elements to an output unchanged."""
        self.name_result(value, self._draft.names[self.op.outputs[position]])

    def same_encoding(self) -> bool:
        """Return whether all operands of the output's type have the output's encoding."""
        result = self.result()
        same_type = (raw for raw in self._operands() if raw.type == result.type)
        return all((raw.scales, raw.zeros) == (result.scales, result.zeros) for raw in same_type)

    def movement(self, *, exact: bool = True) -> tuple[Callable[[int], str], Callable[..., None]]:
        """Return two functions for an op that moves elements: to read an input, to write an output.

        The functions keep the stored elements if the inputs and outputs have the same encoding.
        `exact` is False for an operator that computes new elements.
        """
        if exact and self.same_encoding():
            return self.raw, self.write_raw
        return self.read, self.write

    def check_shapes(self) -> None:
        """Raise Damaged if output shapes in the file contradict the inputs."""
        try:
            shapes = derive(self.call)
        except Unknown:
            return
        for position, shape in enumerate(shapes):
            stated = self.result_shape(position)
            if stated != shape:
                raise Damaged(f"returns {written(shape)}, but the file states {written(stated)}")


def round_half_away(value: Any) -> int:
    """Return the nearest integer; halves are rounded away from zero."""
    return math.floor(abs(float(value)) + 0.5) * (1 if value >= 0 else -1)


Translation = Callable[[TfliteStep], None]  # writes the ONNX nodes of an operator
