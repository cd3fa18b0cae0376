"""Words of a failing line that speak of memory being short, where they name no cause.

Three ways to say it: memory of some kind is said to be gone, full or too little; something that
takes memory failed, with an amount or with what it is taken from; an amount is asked for beside
what there is. What is said of memory that is not a shortage (its type, a handle, giving it back,
an address that is wrong) is left open. Numbers are seen by their length alone: all digits but zero
are alike in the lines that are read (`reading`).
"""

from __future__ import annotations

import re
from functools import cache

_KIND = (
    r"\bmem(?:ory)?\b|\bram\b|\bheaps?\b|\bv?tcm\b|address space|\biova\b|\bswap\b|dma[-_ ]?(?:buf|heap)"
    r"|\bcma\b|\b(?:memory|npu|dsp|buffer)[-_ ]?pool\b|\barena\b|rpcmem|\bion\b|kv[-_ ]?cache"
)
_AMOUNT = r"(?:[0-9][0-9.,]* ?(?:[kmgt]i?b?|bytes|pages)\b|\b[0-9]{7,}\b|0x[0-9a-f]{6,})"
_GONE = (
    r"not? enou\w+|insufficien\w*|too (?:much|large|big|little|small)|exceed\w*|exhaust\w*"
    r"|\b(?:is|are|was|be|pool|heap|buffer|cache)[ _]full\b|(?:ran|run|running|run-?) ?out\b|out of"
    r"|\bno (?:more|free|room|space|mem\w*)|\bnone (?:left|free)|\blow (?:mem\w*|on)\b"
    r"|(?:on|at|very|critically|of) low\b|\black\w*\b|\bshort(?:age)?\b|(?:not|n.t) fit\b"
    r"|limit (?:is |was )?(?:reached|hit|exceeded)|over (?:the |its )?(?:limit|budget)|depleted"
    r"|\b(?:grow|extend|expand)\w* (?:\w+ )?fail|fail\w* to (?:grow|extend|expand)|used up"
    r"|reach\w* (?:the |its )?(?:limit|max)"
)
_TAKES = (
    r"alloc\w*|\bmmap\w*|\w+_mmap\w*|\bmap(?:ped|ping|s)?\b|\breserv\w+|\brequest\w*|\bgrow\w*"
    r"|\bregister\w*|\bobtain\w*|\bacquir\w*"
)
_FAILED = (
    r"fail|error|cannot|can not|can.t|unable|could not|couldn.t|\bnil\b|\bnull|reject|refus"
    r"|\benomem\b|returned (?:0x0+\b|0\b)"
)
_ASKED = r"\b(?:needs?|needed|requires?|required|wants?|asks?|asked|requested|requests?|takes?)\b"
_HAD = (
    r"\bbut\b|\bonly\b|\bmax\w*|\blimit\w*|\bavail\w*|exceed\w*|\b(?:larger|bigger|more|greater) than"
    r"|\bfree\b|\bleft\b|\bhave\b|\bcan (?:map|hold|take)\b|\bover\b|\babove\b"
)
_SHORT: tuple[tuple[str, ...], ...] = (
    (_KIND, _GONE),
    (_TAKES, _FAILED, rf"{_KIND}|{_AMOUNT}"),
    (_ASKED, _AMOUNT, _HAD),
)
# What is said of memory and is none.
_NOT_SHORT = re.compile(
    r"(?:memory|mem)[-_ ]?(?:type|handle|info|config|propert|layout|format|align|access|desc|registr"
    r"|address|fault|barrier|corrupt|pointer|mode|flag)|\b(?:un|de)-?(?:map|alloc|regist)|\bfree(?:ing|d)\b"
    r"|fail\w* to free|\brelease|not support|unsupport|invalid|mis-?match|wrong|already|permission"
    r"|denied|no such|not found|not exist|undefined|\bversion|align|not (?:be )?(?:initiali|implement)"
    r"|dlopen|static tls|tim(?:ed|e)[- ]?out|\bshapes?\b|\bdims?\b|dimension|\brank\b|\btokens? limit"
    r"|context length|\bsymbol|segv|segfault|violation|\bfloat\w* range|out of (?:range|bounds)"
    r"|index out|expected .{1,40}(?:got|but)|\bargument|parse|outdated|\bdrivers?\b|map::|\bbitmap"
)


@cache
def _compiled() -> tuple[tuple[re.Pattern[str], ...], ...]:
    return tuple(tuple(map(re.compile, needs)) for needs in _SHORT)


def speaks_of_shortage(text: str) -> bool:
    """Whether a failing line of small letters says, in whatever words, that memory is short."""
    if _NOT_SHORT.search(text):
        return False
    return any(all(need.search(text) for need in needs) for needs in _compiled())
