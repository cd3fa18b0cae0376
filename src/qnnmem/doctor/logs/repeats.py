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

import msgspec

from qnnmem.doctor.kb.knowledge import Knowledge
from qnnmem.doctor.logs.header import LOGCAT
from qnnmem.doctor.logs.line import SCALES, WORDY, Found, number
from qnnmem.doctor.logs.line_memory import LineMemory, digits_alike
from qnnmem.doctor.logs.reading import is_calm

_LONGEST = 512  # bytes of one that is
_HOLE = re.compile(r"(?<!\\)\{[^{}]*\}")
_OPEN_TO_HEADS = frozenset("{(0123456789-:. \t")

# Where a hole begins and ends in the message, its type, and by how much its number counts.
_Field = tuple[int, int, str, int]


class Repeat(msgspec.Struct, frozen=True, gc=False):
    """What lines with these letters hold."""

    found: tuple[tuple[int, tuple[_Field, ...]], ...]  # templates with their holes
    opens: bool  # whether one of them makes an incident
    asks_code: bool  # whether a code may stand beside the call, or in the line below

    def of(self, message: bytes) -> list[Found]:
        """The templates of a message and what their holes catch in it."""
        out: list[Found] = []
        for index, fields in self.found:
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


class RepeatedLines:
    """The messages that were seen, by their letters."""

    def __init__(self, knowledge: Knowledge, memory: LineMemory) -> None:
        self._knowledge, self._memory = knowledge, memory
        self._known: set[bytes] = set()
        self._numbered: list[Repeat] = []
        self.fresh: dict[bytes, int] = {}  # numbers that the engine did not know yet
        self._steady: dict[int, bool] = {}

    def numbered(self, number: int) -> Repeat:
        """What a message holds that the memory knows by a number."""
        return self._numbered[number - 1]

    def begin(self) -> None:
        """Before a region is searched: from now on its engine tells what was seen so far."""
        self.fresh.clear()
        if self._memory.full:
            self._memory.clear()
            self._known.clear()
            self._numbered.clear()

    def lately(self, raw: bytes) -> tuple[int, int, int] | None:
        """Where the message of a line begins, its number, the process, if it is a fresh one."""
        head = LOGCAT.match(raw)
        if head is None:
            return None
        number = self.fresh.get(digits_alike(raw[head.end() :].rstrip(b"\r\n")))
        return (head.end(), number, int(head[3])) if number else None

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
        key = digits_alike(text[body:])
        if key in self._known or not self._memory.know(text[body:], len(self._numbered) + 1):
            return
        self._known.add(key)
        repeat = Repeat(
            tuple((index, self._fields(index, low, body)) for index in numbers),
            any(knowledge.opens[index] for index in numbers) and not is_calm(text),
            any(index in knowledge.code_lines for index in numbers),
        )
        self._numbered.append(repeat)
        self.fresh[key] = len(self._numbered)

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
