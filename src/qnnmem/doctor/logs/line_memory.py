"""What engines should know of lines that they named before: dull ones, and messages with a number.

Logs say the same things over and over. A dull line need not be named again, and of a message that
was looked at once the engine tells its number, so that nobody looks at it a second time.
"""

from __future__ import annotations

from typing import Protocol

from qnnmem.doctor.logs.header import LOGCAT

# Where a line starts and stops; how many lines end before it, -1 where an engine does not count;
# where its message begins, the number it is known by, the process, the style of its head; 1 if it
# is known that no other line goes on in it, nor it in another.
PlaceOfLine = tuple[int, int, int, int, int, int, int, int]

# Styles of heads that engines tell apart, as in C.
NO_HEAD, BY_LOGCAT, STAMPED, BY_KERNEL, BY_TOOL = range(5)
NO_PROCESS = 0xFFFF_FFFF

_MOST = 8192  # lines that are remembered
_LONGEST = 1024  # bytes of one that is
_DIGITS = b"0123456789"
_ONE_DIGIT = bytes.maketrans(_DIGITS, b"1" * 10)


class LineMemory(Protocol):
    """What an engine should know of lines that it named before."""

    full: bool  # whether nothing more can be kept

    def leave_out(self, raw: bytes, body: int, style: int, by_letters: bool) -> None:
        """A dull line: so are all with other numbers but for zero, or with any `by_letters`."""
        ...

    def know(self, message: bytes, style: int, number: int) -> bool:
        """Have messages that differ in digits only told by a number, if that can be."""
        ...

    def clear(self) -> None:
        """Forget all of it."""
        ...


class LettersMemory:
    """The memory of engines that have none of their own."""

    def __init__(self) -> None:
        self.full = False
        self._dull: set[bytes] = set()
        self._numbers: dict[tuple[bytes, int], int] = {}

    def leave_out(self, raw: bytes, body: int, style: int, by_letters: bool) -> None:
        """Only by its letters."""
        if by_letters and len(self._dull) < _MOST and len(raw) <= _LONGEST:
            self._dull.add(without_digits(raw))

    def know(self, message: bytes, style: int, number: int) -> bool:
        """Have such messages told by a number."""
        self.full = self.full or len(self._numbers) >= _MOST
        if self.full or len(message) > _LONGEST:
            return False
        self._numbers[digits_alike(message), style] = number
        return True

    def clear(self) -> None:
        """Forget all of it."""
        self._dull.clear()
        self._numbers.clear()
        self.full = False

    def is_dull(self, letters: bytes) -> bool:
        """Whether lines with these letters are."""
        return letters in self._dull

    def place(self, start: int, stop: int, raw: bytes) -> PlaceOfLine:
        """A line with what is known of it."""
        head = LOGCAT.match(raw)
        if head is None:
            return start, stop, -1, 0, 0, NO_PROCESS, NO_HEAD, 0
        body = head.end()
        number = self._numbers.get((digits_alike(raw[body:].rstrip(b"\r\n")), BY_LOGCAT), 0)
        return start, stop, -1, body, number, int(head[3]), BY_LOGCAT, 0


def without_digits(line: bytes) -> bytes:
    """A line without most of what differs in its head."""
    return line.translate(None, _DIGITS)


def digits_alike(message: bytes) -> bytes:
    """What messages have in common that differ in their digits; the 0 of 0x is none."""
    if b"0x" in message:
        message = message.replace(b"0x", b"\nx")  # no line holds an end of line
    if b"0X" in message:
        message = message.replace(b"0X", b"\nX")
    return message.translate(_ONE_DIGIT)
