"""Incidents of many logs as a table; as JSON they are `groups` of `qnnmem.doctor/1`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from qnnmem.doctor.fleet.summary import FleetSummary
from qnnmem.report.table import Column, text_table
from qnnmem.results.doctor import IncidentGroup
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
    columns = (
        Column(by, "<"),
        *(Column(title, width=width) for title, width in _NUMBERS),
        Column("shortage", "<", 24),
        Column("first seen", "<"),
    )
    yield from text_table(columns, map(_cells, rows))


_NUMBERS = (("incidents", 9), ("memory", 6), ("logs", 5))


def _cells(row: IncidentGroup) -> Sequence[str]:
    numbers = (f"{number:,}" for number in (row.incidents, row.memory, row.logs))
    return _shown(row.key), *numbers, _shortage(row), printable(row.first_seen)


def _shortage(row: IncidentGroup) -> str:
    least, most = row.shortage_min_bytes, row.shortage_max_bytes
    if least is None or most is None:
        return "-"
    if least == most:
        return format_size(least)
    return f"{format_size(least)} .. {format_size(most)}"


def _shown(key: str) -> str:
    text = printable(key)
    return text if len(text) <= _MAX_KEY else text[: _MAX_KEY - 3] + "..."
