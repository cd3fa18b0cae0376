"""A diagnosis as SARIF 2.1.0: one result for each incident, one rule for each entry."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from qnnmem.report import doctor_words as words
from qnnmem.report.doctor_remedies import Guide
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
from qnnmem.results.incident import Evidence, Incident, ReadingStats, to_json
from qnnmem.text import shorten

UNEXPLAINED = "unexplained"

_LEVELS: dict[str, Level] = {"cause": "error", "memory": "error", "undecided": "warning"}


def render_sarif(
    incidents: Iterable[Incident],
    stats: ReadingStats,
    version: str,
    guide: Guide | None = None,
) -> Iterator[str]:
    """One SARIF log with one run, piece by piece; the rules come after the results."""
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
    """An entry of the knowledge base as a rule; its full description says why it happens."""
    return CiRule(
        incident.entry or UNEXPLAINED,
        shorten(incident.title, words.WIDE),
        _LEVELS[incident.verdict],
        shorten(why or incident.cause_meaning, 600),
        " ".join(shorten(remedy, 600) for remedy in incident.remedies),
    )


def finding(incident: Incident) -> CiFinding:
    """An incident as a finding at its deciding line."""
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
