"""Incidents of many logs as a table; as JSON they are `groups` of `qnnmem.doctor/1`."""

from __future__ import annotations

from collections.abc import Iterator

from qnnmem.doctor.fleet.summary import FleetRow, FleetSummary
from qnnmem.text import counted, printable
from qnnmem.units import format_size

_MAX_KEY = 48


def render_text(summary: FleetSummary) -> str:
    """One line for each row below a heading."""
    return "".join(line.rstrip() + "\n" for line in _lines(summary))


def _lines(summary: FleetSummary) -> Iterator[str]:
    rows, by = summary.rows, summary.by
    total = sum(row.incidents for row in rows)
    yield f"{counted(total, 'incident')} by {by}" if total else "no incidents"
    if not rows:
        return
    keys = [_shown(row.key) for row in rows]
    width = max(len(by), *map(len, keys))
    yield f"{by:<{width}}  incidents  memory   logs  {'shortage':<24}  first seen"
    for key, row in zip(keys, rows, strict=True):
        counts = f"{row.incidents:>9,}  {row.memory:>6,}  {row.logs:>5,}"
        yield f"{key:<{width}}  {counts}  {_shortage(row):<24}  {printable(row.first_seen)}"


def _shortage(row: FleetRow) -> str:
    least, most = row.shortage_min_bytes, row.shortage_max_bytes
    if least is None or most is None:
        return "-"
    if least == most:
        return format_size(least)
    return f"{format_size(least)} .. {format_size(most)}"


def _shown(key: str) -> str:
    text = printable(key)
    return text if len(text) <= _MAX_KEY else text[: _MAX_KEY - 3] + "..."
