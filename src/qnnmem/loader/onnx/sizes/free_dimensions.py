"""The open sizes and the switches of a model, and the numbers to try for each."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from qnnmem.loader.onnx.graph import AnyGraph, OnnxGraph, attribute, bodies, integer, is_op, reads
from qnnmem.loader.onnx.inputs import dims_of, free_axes
from qnnmem.text import plain_or_quoted, quote

if TYPE_CHECKING:
    import onnx

_BOOL = 9
_INTEGERS = (2, 3, 4, 5, 6, 7, 12, 13)
_COMPARES = ("Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual")
# Usual lengths: tokens, frames, windows of audio at 16 kHz.
_LENGTHS = (128, 64, 256, 512, 576, 32, 1024, 16, 1536, 16000, 80, 8, 4096, 32000, 48000, 100)
_SIDES = (224, 48, 32, 320, 640, 256, 512, 64, 128, 112, 96)
_CHANNELS = (3, 1, 4, 64, 80, 128)
_ONES = (1, 2, 4, 8, 64)
_SAMPLES = (16000, 512, 1536, 1024, 4096, 32000, 48000, 8000, 480, 160, 128)
# Lengths of audio windows at _RATE, if an input states the sample rate: 32 ms first.
_WINDOWS = (512, 1536, 1024, 480, 320, 160, 16000, 4096, 32000, 256, 128)
_RATE = 16000
_RATES = frozenset({8000, 11025, 12000, _RATE, 22050, 24000, 32000, 44100, 48000})
# One second of audio is a better guess than a few samples, which front ends discard.
_SOUND = ("audio", "wave", "waveform", "waveforms", "speech", "pcm", "wav")
_NAMED = {
    **dict.fromkeys(("height", "width", "h", "w", "rows", "cols"), _SIDES),
    **dict.fromkeys(("seq", "sequence", "len", "length", "tokens", "time", "t"), _LENGTHS),
    **dict.fromkeys(("samples", *_SOUND), _SAMPLES),
    **dict.fromkeys(("channel", "channels", "c"), _CHANNELS),
}


@dataclass(frozen=True, slots=True)
class OpenSize:
    """An open size: a named dimension, or one axis of an input."""

    dim: str  # empty if the axis has no name
    input: str
    axis: int
    candidates: tuple[int, ...]  # sizes to try, the best first
    rate: str = ""  # input with the sample rate, if the size is a duration that scales with it

    def at_rate(self, rate: int) -> OpenSize:
        """Return a copy of this size with the candidates for a sample rate."""
        sizes = tuple(size * rate // _RATE for size in self.candidates)
        return replace(self, candidates=sizes)

    @property
    def words(self) -> str:
        """The size's name, worded for a sentence."""
        name = plain_or_quoted(self.dim, 40) if self.dim else f"dimension {self.axis}"
        return f"{name} of input {quote(self.input)}"


@dataclass(frozen=True, slots=True)
class Switch:
    """An input of one element that selects the branch of an If."""

    input: str
    candidates: tuple[int, ...]  # values to try, the best first
    is_bool: bool

    @property
    def is_rate(self) -> bool:
        """True if the switch selects a sample rate."""
        return _RATES.issuperset(self.candidates)

    def value(self, number: int) -> bool | int:
        """Return a number as a value of the input's type: bool or int."""
        return bool(number) if self.is_bool else number


@dataclass(frozen=True, slots=True)
class OpenInputs:
    """All open sizes and switches of a model, and its inputs as declared in the file."""

    inputs: tuple[onnx.ValueInfoProto, ...]
    sizes: tuple[OpenSize, ...]
    switches: tuple[Switch, ...]


def find_open_inputs(graph: OnnxGraph) -> OpenInputs:
    """Return the open sizes and switches of the file, ignoring the caller's settings."""
    hints = dict(_hints(graph))
    sizes: dict[object, OpenSize] = {}
    for item in graph.input:
        dims = dims_of(item)
        for axis in free_axes(item):
            if axis < 0:
                sizes[item.name] = OpenSize("", item.name, -1, _ONES)
                continue
            name = dims[axis].dim_param
            own = OpenSize(name, item.name, axis, _candidates(item, axis, hints))
            sizes.setdefault(name or (item.name, axis), own)
    switches = tuple(_switches(graph))
    rate = next((switch.input for switch in switches if switch.is_rate), "")
    scaled = (_with_rate(size, rate) if rate else size for size in sizes.values())
    return OpenInputs(graph.input, tuple(scaled), switches)


def _with_rate(size: OpenSize, rate: str) -> OpenSize:
    """Return a length in samples as a size that scales with `rate`; keep other sizes."""
    windows = {_LENGTHS: _WINDOWS, _SAMPLES: _SAMPLES}.get(size.candidates)
    return size if windows is None else replace(size, candidates=windows, rate=rate)


