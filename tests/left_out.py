"""The knowledge base as if one source of logs had never been read."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
from doctor_cases import Case, origin

from qnnmem.doctor.kb.knowledge import BUILT_IN, Knowledge, pack, read_folder
from qnnmem.doctor.logs.line import bare_line, match


class Base:
    """The built-in knowledge base, whole or without what one source alone supports."""

    def __init__(self, cases: Sequence[Case]) -> None:
        self._packed = pack(*read_folder(BUILT_IN))
        self.whole = Knowledge(self._packed)
        self.supporters = self._supporters(cases)

    def without(self, source: str) -> Knowledge:
        """The knowledge base as if this source had never been read."""
        gone = {line for line, sources in self.supporters.items() if sources == {source}}
        anchors = {
            anchor: [line for line in lines if line not in gone]
            for anchor, lines in self._packed.anchors.items()
        }
        # A template that no anchor leads to is never looked at, so its sign is never seen.
        key = f"{zlib.crc32(source.encode()):08x}"
        folded = [one for one in self._packed.folded if one.number not in gone]
        left = msgspec.structs.replace(self._packed, anchors=anchors, folded=folded, key=key)
        return Knowledge(left)

    def dropped(self, source: str) -> int:
        """How many templates only this source supports."""
        return sum(sources == {source} for sources in self.supporters.values())

    def _supporters(self, cases: Iterable[Case]) -> dict[int, set[str]]:
        prefilters = self.whole.prefilter_bytes
        found: dict[int, set[str]] = {}
        for case in cases:
            # Messages that are split over lines count for the template as well.
            texts = [*case.lines, *map("".join, zip(case.lines, case.lines[1:], strict=False))]
            for text in texts:
                bare = bare_line(text.encode("utf-8", "replace"))
                low = bare.lower()
                near = [line for line, prefilter in enumerate(prefilters) if prefilter in low]
                for line, _ in match(self.whole, bare, near):
                    found.setdefault(line, set()).add(case.source)
        return found


def as_case(row: dict[str, Any]) -> Case:
    """A log gathered later as a stored one."""
    lines = tuple(part for line in row["lines"] for part in line.splitlines())
    where, accept, memory = origin(row["source"]), tuple(row["accept"]), row["is_memory"]
    labels = (row["decidable"], row["stage"], row["cause"])
    return Case(row["id"], where, *labels, memory, lines, accept=accept)
