"""Shapes and small integer values in a TFLite graph, derived from constants and shapes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from qnnmem.errors import Damaged, UsageError
from qnnmem.loader.tflite.file import TfliteFile
from qnnmem.loader.tflite.raw_graph import DTYPES, RawGraph, RawOp, RawTensor
from qnnmem.loader.tflite.shapes import (
    Call,
    Operand,
    Shape,
    Unknown,
    broadcast,
    derive,
    selection,
    written,
)

_MOST = 64  # most numbers in a tracked tensor
_TYPES = {0: "<f4", 2: "<i4", 4: "<i8", 6: "|b1"}  # by schema type: types of computed sizes


def stored_value(type_: int, shape: Shape, data: bytes | memoryview) -> Any:
    """Return the numbers in a stored constant; None if they cannot be sizes."""
    if type_ not in _TYPES or not data:
        return None
    import numpy as np

    dtype, count = np.dtype(_TYPES[type_]), math.prod(shape)
    if count > min(len(data) // dtype.itemsize, _MOST):
        return None
    return np.frombuffer(data, dtype, count=count).reshape(shape)


def compute(call: Call, shapes: list[Shape]) -> list[Any]:
    """Return the elements of each output; None for each if they are unknown before a run.

    The elements of large tensors are not computed.
    """
    unknown = [None] * len(shapes)
    if any(math.prod(shape) > _MOST for shape in shapes):
        return unknown
    if any(tensor.type not in _TYPES for tensor in call.outputs):
        return unknown
    return evaluate(call, shapes) or unknown


def evaluate(call: Call, shapes: list[Shape]) -> list[Any] | None:
    """Return the elements of each output; None if they are unknown before a run."""
    function = None if call.op.custom else _FUNCTIONS.get(call.op.type)
    dtypes = [DTYPES.get(tensor.type) for tensor in call.outputs]
    if function is None or None in dtypes:
        return None
    if call.op.type not in _SHAPE_ALONE and any(o is None or o.value is None for o in call.inputs):
        return None
    import numpy as np

    try:
        with np.errstate(all="ignore"):
            result = function(np, call)
            arrays = result if isinstance(result, list) else [result]
            return [
                np.asarray(array).astype(dtype.value).reshape(shape)
                for array, dtype, shape in zip(arrays, dtypes, shapes, strict=True)
                if dtype is not None
            ]
    except (ValueError, TypeError, IndexError, OverflowError, Unknown):
        return None  # the operator cannot run; the reader of its numbers reports it


def _values(call: Call) -> list[Any]:
    return [operand.value for operand in call.inputs if operand is not None]


def _numpy(name: str) -> Callable[[Any, Call], Any]:
    """Return a function that applies a NumPy function to an operator's input values."""
    return lambda np, call: getattr(np, name)(*_values(call))


def _divide(np: Any, call: Call) -> Any:
    left, right = _values(call)
    if left.dtype.kind == "f":
        return left / right
    return np.trunc(np.true_divide(left, np.where(right == 0, 1, right)))


def _floor_divide(np: Any, call: Call) -> Any:
    left, right = _values(call)
    return np.floor_divide(left, np.where(right == 0, 1, right))


def _remainder(np: Any, call: Call) -> Any:
    left, right = _values(call)
    return np.mod(left, np.where(right == 0, 1, right))


def _reduced(name: str) -> Callable[[Any, Call], Any]:
    def reduce(np: Any, call: Call) -> Any:
        value, axes = _values(call)
        return getattr(np, name)(value, axis=tuple(axes.reshape(-1).tolist()) if value.ndim else ())

    return reduce


def _sliced(_: Any, call: Call) -> Any:
    value, begin, size = _values(call)
    ends = (None if s == -1 else b + s for b, s in zip(begin.tolist(), size.tolist(), strict=True))
    return value[tuple(map(slice, begin.tolist(), ends))]


def _gathered(np: Any, call: Call) -> Any:
    value, indices = _values(call)
    axis = call.option("Axis")
    return np.take(value, np.clip(indices, 0, value.shape[axis] - 1), axis=axis)


def _pieces(np: Any, call: Call) -> list[Any]:
    value = _values(call)[-1]
    return list(np.split(value, len(call.outputs), axis=call.number(0)))


def _unpacked(np: Any, call: Call) -> list[Any]:
    (value,) = _values(call)
    return list(np.moveaxis(value, call.option("Axis"), 0))


def _spread_shape(np: Any, call: Call) -> Any:
    return np.array(broadcast((tuple(call.value(0)), tuple(call.value(1)))))


