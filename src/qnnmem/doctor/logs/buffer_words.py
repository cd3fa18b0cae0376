"""What a line says of a client's buffers in words of its own, and of the pool of TCM.

Buffers are freed too early, used too late, too short, in each other's place, never handed over;
people say so in many ways. Rows are as those of `topics`: a cause, what a line in small letters
must hold in any order, and what it must not hold.
"""

from __future__ import annotations

from qnnmem.doctor.logs.topic_words import HEAP_SPOILT, MEMORY_OF, NUMBER

# Lines are read with 1 for each digit but 0: the size of the pool is 2035712, or 1011111.
_POOL = (
    r"\bpool\b|\ba?dsp direct|lpai|enpu|\beai|direct mode|\bslots?\b"
    r"|\b[12][,_. ]?0[13][15][,_. ]?[17]1[12]\b"
)
_COUNT = r"\b[0-9]{2}\b(?! ?(?:[kmg]i?b|bytes))"

TCM: tuple[tuple[str, tuple[str, ...], str], ...] = (
    (
        "mem_tcm_slots",
        (
            r"\btcm\b",
            r"alloc\w*|slots?|buffers?",
            r"\b[0-9]{2}(?:rd|st|nd|th) (?:\w+ )?alloc"
            r"|\bno (?:more |free )?(?:slots?|allocations?)\b"
            rf"|\b(?:max\w*|limit\w*|only|at most|more than|over|beyond)\b.{{0,16}}{_COUNT}"
            rf"|{_COUNT}.{{0,24}}\b(?:max\w*|limit|at most|refus\w+|reached|used up|exceeded)",
        ),
        r"\bvtcm\b",
    ),
    (
        "tcm_mixed",
        (
            r"\btcm\b",
            r"\bddr\b",
            r"\bmodel|weights|binary",
            r"\bio\b|inputs?|outputs?|tensors?",
            r"\bwhile\b|\bbut\b|\bmix\w*|\bwhereas\b|\bdiffer",
        ),
        r"\bvtcm\b",
    ),
    (
        "tcm_memory_type",
        (
            r"\btcm\b|\blpai\b|\benpu\b",
            r"\bmem(?:ory)?[ _-]?types?\b",
            r"unknown|invalid|unsupported|not (?:be )?(?:available|supported|allowed|known|there)"
            r"|refus|wrong",
        ),
        r"\bvtcm\b",
    ),
    (
        "mem_tcm_pool",
        (
            r"\btcm\b",
            _POOL,
            r"exceed\w*|(?:larger|bigger|greater|more) than|\babove\b|\bover\b|\bbeyond\b|\btoo "
            r"|(?:not|n.t) fit|exhaust\w*|\bfull\b|\bno (?:more )?(?:room|space|memory)|\bout of\b"
            r"|not enough|insufficient|alloc\w*.{0,24}\b(?:fail|refus|returned null)"
            r"|(?:fail|unable|cannot|could not)\w*.{0,24}\balloc"
            r"|\bleft\b.{0,40}\bneeds?\b|\bneeds?\b.{0,40}\bleft\b",
        ),
        r"\bvtcm\b|\bmem(?:ory)?[ _-]?type",
    ),
)

_OF = (
    r"\b(?:buffers?|mem(?:ory|handles?)?|mem[ _]handles?|scratch|persistent|handles?|pointers?"
    r"|tensors?|fds?|pools?|io|rpcmem\w*|(?:in|out)puts?|contexts?|dma-?bufs?|clientbuf)\b"
)
_GIVEN_BACK = (
    r"(?:freed|released|unmapped|deregistered|deallocated|destroyed|closed|reused|given back)"
)
_SMALL = r"(?:smaller|shorter|less) than|too (?:small|short)"
_WANTS = r"(?:needs?|needed|wants?|requires?|required|expects?|expected|asks? for|queried|says)"
_HAS = r"(?:is|was|has|have|holds?|got|given|handed|passed|provided|supplied|only|size)"
_SIZE = r"[0-9][0-9,_]*(?: ?(?:[kmg]i?b|bytes?|elements?))?"
# Where sizes are of what there is of memory, not of a buffer that somebody hands over.
_OF_MEMORY = (
    r"\bvtcm\b|\btcm\b|\bheap\b|\bavailable\b|\bfree\b|\bleft\b|\blimit|spill|address space|\bram\b"
    r"|\bvram\b|\bcma\b|\balloc(?:ate|ation)\b"
)

