"""A provoked failure as text, and its record as JSON, schema `qnnmem.provoked/1`.

The text says whether the library failed, with what, and what was tried.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from qnnmem.flags import with_flags
from qnnmem.htp.provoke import Provoked
from qnnmem.results.schema import write_json
from qnnmem.text import shorten
from qnnmem.units import format_size

SCHEMA = "qnnmem.provoked/1"
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


def render_json(provoked: Provoked, stem: str, tool: str) -> str:
    """One JSON object; `stem` names the files beside it."""
    return write_json(as_values(provoked, stem, tool))


def as_values(provoked: Provoked, stem: str, tool: str) -> dict[str, Any]:
    """The object behind the JSON text."""
    cause = provoked.log.cause
    kind, soc = provoked.kind.value, provoked.soc.name
    return {
        "schema": SCHEMA,
        "tool": tool,
        "kind": kind,
        "soc": soc,
        "soc_model": provoked.soc.model_id,
        "library": provoked.library,
        "library_version": provoked.log.library_version,
        "command": f"qnnmem provoke {kind} --soc {soc} -o .",
        "as_expected": provoked.as_expected,
        "stage": provoked.stage,
        "code": provoked.code,
        "sentence": with_flags(provoked.sentence),
        "cause": None if cause is None else cause.cause.value,
        "need": None if cause is None else cause.need,
        "limit": None if cause is None else cause.limit,
        "lines": list(provoked.lines),
        "log_file": log_name(stem),
        "input_file": input_name(provoked, stem),
        "attempts": [
            {"what": one.what, "outcome": one.outcome, "code": one.code}
            for one in provoked.attempts
        ],
        "seconds": round(provoked.seconds, 3),
        "peak_rss": provoked.peak_rss,
    }


def record_name(stem: str) -> str:
    """File name of the record."""
    return f"{stem}.json"


def log_name(stem: str) -> str:
    """File name of the whole log."""
    return f"{stem}.log"


def input_name(provoked: Provoked, stem: str) -> str:
    """File name of the input that the library failed on."""
    return f"{stem}.{provoked.input_name.rpartition('.')[2]}"
