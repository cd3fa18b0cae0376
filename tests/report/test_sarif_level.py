"""SARIF levels: decided incidents are errors, undecided ones warnings."""

from __future__ import annotations

import json

import pytest

from qnnmem.report.doctor_formats import render_sarif
from qnnmem.results.incident import Evidence, Incident, ReadingStats


def incident(verdict: str, entry: str | None = "graph-limit") -> Incident:
    """Return an incident with one line of evidence."""
    line = Evidence("a b.log", 3, "text", 1, True)
    return Incident(
        stage="graph",
        cause="mem_graph_limit",
        cause_meaning="meaning",
        is_memory=True,
        confidence="high",
        verdict=verdict,
        entry=entry,
        title="title",
        remedies=("do it",),
        collect_next=(),
        candidates=(),
        file="a b.log",
        first_line=3,
        last_line=3,
        last_file="a b.log",
        process=None,
        producer=None,
        count=2,
        evidence=(line,),
        quantities={},
        shortage_bytes=None,
    )


@pytest.mark.parametrize(
    ("verdict", "level"), [("cause", "error"), ("memory", "error"), ("undecided", "warning")]
)
def test_a_verdict_has_its_level(verdict: str, level: str) -> None:
    """Result and rule have the same level: error if decided, warning otherwise."""
    stats = ReadingStats(("a b.log",), 9, 99, 0.1, 1)
    log = json.loads("".join(render_sarif([incident(verdict)], stats, "1")))
    run = log["runs"][0]
    assert run["results"][0]["level"] == level
    assert run["tool"]["driver"]["rules"][0]["defaultConfiguration"] == {"level": level}


def test_rules_are_listed_once_and_numbered() -> None:
    """Each rule is listed once, and each result refers to its rule by index."""
    stats = ReadingStats(("a b.log",), 9, 99, 0.1, 3)
    rows = [incident("cause"), incident("undecided", None), incident("cause")]
    run = json.loads("".join(render_sarif(rows, stats, "1")))["runs"][0]
    names = [rule["id"] for rule in run["tool"]["driver"]["rules"]]
    assert names == ["graph-limit", "unexplained"]
    assert [one["ruleIndex"] for one in run["results"]] == [0, 1, 0]
    assert [one["ruleId"] for one in run["results"]] == [
        "graph-limit",
        "unexplained",
        "graph-limit",
    ]
    place = run["results"][0]["locations"][0]["physicalLocation"]
    assert place["artifactLocation"]["uri"] == "a%20b.log"
    assert place["region"]["startLine"] == 3
    assert run["results"][0]["occurrenceCount"] == 2
