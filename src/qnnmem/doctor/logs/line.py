"""One line of a log against the templates whose fixed text it holds."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from qnnmem.doctor.kb.knowledge import Knowledge
from qnnmem.doctor.logs import header

# Size units: programs that print "MB" here mean powers of 1024.
SCALES = {"bytes": 1, "KB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30}

_CALM = (b"<v>", b"<d>", b"<i>", b"[info", b"[debug", b"[verbose", b"[v:", b"[i:")

_COLOUR = re.compile(rb"\x1b\[[0-9;]{0,20}[A-Za-z]")


def bare_line(line: bytes) -> bytes:
    """A line without colours, NUL bytes and its end."""
    if b"\x1b" in line:
        line = _COLOUR.sub(b"", line)
    if b"\0" in line:
        line = line.replace(b"\0", b"")
    return line.rstrip(b"\r\n")


def match(
    knowledge: Knowledge, text: bytes, lines: Iterable[int]
) -> list[tuple[int, tuple[int | str, ...]]]:
    """Which of these templates the text matches, with what their holes caught."""
    found: list[tuple[int, tuple[int | str, ...]]] = []
    loose: list[int] = []
    also, plains, low = knowledge.also, knowledge.plain, text.lower()
    for index in lines:
        if index in also:
            loose.append(index)
        elif plain := plains[index]:
            if plain in low:
                found.append((index, ()))
        elif (hit := knowledge.matcher(index).search(text, low)) is not None:
            holes = knowledge.holes[index]
            found.append((index, _values(hit[1], holes) if holes else ()))
    if loose and not found:
        found = [(index, ()) for index in _with_all_words(knowledge, loose, low)]
        return [] if found and _calm(text, low) else found
    return found


def _with_all_words(knowledge: Knowledge, loose: Iterable[int], low: bytes) -> Iterator[int]:
    """Loose templates whose words a line holds; many have groups of words in common."""
    holds: dict[int, bool] = {}
    for index in loose:
        if knowledge.plain[index] not in low:
            continue
        for group in knowledge.also[index]:
            known = holds.get(id(group))
            if known is None:
                known = holds[id(group)] = any(word in low for word in group)
            if not known:
                break
        else:
            yield index


def place(knowledge: Knowledge, index: int, text: bytes, low: bytes) -> int:
    """Where a template that a text matches begins in it."""
    if plain := knowledge.plain[index]:
        return low.find(plain)
    hit = knowledge.matcher(index).search(text, low)
    return hit[0] if hit else 0


def _calm(text: bytes, low: bytes) -> bool:
    """Whether a line's level says that nothing is wrong; runtimes relay errors at any level."""
    if b"<e>" in low or b"error" in low:
        return False
    return any(mark in low for mark in _CALM) or header.parse(text).level in ("V", "D", "I")


def number(text: bytes, kind: str) -> int:
    """A captured number; sizes become bytes."""
    if kind in ("KB", "MB", "GB"):
        whole, _, part = text.partition(b".")
        scale = SCALES[kind]
        return int(whole) * scale + (int(part) * scale // 10 ** len(part) if part else 0)
    return int(text, 0) if b"x" in text.lower() else int(text.replace(b",", b""))


def _values(caught: Sequence[bytes], holes: Sequence[tuple[str, str]]) -> tuple[int | str, ...]:
    return tuple(
        one.decode("utf-8", "replace") if kind in ("word", "text") else number(one, kind)
        for (_name, kind), one in zip(holes, caught, strict=True)
    )
