"""Constants that stand for infinity: masks and neutral elements, which no integer scale can hold.

They become the end of the range that their readers really see, one more range away:

    Max(x, -inf)             ->  Max(x, low - span)          changes nothing
    Where(mask, x, -3.4e38)  ->  Where(mask, x, low - span)  still far below everything else
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from qnnmem.lpai.quantize.ranges import ENDLESS, ValueRange

if TYPE_CHECKING:
    import onnx
    from numpy.typing import NDArray

# Their result never is the mask itself unless nothing else is there.
_PICK = ("Max", "Min", "Clip")


def replace_endless(graph: onnx.GraphProto, ranges: dict[str, ValueRange]) -> list[str]:
    """Replace infinite constants, widen the ranges they lead to, and say how many there were."""
    from onnx import numpy_helper

    replaced = 0
    for item in graph.initializer:
        values = _endless(item)
        readers = [node for node in graph.node if item.name in node.input]
        seen = _union(ranges[n] for node in readers for n in _tensors(node) if n in ranges)
        if values is None or seen is None:
            continue
        item.CopyFrom(numpy_helper.from_array(_limited(values, seen), item.name))
        for node in (node for node in readers if node.op_type not in _PICK):
            for name in (name for name in node.output if name in ranges):
                ranges[name] = ranges[name].union(_reach(values, seen))
        replaced += 1
    what = "each is now one range beyond the values beside it"
    return [f"constants that stand for infinity: {replaced}; {what}"] if replaced else []


def _endless(item: onnx.TensorProto) -> NDArray[Any] | None:
    """Values of a float constant, if some of them are infinite."""
    import onnx
    from onnx import numpy_helper

    if item.data_type not in (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16):
        return None
    values = numpy_helper.to_array(item)
    return values if (abs(values) >= ENDLESS).any() else None


def _limited(values: NDArray[Any], seen: ValueRange) -> NDArray[Any]:
    import numpy

    wide = _widened(seen)
    low = numpy.where(values <= -ENDLESS, wide.lowest, values)
    return numpy.asarray(numpy.where(values >= ENDLESS, wide.highest, low), values.dtype)


def _reach(values: NDArray[Any], seen: ValueRange) -> ValueRange:
    """Where the replaced values end: only on the sides that have some."""
    wide = _widened(seen)
    low = wide.lowest if (values <= -ENDLESS).any() else seen.lowest
    return ValueRange(low, wide.highest if (values >= ENDLESS).any() else seen.highest)


def _widened(seen: ValueRange) -> ValueRange:
    span = max(seen.highest - seen.lowest, 1.0)
    return ValueRange(seen.lowest - span, seen.highest + span)


def _tensors(node: onnx.NodeProto) -> Iterator[str]:
    yield from node.input
    yield from node.output


def _union(ranges: Iterable[ValueRange]) -> ValueRange | None:
    found: ValueRange | None = None
    for item in ranges:
        found = item if found is None else found.union(item)
    return found
