"""Pieces of one message in several lines: which go together, and what stood between them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from qnnmem.doctor.logs import header
from qnnmem.doctor.logs.header import Header

_SPLIT = 64  # no logger splits shorter messages
_WRAPPED = 40  # and nobody wraps them


def are_strangers(one: bytes, other: bytes) -> bool:
    """Whether two dated lines are of different processes, at a glance: most neighbours are."""
    if not (_is_dated(one) and _is_dated(other)):
        return False
    return one.split(None, 3)[2:3] != other.split(None, 3)[2:3]


def _is_dated(line: bytes) -> bool:
    """Whether a line begins with a date or a time, at a glance: a code is a number, too."""
    return line[:1].isdigit() and (line[2:3] in (b"-", b":") or line[4:5] == b"-")


def goes_on(one: Header, text: bytes, other: Header) -> bool:
    """Whether a line may be the next piece of the one before.

    Loggers that split long messages repeat the whole head; a message with line ends of its own goes
    on without one, and so does a long line without a head that somebody wrapped. Where heads name
    no thread, nothing tells a piece from another message.
    """
    if other.style == "plain":
        return one.style != "plain" or len(text) >= _WRAPPED
    same = (one.style, one.pid, one.tid, one.tag) == (other.style, other.pid, other.tid, other.tag)
    return same and one.tid is not None and one.pid != 0 and len(text) - one.body >= _SPLIT


def wholes(before: Sequence[bytes], text: bytes, forward: bytes) -> Iterator[bytes]:
    """What a line may be a piece of: alone with what follows, then with lines before it as well.

    `before` has the nearest lines, the last one next to the text; `forward` begins with the text.
    """
    if forward:
        yield forward
    whole, follows = text, forward or text
    for line in reversed(before):
        head = header.parse(whole)
        if head.style != "plain" or not goes_on(header.parse(line), line, head):
            return
        before_it = line + glue(head)  # what marks a quoted line is no part of the message
        whole, follows = before_it + whole[head.body :], before_it + follows[head.body :]
        yield whole
        if follows != whole:
            yield follows


def glue(piece: Header) -> bytes:
    """What stood between a message and its next piece: loggers cut anywhere, people at blanks."""
    return b" " if piece.style == "plain" else b""
