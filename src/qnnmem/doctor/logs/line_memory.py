"""Memory of lines that engines have reported: irrelevant lines, and numbered messages.

Logs repeat the same lines. The engine skips known irrelevant lines and reports known messages by
their numbers, so that every line is examined only once.
"""

from __future__ import annotations

from typing import Protocol

from qnnmem.doctor.logs.header import LOGCAT

# Start and end of a line; line ends before it (-1 if the engine does not count); start of its
# message; number of a stored message or 0; process; style of its head; 1 if the line is certainly a
# whole message, not a piece of one.
PlaceOfLine = tuple[int, int, int, int, int, int, int, int]

# Styles of heads that engines distinguish, numbered as in `texts.c`.
NO_HEAD, BY_LOGCAT, STAMPED, BY_KERNEL, BY_TOOL = range(5)
NO_PROCESS = 0xFFFF_FFFF

_MOST = 8192  # remembered lines
_LONGEST = 1024  # bytes of a remembered line
_DIGITS = b"0123456789"
_ONE_DIGIT = bytes.maketrans(_DIGITS, b"1" * 10)


class LineMemory(Protocol):
    """Interface of the memory with which an engine skips or recognises lines."""

    full: bool  # True: no more lines can be stored
    by_letters: bool  # True: only lines that are irrelevant whatever their digits are stored

    def leave_out(self, raw: bytes, body: int, style: int, by_letters: bool) -> None:
        """Remember an irrelevant line; with `by_letters`, also lines that differ only in digits."""
        ...

    def know(self, message: bytes, style: int, number: int) -> bool:
        """Store a message, digits ignored, under a number; return False if it cannot be stored."""
        ...

    def clear(self) -> None:
        """Forget all lines."""
        ...


class LettersMemory:
    """Memory of lines in Python, for engines that have no memory in C.

    Without `by_letters`, irrelevant lines are not remembered, which is faster for a short log.
    """

    def __init__(self, *, by_letters: bool = True) -> None:
        self.full = False
        self.by_letters = by_letters
        self._dull: set[bytes] = set()
        self._numbers: dict[tuple[bytes, int], int] = {}

    def leave_out(self, raw: bytes, body: int, style: int, by_letters: bool) -> None:
        """Remember an irrelevant line without its digits; do nothing unless `by_letters`."""
        if by_letters and len(self._dull) < _MOST and len(raw) <= _LONGEST:
            self._dull.add(without_digits(raw))

    def know(self, message: bytes, style: int, number: int) -> bool:
        """Store a message, digits ignored, under a number; return False if it cannot be stored."""
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
        """Return a line's position, with the number of its message if the message is stored."""
        head = LOGCAT.match(raw)
        if head is None:
            return start, stop, -1, 0, 0, NO_PROCESS, NO_HEAD, 0
        body = head.end()
        number = self._numbers.get((digits_alike(raw[body:].rstrip(b"\r\n")), BY_LOGCAT), 0)
        return start, stop, -1, body, number, int(head[3]), BY_LOGCAT, 0


def without_digits(line: bytes) -> bytes:
    """Return a line without its digits, so that lines differing only in time or ids are equal."""
    return line.translate(None, _DIGITS)


def digits_alike(message: bytes) -> bytes:
    """Return a message with every digit replaced by 1, except the 0 in 0x."""
    if b"0x" in message:
        message = message.replace(b"0x", b"\nx")  # a line contains no line end
    if b"0X" in message:
        message = message.replace(b"0X", b"\nX")
    return message.translate(_ONE_DIGIT)
