"""Render a provoked failure: how the library failed, and what was tried."""

from __future__ import annotations

from collections.abc import Iterator

from qnnmem.qnn.codes import code_name
from qnnmem.report.table import as_text
from qnnmem.results.provoked import ProvokedResult
from qnnmem.text import counted, shorten
from qnnmem.units import format_size

_WIDE = 300
_LINES = 12


def verdict(record: ProvokedResult) -> str:
    """Return the first line: whether the library failed, and whether as expected."""
    kind, soc = record.kind, record.soc
    why = shorten(record.sentence, _WIDE)
    if not record.failed:
        return f"the library did not fail: {kind} does not happen on {soc}, {why}"
    code = ""
    if record.code is not None:
        code = f" with {record.code} ({code_name(record.code)})"
    if record.as_expected:
        return f"{kind} on {soc}: the library failed to {record.stage}{code}"
    return f"the library failed to {record.stage}{code}, but this is not {kind}: {why}"


@as_text
def render_text(record: ProvokedResult) -> Iterator[str]:
    """Render the whole report; the library's text is made printable."""
    yield verdict(record)
    yield f"why: {shorten(record.sentence, 2 * _WIDE)}"
    for attempt in record.attempts:
        code = "" if attempt.code is None else f", code {attempt.code}"
        yield f"tried: {shorten(attempt.what, _WIDE)}: {attempt.outcome}{code}"
    peak = "" if record.peak_rss is None else f", {format_size(record.peak_rss)} of host memory"
    version = record.library_version or "unknown version"
    yield f"library: {record.library}, QAIRT {shorten(version)}; {record.seconds:.1f} s{peak}"
    if record.lines:
        yield "log of the library:"
        yield from (f"  {shorten(line, _WIDE)}" for line in record.lines[:_LINES])
        more = len(record.lines) - _LINES
        if more > 0:
            yield f"  … and {counted(more, 'more line')} in the record"
