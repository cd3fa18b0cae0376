"""How a log ends that names no failure of QNN: the program died, was killed, or gave up.

A shell, the kernel and a runtime say so without a word of ours. It counts when the end of the log
is about QNN: in lines without a head, which are the program's own; or where a process is killed by
the number that lines of QNN bear.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec

from qnnmem.doctor.logs import header
from qnnmem.doctor.logs.reading import NAMES, OURS, Chosen, read

_DIED = re.compile(
    rb"\bsegmentation fault|\bbus error\b|\billegal instruction|\bcore dumped|\bfatal signal [0-9]"
    rb"|^(?:.{0,80}: (?:line )?[0-9]+ )?(?:killed|aborted|terminated)\b[ .!]*(?:\(|$|[^ ]+$)"
    rb"|\b(?:exit(?:ed)?|returned)(?: with)?(?: code| status)? (?:13[0-9]|-?11|-?9|-?6)\b"
    rb"|terminate called|unhandled exception|\bout of memory: kill|\boom[-_ ]?kill"
)
_KILLED = re.compile(rb"\b(?:kill(?:ed|ing)?|died|fatal signal|lowmemorykiller|lmkd?)\b")
_NUMBER = re.compile(rb"(?<![\w.])[0-9]{2,7}(?![\w.])")
_LAST = 3  # lines without a head in which a program says that it gave up


class LastWord(msgspec.Struct, frozen=True):
    """A line at the end of a log that says how it ended."""

    start: int  # of the line, in the piece that was looked at
    text: bytes
    pid: int | None
    said: bytes  # without the head, but for the name of who says it


def last_words(tail: bytes) -> Iterator[LastWord]:
    """The lines of the end of a log that tell of a death; none where nothing there is of QNN."""
    if not any(name in tail.lower() for name in NAMES):
        return
    lines = _lines(tail)
    ours: set[int] = set()
    for place, (start, text) in enumerate(lines):
        low = text.lower()
        head = header.parse(text)
        if any(word in low for word in OURS):  # such lines are read where they stand
            ours.update(() if head.pid is None else (head.pid,))
            continue
        if head.style == "plain":
            late = place >= len(lines) - _LAST and read(text, Chosen.TOGETHER) is not None
            if late or _DIED.search(low):
                yield LastWord(start, text, None, text)
        elif ours and _KILLED.search(low):
            named = ours.intersection(map(int, _NUMBER.findall(low[head.body :])))
            if named:
                tag = (head.tag or "").encode()
                yield LastWord(start, text, min(named), tag + b": " + text[head.body :])


def _lines(tail: bytes) -> list[tuple[int, bytes]]:
    """Lines that are not empty, and where each begins."""
    found, at = [], 0
    for line in tail.split(b"\n"):
        if line.strip():
            found.append((at, line.rstrip(b"\r")))
        at += len(line) + 1
    return found
