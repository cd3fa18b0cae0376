"""A provoked failure as text: whether the library failed, with what, and what was tried."""

from __future__ import annotations

from collections.abc import Iterator

from qnnmem.flags import with_flags
from qnnmem.htp.provoke import Provoked
from qnnmem.text import shorten
from qnnmem.units import format_size

_WIDE = 300
_LINES = 12


def render_text(provoked: Provoked) -> str:
    """The whole report; text of the library is made safe to print."""
    return "\n".join([verdict(provoked), *_facts(provoked), *_said(provoked)]) + "\n"


def verdict(provoked: Provoked) -> str:
    """The first line."""
    kind, soc = provoked.kind.value, provoked.soc.name
    why = shorten(with_flags(provoked.sentence), _WIDE)
    if not provoked.failed:
        return f"the library did not fail: no {kind} on {soc}, {why}"
    code = ""
    if provoked.code is not None:
        code = f" with {provoked.code} ({provoked.code_name})"
    if provoked.as_expected:
        return f"{kind} on {soc}: the library failed to {provoked.stage}{code}"
    return f"the library failed to {provoked.stage}{code}, but not of {kind}: {why}"


def _facts(provoked: Provoked) -> Iterator[str]:
    yield f"why: {shorten(with_flags(provoked.sentence), 2 * _WIDE)}"
    for attempt in provoked.attempts:
        code = "" if attempt.code is None else f", code {attempt.code}"
        yield f"tried: {shorten(attempt.what, _WIDE)}: {attempt.outcome}{code}"
    peak = "" if provoked.peak_rss is None else f", {format_size(provoked.peak_rss)} of host memory"
    made = provoked.log.library_version or "unknown version"
    yield f"library: {provoked.library}, QAIRT {shorten(made)}; {provoked.seconds:.1f} s{peak}"


def _said(provoked: Provoked) -> Iterator[str]:
    if provoked.lines:
        yield "the library said:"
        yield from (f"  {shorten(line, _WIDE)}" for line in provoked.lines[:_LINES])
        more = len(provoked.lines) - _LINES
        if more > 0:
            yield f"  … and {more} more lines in the record"
