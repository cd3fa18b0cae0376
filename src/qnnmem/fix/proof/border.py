"""Data for a model whose border is another one: integers for floats, smaller batches or pictures.

What the model as it was is given becomes what the changed one takes, and its results become what
the other gave:

    other element type     quantized by the scale that the file notes, or cast
    fewer in the batch     several runs, results put together again
    other sizes            resized, linearly between the nearest numbers

Results of another shape are left as they are: nothing can be compared with them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from qnnmem.text import quote

if TYPE_CHECKING:
    from numpy.typing import NDArray

Tensors = dict[str, "NDArray[Any]"]
Scale = tuple[float, int]  # and zero point


@dataclass(frozen=True, slots=True)
class ModelBorder:
    """Element types and shapes of inputs, and what the integers of inputs and outputs mean."""

    inputs: Mapping[str, tuple[str, tuple[int, ...]]]
    scales: Mapping[str, Scale]

    def feeds(self, feed: Tensors) -> list[Tensors]:
        """What the model is given, once or several times, for what another one was given."""
        runs = {name: self._runs(name, value) for name, value in feed.items()}
        count = max((len(pieces) for pieces in runs.values()), default=1)
        for name, pieces in runs.items():
            if len(pieces) not in (1, count):
                raise ValueError(f"the batch of {quote(name)} is not cut as that of other inputs")
        return [
            {name: pieces[at % len(pieces)] for name, pieces in runs.items()} for at in range(count)
        ]

    def _runs(self, name: str, value: NDArray[Any]) -> list[NDArray[Any]]:
        if name not in self.inputs:
            return [value]
        kind, shape = self.inputs[name]
        pieces = [value]
        if value.shape != shape:
            pieces = _cut(value, shape) or [resized(value, shape)]
        return [stored(piece, kind, self.scales.get(name)) for piece in pieces]

    def joined(self, results: Sequence[Tensors], wanted: Tensors) -> Tensors:
        """Results of all runs as one, in the element types of those that are wanted."""
        import numpy

        found = {}
        for name, given in results[0].items():
            like = wanted.get(name)
            value = given
            if len(results) > 1 and like is not None and given.ndim:
                whole = numpy.concatenate([one[name] for one in results])
                alike = all(numpy.array_equal(one[name], given) for one in results)
                value = given if alike and given.shape == like.shape else whole
            found[name] = value if like is None else _restored(value, like, self.scales.get(name))
        return found


def _cut(value: NDArray[Any], shape: tuple[int, ...]) -> list[NDArray[Any]]:
    """Pieces of a batch; none where more than the batch is another."""
    fits = value.ndim == len(shape) > 0 and value.shape[1:] == shape[1:] and shape[0] > 0
    if not fits or value.shape[0] % shape[0]:
        return []
    size = shape[0]
    return [value[at : at + size] for at in range(0, value.shape[0], size)]


def resized(value: NDArray[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    """The same with other sizes: between the two nearest numbers, or the nearer one of integers."""
    import numpy

    if value.ndim != len(shape):
        raise ValueError(f"the changed model takes {len(shape)} axes in place of {value.ndim}")
    for axis, (old, new) in enumerate(zip(value.shape, shape, strict=True)):
        if old == new:
            continue
        places = numpy.clip((numpy.arange(new) + 0.5) * old / new - 0.5, 0, old - 1)
        low = numpy.floor(places).astype(int)
        high = numpy.minimum(low + 1, old - 1)
        if value.dtype.kind != "f":
            value = value.take(numpy.rint(places).astype(int), axis)
            continue
        part = (places - low).reshape([-1 if at == axis else 1 for at in range(value.ndim)])
        mixed = value.take(low, axis) * (1 - part) + value.take(high, axis) * part
        value = mixed.astype(value.dtype)
    return value


def stored(value: NDArray[Any], kind: str, scale: Scale | None) -> NDArray[Any]:
    """Numbers in another element type, as ONNX quantizes them where there is a scale."""
    import numpy

    if value.dtype.name == kind:
        return numpy.ascontiguousarray(value)
    wanted = numpy.dtype(kind)
    if wanted.kind in "iu" and value.dtype.kind == "f":
        if scale is None:
            raise ValueError(f"nothing says what integers of {kind} stand for")
        limits = numpy.iinfo(wanted)
        steps = numpy.rint(value / numpy.float32(scale[0])) + scale[1]
        value = numpy.clip(steps, limits.min, limits.max)
    return numpy.ascontiguousarray(value.astype(wanted))


def _restored(value: NDArray[Any], like: NDArray[Any], scale: Scale | None) -> NDArray[Any]:
    import numpy

    if value.dtype == like.dtype:
        return value
    if value.dtype.kind in "iu" and like.dtype.kind == "f" and scale is not None:
        return ((value.astype(numpy.int64) - scale[1]) * numpy.float32(scale[0])).astype(like.dtype)
    return value.astype(like.dtype)
