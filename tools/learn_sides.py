"""Learns which words of a failing line speak of memory, and writes them where the doctor has them.

    python tools/learn_sides.py            writes src/qnnmem/doctor/kb/sides.csv
    python tools/learn_sides.py --check    how well it goes for sources that are left out, no file

Learned from: the line templates and typical lines of entries that decide a side, and the failing
lines of the logs and messages that were looked at. The frozen logs and the held-out messages are
not among them.
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from doctor_cases import ROOT
from fresh_logs import FILE

from qnnmem.doctor.kb.knowledge import BUILT_IN, read_folder
from qnnmem.doctor.kb.sections import typical_lines
from qnnmem.doctor.kb.sides import features, side_of
from qnnmem.doctor.logs.reading import Chosen, read

OUT = ROOT / "src" / "qnnmem" / "doctor" / "kb" / "sides.csv"
MESSAGES = ROOT / "tests" / "doctor" / "messages.jsonl"
_HOLE = re.compile(r"\{[^}]*\}")
_LEAST = 2  # lines in which a word must stand
_KEPT = 0.25  # weights below it say nothing
_ADDED = 0.5  # what is added to each count


class Line(NamedTuple):
    """A line, whether it is about memory, and which source it comes from."""

    text: str
    is_memory: bool
    source: str


def lines() -> Iterator[Line]:
    """All that may be learned from."""
    _, entries = read_folder(BUILT_IN)
    for entry in entries:
        if entry.cause == "benign_noise" or entry.verdict == "undecided" or entry.is_memory is None:
            continue
        texts = {*(line.text for line in entry.lines if line.text), *typical_lines(entry)}
        for text in sorted(texts):
            yield Line(_HOLE.sub(" ", text), entry.is_memory, entry.id)
    for row in _rows(FILE):
        if not row["frozen"] and row["decidable"] in ("cause", "memory_only"):
            for text in row["lines"]:
                if read(text.encode(), Chosen.TOGETHER):
                    yield Line(text, row["is_memory"], row["id"])
    for row in _rows(MESSAGES) if MESSAGES.exists() else ():
        if not row["held_out"] and row["side"] in ("memory", "other"):
            yield Line(row["text"], row["side"] == "memory", row["text"])


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    yield from map(json.loads, path.read_text("utf-8").splitlines())


class Counts:
    """In how many lines of each side a word stands."""

    def __init__(self, every: Sequence[Line]) -> None:
        self._words: dict[bool, Counter[str]] = {True: Counter(), False: Counter()}
        self._lines: Counter[bool] = Counter()
        for line in every:
            self._words[line.is_memory].update(features(line.text))
            self._lines[line.is_memory] += 1

    def without(self, gone: Sequence[Line]) -> Counts:
        """The same less some lines."""
        left, less = Counts(()), Counts(gone)
        for side in (True, False):
            left._words[side] = self._words[side] - less._words[side]
            left._lines[side] = self._lines[side] - less._lines[side]
        return left

    def weights(self) -> dict[str, float]:
        """Of each word that says something, how much more it stands for memory than for others."""
        found = {}
        for word in {*self._words[True], *self._words[False]}:
            memory, other = self._words[True][word], self._words[False][word]
            if memory + other < _LEAST:
                continue
            share = math.log((memory + _ADDED) / (self._lines[True] + 2 * _ADDED))
            weight = share - math.log((other + _ADDED) / (self._lines[False] + 2 * _ADDED))
            if abs(weight) >= _KEPT:
                found[word] = round(weight, 2)
        return found


def check(every: Sequence[Line]) -> Iterator[str]:
    """Of each side, how many lines are told rightly when their source is left out."""
    counts = Counts(every)
    sources: dict[str, list[Line]] = {}
    for line in every:
        sources.setdefault(line.source, []).append(line)
    graded: Counter[tuple[bool | None, bool]] = Counter()
    for gone in sources.values():
        weights = counts.without(gone).weights()
        for line in gone:
            side = side_of(line.text, weights)
            told = None if side is None else side.is_memory
            graded[told, told is line.is_memory] += 1
    for told, name in ((True, "memory"), (False, "other")):
        right, wrong = graded[told, True], graded[told, False]
        yield f"told as {name}: {right} right, {wrong} wrong ({right / max(right + wrong, 1):.1%})"
    yield f"left open: {graded[None, False]}"


def main() -> int:
    """Learns, and writes or checks."""
    every = tuple(lines())
    if "--check" in sys.argv[1:]:
        print("\n".join(check(every)))
        return 0
    weights = Counts(every).weights()
    rows = "".join(f"{word},{weights[word]}\n" for word in sorted(weights))
    OUT.write_text(f"word,weight\n{rows}", "utf-8")
    print(f"Wrote {OUT.relative_to(ROOT)}: {len(weights)} words from {len(every)} lines")
    return 0


if __name__ == "__main__":
    sys.exit(main())
