"""Lines that engines reported before: irrelevant lines, and numbered messages.

Logs repeat the same lines. The engine skips known irrelevant lines, and reports a known message by
its number, so that each is examined only once.
"""

from __future__ import annotations

from typing import Protocol

from qnnmem.doctor.logs.header import LOGCAT

# Start and end of a line; line ends before it (-1 if the engine does not count); start of its
# message; known number; process; style of its head; 1 if no other line is known to continue it, nor
# it another.
PlaceOfLine = tuple[int, int, int, int, int, int, int, int]

# Styles of heads that engines distinguish, as in C.
NO_HEAD, BY_LOGCAT, STAMPED, BY_KERNEL, BY_TOOL = range(5)
NO_PROCESS = 0xFFFF_FFFF

_MOST = 8192  # remembered lines
_LONGEST = 1024  # bytes of a remembered line
_DIGITS = b"0123456789"
_ONE_DIGIT = bytes.maketrans(_DIGITS, b"1" * 10)


class LineMemory(Protocol):
    """Interface of a memory of lines, with which an engine skips or recognises lines."""

    full: bool  # True: no more lines can be stored

    def leave_out(self, raw: bytes, body: int, style: int, by_letters: bool) -> None:
        """Remember an irrelevant line; `by_letters` ignores all digits, not only nonzero ones."""
        ...

    def know(self, message: bytes, style: int, number: int) -> bool:
        """Remember a message, digits ignored, under a number; False if that is impossible."""
        ...

    def clear(self) -> None:
        """Forget all lines."""
        ...


class LettersMemory:
    """Memory of lines in Python, for engines that do not implement their own."""

    def __init__(self) -> None:
        self.full = False
        self._dull: set[bytes] = set()
        self._numbers: dict[tuple[bytes, int], int] = {}

    def leave_out(self, raw: bytes, body: int, style: int, by_letters: bool) -> None:
        """Remember an irrelevant line by its letters alone."""
        if by_letters and len(self._dull) < _MOST and len(raw) <= _LONGEST:
            self._dull.add(without_digits(raw))

    def know(self, message: bytes, style: int, number: int) -> bool:
        """Remember a message, digits ignored, under a number; False if that is impossible."""
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
        """Return True if lines with these letters are irrelevant."""
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
    """Return a line without digits, which make up most differences between heads."""
    return line.translate(None, _DIGITS)


def digits_alike(message: bytes) -> bytes:
    """Return a message with all digits alike, except the 0 of 0x."""
    if b"0x" in message:
        message = message.replace(b"0x", b"\nx")  # a line contains no line end
    if b"0X" in message:
        message = message.replace(b"0X", b"\nX")
    return message.translate(_ONE_DIGIT)
