"""Search for the fixed texts of templates in a piece of a log.

Four engines give the same results: this package's C code (`compiled_search`), Vectorscan (package
`hyperscan`), RE2 (package `google-re2`) and the standard library. Small logs are searched with the
standard library, because the other engines take time to load.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any, Protocol

from qnnmem.doctor.kb.knowledge import Knowledge
from qnnmem.doctor.logs.failure_texts import BOUND, FAILING_TEXTS, is_about_us
from qnnmem.doctor.logs.line_memory import (
    LettersMemory,
    LineMemory,
    PlaceOfLine,
    without_digits,
)
from qnnmem.doctor.logs.reading import NAMES

LogBytes = bytes | bytearray


class SearchEngine(Protocol):
    """Interface of an engine that searches for the texts of a knowledge base."""

    name: str
    anchors: list[bytes]
    # Whether the bytes that `lines` searched last contain a name; None if only `has_name` can tell.
    named: bool | None

    def lines(
        self, buffer: LogBytes, low: int, high: int, memory: LineMemory, fill: int = 0
    ) -> Sequence[PlaceOfLine]:
        """Return lines that might match or report a failure.

        Each line is returned once, in order. An engine may return more lines than necessary,
        because `shapes` examines every line. It may skip lines that `memory` lists as irrelevant.
        It may read the following lines, up to `fill`, to decide whether they continue a message.
        """
        ...

    def memory(self) -> LineMemory:
        """Return an empty memory of the type that this engine uses."""
        ...

    def scan(self, buffer: LogBytes, low: int, high: int) -> list[tuple[int, int]]:
        """Return the end offset and the index of each anchor found, sorted by end.

        If an anchor occurs again in the same line within `APART` bytes, the repeat is dropped.
        """
        ...

    def has_name(self, buffer: LogBytes, low: int, high: int) -> bool:
        """Return True if one of `NAMES` occurs between two offsets."""
        ...

    def newlines(self, buffer: LogBytes, low: int, high: int) -> int:
        """Return the number of line ends between two offsets."""
        ...


# Below this many bytes, loading an engine costs more than it saves.
SMALL = 1 << 18

# The index of anchors is used only for at least `_FEW` anchors and for lines of at most `_LINE`
# bytes; otherwise the anchors are searched one by one.
_FEW = 16
_LINE = 1024
_GRAM = 4
_FIRST = 500

# Within this many bytes, a repeated anchor in a line is dropped; the matcher examines more bytes
# than that around each anchor. Without the limit, a long run of one letter could give dozens of
# hits per byte, and all would be stored.
APART = 512


ENGINES = ("compiled", "hyperscan", "re2", "plain")


def choose_engine(knowledge: Knowledge, size: int, engine: str | None = None) -> SearchEngine:
    """Return the requested engine, or the best available engine for this many bytes."""
    if engine is None and size < SMALL:
        return PlainEngine(knowledge, for_small=True)
    if engine in (None, "compiled"):
        try:
            from qnnmem.doctor.logs.compiled_search import CompiledEngine

            return CompiledEngine(knowledge, APART)
        except ImportError:
            if engine:
                raise
    if engine in (None, "hyperscan"):
        try:
            return VectorscanEngine(knowledge)
        except ImportError:
            if engine:
                raise
    if engine in (None, "re2"):
        try:
            return Re2Engine(knowledge)
        except ImportError:
            if engine:
                raise
    return PlainEngine(knowledge)


class _AnchorIndex:
    """Anchors, each indexed by the four characters in it that are rarest among all anchors."""

    def __init__(self, anchors: list[bytes], numbers: Iterable[int]) -> None:
        self._every, self._numbers = anchors, numbers
        # Lines searched so far: for a few lines, the index costs more than it saves.
        self._lines = 0

    @cached_property
    def _anchors(self) -> list[tuple[int, bytes]]:
        return [(number, self._every[number]) for number in self._numbers]

    @cached_property
    def _by_gram(self) -> dict[bytes, list[tuple[int, bytes]]]:
        by_gram: dict[bytes, list[tuple[int, bytes]]] = {}
        times = Counter(gram for _, anchor in self._anchors for gram in _grams(anchor))
        for number, anchor in self._anchors:
            rarest = min(_grams(anchor), key=lambda gram: (times[gram], gram))
            by_gram.setdefault(rarest, []).append((number, anchor))
        return by_gram

    def occur(self, line: bytes) -> bool:
        """Return True if one of the anchors is in a lower-case line."""
        for _, anchor in self._anchors:  # noqa: SIM110 - `any` takes twice as long
            if anchor in line:
                return True
        return False

    def hits(self, line: bytes, shift: int) -> list[tuple[int, int]]:
        """Return the end (plus `shift`) and the anchor number of each hit in a lower-case line."""
        asked: Iterable[tuple[int, bytes]] = self._anchors
        self._lines += 1
        if self._lines > _FIRST and len(self._anchors) >= _FEW and len(line) <= _LINE:
            by_gram = self._by_gram
            asked = [one for gram in by_gram.keys() & _grams(line) for one in by_gram[gram]]
        return [
            (shift + end, number)
            for number, anchor in asked
            if anchor in line
            for end in _ends(line, anchor)
        ]


class _TextsOnly:
    """Base class of engines that have neither a line memory nor a line count in C."""

    named: bool | None = None

    def memory(self) -> LettersMemory:
        """Return an empty line memory in Python."""
        return LettersMemory()

    def newlines(self, buffer: LogBytes, low: int, high: int) -> int:
        """Return the number of line ends, counted with the standard library."""
        return buffer.count(b"\n", low, high)


class PlainEngine(_TextsOnly):
    """Engine in pure Python: searches for short keys, then for anchors in lines with a key."""

    name = "plain"

    def __init__(self, knowledge: Knowledge, *, for_small: bool = False) -> None:
        self._for_small = for_small
        self.anchors = [anchor.encode() for anchor in knowledge.anchors]
        self._keys = [
            (key.encode(), _AnchorIndex(self.anchors, numbers))
            for key, numbers in knowledge.keys.items()
        ]

    def lines(
        self, buffer: LogBytes, low: int, high: int, memory: LineMemory, fill: int = 0
    ) -> list[PlaceOfLine]:
        """Return lines that contain an anchor, or a QNN word and a failure word."""
        text = bytes(memoryview(buffer)[low:high]).lower()
        found = {
            (start, stop)
            for key, anchors in self._keys
            for start, stop in _lines_with(text, key)
            if anchors.occur(text[start:stop])
        }
        for word in FAILING_TEXTS:
            found.update(
                (start, stop)
                for start, stop in _lines_with(text, word)
                if (start, stop) not in found and is_about_us(text[start:stop])
            )
        return _placed(memory, buffer, [(low + one, low + two) for one, two in sorted(found)])

    def scan(self, buffer: LogBytes, low: int, high: int) -> list[tuple[int, int]]:
        """Return the end offset and the index of each anchor, in lines that contain its key."""
        text = bytes(memoryview(buffer)[low:high]).lower()
        found: set[tuple[int, int]] = set()
        for key, anchors in self._keys:
            if key in text:  # faster than the loop alone, because a line contains few keys
                for start, stop in _lines_with(text, key):
                    found.update(anchors.hits(text[start:stop], low + start))
        return sorted(found)

    def memory(self) -> LettersMemory:
        """Return an empty line memory."""
        return LettersMemory(by_letters=not self._for_small)

    def has_name(self, buffer: LogBytes, low: int, high: int) -> bool:
        """Return True if any name occurs; searches for one name after the other."""
        return _has_name(buffer, low, high)


class Re2Engine(_TextsOnly):
    """Engine with RE2: finds lines with one regular expression, then searches for anchors."""

    name = "re2"

    def __init__(self, knowledge: Knowledge) -> None:
        import re2

        self.anchors = [anchor.encode() for anchor in knowledge.anchors]
        options = re2.Options()
        options.max_mem = 64 << 20
        options.encoding = re2.Options.Encoding.LATIN1
        self._first = re2.compile(b"|".join(first_texts(knowledge)), options)
        self._any = re2.compile(b"|".join(map(_escaped, self.anchors)), options)
        self._index = _AnchorIndex(self.anchors, range(len(self.anchors)))

    def lines(
        self, buffer: LogBytes, low: int, high: int, memory: LineMemory, fill: int = 0
    ) -> list[PlaceOfLine]:
        """Return the lines with a match of the combined regular expression."""
        text = bytes(memoryview(buffer)[low:high]).lower()
        found = _lines_matching(text, self._first)
        return _placed(memory, buffer, [(low + one, low + two) for one, two in found])

    def scan(self, buffer: LogBytes, low: int, high: int) -> list[tuple[int, int]]:
        """Return the end offset and the index of each anchor, in lines that the regex matches."""
        text = bytes(memoryview(buffer)[low:high]).lower()
        found: list[tuple[int, int]] = []
        for start, stop in _lines_matching(text, self._any):
            found += self._index.hits(text[start:stop], low + start)
        return sorted(found)

    def has_name(self, buffer: LogBytes, low: int, high: int) -> bool:
        """Return True if any name occurs; searches for one name after the other."""
        return _has_name(buffer, low, high)


class VectorscanEngine(_TextsOnly):
    """Engine with Vectorscan: searches for all prefilter texts in one pass, then for anchors."""

    name = "hyperscan"

    def __init__(self, knowledge: Knowledge) -> None:
        self.anchors = [anchor.encode() for anchor in knowledge.anchors]
        # The texts depend only on these facts, which therefore identify a cached database: building
        # the texts takes longer than a cache lookup.
        facts = [knowledge.key, repr((FAILING_TEXTS, BOUND))]
        self._anchors = _database("anchors", facts, lambda: map(_escaped, self.anchors))
        self._first = _database("lines", facts, lambda: map(_up_to_end, first_texts(knowledge)))

    def lines(
        self, buffer: LogBytes, low: int, high: int, memory: LineMemory, fill: int = 0
    ) -> list[PlaceOfLine]:
        """Return the lines that contain any of the texts, found in one pass over the bytes."""
        own = _of_letters(memory)
        data = bytes(memoryview(buffer)[low:high])
        told: list[int] = []
        append = told.append

        def note(_number: int, _start: int, end: int, _flags: int, _context: object) -> None:
            append(end)

        self._first.scan(data, match_event_handler=note)
        ends, rfind = sorted(set(told)), data.rfind
        lines = [data[rfind(b"\n", 0, end) + 1 : end] for end in ends]
        # Digits are removed from all lines together: one call per line would cost more than the
        # removal.
        bare = without_digits(b"\n".join(lines)).split(b"\n")
        return [
            own.place(low + end - len(line), low + end, line)
            for end, line, key in zip(ends, lines, bare, strict=False)  # empty without lines
            if not own.is_dull(key)
        ]

    def scan(self, buffer: LogBytes, low: int, high: int) -> list[tuple[int, int]]:
        """Return the end offset and the index of each anchor found, in one pass."""
        found = _hits(self._anchors, buffer, low, high)
        return sorted((low + end, number) for end, number in found)

    def has_name(self, buffer: LogBytes, low: int, high: int) -> bool:
        """Return True if any name occurs; the search ends at the first name."""
        return bool(_hits(self._names, buffer, low, high))

    @cached_property
    def _names(self) -> Any:
        return _database("names", [repr(NAMES)], lambda: map(_escaped, NAMES))


def _placed(
    memory: LineMemory, buffer: LogBytes, found: Iterable[tuple[int, int]]
) -> list[PlaceOfLine]:
    own, view = _of_letters(memory), memoryview(buffer)
    return [own.place(low, high, bytes(view[low:high])) for low, high in found]


def _of_letters(memory: LineMemory) -> LettersMemory:
    if not isinstance(memory, LettersMemory):
        raise TypeError("the line memory was made by another search engine")
    return memory


def _has_name(buffer: LogBytes, low: int, high: int) -> bool:
    text = bytes(memoryview(buffer)[low:high]).lower()
    return any(name in text for name in NAMES)


def first_texts(knowledge: Knowledge) -> list[bytes]:
    """Return expressions; every known or failing line matches at least one of them."""
    texts = {text.encode() for text in knowledge.prefilters}
    # Lines with a failure word that needs no word boundary are found by that word.
    words = [word for word in FAILING_TEXTS if word not in BOUND]
    left = {text for text in texts if not any(word in text for word in words)}
    alone = [b"(?:^|[^a-z0-9])" + _escaped(word) for word in sorted(BOUND)]
    return [*map(_escaped, sorted({*left, *words})), *alone]


def _lines_with(text: bytes, key: bytes) -> Iterator[tuple[int, int]]:
    """Yield the start and end of each line that contains a text."""
    at = text.find(key)
    while at >= 0:
        start = text.rfind(b"\n", 0, at) + 1
        stop = text.find(b"\n", at)
        stop = len(text) if stop < 0 else stop
        yield start, stop
        at = text.find(key, stop)


def _lines_matching(text: bytes, pattern: Any) -> Iterator[tuple[int, int]]:
    """Yield the start and end of each line in which a pattern matches."""
    at = 0
    while (hit := pattern.search(text, at)) is not None:
        start = text.rfind(b"\n", 0, hit.end()) + 1
        stop = text.find(b"\n", hit.end())
        at = stop = len(text) if stop < 0 else stop
        yield start, stop


def _hits(database: Any, buffer: LogBytes, low: int, high: int) -> list[tuple[int, int]]:
    """Return end (minus `low`) and text number of each hit; drop repeats within `APART` bytes."""
    hits: list[tuple[int, int]] = []
    last: dict[int, int] = {}  # last offset of each text in the current line
    first, stop = 0, -1  # range of the current line; ends come in order, or some are recorded twice

    def note(number: int, _start: int, end: int, _flags: int, _context: object) -> None:
        nonlocal first, stop
        if not first <= end <= stop:
            newline = buffer.find(b"\n", low + end, high)
            first, stop = end, (high if newline < 0 else newline) - low
            last.clear()
        if end - last.get(number, -APART) >= APART:
            last[number] = end
            hits.append((end, number))

    database.scan(memoryview(buffer)[low:high], match_event_handler=note)
    return hits


def _database(kind: str, facts: Iterable[str], texts: Callable[[], Iterable[bytes]]) -> Any:
    """Return a database of compiled texts, from the cache if possible, as compiling is slow."""
    import hyperscan

    from qnnmem.doctor import cache

    version = getattr(hyperscan, "__version__", "")
    name = cache.name_of(kind, map(_encoded, (version, *facts)), ".hs")
    kept = cache.load(name)
    if kept is not None:
        try:
            database = hyperscan.loadb(kept, hyperscan.HS_MODE_BLOCK)
            database.scratch = hyperscan.Scratch(database)
            return database
        except hyperscan.HyperscanError:
            pass  # from another machine or release: compile again
    made = list(texts())
    # Expressions for lines match up to the line end, so with a common number each line is reported
    # once.
    numbers = [0] * len(made) if kind == "lines" else list(range(len(made)))
    flags = hyperscan.HS_FLAG_CASELESS | hyperscan.HS_FLAG_MULTILINE
    database = hyperscan.Database(mode=hyperscan.HS_MODE_BLOCK)
    database.compile(expressions=made, ids=numbers, elements=len(made), flags=[flags] * len(made))
    cache.keep(name, hyperscan.dumpb(database))
    return database


def _up_to_end(text: bytes) -> bytes:
    """Extend an expression so that it matches up to the end of the line."""
    return b"(?:" + text + rb")[^\n]*$"


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _escaped(anchor: bytes) -> bytes:
    return b"".join(b"\\x%02x" % byte for byte in anchor)


def _grams(text: bytes) -> set[bytes]:
    return {text[k : k + _GRAM] for k in range(len(text) - _GRAM + 1)}


def _ends(line: bytes, anchor: bytes) -> Iterable[int]:
    at = line.find(anchor)
    while at >= 0:
        yield at + len(anchor)
        at = line.find(anchor, at + APART)
