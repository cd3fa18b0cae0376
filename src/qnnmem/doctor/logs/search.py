"""Where in a piece of log the fixed texts of the templates stand.

Three engines give the same answer: Vectorscan (package `hyperscan`), RE2 (package `google-re2`) and
the standard library alone. Small logs are read with the last one, which needs no import.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from functools import cached_property
from typing import Any, Protocol

from qnnmem.doctor.kb.knowledge import Knowledge
from qnnmem.doctor.logs.reading import FAILING, NAMES, OURS

LogBytes = bytes | bytearray


# Instead of an anchor: the line holds a text of `OURS` and one of `FAILING`.
FAILURE = -1


class SearchEngine(Protocol):
    """An engine with the texts it looks for."""

    name: str
    anchors: list[bytes]

    def scan(self, buffer: LogBytes, low: int, high: int, whole: bool) -> list[tuple[int, int]]:
        """End and number of the anchors found between two places, in order of the ends.

        An anchor that a line holds again less than `APART` bytes on is left out there. Where there
        are whole lines only, those without a prefilter text may be left out.
        """
        ...

    def has_name(self, buffer: LogBytes, low: int, high: int) -> bool:
        """Whether one of `NAMES` stands between two places."""
        ...


# Below this many bytes, loading an engine costs more than it saves.
SMALL = 1 << 18

# So few anchors are looked for one by one, and all of them in a line that is longer than this.
_FEW = 16
_LINE = 1024
_GRAM = 4
_FIRST = 500

# Whoever matches a line, or a block of a long one, sees more than this around an anchor. Without
# it anchors made of one letter would be found dozens of times in every byte, and all be held.
APART = 512

ENGINES = ("hyperscan", "re2", "plain")


def choose_engine(knowledge: Knowledge, size: int, engine: str | None = None) -> SearchEngine:
    """The best engine at hand for this many bytes, or the one asked for."""
    if engine is None and size < SMALL:
        engine = "plain"
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


class Engines:
    """The engines for small and for large logs, each made when first needed."""

    def __init__(self, knowledge: Knowledge, asked: str | None = None) -> None:
        self._knowledge, self._asked = knowledge, asked
        self._made: dict[bool, SearchEngine] = {}

    def of(self, size: int | None) -> SearchEngine:
        """The engine for a log of this many bytes; None when only reading will tell."""
        small = size is not None and size < SMALL
        if small not in self._made:
            self._made[small] = choose_engine(self._knowledge, 0 if small else SMALL, self._asked)
        return self._made[small]


class _AnchorIndex:
    """Anchors by four characters that few others have: most lines hold hardly any of them."""

    def __init__(self, anchors: list[tuple[int, bytes]]) -> None:
        self._anchors = anchors
        self._lines = (
            0  # that were looked at: for a few, making the index takes longer than it saves
        )

    @cached_property
    def _by_gram(self) -> dict[bytes, list[tuple[int, bytes]]]:
        by_gram: dict[bytes, list[tuple[int, bytes]]] = {}
        times = Counter(gram for _, anchor in self._anchors for gram in _grams(anchor))
        for number, anchor in self._anchors:
            rarest = min(_grams(anchor), key=lambda gram: (times[gram], gram))
            by_gram.setdefault(rarest, []).append((number, anchor))
        return by_gram

    def hits(self, line: bytes, shift: int) -> list[tuple[int, int]]:
        """End and number of every anchor in a line of small letters."""
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


class PlainEngine:
    """The standard library: a few short texts, then the anchors that hold them."""

    name = "plain"

    def __init__(self, knowledge: Knowledge) -> None:
        self.anchors = [anchor.encode() for anchor in knowledge.anchors]
        self._keys = [
            (key.encode(), _AnchorIndex([(number, self.anchors[number]) for number in numbers]))
            for key, numbers in knowledge.keys.items()
        ]

    def scan(self, buffer: LogBytes, low: int, high: int, whole: bool) -> list[tuple[int, int]]:
        """Lines that hold a key are searched for its anchors."""
        text = bytes(memoryview(buffer)[low:high]).lower()
        found: list[tuple[int, int]] = []
        for key, anchors in self._keys:
            at = text.find(key)
            while at >= 0:
                start = text.rfind(b"\n", 0, at) + 1
                stop = text.find(b"\n", at)
                stop = len(text) if stop < 0 else stop
                found += anchors.hits(text[start:stop], start)
                at = text.find(key, stop)
        found += _failures(text)
        return sorted((low + end, number) for end, number in found)

    def has_name(self, buffer: LogBytes, low: int, high: int) -> bool:
        """One name after the other."""
        return _has_name(buffer, low, high)


class Re2Engine:
    """RE2: one alternation finds the lines, then the anchors."""

    name = "re2"

    def __init__(self, knowledge: Knowledge) -> None:
        import re2

        self.anchors = [anchor.encode() for anchor in knowledge.anchors]
        options = re2.Options()
        options.max_mem = 64 << 20
        options.encoding = re2.Options.Encoding.LATIN1
        prefilters = [text.encode() for text in dict.fromkeys(knowledge.prefilters)]
        self._prefilter = re2.compile(b"|".join(map(re2.escape, prefilters)), options)
        self._any = re2.compile(b"|".join(map(re2.escape, self.anchors)), options)
        self._index = _AnchorIndex(list(enumerate(self.anchors)))
        self._failure = re2.compile(b"|".join(_failure_patterns()), options)

    def scan(self, buffer: LogBytes, low: int, high: int, whole: bool) -> list[tuple[int, int]]:
        """Lines in which an alternation matches are searched for every anchor."""
        text = bytes(memoryview(buffer)[low:high]).lower()
        found: list[tuple[int, int]] = []
        first = self._prefilter if whole else self._any
        at = 0
        while (hit := first.search(text, at)) is not None:
            start = text.rfind(b"\n", 0, hit.start()) + 1
            stop = text.find(b"\n", hit.end())
            at = stop = len(text) if stop < 0 else stop
            found += self._index.hits(text[start:stop], low + start)
        at = 0
        while (hit := self._failure.search(text, at)) is not None:
            found.append((low + hit.end(), FAILURE))
            at = text.find(b"\n", hit.end())
            if at < 0:
                break
        found.sort()
        return found

    def has_name(self, buffer: LogBytes, low: int, high: int) -> bool:
        """One name after the other."""
        return _has_name(buffer, low, high)


class VectorscanEngine:
    """Vectorscan: all prefilter texts in one pass, then all anchors in the lines that hold one."""

    name = "hyperscan"

    def __init__(self, knowledge: Knowledge) -> None:
        self.anchors = [anchor.encode() for anchor in knowledge.anchors]
        prefilters = [text.encode() for text in dict.fromkeys(knowledge.prefilters)]
        failing = _failure_patterns()
        self._anchors = _database("anchors", [*map(_escaped, self.anchors), *failing])
        self._prefilter = _database("prefilter", [*map(_escaped, prefilters), *failing])

    def scan(self, buffer: LogBytes, low: int, high: int, whole: bool) -> list[tuple[int, int]]:
        """Prefilter texts first where lines are whole; anchors in the lines that are left."""
        view = memoryview(buffer)
        if not whole:
            found = self._named(_hits(self._anchors, buffer, low, high))
            return sorted((low + end, number) for end, number in found)
        passed = _hits(self._prefilter, buffer, low, high)
        if not passed:
            return []
        spans = _lines_at(buffer, low, high, passed)
        lines = b"\n".join([view[start:stop] for start, stop in spans])
        found = self._named(_hits(self._anchors, lines, 0, len(lines)))
        return _moved(sorted(found), spans) if found else []

    def has_name(self, buffer: LogBytes, low: int, high: int) -> bool:
        """All names in one pass, which ends at the first."""
        return bool(_hits(self._names, buffer, low, high))

    @cached_property
    def _names(self) -> Any:
        return _database("names", list(map(_escaped, NAMES)))

    def _named(self, hits: list[tuple[int, int]]) -> list[tuple[int, int]]:
        count = len(self.anchors)
        return [(end, number if number < count else FAILURE) for end, number in hits]


def _has_name(buffer: LogBytes, low: int, high: int) -> bool:
    text = bytes(memoryview(buffer)[low:high]).lower()
    return any(name in text for name in NAMES)


def _failures(text: bytes) -> list[tuple[int, int]]:
    """Lines of small letters that tell of a failure of ours, as `FAILURE` at an end in each."""
    ends: dict[int, int] = {}
    for word in FAILING:
        at = text.find(word)
        while at >= 0:
            start = text.rfind(b"\n", 0, at) + 1
            stop = text.find(b"\n", at)
            stop = len(text) if stop < 0 else stop
            if start not in ends:
                line = text[start:stop]
                ends[start] = at + len(word) if any(own in line for own in OURS) else -1
            at = text.find(word, stop)
    return [(end, FAILURE) for end in ends.values() if end >= 0]


def _failure_patterns() -> list[bytes]:
    """Expressions for lines that hold a word of ours and one of failure, in either order."""
    ours, failing = (b"|".join(map(_escaped, words)) for words in (OURS, FAILING))
    return [
        b"(?:%s)[^\\n]*(?:%s)" % (ours, failing),
        b"(?:%s)[^\\n]*(?:%s)" % (failing, ours),
        b"|".join(map(_escaped, _overlapping())),
    ]


def _overlapping() -> list[bytes]:
    """Texts that hold a word of each where the two share letters: `e/qnn`, `rpcmem_alloc`."""
    found = set()
    for one, other in ((a, b) for o in OURS for f in FAILING for a, b in ((o, f), (f, o))):
        if one in other:
            found.add(other)
        for shared in range(1, min(len(one), len(other))):
            if one.endswith(other[:shared]):
                found.add(one + other[shared:])
    return sorted(found)


def _hits(database: Any, buffer: LogBytes, low: int, high: int) -> list[tuple[int, int]]:
    """End, counted from `low`, and number of the texts found; in a line `APART` or more."""
    hits: list[tuple[int, int]] = []
    last: dict[int, int] = {}  # in the line at hand, where each text was found
    first, stop = 0, -1  # of its ends: those of hits come in order, or some are noted twice

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


def _lines_at(
    buffer: LogBytes, low: int, high: int, hits: list[tuple[int, int]]
) -> list[tuple[int, int]]:
    """Where the lines start and stop in which hits end; each once, in order."""
    spans: list[tuple[int, int]] = []
    start, stop = low, low - 1
    find, rfind = buffer.find, buffer.rfind
    for end, _ in sorted(hits):
        end += low
        if end > stop:
            start = rfind(b"\n", max(stop, low), end) + 1 or low
            stop = find(b"\n", end, high)
            if stop < 0:
                stop = high
            spans.append((start, stop))
    return spans


def _moved(hits: list[tuple[int, int]], spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Hits in lines set side by side, at their places in the buffer."""
    moved = []
    lines = iter(spans)
    start, stop = next(lines)
    shift = start
    for end, number in hits:
        while end + shift > stop:
            before = stop
            start, stop = next(lines)
            shift += start - before - 1
        moved.append((end + shift, number))
    return moved


