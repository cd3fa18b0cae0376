"""Lines that differ in their digits only: what one holds, the next holds at the same places.

Programs print the same messages with other numbers. A template whose fixed texts hold no digit
takes any digit where it takes one, so whether it matches, and where its holes begin and end, is
known from the line with all digits alike. Only the `0` of `0x` is a digit of its own.

That holds for the message alone. So it is done for logcat, whose heads hold nothing that a
template begins with, and for templates that begin with a text; all others are matched each time.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache

import msgspec

from qnnmem.doctor.kb.knowledge import Knowledge
from qnnmem.doctor.logs.header import LOGCAT, second_of
from qnnmem.doctor.logs.line import SCALES, WORDY, Found, number

_MOST = 8192  # lines that are remembered
_LONGEST = 512  # bytes of one that is
_ONE_DIGIT = bytes.maketrans(b"0123456789", b"1" * 10)
_HOLE = re.compile(r"(?<!\\)\{[^{}]*\}")
_OPEN_TO_HEADS = frozenset("{(0123456789-:. \t")

# Where a hole begins and ends in the message, its type, and by how much its number counts.
_Field = tuple[int, int, str, int]


class Repeat(msgspec.Struct, frozen=True, gc=False):
    """What lines with these letters hold."""

    found: tuple[tuple[int, tuple[_Field, ...]], ...]  # templates with their holes
    opens: bool  # whether one of them makes an incident
    asks_code: bool  # whether a code may stand beside the call, or in the line below

    def shifted(self, by: int) -> Repeat:
        """The same, where so many bytes stand before the message."""
        found = tuple(
            (
                index,
                tuple((start + by, end + by, kind, scale) for start, end, kind, scale in fields),
            )
            for index, fields in self.found
        )
        return msgspec.structs.replace(self, found=found)

    def of(self, message: bytes) -> list[Found]:
        """The templates of a message and what their holes catch in it."""
        out: list[Found] = []
        for index, fields in self.found:
            if not fields:
                out.append((index, ()))
                continue
            values: list[int | str] = []
            for start, end, kind, scale in fields:
                text = message[start:end]
                if not scale:
                    values.append(text.decode("utf-8", "replace"))
                elif text.isdigit():  # as most are
                    values.append(int(text) * scale)
                else:
                    values.append(number(text, kind))
            out.append((index, tuple(values)))
        return out


class RepeatedLine(msgspec.Struct, frozen=True, gc=False):
    """What lines with these letters and a head of this width hold."""

    repeat: Repeat  # with places that count from the start of the line
    pid: tuple[int, int]  # where the process stands; the time is where it always is

    def process(self, line: bytes) -> tuple[int, float]:
        """Process and time, as `process_in` says."""
        start, end = self.pid
        return int(line[start:end]), second_of(line[:14]) + _thousandths(line[15:18])


class RepeatedLines:
    """The messages that were seen, by their letters."""

    def __init__(self, knowledge: Knowledge) -> None:
        self._knowledge = knowledge
        self._known: dict[bytes, Repeat] = {}
        self._lines: dict[bytes, RepeatedLine] = {}
        self._steady: dict[int, bool] = {}

    def line(self, raw: bytes) -> RepeatedLine | None:
        """What is known of a line by all of its letters: heads are mostly as wide, too."""
        if b"0x" in raw or b"0X" in raw:
            return self._lines.get(_key(raw))
        return self._lines.get(raw.translate(_ONE_DIGIT))

    def find(self, raw: bytes, head: re.Match[bytes]) -> RepeatedLine | None:
        """What is known of the message of a line in which `LOGCAT` was found."""
        body = head.end()
        known = self._known.get(_key(raw[body:].rstrip(b"\r\n")))
        if known is None:
            return None
        if len(self._lines) >= _MOST:
            self._lines.clear()
        # Logcat ends a head with a blank, so what stands before `x` is on one side of the cut.
        line = self._lines[_key(raw)] = RepeatedLine(known.shifted(body), head.span(3))
        return line

    def note(self, text: bytes, asked: Sequence[int], found: Sequence[Found]) -> None:
        """Keeps which of the templates asked for a line of logcat matches, if its letters tell."""
        head = LOGCAT.match(text)
        knowledge = self._knowledge
        numbers = [index for index, _ in found]
        if (
            head is None
            or len(text) > _LONGEST
            or b"\x1b" in text
            or b"\0" in text
            or all(index in knowledge.words for index in numbers)
            or all(index in knowledge.bare_calls for index in numbers)
            or not all(map(self._is_steady, asked))
        ):
            return
        low, body = text.lower(), head.end()
        if len(self._known) >= _MOST:
            self._known.clear()
        self._known[_key(text[body:])] = Repeat(
            tuple((index, self._fields(index, low, body)) for index in numbers),
            any(knowledge.opens[index] for index in numbers),
            any(index in knowledge.code_lines for index in numbers),
        )

    def _is_steady(self, index: int) -> bool:
        """Whether a template matches whatever the digits of a line and its head are."""
        known = self._steady.get(index)
        if known is None:
            text = self._knowledge.texts[index]
            fixed = _HOLE.sub("", text)
            known = text[0] not in _OPEN_TO_HEADS and not any(map(str.isdigit, fixed))
            self._steady[index] = known
        return known

    def _fields(self, index: int, low: bytes, body: int) -> tuple[_Field, ...]:
        """The holes of a template that a line in small letters matches."""
        holes = self._knowledge.holes[index]
        found = self._knowledge.matcher(index).spans(low) if holes else None
        if found is None:
            return ()
        return tuple(
            (start - body, end - body, kind, 0 if kind in WORDY else SCALES.get(kind, 1))
            for (start, end), (_, kind) in zip(found[1], holes, strict=True)
        )


@cache
def _thousandths(text: bytes) -> float:
    return int(text) / 1000


def _key(message: bytes) -> bytes:
    """What lines have in common that differ in their digits."""
    if b"0x" in message:
        message = message.replace(b"0x", b"\nx")  # no line holds an end of line
    if b"0X" in message:
        message = message.replace(b"0X", b"\nX")
    return message.translate(_ONE_DIGIT)