MISUSE: tuple[tuple[str, tuple[str, ...], str], ...] = (
    # Given back while somebody still needs it, or used after that.
    (
        "buffer_misuse",
        (
            r"\b(?:before|while|early|soon|during|under|after|dangling)\b",
            rf"\b{_GIVEN_BACK}\b.{{0,24}}\b(?:before|while|too early|too soon|during|under)\b"
            r"|\bfree(?:d|s|ing)? (?:\w+ ){0,4}(?:before|while|too early|too soon)\b"
            r"|\b(?:us(?:e|ed|ing)|access\w*|execut\w+|touch\w*|writ\w+|read)\b.{0,24}\bafter\b"
            r".{0,24}\b(?:\w*free[ds]?|release[ds]?|deregist\w+|destroy\w*|unmap\w*)\b"
            r"|\buse[- ]after[- ]free\b|\bdangling\b",
            _OF,
        ),
        r"\bno longer\b.{0,16}\bneeded|\bafter (?:it|they) (?:is|are|was|were) no longer",
    ),
    # Twice what is done once.
    (
        "buffer_misuse",
        (
            r"\btwice\b|\btwo times\b|\bsecond time\b|\bdouble\b",
            r"\b(?:regist\w+|free[ds]?|\w+_free|mapped|unmap\w*|deregist\w+|releas\w+)\b.{0,24}"
            r"\b(?:twice|two times|a second time)\b|\bdouble[- ](?:free|registr\w+|map\w*)\b",
        ),
        r"free\(\): |detected in tcache",
    ),
    # In each other's place, or past an end.
    ("buffer_misuse", (r"\boverlap(?:s|ped|ping)?\b", _OF), r"\ballowed\b|\bno overlap"),
    (
        "buffer_misuse",
        (r"\bthe end\b", r"\b(?:past|beyond|behind|over) the end\b", _OF),
        r"\bindex\b|\bindices\b|\bop\b|operator|\bdim|\baxis\b",
    ),
    # Never handed over.
    (
        "buffer_misuse",
        (
            r"\b(?:scratch|persistent|user|io|client)\b",
            r"\b(?:scratch|persistent|user|io|client) ?(?:buffers?|memory|mem|pointers?|pool)?\b",
            r"\bnot (?:been )?(?:set|given|provided|supplied|handed|configured|passed)\b|\bunset\b"
            r"|\bmissing\b|\bforg(?:o|e)t\w*|\bnever (?:\w+ )?(?:set|given|handed|registered)\b"
            r"|\bwithout (?:a )?(?:scratch|persistent)\b|\bno (?:scratch|persistent)\b",
        ),
        r"\bdefault|\bfile\b|\blibrar|\.so\b|\bop\b|operator|\bfit\b|(?:[kmg]i?b|bytes) missing",
    ),
    (
        "buffer_misuse",
        (r"\b(?:client|app|user|we|i) forg(?:o|e)t\w*\b", r"\bmem|buffer|scratch|persistent"),
        "",
    ),
    # Not where it may start.
    (
        "buffer_misuse",
        (
            r"multiple|align",
            r"\b(?:not (?:a )?|must be (?:a )?)multiples? of [0-9]+"
            r"|\balignment (?:of )?[0-9]+.{0,24}\b(?:but|required"
            r"|needed|wanted|must)|\b[0-9]+[- ]bytes? align\w*.{0,24}\b(?:required|needed|but)",
            rf"{_OF}|\balignment\b|address",
        ),
        r"\bchannel|\bdim|\bkernel\b|\bstride|\bop\b|operator|\bgroup|\bblock",
    ),
    # Shorter than what goes into it.
    (
        "buffer_misuse",
        (
            _SMALL,
            rf"\b(?:scratch|persistent|(?:in|out)put|tensor|io|client|user)\b.{{0,48}}\b(?:{_SMALL})"
            rf"|\b(?:{_SMALL})\b.{{0,32}}\b(?:tensor|required|needed|queried|graph needs)\b",
            r"\b(?:buffers?|scratch|persistent|memory|clientbuf|size)\b",
        ),
        _OF_MEMORY,
    ),
    (
        "buffer_misuse",
        (
            rf"\b{_WANTS}\b",
            r"\b(?:buffers?|scratch|persistent|io|clientbuf|(?:in|out)put)\b",
            rf"\b{_WANTS}\b.{{0,16}}{_SIZE}.{{0,32}}\b{_HAS}\b.{{0,16}}[0-9]"
            rf"|\b{_HAS}\b.{{0,16}}{_SIZE}.{{0,32}}\b{_WANTS}\b.{{0,16}}[0-9]"
            rf"|\b{_WANTS}\b.{{0,16}}{_SIZE}.{{0,32}}\bbut\b.{{0,16}}[0-9]",
        ),
        _OF_MEMORY,
    ),
    (
        "buffer_misuse",
        (r"\b(?:datasize|data_?size|client ?buf\w*)\b.{0,16}\b(?:0|null|nullptr)$",),
        "",
    ),
    # Not a buffer of this kind, or of this context.
    (
        "buffer_misuse",
        (
            r"\bfd\b|\b(?:mem[ _]?)?handle\b",
            r"\bbad fd\b"
            r"|\bfd\b.{0,24}\b(?:is |was )?(?:no|not an?|isn.t an?)\b.{0,12}(?:dma|buffer)"
            r"|\b(?:mem ?)?handle\b.{0,24}\b(?:of|to|from) (?:another|other|a different)\b"
            r"|\b(?:mem[ _]?handle|raw)\b.{0,40}\b(?:where|while|but|instead of|declared)\b.{0,40}"
            r"\b(?:mem[ _]?handle|raw)\b",
        ),
        r"\boutput format\b",
    ),
    (
        "buffer_misuse",
        (
            r"\bmust\b",
            r"\bmust be (?:registered|allocated|set|handed over) (?:with|before|first|by|from)\b"
            r"|\bmust (?:first )?be registered\b",
            _OF,
        ),
        r"\bcallback|\bop ?package",
    ),
)

