"""Reuse of matches for messages that differ only in their digits.

Programs print the same messages with other numbers. If the fixed texts of a template contain no
digits, the match and its holes do not depend on the digits of the line, except the `0` in `0x`.

This is true only of the message. Therefore matches are reused only for lines whose heads contain
the process and time in a simple form, and only for templates that begin with a text. All other
lines are matched each time.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from qnnmem.doctor.kb.knowledge import Knowledge
from qnnmem.doctor.logs.failure_texts import is_about_us
from qnnmem.doctor.logs.header import process_of, second_of
from qnnmem.doctor.logs.line import SCALES, WORDY, Found, number
from qnnmem.doctor.logs.line_memory import (
    BY_KERNEL,
    BY_LOGCAT,
    NO_PROCESS,
    STAMPED,
    LineMemory,
    PlaceOfLine,
    digits_alike,
)
from qnnmem.doctor.logs.reading import is_calm
from qnnmem.text import lazy_pattern

_LONGEST = 512  # bytes of a message that is cached
_MOST_ANSWERS = 4096
_HOLE = lazy_pattern(r"(?<!\\)\{[^{}]*\}")
_OPEN_TO_HEADS = frozenset("{(0123456789-:. \t")

# A hole in the message: start, end, type, and the factor of its number (0 for text).
_Field = tuple[int, int, str, int]


class Repeat(msgspec.Struct, frozen=True, gc=False):
    """Matches that all messages with the same letters share, whatever their digits."""

    found: tuple[tuple[int, tuple[_Field, ...]], ...]  # templates with their holes
    opens: bool  # True: one of them makes an incident
    asks_code: bool  # True: a code may be next to the call, or in the next line

    def of(self, message: bytes) -> list[Found]:
        """Return the templates that a message matches, with the values of their holes."""
        out: list[Found] = []
        for index, fields in self.found:
            values: list[int | str] = []
            for start, end, kind, scale in fields:
                text = message[start:end]
                if not scale:
                    values.append(text.decode("utf-8", "replace"))
                elif text.isdigit():  # the common case
                    values.append(int(text) * scale)
                else:
                    values.append(number(text, kind))
            out.append((index, tuple(values)))
        return out


class KeptMessage(msgspec.Struct, frozen=True, gc=False):
    """Matches of one exact message, including its digits."""

    asked: Sequence[int]  # templates to match
    found: list[Found]
    matched: list[Found]  # matches that may be a call with its code in the next line
    opens: bool


class RepeatedLines:
    """Messages seen so far, regardless of digits, and the latest exact messages."""

    def __init__(self, knowledge: Knowledge, memory: LineMemory) -> None:
        self._knowledge, self._memory = knowledge, memory
        self._known: set[tuple[bytes, int]] = set()
        self._numbered: list[Repeat] = []
        self.fresh: dict[tuple[bytes, int], int] = {}  # numbers that the engine does not know yet
        self._steady: dict[int, bool] = {}
        self._answers: dict[tuple[int, bytes], KeptMessage] = {}

    def numbered(self, number: int) -> Repeat:
        """Return the matches of the message that is stored under this number."""
        return self._numbered[number - 1]

    def begin(self) -> None:
        """Prepare for the next region: forget which messages are new, and clear a full memory."""
        self.fresh.clear()
        if self._memory.full:
            self._memory.clear()
            self._known.clear()
            self._numbered.clear()

    def lately(self, raw: bytes, body: int, style: int) -> int:
        """Return a message's number if it was added in this region, else zero."""
        return self.fresh.get((digits_alike(raw[body:].rstrip(b"\r\n")), style), 0)

    def note(
        self, text: bytes, head: PlaceOfLine, asked: Sequence[int], found: Sequence[Found]
    ) -> None:
        """Remember the matches of a message if they do not depend on its digits."""
        _, _, _, body, _, pid, style, _ = head
        knowledge = self._knowledge
        numbers = [index for index, _ in found]
        if (
            not style
            or len(text) > _LONGEST
            or b"\x1b" in text
            or b"\0" in text
            or all(index in knowledge.bare_calls for index in numbers)
            or (all(index in knowledge.words for index in numbers) and is_about_us(text.lower()))
            or not all(map(self._is_steady, asked))
            or process_in(text, body, style, pid) != process_of(text)
        ):
            return
        low = text.lower()
        key = digits_alike(text[body:]), style
        number = len(self._numbered) + 1
        if key in self._known or not self._memory.know(text[body:], style, number):
            return
        self._known.add(key)
        repeat = Repeat(
            tuple((index, self._fields(index, low, body)) for index in numbers),
            any(knowledge.opens[index] for index in numbers) and not is_calm(text),
            any(index in knowledge.code_lines for index in numbers),
        )
        self._numbered.append(repeat)
        self.fresh[key] = number

    def answer(self, raw: bytes, body: int, style: int) -> KeptMessage | None:
        """Return the cached matches of exactly the same message, if any."""
        return self._answers.get((style, raw[body:]))

    def keep(self, raw: bytes, head: PlaceOfLine, answer: KeptMessage) -> None:
        """Cache the matches of an exact message, if they do not depend on its head."""
        _, _, _, body, _, pid, style, _ = head
        if (
            len(raw) > _LONGEST
            or b"\x1b" in raw
            or b"\0" in raw
            or any(self._knowledge.texts[index][0] in _OPEN_TO_HEADS for index in answer.asked)
            or process_in(raw, body, style, pid) != process_of(raw)
        ):
            return
        if len(self._answers) >= _MOST_ANSWERS:
            self._answers.clear()
        self._answers[style, raw[body:]] = answer

    def _is_steady(self, index: int) -> bool:
        """Return True if a template's match does not depend on a line's digits or head."""
        known = self._steady.get(index)
        if known is None:
            text = self._knowledge.texts[index]
            fixed = _HOLE.sub("", text)
            known = text[0] not in _OPEN_TO_HEADS and not any(map(str.isdigit, fixed))
            self._steady[index] = known
        return known

    def _fields(self, index: int, low: bytes, body: int) -> tuple[_Field, ...]:
        """Return the position and type of each hole of a template in a matching lower-case line."""
        holes = self._knowledge.holes[index]
        found = self._knowledge.matcher(index).spans(low) if holes else None
        if found is None:
            return ()
        return tuple(
            (start - body, end - body, kind, 0 if kind in WORDY else SCALES.get(kind, 1))
            for (start, end), (_, kind) in zip(found[1], holes, strict=True)
        )


def process_in(raw: bytes, body: int, style: int, pid: int) -> tuple[int | None, float | None]:
    """Return a line's process and time, read according to the style of its head."""
    process = None if pid == NO_PROCESS else pid
    if style == BY_LOGCAT:
        return process, second_of(raw[:14]) + int(raw[15:18]) / 1000
    if style == STAMPED:
        year = 5 if raw[4:5] == b"-" else 0
        part = raw[year + 15 : body]
        return process, second_of(raw[year : year + 14]) + int(part) / float(10 ** len(part))
    if style == BY_KERNEL:
        second, _, part = raw[raw.index(b"[") + 1 : body - 1].partition(b".")
        return 0, int(second) + int(part) / 1e6
    return None, None  # heads of tools
