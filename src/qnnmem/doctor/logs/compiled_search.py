"""Search for fixed texts in C (`texts.c`), if the compiled code is shipped or can be built.

The C code hands Python only the lines that might match, which are few in most logs. The other
engines also hand over every line with a failure word, whatever program wrote it.
"""

from __future__ import annotations

import ctypes
import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from qnnmem.native_parts import NativePart, load_library
from qnnmem.text import lazy_pattern

if TYPE_CHECKING:
    from qnnmem.doctor.kb.knowledge import Knowledge
    from qnnmem.doctor.logs.line_memory import LineMemory, PlaceOfLine

_OBJECT = "libqnnmem_texts.so"
TEXTS = NativePart(
    "qnnmem.doctor.logs", "texts.c", {_OBJECT: ("-O3",)}, use="searching with compiled code"
)
_KNOWN, _FAILING, _BOUND, _OURS, _NAMED = 1, 2, 4, 8, 16  # kinds of texts, as in C
_MOST = 4096  # lines or texts reported by one call
_SAMPLE = 1 << 18  # bytes of a log used to find rare bytes
_SHORTEST, _LONGEST, _TEXTS = 3, 0xFFFF, 0xFFFF  # minimum and maximum bytes, number of texts
_LONGEST_MESSAGE = 1024  # bytes, as in C
_ROW = struct.Struct("=8I")  # C's report about a line
_FEW = 1024  # bytes below which a Python count of line ends is faster than a call
_FOR_LINES = ("first", "failing", "relayed")
_PIECE = lazy_pattern(r"(\\.)|(\([^()]*\))|(\{[^{}]*\})|([^\\{(]+)", re.DOTALL)


class CompiledEngine:
    """Engine in C that searches for all texts in one pass and reports only relevant lines."""

    name = "compiled"

    def __init__(self, knowledge: Knowledge, apart: int) -> None:
        from qnnmem.doctor.logs.failure_texts import BOUND, FAILING_TEXTS, RELAYED
        from qnnmem.doctor.logs.reading import NAMES, OURS

        self._library, self._apart = _load(), apart
        self.anchors = [anchor.encode() for anchor in knowledge.anchors]
        first = dict.fromkeys(self.anchors, _KNOWN)
        for word in OURS:
            first[word] = first.get(word, 0) | _OURS
        for name in NAMES:
            first[name] = first.get(name, 0) | _NAMED
        failing = {word: _FAILING | (_BOUND if word in BOUND else 0) for word in FAILING_TEXTS}
        self._texts = {
            "first": first,
            "failing": failing,
            "relayed": dict.fromkeys(RELAYED, _KNOWN),
            "names": dict.fromkeys(NAMES, _KNOWN),
            "anchors": dict.fromkeys(self.anchors, _KNOWN),
        }
        lengths = [len(text) for texts in self._texts.values() for text in texts]
        if min(lengths) < _SHORTEST or max(lengths) > _LONGEST or len(lengths) > _TEXTS:
            raise ImportError("the C code cannot search for all of the texts")
        self._made: dict[str, FixedTexts] = {}
        self._messages = _messages(knowledge)
        self._looked_for: LookedFor | None = None
        self.named: bool | None = None

    def lines(
        self,
        buffer: bytes | bytearray,
        low: int,
        high: int,
        memory: LineMemory,
        fill: int = 0,
    ) -> list[PlaceOfLine]:
        """Return lines with a message text, or with both a failure word and a QNN word."""
        if not isinstance(memory, CompiledMemory):
            raise TypeError("the line memory was made by another search engine")
        looked_for = self._looked(buffer, low, high)
        found, self.named = looked_for.lines(memory, buffer, low, high, max(fill, high))
        return found

    def _looked(self, buffer: bytes | bytearray, low: int, high: int) -> LookedFor:
        if self._looked_for is None:
            texts = [self._of(name, buffer, low, high) for name in _FOR_LINES]
            self._looked_for = LookedFor(self._library, texts, self._messages)
        return self._looked_for

    def memory(self) -> CompiledMemory:
        """Return an empty memory of messages."""
        return CompiledMemory(self._library)

    def scan(self, buffer: bytes | bytearray, low: int, high: int) -> list[tuple[int, int]]:
        """Return the end offset and the index of each anchor found, in one pass."""
        return sorted(self._of("anchors", buffer, low, high).hits(buffer, low, high, self._apart))

    def has_name(self, buffer: bytes | bytearray, low: int, high: int) -> bool:
        """Return True if a name from `NAMES` occurs; the search ends at the first name."""
        return self._of("names", buffer, low, high).any_in(buffer, low, high)

    def newlines(self, buffer: bytes | bytearray, low: int, high: int) -> int:
        """Return the number of line ends between two offsets."""
        if high - low <= _FEW:
            return buffer.count(b"\n", low, high)
        return int(self._library.texts_newlines(_address(buffer, low), high - low))

    def _of(self, name: str, buffer: bytes | bytearray, low: int, high: int) -> FixedTexts:
        made = self._made.get(name)
        if made is None:
            sample = bytes(memoryview(buffer)[low : min(high, low + _SAMPLE)])
            made = self._made[name] = FixedTexts(self._library, self._texts[name], sample)
        return made


