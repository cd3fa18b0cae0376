"""Load TFLite flatbuffers (`.tflite`)."""

from __future__ import annotations

import mmap
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from qnnmem.bounded_file import read_bytes, regular_size
from qnnmem.errors import Damaged, LoadError, Setting, UsageError, Words
from qnnmem.ir import Model
from qnnmem.loader.model_checks import check_model
from qnnmem.loader.onnx.draft import NotTranslated
from qnnmem.loader.tflite.file import TfliteFile, shape_pattern
from qnnmem.loader.tflite.raw_graph import RawGraph, RawTensor, decode
from qnnmem.loader.tflite.shapes import written
from qnnmem.loader.tflite.subgraph import read_graph
from qnnmem.text import quote

if TYPE_CHECKING:
    import onnx

IDENTIFIER = b"TFL3"  # at byte 4
# Offsets in a flatbuffer have 32 bits; weights after the flatbuffer may be larger.
_MAX_FILE = 1 << 36
_MAX_EXECUTABLE = 2 << 30  # a program with its constants is an ONNX file


def read(
    path: Path,
    *,
    shapes: Mapping[str, Sequence[int]],
    dims: Mapping[str, int] | None = None,
) -> Model:
    """Return the main graph of a TFLite file; `shapes` sets the open sizes of inputs."""
    return _read(path, decode_file(path), shapes, dims)[1]


def read_with_graph(
    path: Path,
    *,
    shapes: Mapping[str, Sequence[int]],
    dims: Mapping[str, int] | None = None,
    reals: bool = False,
) -> tuple[Model, onnx.ModelProto | None, tuple[tuple[str, str], ...]]:
    """Return the model, the ONNX nodes that compute the model, and the states as pairs of names.

    The nodes are None if an operator has no translation; a note in the model names the operator.
    With `reals`, the nodes compute with real numbers between DequantizeLinear and QuantizeLinear.
    This is the usual form of a quantized ONNX model, which `fix` can change.
    """
    from qnnmem.loader.tflite.operators import translate

    content = read_bytes(path, _MAX_EXECUTABLE)
    file, model = _read(path, _decode(path, content, whole=True), shapes, dims)
    try:
        return translate(file, model, reals=reals)
    except Damaged as exc:
        raise LoadError(path, str(exc), cure=model.assumed) from exc
    except NotTranslated as exc:
        note = f"layout only, without a program, because {exc}; the graph cannot be executed"
        return replace(model, notes=(*model.notes, note)), None, ()


def _read(
    path: Path,
    graphs: tuple[RawGraph, ...],
    shapes: Mapping[str, Sequence[int]],
    dims: Mapping[str, int] | None,
) -> tuple[TfliteFile, Model]:
    if not graphs:
        raise LoadError(path, "contains no graph")
    open_inputs = _open_inputs(path, graphs[0])
    if dims:
        raise _no_names(path, open_inputs)
    changed = _given(path, graphs[0], shapes)
    left = [tensor.name for tensor in open_inputs if tensor.name not in shapes]
    if changed and left:
        raise UsageError(
            f"input {quote(left[0])} has no fixed size either; set its shape too", where=path
        )
    file = TfliteFile(path, graphs, changed, open_inputs)
    try:
        model = read_graph(file)
    except RecursionError as exc:
        raise LoadError(path, "contains graphs that call each other too deeply") from exc
    check_model(path, model)
    return file, model


def decode_file(path: Path) -> tuple[RawGraph, ...]:
    """Return the graphs of a TFLite file; the first is the main graph."""
    if regular_size(path) > _MAX_FILE:
        raise LoadError(path, "is too large for a TFLite file")
    try:
        with path.open("rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            with memoryview(mapped) as content:
                return _decode(path, content)
    except (OSError, ValueError, BufferError) as exc:
        raise LoadError(path, "cannot be read") from exc


def _decode(
    path: Path, content: bytes | memoryview, *, whole: bool = False
) -> tuple[RawGraph, ...]:
    if bytes(content[4:8]) != IDENTIFIER:
        raise LoadError(path, "is not a TFLite file: 'TFL3' is missing at byte 4")
    return decode(path, content, whole=whole)


def _open_inputs(path: Path, graph: RawGraph) -> tuple[RawTensor, ...]:
    if any(not 0 <= index < len(graph.tensors) for index in graph.inputs):
        raise LoadError(path, "has a graph input that is not a tensor of the graph")
    inputs = (graph.tensors[index] for index in graph.inputs)
    return tuple(tensor for tensor in inputs if -1 in tensor.signature)


def _no_names(path: Path, open_inputs: tuple[RawTensor, ...]) -> UsageError:
    cure: Words = "this model has no open sizes"
    if open_inputs:
        cure = ("set the shape of an input with ", Setting("shapes", shape_pattern(open_inputs[0])))
    no_names = "the dimensions of a TFLite model have no names; "
    return UsageError((no_names, Setting("dims"), " is for ONNX models"), where=path, cure=cure)


def _given(
    path: Path, graph: RawGraph, shapes: Mapping[str, Sequence[int]]
) -> dict[int, tuple[int, ...]]:
    """Return the given shapes that differ from the stored shapes, by tensor index."""
    indexes = {graph.tensors[index].name: index for index in graph.inputs}
    changed = {}
    for name, sizes in shapes.items():
        if name not in indexes:
            inputs = ", ".join(map(quote, [*indexes][:8]))
            raise UsageError(
                f"the model has no input {quote(name)}; its inputs are {inputs}", where=path
            )
        tensor, shape = graph.tensors[indexes[name]], tuple(sizes)
        if shape == tensor.shape:
            continue
        if not _may_change(tensor, shape):
            raise UsageError(_refusal(tensor), where=path)
        changed[indexes[name]] = shape
    return changed


def _may_change(tensor: RawTensor, wanted: tuple[int, ...]) -> bool:
    return len(wanted) == len(tensor.signature) and all(
        size >= 1 if kept == -1 else size == kept
        for size, kept in zip(wanted, tensor.signature, strict=True)
    )


def _refusal(tensor: RawTensor) -> str:
    rule = "all its sizes are fixed"
    if -1 in tensor.signature:
        rule = f"only its open sizes ({written(tensor.signature)}) can be set"
    return (
        f"input {quote(tensor.name)} is {written(tensor.shape)} in the TFLite file; "
        f"{rule}; convert the model again for other sizes"
    )
