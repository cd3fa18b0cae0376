"""The knowledge base: a table, one entry, the result of a check.

Table and check are also JSON, schemas `qnnmem.kb/1` and `qnnmem.kb-check/1`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from qnnmem.doctor.kb.check import EntryFinding, KbCheck
from qnnmem.doctor.kb.entry import Condition, Entry, When
from qnnmem.doctor.kb.similar import FoundEntry
from qnnmem.results.schema import write_json
from qnnmem.text import printable, quote, shorten

LIST_SCHEMA = "qnnmem.kb/1"
CHECK_SCHEMA = "qnnmem.kb-check/1"


def render_list(entries: Sequence[Entry], notes: Sequence[str] = ()) -> str:
    """A table of entries, and what was left out."""
    lines = [f"{len(entries)} entries", _row("id", "stage", "cause", "verdict", "title")]
    lines += [_row(e.id, e.stage, e.cause, e.verdict, shorten(e.title, 90)) for e in entries]
    lines += [f"note: {shorten(note, 600)}" for note in notes]
    return "\n".join(lines) + "\n"


def render_list_json(entries: Sequence[Entry], notes: Sequence[str] = ()) -> str:
    """The table as one JSON object."""
    values: dict[str, Any] = {"schema": LIST_SCHEMA, "entries": [_values(one) for one in entries]}
    return write_json({**values, "notes": list(notes)} if notes else values)


def render_found(asked: str, found: Sequence[FoundEntry]) -> str:
    """Entries that were searched for, each with the line that has most of the words."""
    if not found:
        return f"nothing found for {quote(asked)}; `qnnmem kb list` lists all entries\n"
    entries = "1 entry" if len(found) == 1 else f"{len(found)} entries"
    lines = [f"{entries} for {quote(asked)}; `qnnmem kb show ID` shows one"]
    for one in found:
        entry = one.entry
        lines.append(f"{shorten(entry.id, 64):<28} {entry.cause:<17} {shorten(entry.title, 90)}")
        lines += [f"    {shorten(one.line, 160)}"] if one.line else []
    return "\n".join(lines) + "\n"


def render_found_json(found: Sequence[FoundEntry]) -> str:
    """The same as one JSON object: the table with score and line of each."""
    rows = [{**_values(one.entry), "score": one.score, "best_line": one.line} for one in found]
    return write_json({"schema": LIST_SCHEMA, "entries": rows})


def render_entry(entry: Entry) -> str:
    """Everything about an entry, as Markdown."""
    return "\n".join(_entry(entry)) + "\n"


def render_check(checked: KbCheck) -> str:
    """The verdict, then what is wrong, then what is worth knowing."""
    return "\n".join(_checked(checked)) + "\n"


def render_check_json(checked: KbCheck) -> str:
    """The check as one JSON object."""
    return write_json(
        {
            "schema": CHECK_SCHEMA,
            "passes": checked.passes,
            "entries": checked.entries,
            "templates": checked.templates,
            "cases": checked.cases,
            "healthy": checked.healthy,
            "documented": checked.documented,
            "findings": _findings(checked.findings),
            "notes": _findings(checked.notes),
        }
    )


def _findings(rows: Sequence[EntryFinding]) -> list[dict[str, str]]:
    return [{"entry": row.entry, "sentence": row.sentence} for row in rows]


def _row(name: str, stage: str, cause: str, verdict: str, title: str) -> str:
    return f"{shorten(name, 64):<28} {stage:<8} {cause:<17} {verdict:<10} {title}"


def _entry(entry: Entry) -> Iterator[str]:
    yield f"# {shorten(entry.title, 200)}"
    yield ""
    yield f"`{entry.id}`: stage {entry.stage}, cause {entry.cause}, verdict {entry.verdict}, "
    yield f"confidence {entry.confidence}."
    yield ""
    yield clean_text(entry.body).rstrip()
    if entry.lines:
        yield "\n## Lines\n"
    for line in entry.lines:
        extra = [f"call {line.call}"] if line.call else []
        extra += [] if line.opens else ["alone no incident"]
        yield f"- {line.sign}: `{shorten(line.text, 400)}`" + (
            f" ({', '.join(extra)})" if extra else ""
        )
    yield "\n## Conditions\n"
    for when in entry.whens:
        yield f"- {_when(when)}"
    for title, rows in (
        ("Remedies", entry.remedies),
        ("Collect next", entry.collect),
        ("Sources", entry.sources),
    ):
        if rows:
            yield f"\n## {title}\n"
            yield from (f"- {shorten(row, 500)}" for row in rows)


def _when(when: When) -> str:
    parts = [f"one of {', '.join(when.signs)}" if len(when.signs) > 1 else when.signs[0]]
    parts += [_condition(condition) for condition in when.where]
    parts += [f"with {' or '.join(group)}" for group in when.needs]
    parts += [f"after {' or '.join(group)}" for group in when.after]
    parts += [f"without {', '.join(when.unless)}"] if when.unless else []
    return "; ".join(parts)


def _condition(condition: Condition) -> str:
    name = f"{condition.sign}.{condition.name}" if condition.sign else condition.name
    return f"{name} {condition.operator} {' or '.join(f'{v:,}' for v in condition.values)}"


def clean_text(text: str) -> str:
    """Text of a file without control characters other than line ends."""
    return printable(text, keep="\n")


def _values(entry: Entry) -> dict[str, Any]:
    return {
        "id": entry.id,
        "title": entry.title,
        "stage": entry.stage,
        "cause": entry.cause,
        "verdict": entry.verdict,
        "confidence": entry.confidence,
        "own": entry.own,
        "documented": entry.documented,
        "remedies": list(entry.remedies),
        "sources": list(entry.sources),
        "lines": [line.text for line in entry.lines],
    }


def _checked(checked: KbCheck) -> Iterator[str]:
    looked = (
        f"{checked.entries} entries with {checked.templates} line templates, "
        f"{checked.cases} stored failures, {checked.healthy} healthy logs"
    )
    wrong = len(checked.findings)
    yield f"good: {looked}" if not wrong else f"{wrong} findings in {looked}"
    if checked.documented:
        yield f"{checked.documented} entries are known from documents only: no stored log has them"
    for title, rows in (("", checked.findings), ("note: ", checked.notes)):
        for row in rows:
            yield f"  {title}{shorten(row.entry, 64)}: {shorten(row.sentence, 300)}"
