"""TFLite flatbuffers (`.tflite`) into the model of `qnnmem.ir`."""

from __future__ import annotations

import mmap
from collections.abc import Mapping, Sequence
from pathlib import Path

from qnnmem.bounded_file import regular_size
from qnnmem.errors import LoadError, UsageError
from qnnmem.ir import Model
from qnnmem.load.tflite.file import TfliteFile
from qnnmem.load.tflite.graph import read_graph
from qnnmem.load.tflite.schema import RawGraph, RawTensor, decode
from qnnmem.load.total import check_total
from qnnmem.text import quote

IDENTIFIER = b"TFL3"  # at byte 4
# Offsets in a flatbuffer have 32 bits; weights kept behind it may be larger.
_MAX_FILE = 1 << 36


def read(path: Path, *, shapes: Mapping[str, Sequence[int]]) -> Model:
    """Read the main graph of a TFLite file; `shapes` may change the batch of inputs left open."""
    graphs = _decode(path)
    if not graphs:
        raise LoadError(path, "holds no graph")
    file = TfliteFile(path, graphs, _batch(path, graphs, shapes), _open_inputs(path, graphs[0]))
    try:
        model = read_graph(file)
    except RecursionError as exc:
        raise LoadError(path, "its graphs call each other too deeply") from exc
    check_total(path, model.tensors.values())
    return model


def _decode(path: Path) -> tuple[RawGraph, ...]:
    if regular_size(path) > _MAX_FILE:
        raise LoadError(path, "is too large for a TFLite file")
    try:
        with path.open("rb") as file, memoryview(_mapped(file.fileno())) as content:
            if bytes(content[4:8]) != IDENTIFIER:
                raise LoadError(path, "is not a TFLite file: 'TFL3' is missing at byte 4")
            return decode(path, content)
    except (OSError, ValueError, BufferError) as exc:
        raise LoadError(path, "cannot be read") from exc


def _mapped(descriptor: int) -> mmap.mmap:
    return mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)


def _open_inputs(path: Path, graph: RawGraph) -> tuple[RawTensor, ...]:
    if any(not 0 <= index < len(graph.tensors) for index in graph.inputs):
        raise LoadError(path, "names an input that is not a tensor of its graph")
    inputs = (graph.tensors[index] for index in graph.inputs)
    return tuple(tensor for tensor in inputs if -1 in tensor.signature)


def _batch(
    path: Path, graphs: tuple[RawGraph, ...], shapes: Mapping[str, Sequence[int]]
) -> tuple[int, int]:
    """Wanted and stored batch size; (1, 1) when nothing changes."""
    changes = {
        change
        for name, shape in shapes.items()
        if (change := _change(_input(path, graphs[0], name), tuple(shape))) is not None
    }
    if not changes:
        return (1, 1)
    unnamed = [t.name for t in _open_inputs(path, graphs[0]) if t.name not in shapes]
    if len(changes) > 1 or unnamed:
        raise UsageError("the inputs of this TFLite model must all get the same batch size")
    if any(-1 in t.signature[1:] for graph in graphs for t in graph.tensors):
        raise UsageError(
            "only the batch of a TFLite model can be changed, and this one leaves more than the"
            " batch open; convert it again with the shapes wanted"
        )
    return changes.pop()


def _input(path: Path, graph: RawGraph, name: str) -> RawTensor:
    _open_inputs(path, graph)
    inputs = {graph.tensors[index].name: graph.tensors[index] for index in graph.inputs}
    if name not in inputs:
        known = ", ".join(quote(known) for known in list(inputs)[:8])
        raise UsageError(f"the model has no input {quote(name)}; its inputs are {known}")
    return inputs[name]


def _change(tensor: RawTensor, wanted: tuple[int, ...]) -> tuple[int, int] | None:
    """Find what a wanted shape asks of the batch; None when it is the stored shape."""
    if wanted == tensor.shape:
        return None
    same_rest = len(wanted) == len(tensor.shape) and wanted[1:] == tensor.shape[1:]
    if not same_rest or tensor.signature[:1] != (-1,) or wanted[0] < 1 or tensor.shape[0] < 1:
        stored = "x".join(map(str, tensor.shape)) or "a scalar"
        raise UsageError(
            f"input {quote(tensor.name)} is {stored} in the TFLite file; only a batch left open"
            " there can be changed, otherwise convert the model again"
        )
    return wanted[0], tensor.shape[0]
