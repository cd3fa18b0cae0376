"""Lines that engines reported before: dull lines, and messages with a number.

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
    """A memory of lines, which lets an engine skip or recognise them."""

    full: bool  # whether nothing more can be kept

    def leave_out(self, raw: bytes, body: int, style: int, by_letters: bool) -> None:
        """Remember a dull line; `by_letters` ignores all digits, else only nonzero numbers."""
        ...

    def know(self, message: bytes, style: int, number: int) -> bool:
        """Remember messages equal up to digits under a number; return whether that was possible."""
        ...

    def clear(self) -> None:
        """Forget all lines."""
        ...


class LettersMemory:
    """The memory of engines that have no memory of their own."""

    def __init__(self) -> None:
        self.full = False
        self._dull: set[bytes] = set()
        self._numbers: dict[tuple[bytes, int], int] = {}

    def leave_out(self, raw: bytes, body: int, style: int, by_letters: bool) -> None:
        """Remember a dull line by its letters alone."""
        if by_letters and len(self._dull) < _MOST and len(raw) <= _LONGEST:
            self._dull.add(without_digits(raw))

    def know(self, message: bytes, style: int, number: int) -> bool:
        """Remember messages like this one under a number."""
        self.full = self.full or len(self._numbers) >= _MOST
        if self.full or len(message) > _LONGEST:
            return False
        self._numbers[digits_alike(message), style] = number
        return True

    def clear(self) -> None:
        """Forget all lines."""
        self._dull.clear()
        self._numbers.clear()
        self.full = False

    def is_dull(self, letters: bytes) -> bool:
        """Return whether lines with these letters are dull."""
        return letters in self._dull

    def place(self, start: int, stop: int, raw: bytes) -> PlaceOfLine:
        """Return a line with everything remembered about it."""
        head = LOGCAT.match(raw)
        if head is None:
            return start, stop, -1, 0, 0, NO_PROCESS, NO_HEAD, 0
        body = head.end()
        number = self._numbers.get((digits_alike(raw[body:].rstrip(b"\r\n")), BY_LOGCAT), 0)
        return start, stop, -1, body, number, int(head[3]), BY_LOGCAT, 0


def without_digits(line: bytes) -> bytes:
    """Return a line without digits, which are most of the differences between heads."""
    return line.translate(None, _DIGITS)


def digits_alike(message: bytes) -> bytes:
    """Return a message with every digit replaced, except the 0 of 0x."""
    if b"0x" in message:
        message = message.replace(b"0x", b"\nx")  # no line holds an end of line
    if b"0X" in message:
        message = message.replace(b"0X", b"\nX")
    return message.translate(_ONE_DIGIT)
