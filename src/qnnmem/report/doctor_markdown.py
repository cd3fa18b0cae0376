"""A diagnosis as Markdown for a ticket; nothing in a log can become markup."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from qnnmem.report import doctor_words as words
from qnnmem.report.doctor_remedies import Guide, legend
from qnnmem.report.markdown import advice, block, code, code_table, escape
from qnnmem.report.shell import LONGEST
from qnnmem.results.incident import Incident, ReadingStats
from qnnmem.text import shorten

IN_FULL = 20


def render_markdown(
    incidents: Iterable[Incident], stats: ReadingStats, guide: Guide | None = None
) -> Iterator[str]:
    """The report piece by piece."""
    guide = guide or Guide()
    rest: dict[tuple[str, str], int] = {}
    number = 0
    for number, incident in enumerate(incidents, 1):
        if number == 1:
            yield f"# {escape(words.summary(stats, incident))}\n"
        if number > IN_FULL:
            key = incident.stage, incident.cause
            rest[key] = rest.get(key, 0) + 1
            continue
        if stats.incidents > 1:
            title = f"{number:,} of {stats.incidents:,}: {words.verdict(incident)}"
            yield f"\n## {escape(title)}\n"
        yield "".join(f"{line}\n" for line in details(incident, guide))
    if not number:
        yield f"# {escape(words.healthy(stats))}\n"
    if rest:
        rows = [(stage, name, f"{count:,}") for stage, name, count in words.by_cause(rest)]
        yield "\n## The rest, by stage and cause\n\n"
        yield "".join(f"{line}\n" for line in code_table(("stage", "cause", "incidents"), rows))
    if number:
        yield f"\nRead {escape(words.amount(stats))}.\n"
    yield from (f"\nNote: {escape(shorten(note, 600))}\n" for note in stats.notes)


def render_live(incident: Incident, number: int, guide: Guide | None = None) -> str:
    """An incident of a log that is still being written."""
    title = f"Incident {number}: {words.verdict(incident)}"
    body = "".join(f"{line}\n" for line in details(incident, guide or Guide()))
    return f"## {escape(title)}\n{body}\n"


def details(incident: Incident, guide: Guide) -> Iterator[str]:
    """Everything below an incident's heading."""
    yield from ("", f"**Where:** {escape(words.where(incident))}")
    label, _, entry = words.cause(incident).partition(": ")
    yield from ("", f"**{label.capitalize()}:** {escape(entry)}")
    if why := guide.why(incident):
        yield from ("", f"**Why:** {advice(why)}")
    if possible := words.in_question(incident):
        yield from ("", "**What comes into question:**", "")
        yield from (f"- {escape(row.strip())}" for row in possible)
    elif len(incident.candidates) > 1:
        yield from ("", f"**Ranked:** {escape(words.candidates(incident))}")
    yield from ("", "**Evidence** (`>` decides):", "", *block(words.evidence(incident)))
    if doubt := words.doubt(incident):
        yield from ("", escape(doubt))
    head = ("quantity", "value", "size", "origin")
    for title, rows in (
        ("In the lines", words.quantities(incident)),
        ("This model", words.model_numbers(incident)),
    ):
        if rows:
            yield from ("", f"**{title}:**", "", *code_table(head, rows))
    for sentence in words.sentences(incident):
        yield from ("", escape(sentence))
    yield from _numbered("Similar, not confirmed", words.similar(incident))
    yield from _remedies(guide, incident)
    yield from _numbered("What to collect next", incident.collect_next)


def _remedies(guide: Guide, incident: Incident) -> Iterator[str]:
    remedies = guide.remedies(incident)
    for number, one in enumerate(remedies, 1):
        if number == 1:
            yield from ("", "**What to do:**", "")
        commands = " or ".join(code(command, LONGEST) for command in one.commands)
        yield f"{number}. {advice(one.text)}{': ' if commands else ''}{commands}"
    if meant := legend(remedies):
        yield from ("", advice(meant))


def _numbered(title: str, items: Iterable[str]) -> Iterator[str]:
    for number, item in enumerate(items, 1):
        if number == 1:
            yield from ("", f"**{title}:**", "")
        yield f"{number}. {advice(item)}"
