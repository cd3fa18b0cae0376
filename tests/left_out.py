"""The knowledge base without the knowledge from one source of logs."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

import msgspec
from doctor_cases import Case, origin

from qnnmem.doctor.kb.fold import FoldedTemplate
from qnnmem.doctor.kb.knowledge import BUILT_IN, Knowledge, pack, read_folder
from qnnmem.doctor.logs.line import bare_line, match


class Base:
    """The built-in knowledge base, whole or without the entries that one source alone supports."""

    def __init__(self, cases: Sequence[Case]) -> None:
        self._packed = pack(*read_folder(BUILT_IN))
        self.whole = Knowledge(self._packed)
        self.supporters = self._supporters(cases)

    def without(self, source: str) -> Knowledge:
        """Return the knowledge base without the entries that only this source supports."""
        gone = {line for line, sources in self.supporters.items() if sources == {source}}
        anchors = {
            anchor: [line for line in lines if line not in gone]
            for anchor, lines in self._packed.anchors.items()
        }
        # A template that no anchor leads to is never tried, so it never matches.
        key = f"{zlib.crc32(source.encode()):08x}"
        folded = msgspec.json.decode(self._packed.folded, type=list[FoldedTemplate])
        left = msgspec.structs.replace(
            self._packed,
            anchors=anchors,
            numbered=[line for line in self._packed.numbered if line not in gone],
            folded=msgspec.Raw(
                msgspec.json.encode([form for form in folded if form.number not in gone])
            ),
            key=key,
        )
        return Knowledge(left)

    def dropped(self, source: str) -> int:
        """Return how many templates only this source supports."""
        return sum(sources == {source} for sources in self.supporters.values())

    def _supporters(self, cases: Iterable[Case]) -> dict[int, set[str]]:
        lines_of: dict[bytes, list[int]] = {}
        for line, prefilter in enumerate(self.whole.prefilter_bytes):
            lines_of.setdefault(prefilter, []).append(line)
        sources: dict[str, set[str]] = {}
        for case in cases:
            # A message that is split over two lines counts for its template too.
            for text in (*case.lines, *map("".join, pairwise(case.lines))):
                sources.setdefault(text, set()).add(case.source)
        found: dict[int, set[str]] = {}
        for text, mine in sources.items():
            bare = bare_line(text.encode("utf-8", "replace"))
            low = bare.lower()
            for prefilter, lines in lines_of.items():
                if prefilter in low:
                    for line, _ in match(self.whole, bare, lines):
                        found.setdefault(line, set()).update(mine)
        return found


def as_case(row: dict[str, Any]) -> Case:
    """Return a later log in the form of a stored case."""
    lines = tuple(part for line in row["lines"] for part in line.splitlines())
    where, accept, memory = origin(row["source"]), tuple(row["accept"]), row["is_memory"]
    labels = (row["decidable"], row["stage"], row["cause"])
    return Case(row["id"], where, *labels, memory, lines, accept=accept)
