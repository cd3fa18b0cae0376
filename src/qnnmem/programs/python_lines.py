"""Python lines that led to a call, as reported by the observer in a program.

File "app.py", line 12 in load
Model "encoder.onnx"

The second line names the model of an ONNX Runtime session; for a model in memory, the line gives
its address instead. All input is untrusted: malformed lines are dropped.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import PurePath

from qnnmem.programs.process_memory import ProcessMemory, Unreadable
from qnnmem.results.programs import Frame, Stack
from qnnmem.text import shorten

PYTHON = "Python"  # module name of Python frames
_MOST = 64
_FILE = re.compile(r'  File "(?P<file>.+)", line (?P<line>[0-9]{1,9}) in (?P<function>.*)')
_MODEL = re.compile(r'  Model "(?P<file>.+)"')
_BYTES = re.compile(r"  Bytes 0x(?P<address>[0-9a-f]{1,16}) (?P<size>[0-9]{1,18})")
_ESCAPED = re.compile(r"\\(?:x([0-9a-f]{2})|u([0-9a-f]{4})|U(0010[0-9a-f]{4}|000[0-9a-f]{5}))")
LIBRARY = re.compile(r"/lib/python3\.[0-9]+/|/(?:site|dist)-packages/|^<frozen |^<string>$")
_RUNTIME = re.compile(r"[/\\]onnxruntime[/\\]capi[/\\]")
_GRAPH, _NAME = 7, 2  # ONNX field numbers: a model's graph, a graph's name
_MOST_FIELDS = 5_000  # fields of a model skipped while searching its name


@dataclass(frozen=True, slots=True)
class PythonLines:
    """Origin of a call: Python frames, innermost first, and the session's model."""

    frames: Stack = ()
    model: str = ""

    def with_text(self, data: bytes, memory: ProcessMemory) -> PythonLines:
        """Return a copy to which the lines of another message are added."""
        frames, model = list(self.frames), self.model
        for line in data.decode("utf-8", "replace").split("\n"):
            if (found := _FILE.fullmatch(line)) and len(frames) < _MOST:
                name, function = _name(found["file"], 4096), _name(found["function"], 200)
                frames.append(Frame(function, name, int(found["line"]), PYTHON))
            elif found := _MODEL.fullmatch(line):
                model = model or shorten(PurePath(_name(found["file"], 4096)).name, 200)
            elif found := _BYTES.fullmatch(line):
                address = int(found["address"], 16)
                model = model or _graph_name(memory, address, int(found["size"]))
        return PythonLines(tuple(frames), model)


def own_frames(stack: Stack) -> Stack:
    """Return the program's own Python frames, else the Python frames of libraries."""
    python = tuple(frame for frame in stack if frame.module == PYTHON)
    called = tuple(frame for frame in python if not _RUNTIME.search(frame.file))
    return tuple(frame for frame in called if not LIBRARY.search(frame.file)) or called


def _name(text: str, longest: int) -> str:
    """Return a name with the interpreter's escapes decoded."""

    def character(found: re.Match[str]) -> str:
        return chr(int(found[1] or found[2] or found[3], 16))

    plain = _ESCAPED.sub(character, text)[:longest]
    return plain.encode("utf-8", "replace").decode()


def _graph_name(memory: ProcessMemory, address: int, size: int) -> str:
    """Return the name of the graph of an ONNX model in the program's memory; empty if unknown."""
    try:
        graph = _field(memory, address, address + size, _GRAPH)
        name = _field(memory, *graph, _NAME) if graph else None
        if name is None or not 0 < name[1] - name[0] <= 1000:
            return ""
        return shorten(memory.read(name[0], name[1] - name[0]).decode("utf-8", "replace"), 200)
    except Unreadable:
        return ""


def _field(memory: ProcessMemory, at: int, end: int, wanted: int) -> tuple[int, int] | None:
    """Return start and end of a length-delimited field of a protobuf message."""
    for _ in range(_MOST_FIELDS):
        if at >= end:
            return None
        head = memory.read(at, min(22, end - at))
        key, used = _number(head, 0)
        value, then = _number(head, used)
        kind = key & 7
        if kind == 2:
            if key >> 3 == wanted:
                return at + then, min(end, at + then + value)
            then += value
        elif kind in (1, 5):
            then = used + (8 if kind == 1 else 4)
        elif kind != 0:
            return None
        at += max(then, 1)
    return None


def _number(data: bytes, at: int) -> tuple[int, int]:
    """Return a varint and the position after it."""
    value = 0
    for number, byte in enumerate(data[at : at + 10]):
        value |= (byte & 0x7F) << (7 * number)
        if byte < 0x80:
            return value, at + number + 1
    return value, len(data)
