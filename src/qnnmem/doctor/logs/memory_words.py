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
    r"\bmem(?:ory)?\b|\bspeicher|m[eé]moire|\bmemoria|памят|\u5185\u5b58|\u30e1\u30e2\u30ea"
    r"|\uba54\ubaa8\ub9ac|\bram\b|\bheaps?\b|\bv?tcm\b|address space|\biova\b|\bswap\b"
    r"|dma[-_ ]?(?:buf|heap)"
    r"|\bcma\b|\b(?:memory|npu|dsp|buffer)[-_ ]?pool\b|\barena\b|rpcmem|\bion\b|kv[-_ ]?cache"
)
_AMOUNT = r"(?:[0-9][0-9.,]* ?(?:[kmgt]i?b?|bytes|pages)\b|\b[0-9]{7,}\b|0x[0-9a-f]{6,})"
_GONE = (
    r"not? (?:big |large )?enou\w+|pressure (?:is )?(?:critical|high)|insuf\w*|nicht (?:genug"
    r"|gen\u00fcgend|ausreich)|zu wenig|manque|недостат|хватает"
    r"|\u4e0d\u8db3|\ubd80\uc871|too (?:much|large|big|little|small)|exceed\w*|exhaust\w*"
    r"|\b(?:is|are|was|be|pool|heap|buffer|cache)[ _]full\b|(?:ran|run|running|run-?) ?out\b|out of"
    r"|\bno (?:more|free|room|space|mem\w*)|\bnone (?:left|free)|\blow (?:mem\w*|on)\b"
    r"|(?:on|at|very|critically|of) low\b|\black\w*\b|\bshort(?:age)?\b|(?:not|n.t) fit\b"
    r"|limit (?:is |was )?(?:reached|hit|exceeded)|over (?:the |its )?(?:limit|budget)|depleted"
    r"|budget (?:is |was )?(?:blown|exceeded)"
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
_ASKED = (
    r"\b(?:needs?|needed|requires?|required|wants?|asks?|asked|requested|requests?|takes?"
    r"|estimat\w*)\b"
)
_HAD = (
    r"\bbut\b|\bonly\b|\bmax\w*|\blimit\w*|\bavail\w*|exceed\w*|\b(?:larger|bigger|more|greater"
    r"|higher) than"
    r"|\bfree\b|\bleft\b|\bhave\b|\bcan (?:map|hold|take)\b|\b(?:over|above) (?:the |its |what )"
)
_SHORT: tuple[tuple[str, ...], ...] = (
    (_KIND, _GONE),
    (_TAKES, _FAILED, rf"{_KIND}|{_AMOUNT}"),
    (_ASKED, _AMOUNT, _HAD),
    (_KIND, _ASKED, rf"{_AMOUNT}.*{_AMOUNT}"),
    (_KIND, rf"{_AMOUNT} vs\.? {_AMOUNT}"),
    (r"\b(?:due to|because of) (?:\w+ ){0,2}memory (?:issue|problem|constraint|limit|short)",),
    (
        r"\b(?:\w+_)?(?:mmap|[mc]alloc|mem_?alloc\w*|dma_map\w*)\w*\b[^;.]{0,24}\b(?:fails?|failed|failure)\b",
    ),
    (r"mmap\w*|alloc\w*", r"\breturn(?:s|ed)? (?:-|0x0*[1-9])"),
    (r"\bno (?:more )?(?:room|space)\b", rf"{_KIND}|{_AMOUNT}|\bmap\b|buffer"),
    (r"\w*alloc\w*", _GONE),
    (
        r"\b(?:not enough|no|no more|out of) free (?:\w+ )?(?:blocks|pages)\b"
        r"|exceed\w* (?:the )?available (?:blocks|pages)\b",
    ),
    (r"\bcl_(?:out_of_\w+|mem_object_alloc\w*)",),
    (r"\bcache budget\b", r"too (?:small|little)|exceed"),
    (r"too (?:much|large|big)\b", _AMOUNT),
    (rf"\b(?:larger|bigger|more) than ~? ?{_AMOUNT}", r"\bfail"),
    (r"\bkill", rf"mem|\bram\b|\brss\b|\boom|\bheap|{_AMOUNT}"),
    (
        r"(?:fail\w*|unable|can ?not|can.?t|could not|couldn.t|not able)(?: to)?(?: be)? (?:[mc]"
        r"|re|pre)?alloc",
    ),
)
# What is said of memory and is none.
_NOT_SHORT = re.compile(
    r"(?:memory|mem)[-_ ]?(?:type|handle|info|config|propert|layout|format|align|access|desc"
    r"|registr"
    r"|address|fault|barrier|corrupt|pointer|mode|flag)|(?:\b|_)(?:un|de)-?(?:map|alloc|regist)|\bfree(?:ing|d)\b"
    r"|fail\w* to free|\brelease|not support|unsupport|invalid|mis-?match|wrong|already|permission"
    r"|denied|no such|not found|not exist|undefined|\bversion|align|not (?:be )?(?:initiali"
    r"|implement)"
    r"|\b(?:is|are) (?:large |big )?enough\b|uninitiali[sz]ed|\bno (?:\w+ )?handle found"
    r"|alloc\w* (?:info|record)\b|\b(?:un)?tracked\b|\bnull (?:\w+ ){0,4}pointer|\bwritten buffer"
    r"|exceed\w* (?:the )?(?:pre-?)?allocated|(?:seq\w*[_ ]len\w*|context_len\w*|max[_ ]length)\b"
    r".{0,60}\bexceed|\bexceed.{0,60}\b(?:seq\w*[_ ]len\w*|\w*context_len|max[_ ]length)\b"
    r"|\bsmaller than (?:the )?(?:given|registered)|outside (?:of )?the (?:mapped|shared|model)"
    r"|\b(?:udo|op) ?package"
    r"|dlopen|static tls|tim(?:ed|e)[- ]?out|\bshapes?\b|\bdims?\b|dimension|\brank\b"
    r"|\btokens? limit"
    r"|context length|\bsymbol|segv|segfault|violation|\bfloat\w* range|out of (?:range|bounds)"
    r"|alloc\w* (?:an? |new )?(?:session|port|thread|id|fd|pd)\b|index out"
    r"|expected .{1,40}(?:got|but)|\bargument|parse|outdated|\bflags?\b|never (?:handed|given"
    r"|set)|\bdrivers?\b|map::|\bbitmap|\bf(?:read|write)\b|\billegal\b|not allocated"
    r"|overflow\w* (?:\w+ )?(?:while|occur)"
    # A disk, a format of files, somebody at the screen.
    r"|no space left on device|\benospc\b|\bdisk\b|\bstorage\b|protobuf|modelproto"
    r"|\b(?:kernel|batch) size\b|too many (?:tensors|nodes|inputs|outputs|ops|dim|arg)"
    r"|\bnumber of (?:tensors|nodes|inputs|outputs|ops|operators|layers)\b"
    r"|\bby (?:the )?user\b|force.?stop|\bsegment from shared object(?!.*cannot alloc)"
)

# A leak is told by what is seen of it, whatever else is said.
_GROWS = re.compile(rf"(?:{_KIND}|\brss\b).{{0,60}}\bkeeps? (?:growing|increasing|climbing)\b")


@cache
def _compiled() -> tuple[tuple[re.Pattern[str], ...], ...]:
    return tuple(tuple(map(re.compile, needs)) for needs in _SHORT)


def says_otherwise(text: str) -> bool:
    """Whether what a line of small letters says of memory, if anything, is no shortage."""
    return bool(_NOT_SHORT.search(text))


def speaks_of_shortage(text: str) -> bool:
    """Whether a failing line of small letters says, in whatever words, that memory is short."""
    if "keep" in text and _GROWS.search(text):
        return True
    if says_otherwise(text):
        return False
    return any(all(need.search(text) for need in needs) for needs in _compiled())
