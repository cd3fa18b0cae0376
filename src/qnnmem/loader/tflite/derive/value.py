"""Numbers that follow from shapes and constants: sizes that operators compute of other sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from qnnmem.loader.tflite.derive.arrange import selection
from qnnmem.loader.tflite.derive.call import Call, Shape, Unknown, broadcast, elements

_MOST = 64  # numbers in a tensor that is followed
_TYPES = {0: "<f4", 2: "<i4", 4: "<i8", 6: "|b1"}  # of the schema: what sizes are computed in


def stored_value(type_: int, shape: Shape, data: bytes) -> Any:
    """The numbers that a constant stores; None where they cannot be sizes."""
    if type_ not in _TYPES or not data:
        return None
    import numpy as np

    found = np.frombuffer(data, _TYPES[type_], count=len(data) // np.dtype(_TYPES[type_]).itemsize)
    count = elements(shape)
    return found[:count].reshape(shape) if count <= min(len(found), _MOST) else None


def compute(call: Call, shapes: list[Shape]) -> list[Any]:
    """The numbers in each output; None where they depend on data."""
    unknown = [None] * len(shapes)
    way = None if call.op.custom else _WAYS.get(call.op.type)
    if way is None or any(elements(shape) > _MOST for shape in shapes):
        return unknown
    if call.op.type not in _SHAPE_ALONE and any(o is None or o.value is None for o in call.inputs):
        return unknown
    import numpy as np

    kinds = [_TYPES.get(tensor.type) for tensor in call.outputs]
    if None in kinds:
        return unknown
    try:
        with np.errstate(all="ignore"):
            made = way(np, call)
            found = made if isinstance(made, list) else [made]
            return [
                np.asarray(one).astype(kind).reshape(shape)
                for one, kind, shape in zip(found, kinds, shapes, strict=True)
            ]
    except (ValueError, TypeError, IndexError, OverflowError, Unknown):
        return unknown  # an operator that cannot run; whoever needs its numbers will say so


def _values(call: Call) -> list[Any]:
    return [operand.value for operand in call.inputs if operand is not None]


def _of(name: str) -> Callable[[Any, Call], Any]:
    """The function of numpy that does the same."""
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
    def way(np: Any, call: Call) -> Any:
        value, axes = _values(call)
        return getattr(np, name)(value, axis=tuple(axes.reshape(-1).tolist()) if value.ndim else ())

    return way


def _sliced(_: Any, call: Call) -> Any:
    value, begin, size = _values(call)
    ends = (None if s == -1 else b + s for b, s in zip(begin.tolist(), size.tolist(), strict=True))
    return value[tuple(map(slice, begin.tolist(), ends))]


def _gathered(np: Any, call: Call) -> Any:
    value, places = _values(call)
    axis = call.option("Axis")
    return np.take(value, np.clip(places, 0, value.shape[axis] - 1), axis=axis)


def _pieces(np: Any, call: Call) -> list[Any]:
    value = _values(call)[-1]
    return list(np.split(value, len(call.outputs), axis=call.number(0)))


def _unpacked(np: Any, call: Call) -> list[Any]:
    (value,) = _values(call)
    return list(np.moveaxis(value, call.option("Axis"), 0))


def _spread_shape(np: Any, call: Call) -> Any:
    return np.array(broadcast((tuple(call.value(0)), tuple(call.value(1)))))


_SHAPE_ALONE = frozenset({"RANK", "SHAPE"})
_WAYS: dict[str, Callable[[Any, Call], Any]] = {
    **dict.fromkeys(("CAST", "EXPAND_DIMS", "RESHAPE", "SQUEEZE"), lambda _, c: _values(c)[0]),
    "ABS": _of("abs"),
    "ADD": _of("add"),
    "BROADCAST_ARGS": _spread_shape,
    "BROADCAST_TO": lambda np, c: np.broadcast_to(_values(c)[0], tuple(c.value(1))),
    "CEIL": _of("ceil"),
    "CONCATENATION": lambda np, c: np.concatenate(_values(c), axis=c.option("Axis")),
    "DIV": _divide,
    "EQUAL": _of("equal"),
    "FILL": lambda np, c: np.full(tuple(c.value(0)), _values(c)[1]),
    "FLOOR": _of("floor"),
    "FLOOR_DIV": _floor_divide,
    "FLOOR_MOD": _remainder,
    "GATHER": _gathered,
    "GREATER": _of("greater"),
    "GREATER_EQUAL": _of("greater_equal"),
    "LESS": _of("less"),
    "LESS_EQUAL": _of("less_equal"),
    "LOGICAL_AND": _of("logical_and"),
    "LOGICAL_NOT": _of("logical_not"),
    "LOGICAL_OR": _of("logical_or"),
    "MAXIMUM": _of("maximum"),
    "MINIMUM": _of("minimum"),
    "MUL": _of("multiply"),
    "NEG": _of("negative"),
    "NOT_EQUAL": _of("not_equal"),
    "PACK": lambda np, c: np.stack(_values(c), axis=c.option("Axis")),
    "RANGE": lambda np, c: np.arange(*(value.item() for value in _values(c))),
    "RANK": lambda _, c: len(c.shape(0)),
    "REDUCE_MAX": _reduced("max"),
    "REDUCE_MIN": _reduced("min"),
    "REDUCE_PROD": _reduced("prod"),
    "SELECT": _of("where"),
    "SELECT_V2": _of("where"),
    "SHAPE": lambda np, c: np.array(c.shape(0), "<i8"),
    "SLICE": _sliced,
    "SPLIT": _pieces,
    "STRIDED_SLICE": lambda _, c: _values(c)[0][selection(c)],
    "SUB": _of("subtract"),
    "SUM": _reduced("sum"),
    "TILE": lambda np, c: np.tile(_values(c)[0], tuple(c.value(1))),
    "TRANSPOSE": lambda np, c: np.transpose(_values(c)[0], tuple(c.value(1))),
    "UNPACK": _unpacked,
    "ZEROS_LIKE": _of("zeros_like"),
}