_SHAPE_ALONE = frozenset({"RANK", "SHAPE"})
_FUNCTIONS: dict[str, Callable[[Any, Call], Any]] = {
    **dict.fromkeys(("CAST", "EXPAND_DIMS", "RESHAPE", "SQUEEZE"), lambda _, c: _values(c)[0]),
    "ABS": _numpy("abs"),
    "ADD": _numpy("add"),
    "BROADCAST_ARGS": _spread_shape,
    "BROADCAST_TO": lambda np, c: np.broadcast_to(_values(c)[0], tuple(c.value(1))),
    "CEIL": _numpy("ceil"),
    "CONCATENATION": lambda np, c: np.concatenate(_values(c), axis=c.option("Axis")),
    "DIV": _divide,
    "EQUAL": _numpy("equal"),
    "FILL": lambda np, c: np.full(tuple(c.value(0)), _values(c)[1]),
    "FLOOR": _numpy("floor"),
    "FLOOR_DIV": _floor_divide,
    "FLOOR_MOD": _remainder,
    "GATHER": _gathered,
    "GREATER": _numpy("greater"),
    "GREATER_EQUAL": _numpy("greater_equal"),
    "LESS": _numpy("less"),
    "LESS_EQUAL": _numpy("less_equal"),
    "LOGICAL_AND": _numpy("logical_and"),
    "LOGICAL_NOT": _numpy("logical_not"),
    "LOGICAL_OR": _numpy("logical_or"),
    "MAXIMUM": _numpy("maximum"),
    "MINIMUM": _numpy("minimum"),
    "MUL": _numpy("multiply"),
    "NEG": _numpy("negative"),
    "NOT_EQUAL": _numpy("not_equal"),
    "PACK": lambda np, c: np.stack(_values(c), axis=c.option("Axis")),
    "RANGE": lambda np, c: np.arange(*(value.item() for value in _values(c))),
    "RANK": lambda _, c: len(c.shape(0)),
    "REDUCE_MAX": _reduced("max"),
    "REDUCE_MIN": _reduced("min"),
    "REDUCE_PROD": _reduced("prod"),
    "SELECT": _numpy("where"),
    "SELECT_V2": _numpy("where"),
    "SHAPE": lambda np, c: np.array(c.shape(0), "<i8"),
    "SLICE": _sliced,
    "SPLIT": _pieces,
    "STRIDED_SLICE": lambda _, c: _values(c)[0][selection(c)],
    "SUB": _numpy("subtract"),
    "SUM": _reduced("sum"),
    "TILE": lambda np, c: np.tile(_values(c)[0], tuple(c.value(1))),
    "TRANSPOSE": lambda np, c: np.transpose(_values(c)[0], tuple(c.value(1))),
    "UNPACK": _unpacked,
    "ZEROS_LIKE": _numpy("zeros_like"),
}

_CONVERT = "convert the model again with the required shapes"
# For the output of these operators, converters store the input's sizes; the interpreter resizes the
# output.
_MISSTATED = ("RFFT2D",)


class KnownShapes:
    """Shapes derived operator by operator; `inputs` has the shapes of the graph's inputs.

    If the user gives no shapes, the stored shape is used wherever no shape can be derived.
    """

    def __init__(self, file: TfliteFile, graph: RawGraph, inputs: Mapping[int, Operand]) -> None:
        self._file, self._graph = file, graph
        self._derived = {index: operand.shape for index, operand in inputs.items()}
        self._values: dict[int, Any] = {index: operand.value for index, operand in inputs.items()}
        self._misstated: set[int] = set()

    def derived(self, index: int) -> Shape | None:
        """Return the derived shape of a tensor; None if the stored shape applies."""
        return self._derived.get(index)

    def operand(self, index: int) -> Operand:
        """Return the shape of a tensor, and its value if known."""
        raw = self._graph.tensors[index]
        shape = self._derived.get(index, raw.shape)
        if index not in self._values:
            self._values[index] = stored_value(raw.type, raw.shape, raw.data)
        return Operand(shape, self._values[index])

    def run(self, op: RawOp, where: str) -> None:
        """Derive and store the output shapes of an operator."""
        if not self._file.is_open:
            return
        operands = [None if index == -1 else self.operand(index) for index in op.inputs]
        call = Call(op, operands, [self._graph.tensors[index] for index in op.outputs])
        try:
            shapes = derive(call)
            if op.type in _MISSTATED or not self._misstated.isdisjoint(op.inputs):
                self._correct(op.outputs, shapes)
            self.returns(op.outputs, shapes)
        except Unknown:
            self._keep(op, where, "")
        except Damaged as exc:
            self._keep(op, where, str(exc))
        else:
            self._values.update(zip(op.outputs, compute(call, shapes), strict=True))

    def returns(self, outputs: Sequence[int], shapes: Sequence[Shape]) -> None:
        """Store the output shapes of an operator; raise Damaged if the file contradicts them."""
        for index, shape in zip(outputs, shapes, strict=True):
            if index not in self._misstated and not _agrees(self._graph.tensors[index], shape):
                stored = written(self._graph.tensors[index].shape)
                raise Damaged(f"returns {written(shape)}, but the file states {stored}")
        self._derived.update(zip(outputs, shapes, strict=True))

    def _correct(self, outputs: Sequence[int], shapes: Sequence[Shape]) -> None:
        """Record outputs whose sizes contradict the file."""
        for index, shape in zip(outputs, shapes, strict=True):
            raw = self._graph.tensors[index]
            if len(raw.shape) == len(shape) and not _agrees(raw, shape):
                self._misstated.add(index)

    def _keep(self, op: RawOp, where: str, fault: str) -> None:
        """Keep the stored output shapes; raise UsageError if the user's shapes contradict them."""
        same = all(
            self._derived.get(index, stored := self._graph.tensors[index].shape) == stored
            for index in op.inputs
            if index != -1
        )
        if fault and not self._file.given:
            self._file.cannot_run = self._file.cannot_run or f"{where} {fault}"
        elif fault:
            raise UsageError(f"with these shapes, {where} {fault}", where=self._file.path)
        elif self._file.given and not same:
            problem = f"the output of {where} cannot be computed for these shapes"
            raise UsageError(problem, where=self._file.path, cure=_CONVERT)


def _agrees(raw: RawTensor, shape: Shape) -> bool:
    stored = raw.signature if len(raw.signature) == len(raw.shape) else raw.shape
    if len(stored) != len(shape):
        return False
    return all(have in (-1, size) for have, size in zip(stored, shape, strict=True))