# Two sizes, shapes or places of which a line says that they differ.
MISMATCH: tuple[tuple[str, tuple[str, ...], str], ...] = (
    (
        "buffer_misuse",
        (
            r"\b(?:already|not|never) registered\b|\bregistered twice\b",
            rf"{MEMORY_OF}.{{0,60}}\bregistered\b|\bregistered\b.{{0,40}}{MEMORY_OF}",
        ),
        r"\bencodings?\b|\bop\b|\boperators?\b",
    ),
    (
        "buffer_misuse",
        (
            r"\bregistered already\b|invalid mem ?handle|\bpast (?:a multiple of|(?:its|the) end\b)"
            r"|\bwas freed (?:while|before)\b|\bused? after (?:\w+ )?freed?\b"
            rf"|(?:needs?|has) {NUMBER} bytes\b.{{0,24}}\b(?:was|were|is) given\b"
            r"|\b(?:buffers?|scratch|persistent|tensors?)\b.{0,40}\b(?:overlap|share bytes)"
            r"|(?:file|input|tensor) size\b.*\b(?:but|expect\w*|differs?)\b"
            r"|\bbuffer size\b.{0,24}\bsmaller than (?:the )?(?:given|registered)"
            r"|\b(?:in|out)put buffer\b.{0,16}\btoo small"
            rf"|\b(?:has|holds) {NUMBER} bytes\b.{{0,40}}\bexpects? {NUMBER}"
            r"|\bnot [\w-]{1,12}[ -]aligned"
            r"|\brequired alignment|(?:not |mis-?|un)align\w*|must be (?:\w+[ -]){0,3}aligned"
            r"|(?:size|shape|dimension\w*|rank|bytes?|length) (?:mis-?match|differ|does not match)"
            r"|\bhas (?:shape|dimensions?|size|rank)\b.{0,60}\bbut\b.{0,60}"
            r"\b(?:shape|dimensions?|size|rank)\b"
            rf"|\b(?:size|length|bytes) (?:of )?{NUMBER} != (?:expected )?{NUMBER}"
            r"|\b(?:shape|dimension|rank)\b.{0,40} not equal to\b"
            r"|\b(?:has|got|found) (?:an? )?(?:in|out)puts? \S+ but expected\b"
            r"|(?:mis-?match|wrong|invalid|incorrect|unexpected)\w* (?:in |of )?(?:the )?"
            r"(?:\w+ )?(?:size|shape|dimension|rank|offset|number of \w+)"
            rf"|expect\w+:? {NUMBER} (?:bytes|elements|dim\w*).*{NUMBER}",
        ),
        # What a model asks of an operator is no buffer.
        rf"{HEAP_SPOILT}|\b(?:unary|binary)? ?op\b|\boperators?\b|\bbias\b|quanti[sz]e\b"
        r"|\bnumber of (?:in|out)puts? for \w|\bshape tensor type\b|\bencodings?\b"
        r"|\boverlap is allowed",
    ),
)
