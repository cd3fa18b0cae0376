"""Sums, extremes and softmax along axes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from qnnmem.loader.dlc.draft import Step

_AS_INTEGERS = {"INT_32": 6, "UINT_32": 12, "INT_64": 7, "UINT_64": 13}


def _reduce(kind: str, step: Step) -> None:
    axes = step.constant(step.array("axes").reshape(-1), "i8")
    keep = int(step.scalar("keep_dims", False))
    step.write(step.one(kind, step.read(0), axes, keepdims=keep))


def _softmax(kind: str, step: Step) -> None:
    value = step.read(0)
    beta = float(step.scalar("beta", 1.0))
    if beta != 1.0:
        value = step.one("Mul", value, step.constant(beta, "f4"))
    step.write(step.one(kind, value, axis=int(step.scalar("axis", len(step.shape()) - 1))))


def _extreme(kind: str, step: Step) -> None:
    axis, keep = int(step.scalar("axis")), int(step.scalar("keep_dims", False))
    found = step.one(kind, step.read(0), axis=axis, keepdims=keep)
    step.write_raw(step.one("Cast", found, to=_AS_INTEGERS[step.result().data_type.name]))


def _top(step: Step) -> None:
    count = step.constant([int(step.scalar("k"))], "i8")
    largest = int(step.scalar("largest", True))
    values, places = step.node("TopK", [step.read(0), count], 2, largest=largest)
    cast = step.one("Cast", places, to=_AS_INTEGERS[step.result(1).data_type.name])
    step.write_raw(cast, 1)
    step.write(values)


def _running_sum(step: Step) -> None:
    axis = step.constant(int(step.scalar("axis")), "i8")
    flags = {name: int(step.scalar(name, False)) for name in ("exclusive", "reverse")}
    step.write(step.one("CumSum", step.read(0), axis, **flags))


REDUCTION: dict[str, Callable[[Step], None]] = {
    "Argmax": partial(_extreme, "ArgMax"),
    "Argmin": partial(_extreme, "ArgMin"),
    "CumulativeSum": _running_sum,
    "LogSoftmax": partial(_softmax, "LogSoftmax"),
    "ReduceMax": partial(_reduce, "ReduceMax"),
    "ReduceMean": partial(_reduce, "ReduceMean"),
    "ReduceMin": partial(_reduce, "ReduceMin"),
    "ReduceProd": partial(_reduce, "ReduceProd"),
    "ReduceSum": partial(_reduce, "ReduceSum"),
    "ReduceSumSquare": partial(_reduce, "ReduceSumSquare"),
    "Softmax": partial(_softmax, "Softmax"),
    "TopK": _top,
}
