"""A DLC as graphs of QNN: asks the child that reads it, and checks what it says."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, BinaryIO

from qnnmem.bounded_file import regular_size
from qnnmem.child import MEMORY_LIMIT, ChildProcess, Frame
from qnnmem.errors import CannotTell, LoadError
from qnnmem.installation import command_for
from qnnmem.qnn.enums import DataType, TensorType
from qnnmem.qnn.graph import ComposedGraph, ComposedOp, ComposedTensor, Quantization
from qnnmem.qnn.package import PACKAGE, package_folder
from qnnmem.text import printable, shorten

_TIME_LIMIT_S = 60.0
_MALFORMED = 30010
_LAST_BYTES = 1 << 14
_THROWN = re.compile(r"terminating with uncaught exception of type [^:\n]*(?:::[^:\n]*)*: (.+)")


def compose(
    path: Path, *, with_data: bool = False, time_limit_s: float = _TIME_LIMIT_S
) -> tuple[ComposedGraph, ...]:
    """Graphs of a DLC in the order of the file; `with_data` brings the bytes of constants."""
    regular_size(path)
    folder = package_folder(["libQnnSystem.so"])
    if folder is None:
        cure = f"{command_for('htp')} installs it on Linux"
        raise CannotTell(
            f"a DLC is read with libQnnSystem of {PACKAGE}, which is not here",
            where=path,
            cure=cure,
        )
    request = {
        "verb": "compose",
        "library": str(folder),
        "path": str(path.resolve()),
        "with_data": with_data,
    }
    with (
        TemporaryFile() as words,
        ChildProcess("qnnmem.load.dlc.program", time_limit_s, errors=words) as child,
    ):
        frame = child.ask(request, most=MEMORY_LIMIT)
        if frame is None:
            raise LoadError(path, _silence(child, words))
    graphs = _graphs(path, frame)
    if not graphs:
        raise LoadError(path, "holds no graph")
    return graphs


def _silence(child: ChildProcess, words: BinaryIO) -> str:
    """Why no answer came; a reader that gives up says so before it aborts."""
    if child.expired:
        return f"the vendor's reader took longer than {child.time_limit_s:g} s"
    words.seek(max(0, words.seek(0, os.SEEK_END) - _LAST_BYTES))
    found = _THROWN.findall(words.read().decode("utf-8", "replace"))
    if found:
        return f"the vendor's reader gave up on it: {shorten(printable(found[-1].strip()), 300)}"
    return "the vendor's reader crashed on it, as it does on damaged files"


def _graphs(path: Path, frame: Frame) -> tuple[ComposedGraph, ...]:
    header, data = frame
    if "error" in header:
        raise LoadError(path, f"cannot be read: {header['error']}")
    if "refused" in header:
        raise LoadError(path, _refusal(header))
    shared = header["shared"]
    try:
        return tuple(_graph(one, shared, data) for one in header["graphs"])
    except ValueError as exc:
        raise LoadError(path, f"cannot be read: {exc}") from exc


def _refusal(header: Mapping[str, Any]) -> str:
    if header["refused"] == _MALFORMED:
        return "the vendor's reader calls it malformed"
    why = f" ({header['why']})" if header.get("why") else ""
    return f"the vendor's reader answers {header['call']} with code {header['refused']}{why}"


def _graph(found: Mapping[str, Any], shared: list[Mapping[str, Any]], data: bytes) -> ComposedGraph:
    tensors = tuple(_tensor(one, data) for one in (*shared, *found["tensors"]))
    return ComposedGraph(found["name"], tensors, tuple(_op(one, data) for one in found["ops"]))


def _op(found: Mapping[str, Any], data: bytes) -> ComposedOp:
    return ComposedOp(
        found["name"],
        found["package"],
        found["type"],
        tuple(found["inputs"]),
        tuple(found["outputs"]),
        dict(found["scalars"]),
        {name: _tensor(one, data) for name, one in found["arrays"].items()},
    )


def _tensor(found: Mapping[str, Any], data: bytes) -> ComposedTensor:
    quant = found["quantization"]
    size, place = found.get("stored", 0), found.get("place")
    return ComposedTensor(
        found["id"],
        found["name"],
        TensorType(found["type"]),
        DataType(found["data_type"]),
        tuple(found["dimensions"]),
        None if quant is None else _quantization(quant),
        size,
        None if place is None else data[place : place + size],
    )


def _quantization(found: Mapping[str, Any]) -> Quantization:
    return Quantization(
        found["encoding"],
        tuple(found.get("scales", ())),
        tuple(found.get("offsets", ())),
        found.get("axis"),
        found.get("bits"),
    )