class CompiledMemory:
    """Known messages, stored by the C code."""

    by_letters = False

    def __init__(self, library: Any) -> None:
        self.full = False
        self._library = library
        self.made = ctypes.c_void_p(library.memory_new())
        if not self.made:
            raise MemoryError

    def __del__(self) -> None:
        if made := getattr(self, "made", None):
            self._library.memory_free(made)

    def leave_out(self, raw: bytes, body: int, style: int, by_letters: bool) -> None:
        """Remember the message of an irrelevant line, so that it is skipped from now on."""
        self._keep(raw[body:], style, 0)

    def know(self, message: bytes, style: int, number: int) -> bool:
        """Store a message, digits ignored, under a number; return False if it cannot be stored."""
        return self._keep(message, style, number)

    def clear(self) -> None:
        """Forget all messages."""
        self._library.memory_clear(self.made)
        self.full = False

    def _keep(self, message: bytes, style: int, number: int) -> bool:
        text = message.rstrip(b"\r\n")
        if not 0 < len(text) <= _LONGEST_MESSAGE:
            return False
        kept = bool(self._library.memory_keep(self.made, text, len(text), style, number))
        self.full = self.full or not kept
        return kept


class FixedTexts:
    """Lower-case texts to search for in C; the search looks for the rarest bytes of each text."""

    def __init__(self, library: Any, texts: Mapping[bytes, int], sample: bytes) -> None:
        self._library, self._count = library, len(texts)
        lengths = (ctypes.c_uint32 * len(texts))(*map(len, texts))
        kinds = bytes(texts.values())
        joined = b"".join(texts)
        made = library.texts_new(joined, lengths, kinds, len(texts), sample, len(sample))
        if not made:
            raise MemoryError
        self.made = ctypes.c_void_p(made)
        self._most = max(_MOST, library.texts_deepest(self.made))
        self._told = (ctypes.c_uint32 * (2 * self._most))()

    def __del__(self) -> None:
        if made := getattr(self, "made", None):
            self._library.texts_free(made)

    def hits(
        self, buffer: bytes | bytearray, low: int, high: int, apart: int
    ) -> list[tuple[int, int]]:
        """Return end and text number of each hit; drop repeats within `apart` bytes of one line."""
        out: list[tuple[int, int]] = []
        start, size = ctypes.c_size_t(0), high - low
        data, told = _address(buffer, low), self._told
        last = (ctypes.c_uint32 * self._count)()
        while start.value < size:
            count = self._library.texts_hits(
                self.made, data, size, ctypes.byref(start), last, told, self._most, apart
            )
            ends = told[: 2 * count]
            out += [(low + one, two) for one, two in zip(ends[::2], ends[1::2], strict=True)]
        return out

    def any_in(self, buffer: bytes | bytearray, low: int, high: int) -> bool:
        """Return True if one of the texts occurs."""
        return bool(self._library.texts_any(self.made, _address(buffer, low), high - low))


