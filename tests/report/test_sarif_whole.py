"""A diagnosis as SARIF, compared value for value."""

from __future__ import annotations

import json
import os
from typing import Any

import msgspec
import pytest

from qnnmem.report import doctor_formats
from qnnmem.report.findings import sarif_result, sarif_rule, uri
from qnnmem.results.incident import Harmless, Incident, ReadingStats, to_json

LINE = {"file": "a b.log", "line": 12, "text": "needs [5]", "count": 2, "decides": False}


def incident(**changes: Any) -> Incident:
    """Return an incident with three lines of evidence, the second deciding."""
    return msgspec.convert(
        {
            **{"stage": "graph", "cause": "limit", "cause_meaning": "over {0}", "is_memory": True},
            **{"confidence": "high", "verdict": "cause", "entry": "big", "title": "One [graph]"},
            **{"remedies": ["do \\[this]", "or that"], "collect_next": [], "candidates": []},
            **{"file": "a b.log", "first_line": 0, "last_line": 14, "last_file": "a b.log"},
            **{"process": None, "producer": None, "count": 3, "quantities": {}},
            "evidence": [LINE, {**LINE, "line": 13, "decides": True}, {**LINE, "line": 0}],
            "shortage_bytes": None,
            **changes,
        },
        Incident,
    )


def rendered(*incidents: Incident, **changes: Any) -> str:
    """Return the SARIF log as text."""
    stats = ReadingStats(("a b.log",), 14, 900, 0.5, len(incidents), **changes)
    return "".join(doctor_formats.render_sarif(incidents, stats, "1.2"))


def place(line: int) -> dict[str, Any]:
    """Return a location in the log."""
    region = {"startLine": line, "snippet": {"text": "needs [5]"}}
    physical = {"artifactLocation": {"uri": "a%20b.log"}, "region": region}
    return {"physicalLocation": physical, "message": {"text": "needs \\[5\\]"}}


def test_the_whole_log() -> None:
    """The log holds results, rules, notes and statistics, and nothing else."""
    one, other = incident(), incident(verdict="undecided", entry=None, remedies=[], evidence=[])
    noise = (Harmless("vote", "No vote", 3),)
    log = json.loads(rendered(one, other, noise=noise, notes=("x" * 700, "{n}")))
    assert sorted(log) == ["$schema", "runs", "version"]
    assert log["$schema"] == "https://json.schemastore.org/sarif-2.1.0.json"
    (run,) = log["runs"]
    results, notes = run.pop("results"), run["invocations"][0]["toolExecutionNotifications"]
    assert len(notes[0]["message"]["text"]) == 600
    assert notes[1] == {"level": "warning", "message": {"text": "{{n}}"}}
    assert run == {
        "tool": {"driver": {"name": "qnnmem", "version": "1.2", "rules": RULES}},
        "invocations": [{"executionSuccessful": True, "toolExecutionNotifications": notes}],
        "columnKind": "unicodeCodePoints",
        "properties": {"lines": 14, "bytes": 900, "seconds": 0.5, "noise": {"vote": 3}},
    }
    verdict = "graph stage: out of memory: over {{0}} (limit); confidence high"
    assert results[0] == {
        **{"ruleId": "big", "ruleIndex": 0, "level": "error", "message": {"text": verdict}},
        **{"occurrenceCount": 3, "properties": json.loads(to_json(one))},
        "locations": [place(13)],
        "relatedLocations": [{"id": 1, **place(12)}, {"id": 2, **place(1)}],
    }
    assert (results[1]["ruleId"], results[1]["ruleIndex"]) == ("unexplained", 1)
    assert results[1]["level"] == "warning"
    assert not {"locations", "relatedLocations"} & results[1].keys()


RULES = [
    {
        "id": "big",
        "shortDescription": {"text": "One \\[graph\\]"},
        "fullDescription": {"text": "over {{0}}"},
        "defaultConfiguration": {"level": "error"},
        "help": {"text": "do \\\\\\[this\\] or that"},
    },
    {
        "id": "unexplained",
        "shortDescription": {"text": "One \\[graph\\]"},
        "fullDescription": {"text": "over {{0}}"},
        "defaultConfiguration": {"level": "warning"},
    },
]


def test_without_a_deciding_line_the_first_counts() -> None:
    """Without a deciding line, the first line is the location."""
    found = sarif_result(doctor_formats.finding(incident(evidence=[LINE, {**LINE, "line": 20}])), 0)
    assert found["locations"] == [place(12)]
    assert found["relatedLocations"] == [{"id": 1, **place(20)}]
    assert "relatedLocations" not in sarif_result(
        doctor_formats.finding(incident(evidence=[LINE])), 0
    )
    assert sarif_result(doctor_formats.finding(incident(count=0)), 0)["occurrenceCount"] == 1


def test_long_texts_are_cut() -> None:
    """Lines and titles are cut at 400 characters, reasons and remedies at 600."""
    long = "x" * 900
    one = incident(title=long, cause_meaning=long, remedies=[long, "y"])
    rule = sarif_rule(doctor_formats.rule(one))
    lengths = {key: len(rule[key]["text"]) for key in ("shortDescription", "fullDescription")}
    assert lengths == {"shortDescription": 400, "fullDescription": 600}
    assert len(rule["help"]["text"]) == 602
    line = msgspec.structs.replace(one.evidence[0], text=long)
    one = msgspec.structs.replace(one, evidence=(line,))
    (spot,) = sarif_result(doctor_formats.finding(one), 0)["locations"]
    assert len(spot["message"]["text"]) == 400
    assert len(spot["physicalLocation"]["region"]["snippet"]["text"]) == 400


def test_each_result_has_a_line_of_its_own() -> None:
    """Each result is on its own line, so that a large log can be read line by line."""
    lines = rendered(incident(), incident()).split("\n")
    assert len(lines) == 5
    assert lines[1].endswith("},")
    assert lines[2].endswith("}")
    assert (lines[3][:3], lines[3][-3:], lines[4]) == ("], ", "}]}", "")
    assert json.loads(rendered())["runs"][0]["results"] == []


@pytest.mark.parametrize(
    ("system", "name", "wanted"),
    [
        ("nt", "logs\\a b.log", "logs/a%20b.log"),
        ("posix", "logs\\a.log", "logs%5Ca.log"),
        ("posix", "~/a.log", "~/a.log"),
        ("posix", "-", "stdin"),
        ("posix", "file:///x/a.log", "file:///x/a.log"),
        ("posix", "s3://b/a%41b%4.log", "s3://b/a%41b%254.log"),
    ],
)
def test_names_of_either_system(
    system: str, name: str, wanted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A backslash separates folders only on Windows."""
    monkeypatch.setattr(os, "name", system)
    found = uri(name)
    monkeypatch.undo()
    assert found == wanted
