"""Render the knowledge base: tables, single entries, results of a check, meanings of codes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from qnnmem.doctor.explain import hex_of
from qnnmem.doctor.kb.entry import Condition, Entry, When
from qnnmem.doctor.kb.similar import FoundEntry
from qnnmem.report.table import Column, text_table
from qnnmem.results.kb import CodeMeaning, Explanation, KbCheckResult, KbResult
from qnnmem.text import printable, quote, shorten

_COLUMNS = (
    Column("id", "<", 28),
    Column("stage", "<", 8, gap=1),
    Column("cause", "<", 17, gap=1),
    Column("verdict", "<", 10, gap=1),
    Column("title", "<", gap=1),
)


def render_list(found: KbResult) -> str:
    """Render a table of entries, and notes about skipped files."""
    rows = (
        (shorten(e.id, 64), e.stage, e.cause, e.verdict, shorten(e.title, 90))
        for e in found.entries
    )
    lines = [f"{len(found.entries)} entries", *text_table(_COLUMNS, rows)]
    lines += [f"note: {shorten(note, 600)}" for note in found.notes or ()]
    return "\n".join(lines) + "\n"


def render_found(asked: str, found: Sequence[FoundEntry]) -> str:
    """Render the entries that a search found, each with its best matching line."""
    if not found:
        return f"nothing found for {quote(asked)}; `qnnmem kb list` lists all entries\n"
    entries = "1 entry" if len(found) == 1 else f"{len(found)} entries"
    lines = [f"{entries} for {quote(asked)}; `qnnmem kb show ID` shows an entry"]
    for one in found:
        entry = one.entry
        lines.append(f"{shorten(entry.id, 64):<28} {entry.cause:<17} {shorten(entry.title, 90)}")
        lines += [f"    {shorten(one.line, 160)}"] if one.line else []
    return "\n".join(lines) + "\n"


def render_entry(entry: Entry) -> str:
    """Render an entry with all its fields, as Markdown."""
    return "\n".join(_entry(entry)) + "\n"


def render_check(checked: KbCheckResult) -> str:
    """Render the verdict of a check, then faults, then remarks."""
    return "\n".join(_checked(checked)) + "\n"


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
        extra += [] if line.opens else ["not an incident on its own"]
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
    """Return text without control characters other than line ends."""
    return printable(text, keep="\n")


def _checked(checked: KbCheckResult) -> Iterator[str]:
    looked = (
        f"{checked.entries} entries with {checked.templates} line templates, "
        f"{checked.cases} stored failures, {checked.healthy} healthy logs"
    )
    wrong = len(checked.findings)
    yield f"good: {looked}" if not wrong else f"{wrong} findings in {looked}"
    if checked.documented:
        yield f"{checked.documented} entries are known only from documents, without a stored log"
    for title, rows in (("", checked.findings), ("note: ", checked.notes)):
        for row in rows:
            yield f"  {title}{shorten(row.entry, 64)}: {shorten(row.sentence, 300)}"


_FEW = 2  # diagnoses named in one line


def render_text(explained: Sequence[Explanation], *, verbose: bool = False) -> str:
    """Render every meaning of each code; `verbose` adds other names and matching diagnoses."""
    return "\n".join("\n".join(_one(one, verbose)) + "\n" for one in explained)


def _one(one: Explanation, verbose: bool) -> Iterator[str]:
    if not one.meanings:
        yield f"{_shown(one)}: no known code"
        yield from _unknown(one)
        return
    if len(one.meanings) > 1:
        yield (
            f"{_shown(one)}: {len(one.meanings)} meanings; which one applies depends on the "
            "component that printed it"
        )
    for meaning in one.meanings:
        yield from _meaning(meaning, verbose)


def _unknown(one: Explanation) -> Iterator[str]:
    if one.nearest_range:
        yield f"  similar numbers belong to {one.nearest_range}; see the first error in the log"
    else:
        yield "  the number is outside every range of QNN, FastRPC, errno and the compiler"
    if one.near:
        known = " and ".join(f"{number.code} {number.name}" for number in one.near)
        yield f"  nearest codes: {known}"


def _meaning(meaning: CodeMeaning, verbose: bool) -> Iterator[str]:
    yield f"{meaning.code} = {meaning.hex}  {meaning.name}  ({meaning.component})"
    yield from _rows("means", [meaning.meaning])
    yield from _rows("in practice", [meaning.in_practice] if meaning.in_practice else [])
    yield from _rows("but", [meaning.not_what_it_says] if meaning.not_what_it_says else [])
    if verbose:
        yield from _rows("also", [*meaning.aliases, *meaning.also_written])
    yield from _rows("look above", meaning.look_for)
    count = len(meaning.entries)
    if not verbose and count > _FEW:
        yield from _rows("diagnoses", [f"{count} known to `qnnmem doctor`; -v lists them"])
        return
    yield from _rows("diagnoses", [f"{entry.id}: {entry.title}" for entry in meaning.entries])


def _rows(title: str, rows: Sequence[str]) -> Iterator[str]:
    """Yield a line for each row; the first line starts with the title."""
    yield from (f"  {title if not at else '':<13} {row}" for at, row in enumerate(rows))


def _shown(one: Explanation) -> str:
    text = shorten(one.asked, 80)
    return text if one.code is None else f"{text} ({one.code} = {hex_of(one.code)})"
