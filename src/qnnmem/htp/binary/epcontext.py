"""The context binary that an ONNX model with an EPContext node embeds or points to.

ONNX Runtime writes such models. The protobuf is parsed by file position, without the onnx package:
an embedded binary of gigabytes is located without being read.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path, PureWindowsPath
from typing import BinaryIO

from qnnmem.bounded_file import file_below
from qnnmem.errors import Damaged, LoadError, NotCompiled

_MAX_FIELDS = 1_000_000
_MAX_TEXT = 4096
# Numbers of fields in onnx.proto.
_GRAPH, _NODE, _OP_TYPE, _ATTRIBUTE = 7, 1, 4, 5
_NAME, _INT, _BYTES = 1, 3, 4
_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5


@dataclass(frozen=True, slots=True)
class FileRange:
    """A range of bytes in a file."""

    start: int
    size: int


@dataclass(slots=True)
class _EpContextNode:
    """The relevant attributes of one EPContext node."""

    texts: dict[str, FileRange] = field(default_factory=dict)
    numbers: dict[str, int] = field(default_factory=dict)

    @property
    def holds_context(self) -> bool:
        """Return True if this is a main node, which holds or names a context."""
        cache = self.texts.get("ep_cache_context")
        return cache is not None and cache.size > 0 and self.numbers.get("main_context", 1) != 0


def find_context(file: BinaryIO, size: int, path: Path) -> FileRange | Path:
    """Return where the context binary is: a range of this file, or another file next to it."""
    found = find_contexts(file, FileRange(0, size), path)
    if len(found) > 1:
        # Refuse several contexts, because the bill of one would look like the bill of the whole
        # model.
        raise LoadError(
            path, (f"contains {len(found)} context binaries; only one at a time can be read")
        )
    if isinstance(found[0], FileRange):
        return found[0]
    # Only files below the model's own folder are accepted.
    try:
        return file_below(path.parent, found[0])
    except Damaged as exc:
        raise LoadError(path, f"its context binary {exc}") from None


def find_contexts(file: BinaryIO, model: FileRange, path: Path) -> tuple[FileRange | str, ...]:
    """Return the context binaries of a model: ranges of this file, or names of other files."""
    try:
        found = [node for node in _Walker(file).nodes(model) if node.holds_context]
    except Damaged as exc:
        raise LoadError(path, "is neither a QNN context binary nor an ONNX model") from exc
    if not found:
        raise NotCompiled(path, "is not compiled: it has no EPContext node with a context")
    return tuple(
        cache if node.numbers.get("embed_mode", 1) else _name(file, cache, path)
        for node in found
        for cache in [node.texts["ep_cache_context"]]
    )


def _name(file: BinaryIO, cache: FileRange, path: Path) -> str:
    if cache.size > _MAX_TEXT:
        raise LoadError(path, "the name of its context file is too long")
    file.seek(cache.start)
    name = file.read(cache.size).decode("utf-8", "replace")
    # The name may use the separators of Windows or of Linux.
    return PureWindowsPath(name).as_posix() if name else name


class _Walker:
    """Walks protobuf messages by position; limits the number of fields in the whole file."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._left = file, _MAX_FIELDS

    def nodes(self, model: FileRange) -> Iterator[_EpContextNode]:
        """Yield the EPContext nodes of the main graph."""
        for graph in self._messages(model, _GRAPH):
            for node in self._messages(graph, _NODE):
                if any(self._text(p) == "EPContext" for p in self._messages(node, _OP_TYPE)):
                    yield self._node(node)

    def _node(self, piece: FileRange) -> _EpContextNode:
        node = _EpContextNode()
        for attribute in self._messages(piece, _ATTRIBUTE):
            fields = dict(self._fields(attribute))
            name = fields.get(_NAME)
            key = self._text(name) if isinstance(name, FileRange) else ""
            text, number = fields.get(_BYTES), fields.get(_INT, 0)
            if isinstance(text, FileRange):
                node.texts[key] = text
            elif isinstance(number, int):
                node.numbers[key] = number
        return node

    def _messages(self, outer: FileRange, wanted: int) -> Iterator[FileRange]:
        for number, value in list(self._fields(outer)):
            if number == wanted and isinstance(value, FileRange):
                yield value

    def _text(self, piece: FileRange) -> str:
        self._file.seek(piece.start)
        return self._file.read(min(piece.size, _MAX_TEXT)).decode("utf-8", "replace")

    def _fields(self, outer: FileRange) -> Iterator[tuple[int, int | FileRange]]:
        position, end = outer.start, outer.start + outer.size
        while position < end:
            self._left -= 1
            if self._left < 0:
                raise Damaged("is not valid protobuf")
            key, position = self._varint(position, end)
            value: int | FileRange
            if key & 7 == _LENGTH:
                size, position = self._varint(position, end)
                value = FileRange(position, size)
                position += size
            elif key & 7 == _VARINT:
                value, position = self._varint(position, end)
            else:
                value, position = 0, position + _width(key & 7)
            if position > end or key >> 3 == 0:
                raise Damaged("is not valid protobuf")
            yield key >> 3, value

    def _varint(self, position: int, end: int) -> tuple[int, int]:
        self._file.seek(position)
        data = self._file.read(min(10, end - position))
        value = 0
        for count, octet in enumerate(data):
            value |= (octet & 0x7F) << (7 * count)
            if octet < 0x80:
                return value, position + count + 1
        raise Damaged("is not valid protobuf")


def _width(wire: int) -> int:
    if wire == _FIXED64:
        return 8
    if wire == _FIXED32:
        return 4
    raise Damaged("is not valid protobuf")