class LookedFor:
    """Texts to search for: anchors, failure words with the QNN words they need, and messages."""

    def __init__(self, library: Any, texts: Sequence[FixedTexts], messages: _Messages) -> None:
        self._library, self._texts, self._messages = library, texts, messages
        self._made = _Looked(*(one.made for one in texts), messages)
        self._told = (ctypes.c_uint32 * (_ROW.size // 4 * _MOST))()

    def lines(
        self, memory: CompiledMemory, buffer: bytes | bytearray, low: int, high: int, fill: int
    ) -> tuple[list[PlaceOfLine], bool]:
        """Return lines that might match or report a failure, and whether a QNN name occurs.

        `low` must be the start of a line.
        """
        out: list[PlaceOfLine] = []
        start, lines, named = ctypes.c_size_t(low), ctypes.c_size_t(0), ctypes.c_uint32(0)
        data, told, rows = _address(buffer, 0), self._told, memoryview(self._told).cast("B")
        while start.value < high:
            count = self._library.texts_lines(
                *(ctypes.byref(self._made), memory.made, data, high, fill),
                *(ctypes.byref(start), ctypes.byref(lines), ctypes.byref(named), told, _MOST),
            )
            out += _ROW.iter_unpack(rows[: _ROW.size * count])
        return out, bool(named.value)


_Number = ctypes.c_uint32
_Numbers = ctypes.POINTER(_Number)


class _Messages(ctypes.Structure):
    """C struct of the known messages, as declared in `texts.c`."""

    _fields_ = (
        *((name, _Numbers) for name in ("of_anchor", "messages", "of_message", "ends")),
        ("bytes", ctypes.c_char_p),
    )


class _Looked(ctypes.Structure):
    """C struct of the texts to search, as declared in `texts.c`."""

    _fields_ = (*((name, ctypes.c_void_p) for name in _FOR_LINES), ("messages", _Messages))


def _messages(knowledge: Knowledge) -> _Messages:
    """Return the fixed texts of all templates, and which templates contain each anchor."""
    of_anchor, messages, of_message, ends = [0], list[int](), [0], list[int]()
    joined = bytearray()
    for templates in knowledge.anchors.values():
        messages += templates
        of_anchor.append(len(messages))
    for text in knowledge.texts:
        for fixed in _fixed(text):
            joined += fixed
            ends.append(len(joined))
        of_message.append(len(ends))
    lists = (of_anchor, messages, of_message, ends)
    return _Messages(*((_Number * len(one))(*one) for one in lists), bytes(joined))


def _fixed(template: str) -> Iterator[bytes]:
    """Yield each text between a template's holes; a choice is one text, joined by NUL bytes."""
    run = ""
    for escaped, choice, hole, plain in _PIECE.findall(template):
        if not (choice or hole):
            run += escaped[1:] or plain
            continue
        yield from _bare((run,))
        yield from _bare(choice[1:-1].split("|"))
        run = ""
    yield from _bare((run,))


def _bare(texts: Sequence[str]) -> Iterator[bytes]:
    """Yield the stripped texts as one text, joined by NUL bytes; yield nothing if any is empty."""
    bare = [text.strip(" \t") for text in texts]
    if all(bare):
        yield "\0".join(bare).encode().lower()


def _address(buffer: bytes | bytearray, low: int) -> Any:
    """Return a C pointer to an offset in a buffer, which the caller must keep alive."""
    if isinstance(buffer, bytearray):
        return ctypes.byref(ctypes.c_char.from_buffer(buffer, low)) if low < len(buffer) else b""
    return buffer[low:] if low else buffer


@cache
def _load() -> Any:
    """Load the compiled code; raise ImportError if it is missing."""
    library = load_library(TEXTS, _OBJECT)
    pointer, size = ctypes.c_void_p, ctypes.c_size_t
    library.texts_new.restype = pointer
    library.texts_new.argtypes = (*(pointer,) * 3, ctypes.c_uint32, pointer, size)
    library.texts_free.argtypes = (pointer,)
    library.texts_free.restype = None
    library.texts_deepest.argtypes = (pointer,)
    library.texts_any.argtypes = (pointer, pointer, size)
    library.texts_lines.restype = library.texts_hits.restype = size
    library.texts_lines.argtypes = (*(pointer,) * 3, size, size, *(pointer,) * 4, size)
    library.texts_hits.argtypes = (*(pointer,) * 2, size, *(pointer,) * 3, size, size)
    library.memory_new.restype = pointer
    library.memory_clear.argtypes = library.memory_free.argtypes = (pointer,)
    library.memory_clear.restype = library.memory_free.restype = None
    library.memory_keep.argtypes = (*(pointer,) * 2, size, *(ctypes.c_uint32,) * 2)
    library.texts_newlines.restype = size
    library.texts_newlines.argtypes = (pointer, size)
    return library
