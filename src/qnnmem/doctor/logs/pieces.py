"""Messages split over several lines: how to recognise the pieces and how to join them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from qnnmem.doctor.logs import header
from qnnmem.doctor.logs.header import Header
from qnnmem.doctor.logs.line import bare_line

LOOK = 8192  # bytes around a line that can affect its matches
SHORT = 4096  # a longer line is examined in blocks of this many bytes
_PIECES = 4  # maximum number of lines of a split message
_CODE_LINE = 128  # bytes of a line that consists only of a code, with its head
_SPLIT = 64  # no logger splits shorter messages
_WRAPPED = 40  # nobody wraps shorter lines


def are_strangers(one: bytes, other: bytes) -> bool:
    """Return True if two dated lines name different processes; this test is cheap."""
    if not (_is_dated(one) and _is_dated(other)):
        return False
    return one.split(None, 3)[2:3] != other.split(None, 3)[2:3]


def _is_dated(line: bytes) -> bool:
    """Return True if a line seems to begin with a date or time rather than a code."""
    return line[:1].isdigit() and (line[2:3] in (b"-", b":") or line[4:5] == b"-")


def goes_on(one: Header, text: bytes, other: Header) -> bool:
    """Return True if the head `other` could begin the next piece of the message in `text`.

    Loggers that split long messages repeat the whole head. A message that contains line ends
    continues without a head, and so does a long line that a person wrapped. Heads without a thread
    cannot show whether the next line is a piece or another message. Such a line counts as another
    message.
    """
    if other.style == "plain":
        return one.style != "plain" or len(text) >= _WRAPPED
    same = (one.style, one.pid, one.tid, one.tag) == (other.style, other.pid, other.tid, other.tag)
    return same and one.tid is not None and one.pid != 0 and len(text) - one.body >= _SPLIT


def wholes(before: Sequence[bytes], text: bytes, forward: bytes) -> Iterator[bytes]:
    """Yield possible whole messages: the line with later lines, then with earlier lines.

    `before` contains the lines before the text, nearest last; `forward` begins with the text.
    """
    if forward:
        yield forward
    whole, follows = text, forward or text
    for line in reversed(before):
        head = header.parse(whole)
        if head.style != "plain" or not goes_on(header.parse(line), line, head):
            return
        before_it = line + glue(head)  # the mark of a quoted line is not part of the message
        whole, follows = before_it + whole[head.body :], before_it + follows[head.body :]
        yield whole
        if follows != whole:
            yield follows


def glue(piece: Header) -> bytes:
    """Return the separator before a piece: loggers split anywhere, but people split at blanks."""
    return b" " if piece.style == "plain" else b""


def line_below(buffer: bytearray, fill: int, high: int) -> bytes:
    """Return the next line if it is short enough to consist only of a code."""
    stop = buffer.find(b"\n", high + 1, min(high + _CODE_LINE, fill))
    stop = fill if stop < 0 and fill < high + _CODE_LINE else stop
    return bare_line(bytes(buffer[high + 1 : stop])) if stop > high + 1 else b""


def line_before(buffer: bytearray, base: int, low: int) -> tuple[int, bytes] | None:
    """Return the start and text of the previous line; None if it is long or not buffered."""
    if low < 2:
        return None
    start = buffer.rfind(b"\n", max(0, low - 1 - SHORT), low - 1) + 1
    if (start == 0 and (base or low > SHORT)) or low - start < 2:
        return None
    return start, bare_line(bytes(buffer[start : low - 1]))


def forward(buffer: bytearray, fill: int, text: bytes, high: int) -> bytes:
    """Return a line joined with the lines that continue it; empty if no line does."""
    whole, at = text, high + 1
    for _ in range(_PIECES - 1):
        stop = buffer.find(b"\n", at, fill)
        stop = fill if stop < 0 else stop
        if stop <= at or stop - high > LOOK // 2:
            break
        piece = bare_line(bytes(buffer[at:stop]))
        if are_strangers(text, piece):
            break
        other = header.parse(piece)
        if not goes_on(header.parse(text), text, other):
            break
        whole += glue(other) + piece[other.body :]
        at = stop + 1
    return whole if whole is not text else b""
