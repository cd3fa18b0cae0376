"""A diagnosis as SARIF 2.1.0: one result for each incident, one rule for each entry."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from qnnmem.doctor.incident import Evidence, Incident, ReadingStats, to_json
from qnnmem.report import doctor_words as words
from qnnmem.report.doctor_remedies import Guide
from qnnmem.report.sarif import SCHEMA, VERSION, message, uri
from qnnmem.text import shorten

UNEXPLAINED = "unexplained"

_LEVELS = {"cause": "error", "memory": "error", "undecided": "warning"}


def render_sarif(
    incidents: Iterable[Incident],
    stats: ReadingStats,
    version: str,
    guide: Guide | None = None,
) -> Iterator[str]:
    """One SARIF log with one run, piece by piece; the rules come after the results."""
    yield f'{{"$schema": "{SCHEMA}", "version": "{VERSION}", "runs": [{{"results": ['
    rules: dict[str, dict[str, Any]] = {}
    guide = guide or Guide()
    between = "\n"
    for incident in incidents:
        name = incident.entry or UNEXPLAINED
        if name not in rules:
            rules[name] = rule(incident, name, guide.why(incident))
        yield between + to_json(result(incident, name, list(rules).index(name)))
        between = ",\n"
    driver = {"name": "qnnmem", "version": version, "rules": list(rules.values())}
    notes = [{"level": "warning", "message": message(shorten(one, 600))} for one in stats.notes]
    rest = {
        "tool": {"driver": driver},
        "invocations": [{"executionSuccessful": True, "toolExecutionNotifications": notes}],
        "columnKind": "unicodeCodePoints",
        "properties": {
            "lines": stats.lines,
            "bytes": stats.bytes,
            "seconds": stats.seconds,
            "noise": {one.entry: one.count for one in stats.noise},
        },
    }
    yield f"\n], {to_json(rest)[1:]}]}}\n"


def rule(incident: Incident, name: str, why: str = "") -> dict[str, Any]:
    """An entry of the knowledge base as a rule; its full description says why it happens."""
    title = shorten(incident.title, words.WIDE)
    found: dict[str, Any] = {
        "id": name,
        "shortDescription": message(title),
        "fullDescription": message(shorten(why or incident.cause_meaning, 600)),
        "defaultConfiguration": {"level": _LEVELS[incident.verdict]},
    }
    help_text = " ".join(shorten(one, 600) for one in incident.remedies)
    if help_text:
        found["help"] = message(help_text)
    return found


def result(incident: Incident, name: str, index: int) -> dict[str, Any]:
    """An incident as a result at its deciding line."""
    lines = incident.evidence
    deciding = next((line for line in lines if line.decides), lines[0] if lines else None)
    others = [line for line in lines if line is not deciding]
    found: dict[str, Any] = {
        "ruleId": name,
        "ruleIndex": index,
        "level": _LEVELS[incident.verdict],
        "message": message(words.verdict(incident)),
        "occurrenceCount": max(1, incident.count),
        "properties": incident,
    }
    if deciding is not None:
        found["locations"] = [location(deciding)]
    if others:
        found["relatedLocations"] = [
            {"id": number, **location(line)} for number, line in enumerate(others, 1)
        ]
    return found


def location(line: Evidence) -> dict[str, Any]:
    """A line of evidence as a place in a file."""
    return {
        "physicalLocation": {
            "artifactLocation": {"uri": uri(line.file)},
            "region": {
                "startLine": max(1, line.line),
                "snippet": {"text": shorten(line.text, words.WIDE)},
            },
        },
        "message": message(shorten(line.text, words.WIDE)),
    }
