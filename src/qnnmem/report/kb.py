"""Render the knowledge base: tables, single entries, results of a check, meanings of codes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from qnnmem.doctor.explain import hex_of
from qnnmem.doctor.kb.entry import Condition, Entry, When
from qnnmem.doctor.kb.similar import FoundEntry
from qnnmem.report.table import Column, as_text, text_table
from qnnmem.results.kb import CodeMeaning, Explanation, KbCheckResult, KbResult
from qnnmem.text import printable, quote, shorten

_COLUMNS = (
    Column("id", "<", 28),
    Column("stage", "<", 8, gap=1),
    Column("cause", "<", 17, gap=1),
    Column("verdict", "<", 10, gap=1),
    Column("title", "<", gap=1),
)


@as_text
def render_list(result: KbResult) -> Iterator[str]:
    """Render a table of entries, and notes about skipped files."""
    rows = (
        (shorten(e.id, 64), e.stage, e.cause, e.verdict, shorten(e.title, 90))
        for e in result.entries
    )
    yield f"{len(result.entries)} entries"
    yield from text_table(_COLUMNS, rows)
    yield from (f"note: {shorten(note, 600)}" for note in result.notes or ())


@as_text
def render_found(query: str, matches: Sequence[FoundEntry]) -> Iterator[str]:
    """Render the entries that a search found, each with its best matching line."""
    if not matches:
        yield f"nothing found for {quote(query)}; `qnnmem kb list` lists all entries"
        return
    entries = "1 entry" if len(matches) == 1 else f"{len(matches)} entries"
    yield f"{entries} for {quote(query)}; `qnnmem kb show ID` shows an entry"
    for match in matches:
        entry = match.entry
        yield f"{shorten(entry.id, 64):<28} {entry.cause:<17} {shorten(entry.title, 90)}"
        if match.line:
            yield f"    {shorten(match.line, 160)}"


@as_text
def render_entry(entry: Entry) -> Iterator[str]:
    """Render an entry with all its fields, as Markdown."""
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


@as_text
def render_check(checked: KbCheckResult) -> Iterator[str]:
    """Render the verdict of a check, then faults, then remarks."""
    scope = (
        f"{checked.entries} entries with {checked.templates} line templates, "
        f"{checked.cases} stored failures, {checked.healthy} healthy logs"
    )
    wrong = len(checked.findings)
    yield f"good: {scope}" if not wrong else f"{wrong} findings in {scope}"
    if checked.documented:
        yield f"{checked.documented} entries are known only from documents, without a stored log"
    for title, rows in (("", checked.findings), ("note: ", checked.notes)):
        for row in rows:
            yield f"  {title}{shorten(row.entry, 64)}: {shorten(row.sentence, 300)}"


_FEW = 2  # diagnoses named in one line


def render_text(explained: Sequence[Explanation], *, verbose: bool = False) -> str:
    """Render every meaning of each code; `verbose` adds other names and matching diagnoses."""
    return "\n".join(_explained(explanation, verbose) for explanation in explained)


@as_text
def _explained(explanation: Explanation, verbose: bool) -> Iterator[str]:
    code, count = shorten(explanation.asked, 80), len(explanation.meanings)
    if explanation.code is not None:
        code += f" ({explanation.code} = {hex_of(explanation.code)})"
    if not count:
        yield f"{code}: no known code"
        yield from _unknown(explanation)
    if count > 1:
        yield f"{code}: {count} meanings; the right one depends on what printed the code"
    for meaning in explanation.meanings:
        yield from _meaning(meaning, verbose)


def _unknown(explanation: Explanation) -> Iterator[str]:
    if explanation.nearest_range:
        family = explanation.nearest_range
        yield f"  similar numbers belong to {family}; see the first error in the log"
    else:
        yield "  the number is outside every range of QNN, FastRPC, errno and the compiler"
    if explanation.near:
        known = " and ".join(f"{number.code} {number.name}" for number in explanation.near)
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
    yield from (f"  {title if not index else '':<13} {row}" for index, row in enumerate(rows))
