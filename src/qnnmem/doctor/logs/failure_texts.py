"""Texts by which failing lines of QNN are found even if no template matches them."""

from __future__ import annotations

import re

from qnnmem.doctor.logs.reading import FAILING, OURS
from qnnmem.text import lazy_pattern

# Words that contain a text of FAILING but mean no failure, such as `supported` or `return`.
_NARROWED = {
    b"support": (b"unsupport", b"t support", b"be support", b"yet support", b"ently support"),
    b" ret": tuple(b" ret" + end for end in b"u,v,_,=,:,(,),[,-,<,., ".split(b",")),
    b"fault": (b"fault", b"segfault", b"pagefault", b"mmufault", b"_fault"),
}
# These need a word boundary before them: `fault` is in `default`, 1002 in 410021.
BOUND = frozenset((b"fault", b"lost", b"dead", b"died", b"1002", b"0x3ea"))
FAILING_TEXTS = tuple(one for word in FAILING for one in _NARROWED.get(word, (word,)))
# Marks of an info or debug line that relays an error of another program.
RELAYED = (
    *(b"<e>", b"<w>", b"[e:", b"[err", b"[ err", b"level=error", b" - error - ", b"dsp:["),
    *(b"dsp%d:[" % number for number in range(10)),
)
_UNBOUND = tuple(one for one in FAILING_TEXTS if one not in BOUND)
_BOUND_TEXTS = lazy_pattern(
    b"|".join(
        rb"(?<![a-z0-9])" + re.escape(one) + (rb"(?![0-9])" if one[-1:].isdigit() else b"")
        for one in sorted(BOUND)
    )
)


def is_failing(low: bytes) -> bool:
    """Return True if a lower-case line contains a failure word."""
    return any(one in low for one in _UNBOUND) or _BOUND_TEXTS.search(low) is not None


def is_about_us(low: bytes) -> bool:
    """Return True if a lower-case line contains both a failure word and a QNN word."""
    return any(own in low for own in OURS) and is_failing(low)
