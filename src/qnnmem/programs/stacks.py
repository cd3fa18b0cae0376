"""Convert return addresses of the client to file and line.

`/proc/PID/maps` gives the file of an address; `addr2line` gives the line from the file's debug
information. Without debug information, the result has function and offset.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path, PurePath
from threading import Lock
from time import monotonic

from msgspec.structs import replace

from qnnmem.bounded_file import read_bytes, read_head
from qnnmem.caller import Trace as Trace
from qnnmem.errors import LoadError
from qnnmem.programs.process_memory import Mapping, ProcessMemory
from qnnmem.programs.python_lines import LIBRARY, PYTHON, own_frames
from qnnmem.results.programs import Frame, Stack
from qnnmem.text import shorten

_SECONDS = 20  # seconds for one run of a tool
_MOST_SECONDS = 60.0  # seconds for all runs: a program may have any number of frames
_MOST_KNOWN = 20_000
_FILE_LINE = re.compile(r"^(?P<file>.+?):(?P<line>\d+)(?: \(discriminator \d+\))?$")
_LONGEST = 120  # characters of a source line
_LONGEST_NAME = 4096  # characters of a file name
_LARGEST_SOURCE = 16 << 20  # bytes of a source file
_NEAR = 128  # bytes before a call
_SYSTEM = ("/lib/", "/lib64/", "/usr/lib/", "/usr/lib64/")  # not the user's code

_INTERPRETER = re.compile(
    r"(?:lib)?python3?[0-9.]*(?:\.so.*)?$|_ctypes\.|libffi\.|libc\.so|_start$"
)
_RUNTIME = re.compile(r"libonnxruntime|onnxruntime_pybind11|libQnn")
_HEADERS = ("/usr/include/", "/usr/lib/", "/rustc/")  # the last is Rust's


class Symbols:
    """Symbolizer of one run; every address is looked up only once."""

    def __init__(self, hidden: str) -> None:
        self._hidden = hidden  # folder of the shim, whose frames are hidden
        self._known: dict[tuple[str, int], Stack] = {}
        self._lock = Lock()
        self._left_s = _MOST_SECONDS
        self._end = 0.0  # deadline of the current lookup
        # GNU addr2line loses file names after link-time optimization, and names of headers with
        # DWARF 5.
        self._llvm = shutil.which("llvm-addr2line")
        self._tool = self._llvm or shutil.which("addr2line")
        self._rows: dict[str, list[list[str]]] = {}  # of line tables, by module

    @property
    def has_tool(self) -> bool:
        """True if a tool to look up lines is installed."""
        return self._tool is not None

    def trace(self, memory: ProcessMemory, addresses: Iterable[int]) -> Trace:
        """Return the file and offset of each address; call this while the program is alive."""
        maps = memory.mappings()
        places: list[tuple[str, int]] = []
        for at in addresses:
            mapping = next((m for m in maps if m.start <= at < m.end), None)
            if mapping is not None and mapping.path and not self._is_hidden(mapping.path):
                # The stack holds return addresses; the call is just before each.
                places.append((mapping.path, _in_file(maps, mapping, at - 1)))
        return tuple(places)

    def stack(self, trace: Trace) -> Stack:
        """Return the frames of the program, innermost first; may run addr2line."""
        with self._lock:
            began = monotonic()
            self._end = began + self._left_s
            self._look_up(trace)
            self._left_s -= monotonic() - began
            return tuple(frame for one in trace for frame in self._known.get(one, ()))

    def _is_hidden(self, path: str) -> bool:
        return path.startswith(self._hidden) or path.startswith("[")

    def _look_up(self, wanted: Sequence[tuple[str, int]]) -> None:
        if len(self._known) > _MOST_KNOWN:
            self._known.clear()
        missing: dict[str, list[int]] = {}
        for path, offset in wanted:
            if (path, offset) not in self._known:
                missing.setdefault(path, []).append(offset)
        for path, offsets in missing.items():
            for offset, frames in zip(offsets, self._ask(path, offsets), strict=True):
                is_late = monotonic() >= self._end
                self._known[path, offset] = frames if is_late else tuple(map(with_source, frames))

    def _ask(self, path: str, offsets: list[int]) -> list[Stack]:
        bare: list[Stack] = [(_bare(path, offset),) for offset in offsets]
        if self._tool is None or path.startswith(_SYSTEM) or not Path(path).is_file():
            return bare
        answer = self._run(self._tool, path, offsets)
        if self._llvm is None:
            answer = [tuple(map(self._real_file, stack)) for stack in answer]
        if len(answer) != len(offsets):
            return bare
        return [
            stack if any(frame.line for frame in stack[:1]) else self._nearby(path, offset, stack)
            for stack, offset in zip(answer, offsets, strict=True)
        ]

    def _nearby(self, path: str, offset: int, stack: Stack) -> Stack:
        """Return the stack of the nearest earlier code that has a source line; `stack` if none has.

        A call that the compiler merged with other calls has no line. With clang, the code for the
        call's arguments has no line either. The code before the call belongs to the same function,
        or to the place that called the function.
        """
        steps = range(offset - 1, max(0, offset - _NEAR), -1)
        before = self._run(str(self._tool), path, list(steps))
        return next((one for one in before if one and one[0].line), stack)

    def _run(self, tool: str, path: str, offsets: list[int]) -> list[Stack]:
        command = [tool, "-a", "-f", "-C", "-i", "-e", path, *map(hex, offsets)]
        text = self._output(command)
        return [
            tuple(_frame(f, where, path, offset) for f, where in group) or (_bare(path, offset),)
            for group, offset in zip(_groups(text.splitlines()), offsets, strict=False)
        ]

    def _output(self, command: list[str]) -> str:
        """Run a tool and return its output; empty if the time has run out."""
        left = self._end - monotonic()
        if left <= 0:
            return ""
        try:
            done = subprocess.run(  # noqa: S603  # reads the program that runs anyway
                command, capture_output=True, timeout=min(_SECONDS, left), check=False
            )
        except (OSError, subprocess.TimeoutExpired):
            return ""
        return done.stdout.decode("utf-8", "replace")

    def _real_file(self, frame: Frame) -> Frame:
        """Return the frame with the file name from the line table; the folder stays the same."""
        tool = shutil.which("readelf")
        if tool is None or not frame.line:
            return frame
        if frame.module not in self._rows:
            text = self._output([tool, "-wL", frame.module])
            rows = (row.split() for row in text.splitlines())
            self._rows[frame.module] = [r for r in rows if r[2:] and r[2].startswith("0x")]
        known = PurePath(frame.file)
        at = [r for r in self._rows[frame.module] if r[1] == str(frame.line)]
        before = [(int(r[2], 16), r[0]) for r in at if int(r[2], 16) <= frame.offset]
        name = max(before, default=(0, known.name))[1]
        return frame if name == known.name else replace(frame, file=str(known.with_name(name)))


def _groups(lines: list[str]) -> list[list[tuple[str, str]]]:
    """Return the pairs of function and place that `addr2line` printed for each address."""
    groups: list[list[str]] = []
    for line in lines:
        if re.fullmatch(r"0x[0-9a-f]+", line):
            groups.append([])
        elif groups:
            groups[-1].append(line)
    return [list(zip(group[::2], group[1::2], strict=False)) for group in groups]


def _bare(module: str, offset: int) -> Frame:
    return Frame(module=module[:_LONGEST_NAME], offset=offset)


def _frame(function: str, where: str, module: str, offset: int) -> Frame:
    found = _FILE_LINE.match(where)
    # PyInit_ may be a module's only export: then every address seems to be inside it.
    is_known = function != "??" and not function.startswith("PyInit_")
    name = function[:200] if is_known else ""
    module = module[:_LONGEST_NAME]
    if found is None or found["file"].startswith("??") or len(found["line"]) > 9:
        return Frame(name, "", 0, module, offset)
    line = int(found["line"])
    return Frame(name, os.path.normpath(found["file"])[:_LONGEST_NAME], line, module, offset)


def with_source(frame: Frame) -> Frame:
    """Return the frame with its source line, if the file is readable."""
    lines = _source_lines(frame.file) if frame.line else ()
    if frame.line > len(lines) or not frame.line:
        return frame
    line = lines[frame.line - 1][: 2 * _LONGEST].decode("utf-8", "replace")
    return replace(frame, source=shorten(line.strip().replace("\t", " "), _LONGEST))


@lru_cache(maxsize=8)
def _source_lines(name: str) -> tuple[bytes, ...]:
    """Return the lines of a regular file of limited size: debug information may name any file."""
    try:
        return tuple(read_bytes(Path(name), _LARGEST_SOURCE).split(b"\n"))
    except LoadError:
        return ()


def _in_file(maps: list[Mapping], mapping: Mapping, address: int) -> int:
    """Return the address within the file, as `addr2line` expects it."""
    if not _is_movable(mapping.path):
        return address
    first = next((m.start for m in maps if m.path == mapping.path and m.offset == 0), None)
    return address - first if first is not None else address - mapping.start + mapping.offset


def _is_movable(path: str) -> bool:
    """Return True if an ELF file is position-independent."""
    try:
        head = read_head(Path(path), 18)  # another file may have this name now
    except LoadError:
        return True
    return head[16:17] != b"\x02"  # ET_EXEC


def of_program(stack: Stack, program: str) -> Frame | None:
    """Return the innermost frame of the program's own code, preferably one with a source line."""
    own = [frame for frame in stack if not frame.module.startswith(_SYSTEM)] or list(stack)
    # Code inlined from a system header, e.g. a vector's allocator, is not the program's.
    with_line = (frame for frame in own if frame.line and not frame.file.startswith(_HEADERS))
    in_program = (frame for frame in own if frame.module == program)
    return next(with_line, None) or next(in_program, None) or next(iter(own), None)


def is_runtime(frame: Frame) -> bool:
    """Return True for a compiled frame of ONNX Runtime or QNN."""
    return _RUNTIME.match(PurePath(frame.module).name) is not None


def own_stack(stack: Stack) -> Stack:
    """Return the program's own frames, without interpreter, runtime and Python libraries.

    If no frame is left, return the runtime frames that have a name.
    """
    compiled = [
        frame
        for frame in stack
        if frame.module != PYTHON and not _INTERPRETER.match(PurePath(frame.module).name)
    ]
    python = own_frames(stack)
    outside = [
        frame
        for frame in compiled
        if not is_runtime(frame)
        and (frame.line or frame.function)
        and not (python and LIBRARY.search(frame.module))  # an extension module of a library
    ]
    own = (*outside, *python)
    kept = own or tuple(frame for frame in compiled if frame.function) or tuple(compiled)
    if kept or not stack:
        return kept
    return (Frame("Python code", module=stack[-1].module),)


def place_of(stack: Stack) -> str:
    """Return file and line of a call, or function and offset."""
    frame = of_program(own_stack(stack), "")
    return "" if frame is None else frame.place
