"""Render incidents as Markdown for tickets and as SARIF 2.1.0 for build servers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from qnnmem.report import doctor_words as words
from qnnmem.report.doctor_remedies import Guide, legend
from qnnmem.report.findings import (
    SARIF_SCHEMA,
    SARIF_VERSION,
    CiFinding,
    CiPlace,
    CiRule,
    Level,
    sarif_message,
    sarif_result,
    sarif_run,
)
from qnnmem.report.shell import LONGEST
from qnnmem.report.table import advice, block, code, code_table, escape
from qnnmem.results.incident import Evidence, Incident, ReadingStats, to_json
from qnnmem.text import shorten

UNEXPLAINED = "unexplained"
_LEVELS: dict[str, Level] = {"cause": "error", "memory": "error", "undecided": "warning"}


def render_markdown(
    incidents: Iterable[Incident], stats: ReadingStats, guide: Guide | None = None
) -> Iterator[str]:
    """Yield a Markdown report, piece by piece."""
    guide = guide or Guide()
    rest = Counter[words.StageAndCause]()
    number = 0
    for number, incident in words.in_full(incidents, rest):
        if number == 1:
            yield f"# {escape(words.summary(stats, incident))}\n"
        if stats.incidents > 1:
            title = f"{number:,} of {stats.incidents:,}: {words.verdict(incident)}"
            yield f"\n## {escape(title)}\n"
        yield "".join(f"{line}\n" for line in details(incident, guide))
    if not number:
        yield f"# {escape(words.healthy(stats))}\n"
    if rest:
        rows = [(stage, name, f"{count:,}") for stage, name, count in words.by_cause(rest)]
        yield "\n## Other incidents, by stage and cause\n\n"
        yield "".join(f"{line}\n" for line in code_table(("stage", "cause", "incidents"), rows))
    if number:
        yield f"\nRead {escape(words.amount(stats))}.\n"
    yield from (f"\nNote: {escape(shorten(note, 600))}\n" for note in stats.notes)


def render_live(incident: Incident, number: int, guide: Guide | None = None) -> str:
    """Render an incident of a growing log as Markdown."""
    title = f"Incident {number}: {words.verdict(incident)}"
    body = "".join(f"{line}\n" for line in details(incident, guide or Guide()))
    return f"## {escape(title)}\n{body}\n"


def details(incident: Incident, guide: Guide) -> Iterator[str]:
    """Yield the Markdown lines below an incident's heading."""
    yield from ("", f"**Where:** {escape(words.where(incident))}")
    label, _, entry = words.cause(incident).partition(": ")
    yield from ("", f"**{label.capitalize()}:** {escape(entry)}")
    if why := guide.why(incident):
        yield from ("", f"**Why:** {advice(why)}")
    if possible := words.in_question(incident):
        yield from ("", "**Possible causes:**", "")
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
    yield from _numbered("What to collect next", guide.collect(incident))


def _remedies(guide: Guide, incident: Incident) -> Iterator[str]:
    remedies = guide.remedies(incident)
    for number, remedy in enumerate(remedies, 1):
        if number == 1:
            yield from ("", "**What to do:**", "")
        commands = " or ".join(code(command, LONGEST) for command in remedy.commands)
        yield f"{number}. {advice(remedy.text)}{': ' if commands else ''}{commands}"
    if meant := legend(remedies):
        yield from ("", advice(meant))


def _numbered(title: str, items: Iterable[str]) -> Iterator[str]:
    for number, item in enumerate(items, 1):
        if number == 1:
            yield from ("", f"**{title}:**", "")
        yield f"{number}. {advice(item)}"


def render_sarif(
    incidents: Iterable[Incident],
    stats: ReadingStats,
    version: str,
    guide: Guide | None = None,
) -> Iterator[str]:
    """Yield a SARIF log with one run, piece by piece; the rules follow the results."""
    yield f'{{"$schema": "{SARIF_SCHEMA}", "version": "{SARIF_VERSION}", "runs": [{{"results": ['
    rules: dict[str, CiRule] = {}
    guide = guide or Guide()
    between = "\n"
    for incident in incidents:
        name = incident.entry or UNEXPLAINED
        if name not in rules:
            rules[name] = rule(incident, guide.why(incident))
        yield between + to_json(sarif_result(finding(incident), list(rules).index(name)))
        between = ",\n"
    notes = [
        {"level": "warning", "message": sarif_message(shorten(note, 600))} for note in stats.notes
    ]
    invocation = {"executionSuccessful": True, "toolExecutionNotifications": notes}
    rest = {
        **sarif_run(rules.values(), invocation, version),
        "properties": {
            "lines": stats.lines,
            "bytes": stats.bytes,
            "seconds": stats.seconds,
            "noise": {entry.entry: entry.count for entry in stats.noise},
        },
    }
    yield f"\n], {to_json(rest)[1:]}]}}\n"


def rule(incident: Incident, why: str = "") -> CiRule:
    """Return the CI rule for an incident's knowledge-base entry; the rule names the root cause."""
    return CiRule(
        incident.entry or UNEXPLAINED,
        shorten(incident.title, words.WIDE),
        _LEVELS[incident.verdict],
        shorten(why or incident.cause_meaning, 600),
        " ".join(shorten(remedy, 600) for remedy in incident.remedies),
    )


def finding(incident: Incident) -> CiFinding:
    """Return an incident as a CI finding located at its deciding line."""
    lines = incident.evidence
    deciding = next((line for line in lines if line.decides), lines[0] if lines else None)
    return CiFinding(
        incident.entry or UNEXPLAINED,
        _LEVELS[incident.verdict],
        words.verdict(incident),
        None if deciding is None else _place(deciding),
        tuple(_place(line) for line in lines if line is not deciding),
        count=incident.count,
        properties=incident,
    )


def _place(line: Evidence) -> CiPlace:
    text = shorten(line.text, words.WIDE)
    return CiPlace(line.file, line.line, text, text)