def _candidates(
    item: onnx.ValueInfoProto, axis: int, hints: Mapping[tuple[str, int], int]
) -> tuple[int, ...]:
    """Return the sizes to try for an open axis of an input, the best first."""
    dims = dims_of(item)
    rank, name = len(dims), dims[axis].dim_param.lower()
    hint = hints.get((item.name, axis))
    first = () if hint is None else (hint,)
    # A recurrent layer's state has shape layers x batch x width.
    inner = rank == 3 and axis == 1 and all(d.dim_value > 0 for d in (dims[0], dims[2]))
    if "batch" in name:
        return (*first, *_ONES)
    if named := _named(name):  # the name is more specific than the position
        plain = named is _CHANNELS and rank == 3 and axis == 1  # channels of audio, not of an image
        small = named is _SIDES and rank > 4  # a video takes long to run
        return (*first, *((1,) if plain else (64,) if small else ()), *named)
    if (axis == 0 and rank > 1) or (inner and not name):
        return (*first, *_ONES)
    if rank < 3 and name and _is_sound(item):
        return (*first, *_SAMPLES)
    if axis == 0:
        return (*first, *_ONES)
    if rank == 4:
        channels_last = dims[3].dim_value in (1, 3, 4)
        return (*first, *(_CHANNELS if axis == 1 and not channels_last else _SIDES))
    return (*first, *_LENGTHS)


def _named(name: str) -> tuple[int, ...]:
    """Return the usual sizes for the last known word of a name; empty if no word is known."""
    words = re.findall(r"[a-z]+", name)
    return next((_NAMED[word] for word in reversed(words) if word in _NAMED), ())


def _is_sound(item: onnx.ValueInfoProto) -> bool:
    words = re.findall(r"[a-z]+", item.name.lower())
    is_float = item.type.tensor_type.elem_type not in (_BOOL, *_INTEGERS)
    return is_float and any(word in _SOUND for word in words)


def _hints(graph: OnnxGraph) -> Iterator[tuple[tuple[str, int], int]]:
    """Yield sizes of input axes, derived from the weights of the first op that reads the input."""
    stored = {item.name: tuple(item.dims) for item in graph.initializer}
    # For each input, and each transposed or renamed input: the input axis behind each of its axes.
    axes = {
        item.name: [(item.name, axis) for axis in range(len(dims_of(item)))] for item in graph.input
    }
    for node in graph.node:
        source = axes.get(node.input[0]) if node.input else None
        if source is None:
            continue
        if is_op(node, "Identity", "Cast"):
            axes[node.output[0]] = source
        elif is_op(node, "Transpose"):
            order = attribute(node, "perm")
            perm = list(order.ints) if order is not None else list(range(len(source)))[::-1]
            if sorted(perm) == list(range(len(source))):
                axes[node.output[0]] = [source[axis] for axis in perm]
        elif len(node.input) > 1 and source and (weight := stored.get(node.input[1])):
            yield from _hint(node, source, weight)


def _hint(
    node: onnx.NodeProto, source: Sequence[tuple[str, int]], weight: tuple[int, ...]
) -> Iterator[tuple[tuple[str, int], int]]:
    if is_op(node, "Conv") and len(source) == len(weight) > 1:
        yield source[1], weight[1] * integer(node, "group", 1)
    elif is_op(node, "MatMul") and len(weight) == 2:
        yield source[-1], weight[0]
    elif is_op(node, "Gemm") and len(weight) == 2 and not integer(node, "transA", 0):
        yield source[-1], weight[1 if integer(node, "transB", 0) else 0]
    elif is_op(node, "LSTM", "GRU", "RNN") and len(weight) == 3:
        yield source[-1], weight[2]


def _switches(graph: OnnxGraph) -> Iterator[Switch]:
    for item in graph.input:
        elem = item.type.tensor_type.elem_type
        if any(dim.dim_value > 1 for dim in dims_of(item)) or elem not in (_BOOL, *_INTEGERS):
            continue
        numbers: dict[int, None] = {}
        if _steers(graph, {item.name}, {}, numbers):
            usual = {0: None, 1: None} if elem == _BOOL or not numbers else {}
            others = {number // 2 if number > 1 else number + 1: None for number in numbers}
            yield Switch(item.name, tuple(numbers | usual | others), elem == _BOOL)


def _steers(
    graph: AnyGraph, reached: set[str], known: dict[str, int], numbers: dict[int, None]
) -> bool:
    """Return whether the condition of an If depends on the names in `reached`.

    Tensors computed from these names are added to `reached`, and constants that such tensors are
    compared with are added to `numbers`.
    """
    known = known | dict(_constants(graph))
    steers = False
    for node in graph.node:
        inner = list(bodies(node))
        steers = steers or (is_op(node, "If") and node.input[0] in reached)
        for body in inner:
            steers = _steers(body, set(reached), known, numbers) or steers
        if inner or reached.isdisjoint(reads(node)):
            continue
        reached.update(node.output)
        if is_op(node, *_COMPARES):
            numbers.update((known[name], None) for name in node.input if name in known)
    return steers


def _constants(graph: AnyGraph) -> Iterator[tuple[str, int]]:
    from onnx import numpy_helper

    tensors = [(item.name, item) for item in graph.initializer]
    for node in graph.node:
        value = attribute(node, "value") if is_op(node, "Constant") else None
        number = attribute(node, "value_int") if is_op(node, "Constant") else None
        if value is not None:
            tensors.append((node.output[0], value.t))
        if number is not None:
            yield node.output[0], number.i
    for name, tensor in tensors:
        single = all(size == 1 for size in tensor.dims) and not tensor.data_location
        if single and tensor.data_type in (_BOOL, *_INTEGERS):
            yield name, int(numpy_helper.to_array(tensor).reshape(-1)[0])
