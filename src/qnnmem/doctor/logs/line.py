"""Matching of a log line against the templates whose fixed texts occur in it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import TypeAlias

import msgspec

from qnnmem.doctor.kb.knowledge import Knowledge
from qnnmem.doctor.logs import header, words
from qnnmem.doctor.logs.lpai_sizes import LpaiWords
from qnnmem.doctor.logs.reading import FailingLine, code_alone, code_at_end, read
from qnnmem.text import lazy_pattern

# Size units: programs that print "MB" in these logs mean powers of 1024.
SCALES = {"bytes": 1, "level": 1, "added": 1, "KB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30}

WORDY = ("word", "text")  # types of holes that capture no number

Values: TypeAlias = tuple[int | str, ...]
# The number of a template, and the values captured by its holes.
Found: TypeAlias = tuple[int, Values]

_LEVELLED = ("tool", "level")  # styles of heads with only a level
_COLOUR = lazy_pattern(rb"\x1b\[[0-9;]{0,20}[A-Za-z]")


class Hit(msgspec.Struct, frozen=True, gc=False):
    """Log line with the templates that it matches."""

    offset: int  # offset of the line's first byte
    number: int  # line number from 1, counted from the start of reading
    pid: int | None
    time: float | None
    text: bytes
    found: list[Found]
    opens: bool = True  # True: one of them makes an incident


def bare_line(line: bytes) -> bytes:
    """Return a line without colours, NUL bytes and its line end."""
    if b"\x1b" in line:
        line = _COLOUR.sub(b"", line)
    if b"\0" in line:
        line = line.replace(b"\0", b"")
    return line.rstrip(b"\r\n")


def match(knowledge: Knowledge, text: bytes, lines: Iterable[int]) -> list[Found]:
    """Return those of the templates `lines` that match the text, with the captured values."""
    found: list[Found] = []
    plains, low = knowledge.plain, text.lower()
    for index in lines:
        if plain := plains[index]:
            if plain in low:
                found.append((index, ()))
        elif (hit := knowledge.matcher(index).search(text, low)) is not None:
            holes = knowledge.holes[index]
            found.append((index, _values(hit[1], holes) if holes else ()))
    return found


def read_failure(
    knowledge: Knowledge,
    text: bytes,
    *,
    alone: bool = False,
    wrapped: Callable[[], Iterable[bytes]] = tuple,
) -> list[Found]:
    """Return the templates for the failure in a line that no template matches literally.

    The list is empty if the line reports no failure. `alone` means that the line is from a short
    log about QNN, so it needs no QNN word. `wrapped` yields the line joined with the other lines of
    its message.
    """
    failure = read(text, alone)
    if failure is None:
        return []
    holes = knowledge.holes
    for whole in chain((text,), wrapped()):
        known = [
            one
            for one in knowledge.second_reading.find(_said(whole))
            if one[0] not in knowledge.words
        ]
        if known and whole is not text:  # a match of the other line alone is not about this line
            rest = whole.replace(text, b" ", 1)
            alone_known = {index for index, _ in knowledge.second_reading.find(rest)}
            known = [one for one in known if one[0] not in alone_known]
        if known:
            about = [] if failure.lpai is None else _said_of_lpai(knowledge, failure.lpai)
            if all(index in knowledge.hints for index, _ in known):
                about = told(knowledge, failure)  # a supporting line explains nothing
            return [*((index, _values(caught, holes[index])) for index, caught in known), *about]
    return told(knowledge, failure)


def _said(text: bytes) -> bytes:
    """Return a line without its level, which could otherwise be read as part of a code's name."""
    head = header.parse(text)
    return text[head.body :] if head.style in _LEVELLED else text


def told(knowledge: Knowledge, failure: FailingLine) -> list[Found]:
    """Return the templates for a failure's stage, code and LPAI topic."""
    caught = () if failure.code is None else (failure.code,)
    stage = knowledge.reads.get(f"{failure.stage or 'other'}{' code' if caught else ''}")
    found: list[Found] = [] if stage is None else [(stage, caught)]
    if failure.lpai is not None:
        found += _said_of_lpai(knowledge, failure.lpai)
    return found


def _said_of_lpai(knowledge: Knowledge, said: LpaiWords) -> list[Found]:
    """Return the template for an LPAI topic, with the sizes that the line states."""
    sizes = tuple(size for size in (said.needed, said.limit) if size is not None)
    name = f"lpai {said.topic}{('', ' needed', ' limit')[len(sizes)]}"
    number = knowledge.reads.get(name)
    return [] if number is None else [(number, sizes)]


def said_beside(
    knowledge: Knowledge, found: Sequence[Found], text: bytes, failing: bool
) -> list[Found]:
    """Return the code and LPAI topic of a matched line, unless its templates capture them."""
    code = _code(knowledge, found, text)
    about = _lpai_beside(knowledge, found, text) if failing else []
    return [*about, *([code] if code else ())]


def _code(knowledge: Knowledge, found: Sequence[Found], text: bytes) -> Found | None:
    asked = None
    for index, _ in found:
        taken = any(kind == "code" for _, kind in knowledge.holes[index])
        if taken or index in knowledge.excused:
            return None
        asked = asked or knowledge.code_lines.get(index)
    code = None if asked is None else code_at_end(text)
    return None if asked is None or code is None else (asked, (code,))


def _lpai_beside(knowledge: Knowledge, found: Sequence[Found], text: bytes) -> list[Found]:
    if not all(index in knowledge.bare_calls for index, _ in found):
        return []
    if not words.rule("lpai").search(text.lower()):
        return []  # most lines: reading them would compile dozens of expressions
    failure = read(text)
    return [] if failure is None or failure.lpai is None else _said_of_lpai(knowledge, failure.lpai)


def code_below(knowledge: Knowledge, found: Sequence[Found], below: bytes) -> list[Found]:
    """Return the code of a failed call if the line below consists only of a code."""
    asked = next((knowledge.code_lines[i] for i, _ in found if i in knowledge.code_lines), None)
    if asked is None or any(index in knowledge.excused for index, _ in found):
        return []
    code = code_alone(below)
    return [] if code is None else [(asked, (code,))]


def place(knowledge: Knowledge, index: int, text: bytes, low: bytes) -> int:
    """Return the offset at which a template's match in a text begins."""
    if plain := knowledge.plain[index]:
        return low.find(plain)
    hit = knowledge.matcher(index).search(text, low)
    return hit[0] if hit else 0


def number(text: bytes, kind: str) -> int:
    """Return a captured number as an integer, with sizes converted to bytes."""
    if text.isdigit():  # the common case
        return int(text) * SCALES.get(kind, 1)
    if kind in ("KB", "MB", "GB"):
        whole, _, part = text.partition(b".")
        scale = SCALES[kind]
        return int(whole) * scale + (int(part) * scale // 10 ** len(part) if part else 0)
    return int(text, 0) if b"x" in text.lower() else int(text.replace(b",", b""))


def _values(caught: Sequence[bytes], holes: Sequence[tuple[str, str]]) -> tuple[int | str, ...]:
    return tuple(
        [
            one.decode("utf-8", "replace") if kind in WORDY else number(one, kind)
            for (_name, kind), one in zip(holes, caught, strict=True)
        ]
    )
