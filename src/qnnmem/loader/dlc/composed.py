"""A DLC as graphs of QNN: asks the child that reads it, and checks what it says."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, BinaryIO

from qnnmem.bounded_file import regular_size
from qnnmem.child import MEMORY_LIMIT, ChildProcess, Frame
from qnnmem.errors import CannotTell, LoadError
from qnnmem.installation import command_for
from qnnmem.loader.dlc.last_words import said_before_end
from qnnmem.qnn.enums import DataType, TensorType
from qnnmem.qnn.graph import ComposedGraph, ComposedOp, ComposedTensor, Quantization
from qnnmem.qnn.package import PACKAGE, package_folder
from qnnmem.text import MAX_NAME, quote, shorten
from qnnmem.units import MAX_RANK

_TIME_LIMIT_S = 60.0
_OPENING = "systemDlcCreateFromFile"
_LAST_BYTES = 1 << 14
_MOST = 1 << 64  # of a number in an answer
_NAMED = 5  # graphs that a sentence names


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
    return _asked(path, request, time_limit_s)


def compose_trusted(
    path: Path, *, time_limit_s: float = _TIME_LIMIT_S
) -> tuple[ComposedGraph, ...]:
    """Graphs of a model library of the vendor's tools: it is native code, which is executed."""
    regular_size(path)
    request = {"verb": "compose_trusted", "path": str(path.resolve())}
    return _asked(path, request, time_limit_s, trusted=True)


def _asked(
    path: Path, request: Mapping[str, Any], time_limit_s: float, *, trusted: bool = False
) -> tuple[ComposedGraph, ...]:
    with (
        TemporaryFile() as words,
        ChildProcess("qnnmem.loader.dlc.program", time_limit_s, errors=words) as child,
    ):
        frame = child.ask(request, most=MEMORY_LIMIT)
        if frame is None:
            raise LoadError(path, _silence(child, words, trusted=trusted))
    graphs = _graphs(path, frame)
    if not graphs:
        raise LoadError(path, "holds no graph")
    return graphs


def named_graph(path: Path, graphs: Sequence[ComposedGraph], name: str) -> ComposedGraph:
    """The graph with a name; LoadError lists those there are."""
    for graph in graphs:
        if graph.name == name:
            return graph
    known = ", ".join(f"'{shorten(graph.name, MAX_NAME)}'" for graph in graphs[:_NAMED])
    more = ", …" if len(graphs) > _NAMED else ""
    raise LoadError(path, f"has no graph {quote(name)}; graphs are {known}{more}")


def _silence(child: ChildProcess, words: BinaryIO, *, trusted: bool) -> str:
    """Why no answer came; a reader that gives up says so before it aborts."""
    if child.expired:
        who = "its code" if trusted else "the vendor's reader"
        return f"{who} took longer than {child.time_limit_s:g} s"
    if trusted:
        return "its code crashed"
    words.seek(max(0, words.seek(0, os.SEEK_END) - _LAST_BYTES))
    return said_before_end(words.read().decode("utf-8", "replace"))


def _graphs(path: Path, frame: Frame) -> tuple[ComposedGraph, ...]:
    header, data = frame
    if "error" in header:
        raise LoadError(path, f"cannot be read: {header['error']}")
    if "refused" in header:
        raise LoadError(path, _refusal(header))
    return as_graphs(path, header, data)


def as_graphs(path: Path, header: Mapping[str, Any], data: bytes) -> tuple[ComposedGraph, ...]:
    """Graphs of what a child has written down; `data` are the bytes of constants, if any."""
    try:
        shared = header["shared"]
        origins = header.get("origins", {})
        return tuple(
            _graph(one, shared, data, origins.get(one["name"], {})) for one in header["graphs"]
        )
    except ValueError as exc:
        raise LoadError(path, f"cannot be read: {exc}") from exc
    # Of a child that runs elsewhere.
    except (AttributeError, IndexError, KeyError, OverflowError, TypeError) as exc:
        raise LoadError(path, "cannot be read: the answer of the child makes no sense") from exc


def _refusal(header: Mapping[str, Any]) -> str:
    """The code says little: the reader answers whatever it does not understand with 1002."""
    if header.get("why"):
        return f"cannot be read: {header['why']}"
    doing = "open it" if header["call"] == _OPENING else "read its graphs"
    return f"is damaged: the vendor's reader cannot {doing} (code {header['refused']})"


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError("no text")
    return value


def _number(value: object) -> int:
    if type(value) is not int or not -_MOST <= value <= _MOST:
        raise TypeError("no number")
    return value


def _numbers(values: object) -> tuple[int, ...]:
    if not isinstance(values, list):
        raise TypeError("no numbers")
    return tuple(map(_number, values))


def _sizes(values: object) -> tuple[int, ...]:
    found = _numbers(values)
    if len(found) > MAX_RANK:
        raise ValueError(f"a tensor has more than {MAX_RANK} dimensions")
    if any(size < 0 for size in found):
        raise TypeError("no sizes")
    return found


def _graph(
    found: Mapping[str, Any],
    shared: list[Mapping[str, Any]],
    data: bytes,
    origins: Mapping[str, Sequence[str]],
) -> ComposedGraph:
    tensors = tuple(_tensor(one, data) for one in (*shared, *found["tensors"]))
    ops = tuple(_op(one, data, origins.get(one["name"], ())) for one in found["ops"])
    return ComposedGraph(_text(found["name"]), tensors, ops)


def _op(found: Mapping[str, Any], data: bytes, origins: Sequence[str]) -> ComposedOp:
    return ComposedOp(
        _text(found["name"]),
        _text(found["package"]),
        _text(found["type"]),
        _numbers(found["inputs"]),
        _numbers(found["outputs"]),
        dict(found["scalars"]),
        {name: _tensor(one, data) for name, one in found["arrays"].items()},
        origins=tuple(map(_text, origins)),
    )


def _tensor(found: Mapping[str, Any], data: bytes) -> ComposedTensor:
    quant = found["quantization"]
    size, place = _number(found.get("stored", 0)), found.get("place")
    return ComposedTensor(
        _number(found["id"]),
        _text(found["name"]),
        TensorType(found["type"]),
        DataType(found["data_type"]),
        _sizes(found["dimensions"]),
        None if quant is None else _quantization(quant),
        size,
        None if place is None else data[place : place + size],
    )


def _quantization(found: Mapping[str, Any]) -> Quantization:
    axis, bits = found.get("axis"), found.get("bits")
    return Quantization(
        _number(found["encoding"]),
        tuple(map(float, found.get("scales", ()))),
        _numbers(found.get("offsets", [])),
        None if axis is None else _number(axis),
        None if bits is None else _number(bits),
    )