def _database(kind: str, texts: list[bytes]) -> Any:
    """The compiled texts, from the cache when they are there: compiling takes a while."""
    import hyperscan

    from qnnmem.doctor import cache

    version = getattr(hyperscan, "__version__", "")
    name = cache.name_of(kind, [version.encode(), *texts], ".hs")
    kept = cache.load(name)
    if kept is not None:
        try:
            database = hyperscan.loadb(kept, hyperscan.HS_MODE_BLOCK)
            database.scratch = hyperscan.Scratch(database)
            return database
        except hyperscan.HyperscanError:
            pass  # of another machine or release: compiled anew
    database = hyperscan.Database(mode=hyperscan.HS_MODE_BLOCK)
    database.compile(
        expressions=texts,
        ids=list(range(len(texts))),
        elements=len(texts),
        flags=[hyperscan.HS_FLAG_CASELESS] * len(texts),
    )
    cache.keep(name, hyperscan.dumpb(database))
    return database


def _escaped(anchor: bytes) -> bytes:
    return b"".join(b"\\x%02x" % byte for byte in anchor)


def _grams(text: bytes) -> set[bytes]:
    return {text[k : k + _GRAM] for k in range(len(text) - _GRAM + 1)}


def _ends(line: bytes, anchor: bytes) -> Iterable[int]:
    at = line.find(anchor)
    while at >= 0:
        yield at + len(anchor)
        at = line.find(anchor, at + APART)
