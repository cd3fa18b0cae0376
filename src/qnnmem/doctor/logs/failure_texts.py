"""Texts that find failing lines of QNN which match no template."""

from __future__ import annotations

import re

from qnnmem.doctor.logs.reading import FAILING, OURS

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
_IS_FAILING = re.compile(
    b"|".join(
        (rb"(?<![a-z0-9])" if one in BOUND else b"")
        + re.escape(one)
        + (rb"(?![0-9])" if one in BOUND and one[-1:].isdigit() else b"")
        for one in FAILING_TEXTS
    )
)


def is_failing(low: bytes) -> bool:
    """Return whether a lower-case line holds a failure word."""
    return _IS_FAILING.search(low) is not None


def is_about_us(low: bytes) -> bool:
    """Return whether a lower-case line holds both a failure word and a QNN word."""
    return any(own in low for own in OURS) and is_failing(low)
