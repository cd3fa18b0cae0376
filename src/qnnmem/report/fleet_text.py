"""Incidents of many logs as a table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from qnnmem.text import printable
from qnnmem.units import Bytes, format_size

_MAX_KEY = 48


class Row(Protocol):
    """A row of the table, as `doctor.fleet_summary` makes it."""

    @property
    def key(self) -> str:
        """What the incidents have in common."""

    @property
    def incidents(self) -> int:
        """How many there are."""

    @property
    def memory(self) -> int:
        """How many of them are a shortage of memory."""

    @property
    def logs(self) -> int:
        """In how many logs they stand."""

    @property
    def first_seen(self) -> str:
        """File and line of the first."""

    @property
    def shortage_min_bytes(self) -> int | None:
        """The smallest shortage, where lines tell it."""

    @property
    def shortage_max_bytes(self) -> int | None:
        """The largest."""


def render(rows: Sequence[Row], by: str) -> str:
    """One line for each row below a heading."""
    return "".join(line.rstrip() + "\n" for line in _lines(rows, by))


def _lines(rows: Sequence[Row], by: str) -> Iterator[str]:
    total = sum(row.incidents for row in rows)
    yield f"{total:,} incidents by {by}" if total else "no incidents"
    if not rows:
        return
    keys = [_shown(row.key) for row in rows]
    width = max(len(by), *map(len, keys))
    yield f"{by:<{width}}  incidents  memory   logs  {'shortage':<24}  first seen"
    for key, row in zip(keys, rows, strict=True):
        counts = f"{row.incidents:>9,}  {row.memory:>6,}  {row.logs:>5,}"
        yield f"{key:<{width}}  {counts}  {_shortage(row):<24}  {printable(row.first_seen)}"


def _shortage(row: Row) -> str:
    least, most = row.shortage_min_bytes, row.shortage_max_bytes
    if least is None or most is None:
        return "-"
    if least == most:
        return format_size(Bytes(least))
    return f"{format_size(Bytes(least))} .. {format_size(Bytes(most))}"


def _shown(key: str) -> str:
    text = printable(key)
    return text if len(text) <= _MAX_KEY else text[: _MAX_KEY - 3] + "..."
