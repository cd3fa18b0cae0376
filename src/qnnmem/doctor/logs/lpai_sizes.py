"""Topic of a failing line about LPAI, and the sizes that the line states.

LPAI allocates no memory itself, so most LPAI failures concern the client's buffers: their
alignment, their size, or the space in TCM. The words to look for are rules in `kb/words.toml`.
"""

from __future__ import annotations

import re

import msgspec

from qnnmem.doctor.logs import words
from qnnmem.text import lazy_pattern

_SIZE = rb"([0-9][0-9,_]{0,18})[ ]?(k|m)?i?(?:b(?:ytes?)?\b|\b)"
_WANTED = rb"(?:need(?:s|ed)?|requir(?:es?|ed)|request(?:s|ed)|want(?:s|ed)?|expect(?:s|ed))\b"
_NEEDED = lazy_pattern(rb"(?:" + _WANTED + rb"|\bat least\b)[^0-9;,]{0,16}?" + _SIZE)
_NEEDED_BEFORE = lazy_pattern(_SIZE + rb"[ ]?(?:is |are |was |were )?" + _WANTED)
_ASKED = lazy_pattern(rb"\b(?:size|alloc(?:ate|ation)?(?: of)?|of|for)\b[^0-9;,]{0,16}?" + _SIZE)
_PLAIN = lazy_pattern(rb"([0-9][0-9,_]{0,18})[ ]?(k|m)?i?b(?:ytes?)?\b")
_GIVEN = lazy_pattern(
    rb"(?:got|given|gave|have|has|had|available|provided|supplied|only|free|memory|actual)\b"
    rb"[^0-9;]{0,16}?" + _SIZE
)
_SIZES = lazy_pattern(rb"(?<![\w.#])" + _SIZE + rb"(?![\w.])")
_SCALES = {b"": 1, b"k": 1 << 10, b"m": 1 << 20}
_SIZED = ("tcm", "memory", "size")  # topics whose lines state the needed size


class LpaiWords(msgspec.Struct, frozen=True):
    """Topic of a line about LPAI, and the sizes that the line states, in bytes."""

    topic: str  # alignment, size, tcm, memory or other
    needed: int | None = None
    limit: int | None = None


def lpai_words(low: bytes) -> LpaiWords | None:
    """Return the topic and sizes of a failing lower-case line; None if it is not an LPAI line."""
    if not words.rule("lpai").search(low):
        return None
    topics = (one.name for one in words.rules("lpai ") if one.search(low))
    topic = next(topics, "other").removeprefix("lpai ")
    if topic not in _SIZED:
        return LpaiWords(topic)
    wanted = _NEEDED.search(low) or _NEEDED_BEFORE.search(low)
    needed = _size(wanted or _ASKED.search(low) or _PLAIN.search(low))
    given = _size(_GIVEN.search(low)) or _other(low, wanted) if topic == "size" else None
    return LpaiWords(topic, needed, given if needed is not None else None)


def _other(low: bytes, wanted: re.Match[bytes] | None) -> int | None:
    """Return the only size in a line besides the needed size; None if there are none or several."""
    if wanted is None:
        return None
    others = [one for one in _SIZES.finditer(low) if one.start(1) != wanted.start(1)]
    return _size(others[0]) if len(others) == 1 else None


def _size(found: re.Match[bytes] | None) -> int | None:
    if found is None:
        return None
    return int(re.sub(rb"[,_]", b"", found[1])) * _SCALES[found[2] or b""]
