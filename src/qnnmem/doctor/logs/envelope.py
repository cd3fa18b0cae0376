"""Logs wrapped in another format: escaped, in JSON, in markup or pasted from a chat.

The wrapping is detected once, from a log's first bytes. A log without wrapping is read directly.
Otherwise its lines are extracted in pieces of bounded size, and each byte is processed a fixed
number of times:

    bytes of the file -> whole lines, or pieces of long lines -> lines of the log

`shift` returns the difference between a line's number in the file and its number in the log.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable
from typing import TypeAlias

from qnnmem.doctor.logs.json_log import lines_of_json
from qnnmem.text import lazy_pattern

Step: TypeAlias = Callable[[bytes], bytes]

LOOKED_AT = 4096
PASTED = 1 << 20  # bytes; content of chats, mails and clipboards is smaller
_CHUNK = 64 << 10
_OPEN_END = lazy_pattern(
    rb"(?:\\+[^\\]{0,5}|&[^;\s]{0,8}|<[^<>]{0,40}|\x1b[^a-zA-Z]{0,20}|[\xc0-\xff][\x80-\xbf]{0,2})\Z"
)
_LINE = lazy_pattern(rb"[^\n]*\n|[^\n]+\Z")
_LONGEST = 1 << 20  # bytes of a line that are processed together
_TAIL = 64  # bytes: no escape, entity, letter or short tag is longer
_KEPT = 100_000  # stored places where line numbers change, for the last lines
_SIMPLE = {b"n": b"\n", b"r": b"", b"t": b" ", b"0": b""}
_ESCAPE = lazy_pattern(rb"\\(?:u([0-9a-fA-F]{4})|x([0-9a-fA-F]{2})|([nrt0\"'/\\`]))")
_LIST = lazy_pattern(rb"(?:[\w.]{1,40}[=:] ?)?[\[(]b?['\"].*['\"], b?['\"]")  # a Python list
_BETWEEN = lazy_pattern(rb"(?<!\\)['\"], b?['\"]")
_MARKUP = lazy_pattern(
    rb"<!doctype html|<html|<pre\b|<br ?/?>|<!\[CDATA\[|<\?xml|&nbsp;", re.IGNORECASE
)
_ENTITY = lazy_pattern(rb"&(?:lt|gt|amp|quot|apos|nbsp|#[0-9]{1,5}|#x[0-9a-fA-F]{1,4});")
_NAMED = {b"&lt;": b"<", b"&gt;": b">", b"&amp;": b"&", b"&quot;": b'"', b"&nbsp;": b" "}
_BREAK = lazy_pattern(rb"<br ?/?>(?!\r?\n)|</(?:p|tr|li|div)>(?!\r?\n)", re.IGNORECASE)
_TAG = lazy_pattern(
    rb"<!\[CDATA\[|\]\]>|<[?!][^<>\n]{0,200}>"
    rb"|</?[a-zA-Z][\w.:-]{1,40}(?:[ ][^<>\n]{0,400})?/?>|</?[abipu]>"
)
_MARKS = {
    "\u00a0": " ", "\u202f": " ", "\u2007": " ", "\u3000": " ", "\u200b": "", "\u200c": "",
    "\u200d": "", "\u2060": "", "\ufeff": "", "\u00ad": "", "\u2018": "'", "\u2019": "'",
    "\u201c": '"', "\u201d": '"', "\u2013": "-", "\u2014": "--", "\u2026": "...", "\u2212": "-",
    "\uff1a": ": ", "\uff0c": ", ", "\uff08": "(", "\uff09": ")", "\uff1b": "; ", "\uff1d": "=",
    "\uff0f": "/", "\uff3b": "[", "\uff3d": "]", "\uff1c": "<", "\uff1e": ">", "\uff0d": "-",
}  # fmt: skip
_OF_MARKS = {mark.encode(): plain.encode() for mark, plain in _MARKS.items()}
_MARK = lazy_pattern(b"|".join(map(re.escape, sorted(_OF_MARKS))))
_SEQUENCE = lazy_pattern(
    rb"\x1b(?:\[[0-9;?]{0,20}[A-Za-z]|[\]_P^][^\x07\x1b\n]{0,160}(?:\x07|\x1b\\)|[()][0-9A-B])"
)


def steps_of(head: bytes, size: int | None) -> tuple[Step, ...]:
    """Return the steps that unwrap a log with these first bytes; most logs need none."""
    head = head[:LOOKED_AT]
    steps: list[Step] = []
    if b"\n" not in head and head.rstrip(b"\r").count(b"\r") > 1:
        steps.append(_ends_of_lines)
        head = _ends_of_lines(head)
    if _is_json(head):
        steps.append(lines_of_json)
        head = lines_of_json(head)
    for _ in range(3):
        if not _is_escaped(head):
            break
        steps.append(_unescaped)
        head = _unescaped(head)
    if (b"', " in head or b'", ' in head) and _LIST.match(head):
        steps.append(lambda data: _BETWEEN.sub(b"\n", data))
    elif head.count(b"\n") <= 1 and head.count(b" | ") > 2:
        steps.append(lambda data: data.replace(b" | ", b"\n"))
    if _is_marked_up(head):
        steps.append(_unmarked)
    if size is None or size <= PASTED:
        if not head.isascii() and _MARK.search(head):
            steps.append(lambda data: _MARK.sub(lambda found: _OF_MARKS[found[0]], data))
        if b"\x1b" in head:
            steps.append(lambda data: _SEQUENCE.sub(b"", data))
        if b":\t" in head:
            steps.append(lambda data: data.replace(b":\t", b": ").replace(b"\t", b"  "))
    return tuple(steps)


def steps_of_growing(head: bytes) -> tuple[Step, ...] | None:
    """Return the steps that unwrap a growing log; None while its first line is too short to tell.

    Log collectors write lines of JSON, which the first line shows. All other wrappings apply to
    whole texts, and detecting them needs more than the first line.
    """
    first, end, _ = head.lstrip().partition(b"\n")
    if end:
        return (lines_of_json,) if _is_json(head) else ()
    return None if _begins_as_json(first) or first in (b"", b"{", b"[") else ()


def _ends_of_lines(data: bytes) -> bytes:
    return data.replace(b"\r", b"\n")


def wide_name(head: bytes) -> str:
    """Return the codec of UTF-16 text that has no byte order mark; empty for other data."""
    for odd, name in ((1, "utf-16-le"), (0, "utf-16-be")):
        if (
            len(head) > 8
            and not head[1 - odd :: 2].count(0)
            and (5 * head[odd::2].count(0) > 2 * len(head))
        ):
            return name
    return ""


def _is_json(head: bytes) -> bool:
    """Return True if the first line is a JSON object or list that contains a message."""
    first, end, _ = head.lstrip().partition(b"\n")
    if not _begins_as_json(first):
        return False
    return lines_of_json(first) != first if end else len(head) >= LOOKED_AT or b'":' in first


def _begins_as_json(first: bytes) -> bool:
    at = first.find(b'{"', 0, 160) if not first.startswith(b"[") else 0
    return at >= 0 and first[at : at + 2] in (b'{"', b'["', b"[{", b"[0", b"[1")


def _is_escaped(head: bytes) -> bool:
    """Return True if most line ends are written as escape sequences."""
    written = head.count(b"\\n")
    return written > 0 and written >= 2 * head.rstrip(b"\n").count(b"\n")


def _is_marked_up(head: bytes) -> bool:
    if b"<" in head and _MARKUP.search(head):
        return True
    entities = head.count(b"&")  # most logs have none: the pattern need not be compiled
    return b"&nbsp;" in head.lower() or (entities > 1 and len(_ENTITY.findall(head)) > 1)


def _unescaped(data: bytes) -> bytes:
    return _ESCAPE.sub(_escape, data)


def _escape(found: re.Match[bytes]) -> bytes:
    if code := found[1] or found[2]:
        return chr(int(code, 16)).encode("utf-8", "replace")
    return _SIMPLE.get(found[3], found[3])


def _unmarked(data: bytes) -> bytes:
    """Remove markup tags and decode entities, but keep QNN levels such as `<E>`."""
    if b"<" in data:
        data = _TAG.sub(b"", _BREAK.sub(b"\n", data))
    if b"&" not in data:
        return data
    from html import unescape

    return _ENTITY.sub(
        lambda found: _NAMED.get(found[0]) or unescape(found[0].decode()).encode(), data
    )


class Unwrapping:
    """Reader that unwraps a log and returns the lines inside."""

    def __init__(self, read: Callable[[int], bytes], steps: tuple[Step, ...]) -> None:
        self._read, self._steps = read, steps
        self._carry = self._left = b""
        self._ended = False
        self._inside = self._outside = 1  # numbers of the next line: in the log, and in the file
        # From log line `_starts[i]` on, `_places[i]` holds the line of the file and how many lines
        # of the file each log line takes.
        self._starts: list[int] = [1]
        self._places: list[tuple[int, int]] = [(1, 1)]

    def readinto(self, view: memoryview) -> int:
        """Fill the view as far as possible; return 0 at the end."""
        while not self._left and not self._ended:
            data = self._read(_CHUNK)
            self._ended = not data
            self._carry += _ends_of_lines(data) if self._steps[0] is _ends_of_lines else data
            self._left = self._taken()
        got = min(len(view), len(self._left))
        view[:got], self._left = self._left[:got], self._left[got:]
        return got

    def shift(self, number: int) -> int:
        """Return the line number in the file minus the line's `number` in the log."""
        at = max(bisect_right(self._starts, number) - 1, 0)
        line, pace = self._places[at]
        return line + pace * max(number - self._starts[at], 0) - number

    def _taken(self) -> bytes:
        """Unwrap and return the complete lines read so far; an incomplete line stays buffered."""
        data = self._carry
        stop = len(data) if self._ended else data.rfind(b"\n") + 1
        if not stop and len(data) >= _LONGEST:
            stop = _safe(data)
        data, self._carry = data[:stop], data[stop:]
        done, lines = self._done(data), data.count(b"\n")
        whole = data.endswith(b"\n") or self._ended
        # No step removes line ends, so equal counts mean the same lines.
        if whole and done.count(b"\n") == lines:
            self._go(self._outside, 1)
            self._inside, self._outside = self._inside + lines, self._outside + lines
            return done
        out = []
        for line in _LINE.findall(data):
            done = self._done(line)
            out.append(done)
            ends = line.endswith(b"\n")
            self._go(self._outside, int(ends and done.count(b"\n") == 1))
            self._inside += done.count(b"\n")
            self._outside += ends
        return b"".join(out)

    def _done(self, data: bytes) -> bytes:
        for step in self._steps:
            data = step(data)
        return data

    def _go(self, line: int, pace: int) -> None:
        """Record which line of the file the next line of the log comes from."""
        if self._inside + self.shift(self._inside) == line and self._places[-1][1] == pace:
            return
        self._starts.append(self._inside)
        self._places.append((line, pace))
        if len(self._starts) > 2 * _KEPT:
            del self._starts[:_KEPT], self._places[:_KEPT]


def _safe(data: bytes) -> int:
    """Return where to cut a long line near its end, but not inside an escape, tag or character."""
    tail = data[-_TAIL:]
    open_end = _OPEN_END.search(tail)
    # A match at the start of the tail is not open: an escape or tag is shorter than the tail.
    return len(data) - len(tail) + open_end.start() if open_end and open_end.start() else len(data)
