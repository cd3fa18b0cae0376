"""What a failing line of LPAI says in words of its own: which rule of its memory, which sizes.

LPAI allocates nothing, so most of its failures are about the client's buffers: where they start,
how large they are, whether TCM has room for them.
"""

from __future__ import annotations

import re

import msgspec

# Scratch and persistent memory are handed over to LPAI alone.
_OURS = re.compile(
    rb"lpai|\be?npu\b.*\b(?:scratch|persistent|tcm)\b|\benpu|\beai[ _:]|\beaix\b|\btcm pool\b"
    rb"|\b(?:scratch|persistent) (?:buffers?|mem(?:ory)?|pool|size|pointer)\b"
)
_ALIGNED = re.compile(rb"(?<!mem)align(?!ed_alloc)")
_NO_MEMORY = re.compile(rb"\benomem\b|out of memory|cannot allocate memory")
_TCM = re.compile(rb"\btcm\b")
_SLOTS = re.compile(
    rb"\b33rd\b|\bslots?\b|\b(?:max\w*|limit\w*|only|at most|more than|over)\b.{0,16}\b32\b"
    rb"|\b32\b.{0,24}\b(?:max\w*|limit|at most|allocations|buffers)"
)
_SMALL = re.compile(
    rb"too (?:small|short)|smaller than|less than|not enough|insufficient|\bneeds?\b|\brequires?\b"
    rb"|size (?:mis-?match|differs)|(?:wrong|invalid) size"
)
_BUFFER = re.compile(rb"scratch|persistent|\bio\b|buffer|memory|heap|input|output")
_ALLOCATION = re.compile(rb"alloc|out of|no (?:more )?memory|exhausted")
_SIZE = rb"([0-9][0-9,_]{0,18})[ ]?(k|m)?i?(?:b(?:ytes?)?\b|\b)"
_WANTED = rb"(?:need(?:s|ed)?|requir(?:es?|ed)|request(?:s|ed)|want(?:s|ed)?|expect(?:s|ed))\b"
_NEEDED = re.compile(rb"(?:" + _WANTED + rb"|\bat least\b)[^0-9;,]{0,16}?" + _SIZE)
_NEEDED_BEFORE = re.compile(_SIZE + rb"[ ]?(?:is |are |was |were )?" + _WANTED)
_ASKED = re.compile(rb"\b(?:size|alloc(?:ate|ation)?(?: of)?|of|for)\b[^0-9;,]{0,16}?" + _SIZE)
_PLAIN = re.compile(rb"([0-9][0-9,_]{0,18})[ ]?(k|m)?i?b(?:ytes?)?\b")
_GIVEN = re.compile(
    rb"(?:got|given|gave|have|has|had|available|provided|supplied|only|free|memory|actual)\b"
    rb"[^0-9;]{0,16}?" + _SIZE
)
_SIZES = re.compile(rb"(?<![\w.#])" + _SIZE + rb"(?![\w.])")
_SCALES = {b"": 1, b"k": 1 << 10, b"m": 1 << 20}


class LpaiWords(msgspec.Struct, frozen=True):
    """The topic of a line of LPAI, and the sizes in bytes that it states."""

    topic: str  # alignment, size, tcm, memory or other
    needed: int | None = None
    limit: int | None = None


def lpai_words(low: bytes) -> LpaiWords | None:
    """What a failing line in small letters says of LPAI; None when it is not about LPAI."""
    if not _OURS.search(low):
        return None
    wanted = _NEEDED.search(low) or _NEEDED_BEFORE.search(low)
    needed = _size(wanted or _ASKED.search(low) or _PLAIN.search(low))
    if _NO_MEMORY.search(low):
        return LpaiWords("memory", needed)
    if _ALIGNED.search(low):
        return LpaiWords("alignment")
    if _TCM.search(low) and _SLOTS.search(low):
        return LpaiWords("other")  # the number of allocations, not the room, is used up
    if _TCM.search(low) and (_ALLOCATION.search(low) or _SMALL.search(low)):
        return LpaiWords("tcm", needed)
    if _BUFFER.search(low):
        if _SMALL.search(low):
            given = _size(_GIVEN.search(low)) or _other(low, wanted)
            both = needed is not None and given is not None
            return LpaiWords("size", needed, given) if both else LpaiWords("size", needed)
        if _ALLOCATION.search(low):
            return LpaiWords("memory", needed)
    return LpaiWords("other")


def _other(low: bytes, wanted: re.Match[bytes] | None) -> int | None:
    """The size that a line states beside the one that is needed, where there are just these two."""
    if wanted is None:
        return None
    others = [one for one in _SIZES.finditer(low) if one.start(1) != wanted.start(1)]
    return _size(others[0]) if len(others) == 1 else None


def _size(found: re.Match[bytes] | None) -> int | None:
    if found is None:
        return None
    return int(re.sub(rb"[,_]", b"", found[1])) * _SCALES[found[2] or b""]
