"""Render a diagnosis as text or JSON (schema `qnnmem.doctor/1`), or as a table for a fleet.

Text starts with the verdict; evidence, cause, shortage, remedies and the next step follow. JSON has
one incident per line. Both renderers yield pieces, because a log can hold 100,000 incidents.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from msgspec import DecodeError, Struct
from msgspec.json import decode

from qnnmem.report import doctor_words as words
from qnnmem.report.doctor_remedies import Guide, legend
from qnnmem.report.table import Column, as_text, text_table
from qnnmem.results.incident import Incident, ReadingStats, to_json
from qnnmem.results.result import TOOL
from qnnmem.text import counted, printable, shorten
from qnnmem.units import format_size

if TYPE_CHECKING:
    from qnnmem.doctor.fleet.summary import FleetSummary
    from qnnmem.results.doctor import IncidentGroup
    from qnnmem.results.host import HostResult

SCHEMA = "qnnmem.doctor/1"
_MAX_KEY = 48  # columns for the common field of a fleet row
_NUMBERS = (("incidents", 9), ("memory", 6), ("logs", 5))


def render_text(
    incidents: Iterable[Incident],
    stats: ReadingStats,
    *,
    verbose: bool = False,
    guide: Guide | None = None,
) -> Iterator[str]:
    """Yield the report piece by piece; text from logs is made printable."""
    guide = guide or Guide()
    rest = Counter[words.StageAndCause]()
    number = 0
    for number, incident in words.in_full(incidents, rest):
        if number == 1:
            yield words.summary(stats, incident) + "\n"
        if stats.incidents > 1:
            yield f"\n{heading(incident, number, stats.incidents)}\n"
        yield _lines(details(incident, verbose, guide))
    if not number:
        yield words.healthy(stats) + "\n"
    if rest:
        yield f"\n{counted(rest.total(), 'more incident')}, by stage and cause:\n"
        for stage, cause, count in words.by_cause(rest):
            yield f"{count:>9,}  {stage:<8} {cause}\n"
    if number and stats.incidents > 1:
        yield f"\nread {words.amount(stats)}\n"
    yield from notes(stats)


def notes(stats: ReadingStats) -> Iterator[str]:
    """Return an iterator over lines, one for each problem in reading the logs."""
    return (f"note: {shorten(note, 600)}\n" for note in stats.notes)


def render_json(
    incidents: Iterable[Incident | str],
    stats: ReadingStats,
    summary: FleetSummary | None = None,
    machine: HostResult | None = None,
    guide: Guide | None = None,
) -> Iterator[str]:
    """Yield one JSON object, piece by piece; incidents can already be JSON text."""
    yield f'{{"schema": "{SCHEMA}", "tool": "{TOOL}", "incidents": ['
    between = "\n"
    entries: dict[str, None] = {}
    for incident in incidents:
        if isinstance(incident, str):
            row, entry = incident, _entry_of(incident)
        else:
            row, entry = to_json(incident), incident.entry
        if entry:
            entries[entry] = None
        yield between + row
        between = ",\n"
    end = "\n]" if between != "\n" else "]"
    guide = guide or Guide()
    whys = {entry: why for entry in entries if (why := guide.why_of(entry))}
    yield f"{end}, {to_json({'why': whys, **_after_incidents(stats, summary, machine)})[1:]}\n"


class _EntryName(Struct):
    """The entry name of an incident, the only field decoded from its JSON."""

    entry: str | None


def _entry_of(row: str) -> str | None:
    try:
        return decode(row, type=_EntryName).entry
    except DecodeError:  # msgspec rejects lone surrogates
        import json

        name: str | None = json.loads(row)["entry"]
        return name


def _after_incidents(
    stats: ReadingStats, summary: FleetSummary | None, machine: HostResult | None
) -> dict[str, Any]:
    """Return the fields that follow the incidents in a DoctorResult."""
    values: dict[str, Any] = {
        "stats": {"lines": stats.lines, "bytes": stats.bytes, "seconds": stats.seconds},
        "noise": {entry.entry: entry.count for entry in stats.noise},
        **({"answer": words.healthy(stats)} if stats.foreign or stats.unclear else {}),
        "notes": stats.notes,
        "files": stats.files,
    }
    if summary is not None:
        values["groups"] = summary.rows
    if machine is not None:
        values["host"] = machine
    return values


def render_live(
    incident: Incident, number: int, *, verbose: bool = False, guide: Guide | None = None
) -> str:
    """Render an incident of a growing log as text."""
    body = _lines(details(incident, verbose, guide or Guide()))
    return f"incident {number}: {words.verdict(incident)}\n{body}\n"


def heading(incident: Incident, number: int, total: int) -> str:
    """Return the heading of an incident: its number, the number of incidents, and the verdict."""
    return f"incident {number:,} of {total:,}: {words.verdict(incident)}"


def details(incident: Incident, verbose: bool, guide: Guide) -> Iterator[str]:
    """Yield the lines below an incident's verdict: evidence, cause and remedies.

    `verbose` adds neighbouring log lines, other causes, origins, and data to collect.
    """
    decided = incident.verdict != "undecided"
    yield words.where(incident)
    yield from ("", "evidence (> marks the deciding lines):" if decided else "evidence:")
    yield from (f"  {line}" for line in _evidence(incident, verbose))
    if doubt := words.doubt(incident):
        yield f"  {doubt}"
    yield from ("", words.cause(incident))
    if why := guide.why(incident):
        yield f"why: {shorten(why, 600)}"
    in_question = words.in_question(incident)
    yield from _titled("possible causes:", in_question)
    if verbose and decided and len(incident.candidates) > 1:
        yield f"ranked: {words.candidates(incident)}"
    yield from _rows("in the log:", words.quantities(incident), verbose)
    yield from _rows("this model:", words.model_numbers(incident), verbose)
    yield from (f"  {sentence}" for sentence in words.sentences(incident))
    yield from _numbered("similar, not confirmed:", words.similar(incident))
    yield from _remedies(guide, incident)
    if verbose or not decided or in_question:
        yield from _numbered("what to collect next:", guide.collect(incident))


def _evidence(incident: Incident, verbose: bool) -> Iterator[str]:
    lines = list(words.evidence(incident))
    rows = zip(lines, words.evidence_lines(incident), strict=True)
    decides = any(line.decides for line in incident.evidence)
    chosen = [text for text, line in rows if line.decides or words.is_unknown(incident, line)]
    if verbose or not decides:
        yield from lines
        return
    yield from chosen
    if len(lines) > len(chosen):
        yield f"  and {counted(len(lines) - len(chosen), 'line')} of context; -v shows all"


def _titled(title: str, rows: list[str]) -> Iterator[str]:
    if rows:
        yield from ("", title)
        yield from (f"  {row}" for row in rows)


def _rows(title: str, rows: list[tuple[str, str, str, str]], verbose: bool) -> Iterator[str]:
    if not rows:
        return
    name, value, size = (max(len(row[k]) for row in rows) for k in range(3))
    yield from ("", title)
    for row in rows:
        cells = f"{row[0]:<{name}}  {row[1]:>{min(value, 60)}}  {row[2]:>{size}}"
        origin = row[3] if verbose else row[3].partition(":")[0]
        yield f"  {cells}  {origin}"


def _remedies(guide: Guide, incident: Incident) -> Iterator[str]:
    remedies = guide.remedies(incident)
    for number, remedy in enumerate(remedies, 1):
        if number == 1:
            yield from ("", "what to do:")
        yield f"  {number}. {shorten(remedy.text, 600)}"
        yield from (f"       {printable(command)}" for command in remedy.commands)
    if meant := legend(remedies):
        yield f"  ({meant})"


def _numbered(title: str, items: Iterable[str]) -> Iterator[str]:
    for number, item in enumerate(items, 1):
        if number == 1:
            yield from ("", title)
        yield f"  {number}. {shorten(item, 600)}"


def _lines(lines: Iterable[str]) -> str:
    return "".join(f"{line.rstrip()}\n" for line in lines)


@as_text
def render_fleet(summary: FleetSummary) -> Iterator[str]:
    """Render a table of a fleet's incidents: a heading, and a line for each row."""
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


def _cells(row: IncidentGroup) -> Sequence[str]:
    numbers = (f"{number:,}" for number in (row.incidents, row.memory, row.logs))
    return _shown(row.key), *numbers, _shortage(row), printable(row.first_seen)


def _shortage(row: IncidentGroup) -> str:
    least, largest = row.shortage_min_bytes, row.shortage_max_bytes
    if least is None or largest is None:
        return "-"
    if least == largest:
        return format_size(least)
    return f"{format_size(least)} .. {format_size(largest)}"


def _shown(key: str) -> str:
    text = printable(key)
    return text if len(text) <= _MAX_KEY else text[: _MAX_KEY - 3] + "..."
