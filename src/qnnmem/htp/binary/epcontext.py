"""The context binary that an ONNX model with an EPContext node embeds or points to.

ONNX Runtime writes such models. The protobuf is parsed in place, without the onnx package: an
embedded binary of gigabytes is located without being read.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import PureWindowsPath

from qnnmem.bounded_file import file_below
from qnnmem.errors import Damaged, LoadError, NotCompiled
from qnnmem.htp.binary.pieces import Piece, PieceBytes

_MAX_FIELDS = 1_000_000
_MAX_TEXT = 4096
# Numbers of fields in onnx.proto.
_GRAPH, _NODE, _OP_TYPE, _ATTRIBUTE = 7, 1, 4, 5
_NAME, _INT, _BYTES = 1, 3, 4
_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5


@dataclass(slots=True)
class _EpContextNode:
    """The relevant attributes of one EPContext node."""

    texts: dict[str, range] = field(default_factory=dict)
    numbers: dict[str, int] = field(default_factory=dict)

    @property
    def holds_context(self) -> bool:
        """True if this is a main node, which holds or names a context."""
        return bool(self.texts.get("ep_cache_context")) and self.numbers.get("main_context", 1) != 0


def find_context(model: Piece) -> Piece:
    """Return the only context binary of a model: a part of the model, or a file next to it."""
    contexts = find_contexts(model)
    if len(contexts) > 1:
        # The bill of one context would look like the bill of the whole model.
        raise LoadError(
            model.name,
            f"contains {len(contexts)} context binaries; a model is read only if it contains one",
        )
    context = contexts[0]
    if isinstance(context, Piece):
        return context
    # Only files below the model's own folder are accepted.
    try:
        file = file_below(model.file.parent, context)
    except Damaged as exc:
        raise LoadError(model.name, f"its context binary {exc}") from None
    return Piece.whole(file, str(file))


def find_contexts(model: Piece) -> tuple[Piece | str, ...]:
    """Return the context binaries of a model: parts of the model, or names of other files."""
    with PieceBytes(model) as data:
        try:
            nodes = [node for node in _Walker(data).nodes() if node.holds_context]
        except Damaged as exc:
            problem = "is neither a QNN context binary nor an ONNX model"
            raise LoadError(model.name, problem) from exc
        if not nodes:
            raise NotCompiled(
                model.name, "is not compiled: it has no EPContext node with a context"
            )
        return tuple(_context(model, data, node) for node in nodes)


def _context(model: Piece, data: PieceBytes, node: _EpContextNode) -> Piece | str:
    cache = node.texts["ep_cache_context"]
    if node.numbers.get("embed_mode", 1):
        return model.part(cache.start, len(cache), f"offset {cache.start:,} in {model.name}")
    if len(cache) > _MAX_TEXT:
        raise LoadError(model.name, "the name of its context file is too long")
    name = data[cache.start : cache.stop].decode("utf-8", "replace")
    # The name may use the separators of Windows or of Linux.
    return PureWindowsPath(name).as_posix() if name else name


class _Walker:
    """Walks protobuf messages by position; limits the number of fields in the whole model."""

    def __init__(self, data: PieceBytes) -> None:
        self._data, self._left = data, _MAX_FIELDS

    def nodes(self) -> Iterator[_EpContextNode]:
        """Yield the EPContext nodes of the main graph."""
        for graph in self._messages(range(len(self._data)), _GRAPH):
            for node in self._messages(graph, _NODE):
                if any(self._text(text) == "EPContext" for text in self._messages(node, _OP_TYPE)):
                    yield self._node(node)

    def _node(self, message: range) -> _EpContextNode:
        node = _EpContextNode()
        for attribute in self._messages(message, _ATTRIBUTE):
            fields = dict(self._fields(attribute))
            name = fields.get(_NAME)
            key = self._text(name) if isinstance(name, range) else ""
            text, number = fields.get(_BYTES), fields.get(_INT, 0)
            if isinstance(text, range):
                node.texts[key] = text
            elif isinstance(number, int):
                node.numbers[key] = number
        return node

    def _messages(self, outer: range, wanted: int) -> Iterator[range]:
        for number, value in list(self._fields(outer)):
            if number == wanted and isinstance(value, range):
                yield value

    def _text(self, place: range) -> str:
        return self._data[place.start : min(place.stop, place.start + _MAX_TEXT)].decode(
            "utf-8", "replace"
        )

    def _fields(self, outer: range) -> Iterator[tuple[int, int | range]]:
        position, end = outer.start, outer.stop
        while position < end:
            self._left -= 1
            if self._left < 0:
                raise Damaged("is not valid protobuf")
            key, position = self._varint(position, end)
            value: int | range
            if key & 7 == _LENGTH:
                size, position = self._varint(position, end)
                value = range(position, position + size)
                position += size
            elif key & 7 == _VARINT:
                value, position = self._varint(position, end)
            else:
                value, position = 0, position + _width(key & 7)
            if position > end or key >> 3 == 0:
                raise Damaged("is not valid protobuf")
            yield key >> 3, value

    def _varint(self, position: int, end: int) -> tuple[int, int]:
        value = 0
        for count, octet in enumerate(self._data[position : min(position + 10, end)]):
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
