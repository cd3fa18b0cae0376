"""Match one template in time that is linear in the length of the line.

A template is split at its holes for words or any text; each of these takes the shortest fitting
text:

    fixed part 0 | hole 1 | fixed part 1 | hole 2 | fixed part 2

Each fixed part is placed at its first position after the part to its left. If a hole becomes too
long, the part to its left moves to its next position. Parts never move back, so each byte is
searched at most once for each part. The result is the match with the leftmost start and the
shortest holes. If there are several matches, one of them is leftmost for every part: placing each
part of two matches at the earlier of its two positions gives another match.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cache, cached_property, partial
from typing import NamedTuple, TypeAlias

from qnnmem.text import lazy_pattern

MOST_BLANKS = 40
BLANKS = rf"[ \t]{{0,{MOST_BLANKS}}}+"
# Maximum lengths of a word and of any text in a hole. Such a hole takes the shortest text, but the
# longest at the end of a template.
_MOST_WORD, _MOST_TEXT = 200, 120
ANY_WORD = rf"[^\s]{{0,{_MOST_WORD}}}"
WORD = rf"[^\s]{{1,{_MOST_WORD}}}"
TEXT = rf".{{0,{_MOST_TEXT}}}"

NUMBER = r"-?(?:0x[0-9a-f]{1,16}|[0-9]{1,20})"
BYTES = r"-?(?:0x[0-9a-f]{1,16}|[0-9]{1,3}(?:,[0-9]{3}){1,6}|[0-9]{1,20})"
DECIMAL = r"[0-9]{1,15}(?:\.[0-9]{1,9})?"

_LAZY = "|".join(re.escape(f"{hole}?") for hole in (ANY_WORD, WORD, TEXT))
_HOLE = lazy_pattern(rf"(\((?:{_LAZY})\)|{_LAZY})")
_BOUNDS = lazy_pattern(r"\{([0-9]+),([0-9]+)\}")
# Common elements of fixed parts besides text. Each has one possible match at a position, so no
# backtracking is needed.
_NUMBERS = (NUMBER, BYTES, DECIMAL)
_AT_END = (ANY_WORD, WORD, TEXT)
_RUN = lazy_pattern(r"(?:[\w<>=:;,/%&!@\"'`~]|\\[^\w]|\\x[0-9a-f]{2})+")
_SETTLED = "(?>"  # before a number that the following text confirms
_CONFIRMED = lazy_pattern(r"\(\?=(?:[^()\\]|\\.)*\)\)")
_ESCAPE = lazy_pattern(r"\\(?:x([0-9a-f]{2})|(.))", re.DOTALL)
_SPACES = lazy_pattern(rb"\s*+")
_LAST_SPACE = lazy_pattern(rb".*\s", re.DOTALL)


class _Hole(NamedTuple):
    """Hole between two fixed parts: the limits of its length, and its type."""

    least: int
    most: int
    word: bool
    named: bool


# Start and end of each captured text.
_Spans: TypeAlias = "Sequence[tuple[int, int]]"
# Position of a fixed part: start including leading blanks, captures, start, end. It is a tuple
# because each move creates a position, and tuples are cheap.
_Place: TypeAlias = "tuple[int, _Spans, int, int]"
_Found: TypeAlias = "tuple[int, int, _Spans]"
# A fixed text, or another element: the function that matches it, and whether its text is captured.
_Step: TypeAlias = "bytes | tuple[Callable[..., re.Match[bytes] | None], bool]"


class _Part:
    """Fixed part of a template."""

    def __init__(self, regex: str) -> None:
        core = regex.removeprefix(BLANKS)
        self._lead = core != regex
        self._empty = not core
        self._regex = regex if self._empty else core

    @cached_property
    def search(self) -> Callable[..., _Found | None]:
        """Function that finds the part in a line; it is compiled on first use."""
        steps = _steps(self._regex)
        return partial(_find, *steps) if steps else _compiled(self._regex)

    def place(self, low: bytes, at: int, need: int = 0) -> _Place | None:
        """Return where this part of the template first matches in a line, at or after `at`.

        An empty part matches anywhere, so it is placed to end at `need` if `need` is after `at`.
        """
        if self._empty and need > at:
            at = self._back(low, at, need)
        if at > len(low):  # the engine treats this as the end
            return None
        hit = self.search(low, at)
        if hit is None:
            return None
        start, end, spans = hit
        return (self._back(low, 0, start) if self._lead else start), spans, start, end

    def _back(self, low: bytes, least: int, at: int) -> int:
        """Return the start of the blanks before `at` if the part begins with blanks, else `at`."""
        if not self._lead:
            return at
        least = max(least, at - MOST_BLANKS)
        return least + len(low[least:at].rstrip(b" \t"))


class Matcher:
    """Template that has been compiled for matching."""

    def __init__(self, regex: str) -> None:
        pieces = _HOLE.split(regex)
        self.parts = [_Part(piece) for piece in pieces[::2]]
        self._holes = [_hole(piece) for piece in pieces[1::2]]
        # The last line and its result: a matching line is queried again to learn its message.
        self._last: tuple[bytes, tuple[int, Sequence[tuple[int, int]]] | None] = (b"", None)

    def search(self, text: bytes, low: bytes) -> tuple[int, tuple[bytes, ...]] | None:
        """Return a match's start and captured texts; `low` is `text` in lower case."""
        found = self.spans(low)
        self._last = low, found
        if found is None:
            return None
        first, spans = found
        return first, tuple([text[start:end] for start, end in spans])

    def spans(self, low: bytes) -> tuple[int, Sequence[tuple[int, int]]] | None:
        """Return a match's start in a lower-case line, and the spans of the captured texts."""
        last, answer = self._last
        if low and low == last:
            return answer
        if not self._holes:
            found = self.parts[0].search(low)
            return None if found is None else (found[0], found[2])
        places = self._places(low)
        if places is None:
            return None
        _, caught, first, end = places[0]
        spans = [*caught]
        for hole, (begin, caught, _, stop) in zip(self._holes, places[1:], strict=True):
            if hole.named:
                spans.append((end, max(begin, end + hole.least)))
            spans += caught
            end = stop
        return first, spans

    def _places(self, low: bytes) -> list[_Place] | None:
        """Move the parts until every hole fits; return their positions, or None if impossible."""
        parts, holes = self.parts, self._holes
        place = parts[0].place(low, 0)
        if place is None:
            return None
        places = [place]  # positions of the parts found so far
        index = 1
        while index < len(parts):
            _, _, start, end = places[index - 1]
            hole = holes[index - 1]
            least = end + hole.least
            if index == len(places) or places[index][2] < least:
                place = parts[index].place(low, least)
                if place is None:
                    return None
                places[index : index + 1] = [place]
            need = _need(low, end, max(places[index][0], least), hole)
            if need <= end:
                index += 1
                continue
            place = parts[index - 1].place(low, start + 1, need)
            if place is None:
                return None
            places[index - 1] = place
            index = max(index - 1, 1)
        return places


