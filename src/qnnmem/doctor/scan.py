"""Where in a piece of log the fixed texts of the templates stand.

Three engines give the same answer: Vectorscan (package `hyperscan`), RE2 (package `google-re2`) and
the standard library alone. Small logs are read with the last one, which needs no import.
"""

from __future__ import annotations

import zlib

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any, Protocol

    from qnnmem.doctor.knowledge import Knowledge

    class Scanner(Protocol):
        """An engine with the texts it looks for."""

        name: str
        anchors: list[bytes]

        def scan(self, view: memoryview) -> list[tuple[int, int]]:
            """End and number of every text found, in order of the ends."""
            ...


# Below this many bytes, loading an engine costs more than it saves.
SMALL = 1 << 20

ENGINES = ("hyperscan", "re2", "plain")


def scanner(knowledge: Knowledge, size: int, engine: str | None = None) -> Scanner:
    """The best engine at hand for this many bytes, or the one asked for."""
    if engine is None and size < SMALL:
        engine = "plain"
    if engine in (None, "hyperscan"):
        try:
            return Vectorscan(knowledge)
        except ImportError:
            if engine:
                raise
    if engine in (None, "re2"):
        try:
            return Re2(knowledge)
        except ImportError:
            if engine:
                raise
    return Plain(knowledge)


class Plain:
    """The standard library: a few short texts, then the anchors that hold them."""

    name = "plain"

    def __init__(self, knowledge: Knowledge) -> None:
        self.anchors = [anchor.encode() for anchor in knowledge.anchors]
        self._gates = [
            (gate.encode(), [(number, self.anchors[number]) for number in numbers])
            for gate, numbers in knowledge.gates.items()
        ]

    def scan(self, view: memoryview) -> list[tuple[int, int]]:
        """Lines that hold a gate are searched for its anchors."""
        text = bytes(view).lower()
        found: list[tuple[int, int]] = []
        for gate, anchors in self._gates:
            at = text.find(gate)
            while at >= 0:
                start = text.rfind(b"\n", 0, at) + 1
                stop = text.find(b"\n", at)
                stop = len(text) if stop < 0 else stop
                line = text[start:stop]
                for number, anchor in anchors:
                    if anchor in line:
                        found.extend((start + end, number) for end in _ends(line, anchor))
                at = text.find(gate, stop)
        found.sort()
        return found


class Re2:
    """RE2: one alternation finds the lines, then the anchors."""

    name = "re2"

    def __init__(self, knowledge: Knowledge) -> None:
        import re2

        self.anchors = [anchor.encode() for anchor in knowledge.anchors]
        options = re2.Options()
        options.case_sensitive = False
        options.max_mem = 64 << 20
        options.encoding = re2.Options.Encoding.LATIN1
        self._any = re2.compile(b"|".join(map(re2.escape, self.anchors)), options)

    def scan(self, view: memoryview) -> list[tuple[int, int]]:
        """Lines in which the alternation matches are searched for every anchor."""
        text = bytes(view)
        found: list[tuple[int, int]] = []
        at = 0
        while (hit := self._any.search(text, at)) is not None:
            start = text.rfind(b"\n", 0, hit.start()) + 1
            stop = text.find(b"\n", hit.end())
            at = stop = len(text) if stop < 0 else stop
            line = text[start:stop].lower()
            for number, anchor in enumerate(self.anchors):
                if anchor in line:
                    found.extend((start + end, number) for end in _ends(line, anchor))
        found.sort()
        return found


class Vectorscan:
    """Vectorscan: all anchors in one pass over the buffer."""

    name = "hyperscan"

    def __init__(self, knowledge: Knowledge) -> None:
        self.anchors = [anchor.encode() for anchor in knowledge.anchors]
        self._database = _database(self.anchors)
        self._hits: list[tuple[int, int]] = []

    def scan(self, view: memoryview) -> list[tuple[int, int]]:
        """What the engine reports, sorted."""
        hits = self._hits
        hits.clear()
        append = hits.append

        def note(number: int, _start: int, end: int, _flags: int, _context: object) -> None:
            append((end, number))

        self._database.scan(view, match_event_handler=note)
        hits.sort()
        return hits


def _database(anchors: list[bytes]) -> Any:
    """The compiled anchors, from the cache when they are there: compiling takes a while."""
    import hyperscan

    from qnnmem.doctor import cache

    version = getattr(hyperscan, "__version__", "")
    key = zlib.crc32(repr((version, anchors)).encode())
    name = f"anchors-{len(anchors)}-{key:08x}.hs"
    kept = cache.load(name)
    if kept is not None:
        try:
            database = hyperscan.loadb(kept, hyperscan.HS_MODE_BLOCK)
            database.scratch = hyperscan.Scratch(database)
            return database
        except hyperscan.HyperscanError:
            pass  # of another machine or release: compiled anew
    database = hyperscan.Database(mode=hyperscan.HS_MODE_BLOCK)
    flag = hyperscan.HS_FLAG_CASELESS
    database.compile(
        expressions=[_escaped(anchor) for anchor in anchors],
        ids=list(range(len(anchors))),
        elements=len(anchors),
        flags=[flag] * len(anchors),
    )
    cache.keep(name, hyperscan.dumpb(database))
    return database


def _escaped(anchor: bytes) -> bytes:
    return b"".join(b"\\x%02x" % byte for byte in anchor)


def _ends(line: bytes, anchor: bytes) -> Iterable[int]:
    at = line.find(anchor)
    while at >= 0:
        yield at + len(anchor)
        at = line.find(anchor, at + 1)
