"""Ranges of all float tensors of a model, measured by running it; used in the child program."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from qnnmem.quiet_onnxruntime import exact_session

if TYPE_CHECKING:
    import onnx
    from numpy.typing import NDArray

Feed = Mapping[str, "NDArray[Any]"]
# Tensors fetched in one run; a model that has more is run several times for each sample.
_FETCH_BYTES = 512 << 20
# From here on a number stands for infinity, as in masks made of the largest float.
ENDLESS = 1e30
_KEPT_FEEDS = 8
_FLOATS = ("tensor(float)", "tensor(float16)")


class ValueRange(NamedTuple):
    """Least and largest finite value of a tensor; both zero when there was none."""

    lowest: float
    highest: float

    def union(self, other: ValueRange) -> ValueRange:
        """The least range that holds both."""
        return ValueRange(min(self.lowest, other.lowest), max(self.highest, other.highest))


class Measured(NamedTuple):
    """Ranges by tensor, the types of all tensors, how many samples, and the first of them."""

    ranges: dict[str, ValueRange]
    types: list[onnx.ValueInfoProto]
    samples: int
    feeds: Sequence[Feed]


def open_session(model: onnx.ModelProto, **settings: Any) -> Any:
    """A session on one thread without optimisation, so that sums never change their order."""
    return exact_session(model.SerializeToString(), **settings)


def measure(
    model: onnx.ModelProto,
    samples: Iterable[Feed],
    states: Sequence[tuple[str, str]],
    after_sample: Callable[[], None],
) -> Measured:
    """Run all samples and remember each tensor's range.

    A state input that a sample does not give is what the state output was before, at first zero.
    """
    session = open_session(_with_all_outputs(model))
    outputs = [*session.get_outputs(), *session.get_inputs()]
    kinds = {item.name: (item.type, item.shape) for item in outputs}
    names = [item.name for item in session.get_outputs() if item.type in _FLOATS]
    chunks = _chunks(names, kinds, [new for _, new in states])
    ranges: dict[str, ValueRange] = {}
    feeds: list[Feed] = []
    count, carried = 0, _zeros(kinds, [old for old, _ in states])
    for count, sample in enumerate(samples, 1):
        feed = {**carried, **sample}
        for chunk in chunks:
            values = dict(zip(chunk, session.run(chunk, feed), strict=True))
            carried.update({old: values[new] for old, new in states if new in values})
            _widen(ranges, {name: values[name] for name in chunk if kinds[name][0] in _FLOATS})
        _widen(ranges, {n: value for n, value in feed.items() if kinds[n][0] in _FLOATS})
        feeds += [feed] * (count <= _KEPT_FEEDS)
        after_sample()
    return Measured(ranges, _types(kinds), count, feeds)


def _with_all_outputs(model: onnx.ModelProto) -> onnx.ModelProto:
    import onnx

    wide = onnx.ModelProto()
    wide.CopyFrom(model)
    known = {item.name for item in (*wide.graph.output, *wide.graph.input)}
    for name in (name for node in model.graph.node for name in node.output):
        if name and name not in known:
            wide.graph.output.append(onnx.ValueInfoProto(name=name))
            known.add(name)
    return wide


def _chunks(
    names: Sequence[str], kinds: Mapping[str, tuple[str, Any]], first: Sequence[str]
) -> list[list[str]]:
    """Names to fetch together; the state outputs are in the first group."""
    chunks: list[list[str]] = [list(dict.fromkeys(first))]
    room = _FETCH_BYTES
    for name in names:
        if name in first:
            continue
        size = _bytes(kinds[name][1])
        if size > room and chunks[-1]:
            chunks.append([])
            room = _FETCH_BYTES
        chunks[-1].append(name)
        room -= size
    return [chunk for chunk in chunks if chunk]


def _bytes(shape: Any) -> int:
    sizes = [size for size in shape or () if isinstance(size, int) and size >= 0]
    return 4 * math.prod(sizes)


def _zeros(kinds: Mapping[str, tuple[str, Any]], names: Iterable[str]) -> dict[str, NDArray[Any]]:
    import numpy

    from qnnmem.loader.onnx.trial_program import TYPE_NAMES

    return {name: numpy.zeros(kinds[name][1], TYPE_NAMES[kinds[name][0]]) for name in names}


def _widen(ranges: dict[str, ValueRange], values: Feed) -> None:
    for name, value in values.items():
        found = range_of(value)
        ranges[name] = ranges[name].union(found) if name in ranges else found


def range_of(value: NDArray[Any]) -> ValueRange:
    """ValueRange of an array's finite values; masks of minus infinity do not count."""
    import numpy

    finite = value[numpy.abs(value) < ENDLESS]  # false for NaN
    if not finite.size:
        return ValueRange(0.0, 0.0)
    return ValueRange(float(finite.min()), float(finite.max()))


def _types(kinds: Mapping[str, tuple[str, Any]]) -> list[onnx.ValueInfoProto]:
    """Types as onnxruntime found them; the quantizer skips tensors whose type it cannot tell."""
    from onnx import helper

    from qnnmem.loader.onnx.trial_program import TYPE_NAMES

    found = []
    for name, (kind, shape) in kinds.items():
        if kind in TYPE_NAMES:
            elem = helper.np_dtype_to_tensor_dtype(_dtype(TYPE_NAMES[kind]))
            found.append(helper.make_tensor_value_info(name, elem, shape))
    return found


def _dtype(name: str) -> Any:
    import numpy

    return numpy.dtype(name)
