"""Matching of one template, in time that grows with the line and never with what it holds.

A template is cut at its holes for words and for any text, which are as short as can be:

    fixed part 0 | hole 1 | fixed part 1 | hole 2 | fixed part 2

Each fixed part stands at its first place in the line that is not before the part to its left. Where
a hole would be too long, the part to its left moves on to its next place. No part ever moves back,
so each is looked for in each byte at most once. What comes out is the match with the leftmost
start and the shortest holes: of two matches, the one with every part at the earlier of its two
places is a match as well.
"""

from __future__ import annotations

import re

import msgspec

from qnnmem.doctor.kb.template import ANY_WORD, BLANKS, MOST_BLANKS, TEXT, WORD

_LAZY = "|".join(re.escape(f"{hole}?") for hole in (ANY_WORD, WORD, TEXT))
_HOLE = re.compile(rf"(\((?:{_LAZY})\)|{_LAZY})")
_BOUNDS = re.compile(r"\{([0-9]+),([0-9]+)\}")
_SPACES = re.compile(rb"\s*+")
_LAST_SPACE = re.compile(rb".*\s", re.DOTALL)


class _Hole(msgspec.Struct, frozen=True):
    """A hole between two fixed parts."""

    least: int
    most: int
    word: bool
    named: bool


class _Part:
    """A fixed part, and where it stands in the line at hand."""

    __slots__ = ("_empty", "_lead", "_search", "begin", "end", "hit", "start")

    def __init__(self, regex: str) -> None:
        core = regex.removeprefix(BLANKS)
        self._lead = core != regex  # blanks before it belong to it
        self._empty = not core
        self._search = re.compile((BLANKS if self._empty and self._lead else core).encode()).search
        self.start = self.begin = self.end = 0
        self.hit: re.Match[bytes] | None = None

    def move(self, low: bytes, at: int, need: int) -> bool:
        """Goes to its first place at or after `at`; of use is only one that ends at `need`."""
        if self._empty and need > at:
            at = self._back(low, at, need)
        hit = self.hit = self._search(low, at)
        if hit is None:
            return False
        self.start, self.end = hit.span()
        self.begin = self._back(low, 0, self.start) if self._lead else self.start
        return True

    def _back(self, low: bytes, least: int, at: int) -> int:
        """Where the blanks before a place begin."""
        if not self._lead:
            return at
        least = max(least, at - MOST_BLANKS)
        return least + len(low[least:at].rstrip(b" \t"))


class Matcher:
    """A template ready for matching; it remembers places, so it is for one thread."""

    def __init__(self, regex: str) -> None:
        pieces = _HOLE.split(regex)
        self._parts = [_Part(piece) for piece in pieces[::2]]
        self._holes = [_hole(piece) for piece in pieces[1::2]]

    def search(self, text: bytes, low: bytes) -> tuple[bytes, ...] | None:
        """What the named holes catch in a line, given as it is and in small letters."""
        parts = self._parts
        if not parts[0].move(low, 0, 0):
            return None
        if len(parts) == 1:  # the usual case
            hit = parts[0].hit
            return hit.groups() if hit else None
        if not self._place(low):
            return None
        caught: list[bytes] = []
        for index, part in enumerate(parts):
            if index and self._holes[index - 1].named:
                before = parts[index - 1].end
                least = before + self._holes[index - 1].least
                caught.append(text[before : max(part.begin, least)])
            if part.hit is not None:
                caught += part.hit.groups()
        return tuple(caught)

    @property
    def at(self) -> int:
        """Where the match that was found last begins."""
        return self._parts[0].start

    def _place(self, low: bytes) -> bool:
        """Moves parts on until every hole fits."""
        parts, holes = self._parts, self._holes
        for part in parts[1:]:
            part.hit = None
        index = 1
        while index < len(parts):
            left, part, hole = parts[index - 1], parts[index], holes[index - 1]
            least = left.end + hole.least
            if (part.hit is None or part.start < least) and not part.move(low, least, 0):
                return False
            need = _need(low, left.end, max(part.begin, least), hole)
            if need <= left.end:
                index += 1
            elif left.move(low, left.start + 1, need):
                index = max(index - 1, 1)
            else:
                return False
        return True


def _hole(regex: str) -> _Hole:
    least, most = map(int, _BOUNDS.findall(regex)[0])
    return _Hole(least, most, "." not in regex, regex.startswith("("))


def _need(low: bytes, start: int, stop: int, hole: _Hole) -> int:
    """Where a hole that ends at `stop` can begin at the earliest, if not at `start`."""
    earliest = max(start, stop - hole.most)
    last = _LAST_SPACE.match(low, earliest, stop) if hole.word else None
    if last is None:
        return earliest
    spaces = _SPACES.match(low, last.end()) if hole.least else None  # nor can it begin with one
    return spaces.end() if spaces else last.end()