def _compiled(regex: str) -> Callable[..., _Found | None]:
    search = re.compile(regex.encode()).search

    def found(low: bytes, at: int = 0) -> _Found | None:
        hit = search(low, at)
        return None if hit is None else (hit.start(), hit.end(), hit.regs[1:])

    return found


def _steps(regex: str) -> tuple[bytes, list[_Step]] | None:
    """Split a part into its leading text and simple steps; return None if it needs a full regex.

    Compiling a regex takes longer than matching a hundred lines by steps.
    """
    steps: list[_Step] = []
    at, size = 0, len(regex)
    while at < size:
        if run := _RUN.match(regex, at):
            steps.append(_ESCAPE.sub(_unescaped, run[0]).encode("latin-1"))
            at = run.end()
            continue
        named = _element(regex, at + 1, size - 1) if regex[at] == "(" else 0
        if named and regex[named] == ")":
            end = named + 1
        else:
            end, named = _element(regex, at, size), 0
        if not end:
            return None
        steps.append((_matching(regex[at:end]), bool(named)))
        at = end
    first = steps[0] if steps else None
    return (first, steps[1:]) if isinstance(first, bytes) else None


def _element(regex: str, at: int, last: int) -> int:
    """Return the end of the number, blanks or final hole that starts at `at`; 0 for other text."""
    if regex.startswith(BLANKS, at):
        return at + len(BLANKS)
    settled = regex.startswith(_SETTLED, at)
    for number in _NUMBERS:
        if regex.startswith(number, at + len(_SETTLED) * settled):
            end = at + len(_SETTLED) * settled + len(number)
            confirmed = _CONFIRMED.match(regex, end) if settled else None
            return confirmed.end() if confirmed else 0 if settled else end
    return last if regex[at:last] in _AT_END else 0


def _unescaped(found: re.Match[str]) -> str:
    return chr(int(found[1], 16)) if found[1] else found[2]


@cache
def _matching(regex: str) -> Callable[..., re.Match[bytes] | None]:
    return re.compile(regex.encode()).match


def _find(first: bytes, rest: Sequence[_Step], low: bytes, at: int = 0) -> _Found | None:
    """Return the first position at which a part's leading text and all its steps match, or None."""
    at = low.find(first, at)
    while at >= 0:
        end, spans = at + len(first), []
        for step in rest:
            if isinstance(step, bytes):
                if not low.startswith(step, end):
                    break
                end += len(step)
                continue
            hit = step[0](low, end)
            if hit is None:
                break
            end = hit.end()
            if step[1]:
                spans.append(hit.span())
        else:
            return at, end, spans
        at = low.find(first, at + 1)
    return None


@cache  # there are few kinds of holes, and many templates
def _hole(regex: str) -> _Hole:
    bare = regex.removeprefix("(")
    least, most = map(int, _BOUNDS.findall(bare)[0])
    return _Hole(least, most, word=not bare.startswith("."), named=bare != regex)


def _need(low: bytes, start: int, stop: int, hole: _Hole) -> int:
    """Return where a hole that ends at `stop` can begin at the earliest, not before `start`."""
    earliest = max(start, stop - hole.most)
    last = _LAST_SPACE.match(low, earliest, stop) if hole.word else None
    if last is None:
        return earliest
    spaces = _SPACES.match(low, last.end()) if hole.least else None  # a word starts with no blank
    return spaces.end() if spaces else last.end()
