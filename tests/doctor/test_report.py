"""A diagnosis as text, JSON, Markdown and SARIF; log text never becomes markup."""

from __future__ import annotations

import json
import re
from typing import Any

import jsonschema
import msgspec
import pytest
from published_schemas import against_sarif

from qnnmem.report import doctor, doctor_formats, table
from qnnmem.report.findings import uri as sarif_uri
from qnnmem.results.incident import (
    Harmless,
    Incident,
    ReadingStats,
    from_json,
    to_json,
    to_json_bytes,
)
from qnnmem.results.schema import load_schema

EVIL = "<script>alert(1)</script>|[x](http://e.example)`````@all\x1b[31m\x07\u202e"


def incident(**changes: Any) -> Incident:
    """Return an incident over the graph limit, with these changes."""
    found = {
        "stage": "graph",
        "cause": "mem_graph_limit",
        "cause_meaning": "the compiler's estimate is above its limit for one graph",
        "is_memory": True,
        "confidence": "high",
        "verdict": "cause",
        "entry": "graph-limit",
        "title": "One graph is above the limit",
        "remedies": ["cut the graph with `--split 2`", "lower the resolution"],
        "collect_next": [],
        "candidates": [{"cause": "mem_graph_limit", "score": 0.95}],
        "file": "dev.log",
        "first_line": 11,
        "last_line": 14,
        "last_file": "dev.log",
        "process": 412,
        "producer": "ONNX Runtime",
        "count": 2,
        "evidence": [
            {
                "file": "dev.log",
                "line": 12,
                "text": "requires 5000000 KB, limit is 3670016 KB",
                "count": 2,
                "decides": True,
            },
            {"file": "dev.log", "line": 14, "text": "failed 13", "count": 1, "decides": False},
        ],
        "quantities": {"needed_bytes": 5_120_000_000, "limit_bytes": 3_758_096_384, "op": "conv"},
        "shortage_bytes": 1_361_903_616,
    }
    return msgspec.convert({**found, **changes}, Incident)


def undecided() -> Incident:
    """Return an undecided incident."""
    return incident(
        verdict="undecided",
        cause="unknown",
        cause_meaning="the log does not show the cause",
        is_memory="unknown",
        confidence="low",
        shortage_bytes=None,
        quantities={},
        remedies=[],
        collect_next=["the log at verbose level"],
        candidates=[
            {"cause": "mem_dsp_va", "score": 0.4},
            {"cause": "skel_missing", "score": 0.3},
        ],
    )


def evil() -> Incident:
    """Return an incident whose every text is hostile."""
    line = {"file": EVIL, "line": 1, "text": EVIL, "count": 1, "decides": True}
    return incident(
        file=EVIL, last_file=EVIL, producer=EVIL, evidence=[line], quantities={"op": EVIL}
    )


def read(incidents: int, **changes: Any) -> ReadingStats:
    """Return statistics of reading."""
    return ReadingStats(("dev.log",), 14, 900, 0.1, incidents, **changes)


def text_of(*incidents: Incident, **changes: Any) -> str:
    """Return the report as text."""
    return "".join(doctor.render_text(incidents, read(len(incidents), **changes), verbose=True))


def markdown_of(*incidents: Incident, **changes: Any) -> str:
    """Return the report as Markdown."""
    return "".join(doctor_formats.render_markdown(incidents, read(len(incidents), **changes)))


def sarif_of(*incidents: Incident, **changes: Any) -> dict[str, Any]:
    """Return the report as parsed SARIF."""
    text = "".join(doctor_formats.render_sarif(incidents, read(len(incidents), **changes), "1.0"))
    found: dict[str, Any] = json.loads(text)
    return found


def test_the_first_line_is_the_verdict() -> None:
    """The first line has stage, memory verdict, cause, shortage and confidence."""
    assert text_of(incident()).splitlines()[0] == (
        "graph stage: out of memory: the compiler's estimate is above its limit for one graph; "
        "1.27 GiB (1,361,903,616 bytes) missing (mem_graph_limit); confidence high"
    )


def test_what_is_not_memory_is_said_plainly() -> None:
    """The first line of another cause says `not memory`."""
    other = incident(is_memory=False, cause="signing", cause_meaning="refused", shortage_bytes=None)
    first = "graph stage: not memory: refused (signing); confidence high"
    assert text_of(other).splitlines()[0] == first


def test_an_undecided_incident_does_not_pretend() -> None:
    """An undecided incident says so; the candidates are listed below in words."""
    first, *rest = text_of(undecided()).splitlines()
    assert first == (
        "undecided: the graph stage failed, but the log does not show why; "
        "it is unknown whether memory is short (memory causes 57%, other causes 43%)"
    )
    at = rest.index("possible causes:")
    assert rest[at + 1 : at + 3] == [
        "   57%  memory: the mappings exceed the address space of the DSP process (mem_dsp_va)",
        "   43%  the skel or another library that QNN needs is not found (skel_missing)",
    ]
    assert "  1. the log at verbose level" in rest
    assert not [line for line in rest if line.startswith("cause:")]


def test_evidence_has_file_and_line_and_marks_what_decides() -> None:
    """The deciding line is marked, and repeated lines have a count."""
    lines = text_of(incident()).splitlines()
    assert "  > dev.log:12: requires 5000000 KB, limit is 3670016 KB (2 times)" in lines
    assert "    dev.log:14: failed 13" in lines


def test_quantities_are_exact_and_have_an_origin() -> None:
    """Each number is shown in bytes and as a size, with its origin."""
    text = text_of(incident())
    assert re.search(r"needed +5,120,000,000 bytes +4\.77 GiB  reported: printed by the log", text)
    assert re.search(r"missing +1,361,903,616 bytes +1\.27 GiB  computed: needed minus limit", text)
    assert re.search(r"op +conv +reported", text)


def test_the_parts_come_in_the_order_they_are_read() -> None:
    """The report lists evidence, cause, numbers and remedies in this order."""
    text = text_of(incident())
    marks = ["evidence", "cause: One", "in the log:", "what to do:", "  1. cut", "  2. lower"]
    places = [text.index(mark) for mark in marks]
    assert places == sorted(places)


def test_several_incidents_have_headings() -> None:
    """Several incidents are counted in the first line and numbered."""
    text = text_of(incident(), undecided())
    assert text.startswith("2 incidents; the first: graph stage: out of memory")
    assert "\nincident 1 of 2: graph stage" in text
    assert "\nincident 2 of 2: undecided" in text


@pytest.mark.parametrize("render", [text_of, markdown_of])
def test_after_twenty_incidents_the_rest_is_counted(render: Any) -> None:
    """Twenty incidents are shown in full, the others counted by stage and cause."""
    text = render(*[incident()] * 20, *[undecided()] * 3, *[incident(cause="mem_leak")] * 4)
    assert "20 of 27" in text
    assert "21 of 27" not in text
    rest = [line for line in text.splitlines() if "mem_leak" in line or "unknown" in line][-2:]
    assert [re.findall(r"[a-z_]+|[0-9]+", line) for line in rest] in (
        [["4", "graph", "mem_leak"], ["3", "graph", "unknown"]],
        [["graph", "mem_leak", "4"], ["graph", "unknown", "3"]],
    )


def test_healthy_logs_take_one_line() -> None:
    """A healthy log gets one line, which counts harmless lines that look like failures."""
    noise = (Harmless("perf", "No perf config", 3), Harmless("vote", "No vote", 1))
    assert text_of(noise=noise) == (
        "healthy: no known failure in 14 lines, 900 bytes of dev.log; harmless lines that "
        "look like failures: No perf config (3 times); No vote\n"
    )


def test_notes_about_files_are_passed_on() -> None:
    """Notes about files appear in text, Markdown and SARIF."""
    notes = ("dev.gz: the gzip data ends after 10 bytes",)
    assert "note: dev.gz: the gzip data ends" in text_of(notes=notes)
    assert "Note: dev.gz: the gzip data ends" in markdown_of(notes=notes)
    run = sarif_of(notes=notes)["runs"][0]
    assert "dev.gz" in run["invocations"][0]["toolExecutionNotifications"][0]["message"]["text"]


def test_the_numbers_of_the_model_are_shown_with_their_origin() -> None:
    """The model's numbers are shown with their origin."""
    part = {"name": "weights", "bytes": 2048, "origin": "measured", "source": "file"}
    own = {"parts": [part], "sentences": ["compile: estimate 2.00 KiB > 1.00 KiB at most"]}
    text = text_of(incident(own_numbers=own))
    assert "weights  2,048 bytes  2.00 KiB  measured: file" in text
    assert "compile: estimate 2.00 KiB > 1.00 KiB at most" in text
    assert "estimate 2.00 KiB &gt; 1.00 KiB" in markdown_of(incident(own_numbers=own))


@pytest.mark.parametrize("render", [text_of, markdown_of])
def test_no_control_character_of_a_log_gets_through(render: Any) -> None:
    """Control characters of a log do not reach the report."""
    shown = render(evil(), evil())
    assert all(c.isprintable() or c == "\n" for c in shown)


def outside_code(markdown: str) -> str:
    """Return Markdown without its fenced blocks and code spans."""
    without = re.sub(r"^(`{3,})text\n.*?^\1\n", "", markdown, flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"`[^`\n]+`", "", without)


def test_nothing_in_a_log_becomes_markup() -> None:
    """Log text adds no HTML, link, mention or table column outside of code."""
    bare = outside_code(markdown_of(evil()))
    assert set(re.findall(r"<[^>]*>", bare)) <= {"<code>", "</code>"}
    assert not re.search(r"(?<!\\)[\[\]]|@|://", bare)
    assert not re.search(r"(?<!\\)`", bare)


def test_a_code_block_cannot_be_left() -> None:
    """The code fence is longer than any run of backticks in the evidence."""
    lines = markdown_of(evil()).splitlines()
    fences = [line for line in lines if re.fullmatch(r"`{3,}(?:text)?", line)]
    assert fences == ["``````text", "``````"]


@pytest.mark.parametrize("cell", ["a|b", "a\\|b", "`|`", "a\\", "|", "<b>", "x" * 900])
def test_a_table_keeps_its_columns(cell: str) -> None:
    """A table row keeps its columns, whatever its cells hold."""
    head, _, row = table.code_table(("name", "value"), [(cell, "1")])
    assert row.count("|") == head.count("|") == 3


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a_b _c_ *d*", r"a_b \_c\_ \*d\*"),
        ("1. no list", r"1\. no list"),
        ("- no list", r"\- no list"),
        ("# no heading", r"\# no heading"),
        ("www.example", "www&#46;example"),
    ],
)
def test_markup_is_escaped(text: str, shown: str) -> None:
    """Markdown characters are escaped; names with underscores stay readable."""
    assert table.escape(text) == shown


def test_code_in_remedies_stays_code() -> None:
    """Code spans in remedies are kept; a single backtick is escaped."""
    assert table.advice("use `--split 2` <now>") == "use `--split 2` &lt;now&gt;"
    assert table.advice("a ` b") == "a \\` b"


def json_of(*incidents: Incident, **changes: Any) -> dict[str, Any]:
    """Return the report as parsed JSON."""
    text = "".join(doctor.render_json(incidents, read(9, **changes)))
    assert text.isascii()
    found: dict[str, Any] = json.loads(text)
    return found


@pytest.mark.parametrize("count", [0, 1, 3])
def test_json_satisfies_its_schema(count: int) -> None:
    """The JSON follows its schema for any number of incidents."""
    values = json_of(*[incident(), undecided(), evil()][:count])
    jsonschema.validate(values, load_schema(doctor.SCHEMA))
    assert len(values["incidents"]) == count


def test_json_has_every_incident_and_what_was_read() -> None:
    """The JSON holds every incident, the statistics, harmless lines, notes and files."""
    noise = (Harmless("perf", "No perf config", 3),)
    values = json_of(*[incident()] * 50, noise=noise, notes=("cut",))
    assert values["incidents"] == [json.loads(to_json(incident()))] * 50
    assert values["stats"] == {"lines": 14, "bytes": 900, "seconds": 0.1}
    assert (values["noise"], values["notes"], values["files"]) == (
        {"perf": 3},
        ["cut"],
        ["dev.log"],
    )


def test_json_says_why_once_for_each_entry() -> None:
    """The JSON has the root cause of each entry once."""
    similar = [{"entry": "map-budget", "title": "t", "score": 0.5, "shared": []}]
    known, unknown = incident(entry="skel-not-found"), incident(entry=None, similar=similar)
    for rows in ((known, known, unknown), map(to_json, (known, unknown))):
        why = json.loads("".join(doctor.render_json(rows, read(3))))["why"]
        assert list(why) == ["skel-not-found"]
        assert why["skel-not-found"]
    assert doctor_formats.rule(known, "a reason").description == "a reason"


def test_json_is_written_piece_by_piece() -> None:
    """The JSON is streamed: the first incident is written before the second is read."""
    asked = []

    def incidents() -> Any:
        for number in range(3):
            asked.append(number)
            yield incident()

    pieces = doctor.render_json(incidents(), read(3))
    next(pieces)
    next(pieces)
    assert asked == [0]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"similar": []},
        {"own_numbers": {"parts": [], "sentences": ["a"]}},
        {"quantities": {"code": 10**20, "op": "\N{SNOWMAN}\x1b\x7f\N{GRINNING FACE}"}},
        {"file": "name\udcff.log", "last_file": EVIL},
    ],
)
def test_an_incident_comes_back_from_its_json(changes: dict[str, Any]) -> None:
    """An incident read back from its JSON is equal; absent fields stay absent."""
    one = incident(**changes)
    text = to_json(one)
    assert text.isascii()
    assert to_json_bytes(one) == text.encode()
    assert from_json(text.encode()) == one
    assert ("similar" in json.loads(text)) == ("similar" in changes)
    assert ("own_numbers" in json.loads(text)) == ("own_numbers" in changes)


# The keys that SARIF 2.1.0 requires, and its closed sets of values.
REQUIRED = {
    "log": ("version", "runs"),
    "run": ("tool",),
    "driver": ("name",),
    "rule": ("id",),
    "result": ("message",),
    "invocation": ("executionSuccessful",),
    "notification": ("message",),
}
LEVELS = {"none", "note", "warning", "error"}


def check_location(place: dict[str, Any]) -> None:
    """Assert that a location has a valid URI and a line number from 1."""
    physical = place["physicalLocation"]
    assert re.fullmatch(
        r"[A-Za-z0-9\-._~:/?#\[\]@!$&'()*+,;=%]+", physical["artifactLocation"]["uri"]
    )
    assert physical["region"]["startLine"] >= 1
    assert isinstance(physical["region"]["snippet"]["text"], str)


def check_sarif(log: dict[str, Any]) -> None:
    """Assert that SARIF has its required keys, valid values and valid indices."""
    against_sarif(log)
    assert all(key in log for key in REQUIRED["log"])
    assert log["version"] == "2.1.0"
    for run in log["runs"]:
        assert all(key in run for key in REQUIRED["run"])
        assert run["columnKind"] in {"utf16CodeUnits", "unicodeCodePoints"}
        driver = run["tool"]["driver"]
        assert all(key in driver for key in REQUIRED["driver"])
        rules = driver["rules"]
        assert len({rule["id"] for rule in rules}) == len(rules)
        for rule in rules:
            assert all(key in rule for key in REQUIRED["rule"])
            assert rule["defaultConfiguration"]["level"] in LEVELS
            assert all(isinstance(rule[k]["text"], str) for k in ("shortDescription",))
        for invocation in run["invocations"]:
            assert all(key in invocation for key in REQUIRED["invocation"])
            for note in invocation["toolExecutionNotifications"]:
                assert all(key in note for key in REQUIRED["notification"])
        for result in run["results"]:
            assert all(key in result for key in REQUIRED["result"])
            assert result["message"]["text"]
            assert result["level"] in LEVELS
            assert rules[result["ruleIndex"]]["id"] == result["ruleId"]
            assert result["occurrenceCount"] >= 1
            for place in (*result["locations"], *result.get("relatedLocations", ())):
                check_location(place)
            numbers = [place["id"] for place in result.get("relatedLocations", ())]
            assert len(set(numbers)) == len(numbers)


@pytest.mark.parametrize("count", [0, 1, 4])
def test_sarif_has_what_the_standard_requires(count: int) -> None:
    """SARIF is well-formed for any number of incidents."""
    log = sarif_of(*[incident(), undecided(), evil(), incident(entry=None)][:count])
    check_sarif(log)
    assert len(log["runs"][0]["results"]) == count


def test_a_sarif_result_points_to_the_deciding_line() -> None:
    """A SARIF result has the entry as its rule and points to the deciding line."""
    found = sarif_of(incident())["runs"][0]["results"][0]
    place = found["locations"][0]["physicalLocation"]
    assert (found["ruleId"], found["level"]) == ("graph-limit", "error")
    assert place["artifactLocation"]["uri"] == "dev.log"
    assert place["region"]["startLine"] == 12
    assert found["properties"] == json.loads(to_json(incident()))


@pytest.mark.parametrize(
    ("name", "uri"),
    [
        ("-", "stdin"),
        ("a b/c:d.log", "a%20b/c%3Ad.log"),
        ("/data/dev.log", "file:///data/dev.log"),
        ("s3://bucket/a b.log", "s3://bucket/a%20b.log"),
    ],
)
def test_files_become_uris(name: str, uri: str) -> None:
    """File names become valid URI references."""
    assert sarif_uri(name) == uri


def test_the_short_answer_has_what_decides_and_what_to_do() -> None:
    """The short report has the deciding line and the remedies; details need -v."""
    whole = text_of(incident())
    short = "".join(doctor.render_text((incident(),), read(1)))
    assert short.splitlines()[0] == whole.splitlines()[0]
    assert "what to do:" in short
    assert "-v shows all" in short
    assert ": printed by the log" in whole
    assert ": printed by the log" not in short
    assert len(short) < len(whole)


def test_what_comes_into_question_is_added_up_per_side() -> None:
    """The first line shows the share of memory among the candidates, and the likely side."""

    def first(*rows: tuple[str, float], side: bool | str = "unknown") -> list[str]:
        found = [{"cause": cause, "score": score} for cause, score in rows]
        one = msgspec.structs.replace(
            undecided(), is_memory=side, candidates=incident(candidates=found).candidates
        )
        return text_of(one).splitlines()

    short = (("mem_vtcm", 0.3), ("mem_leak", 0.1), ("timeout", 0.1))
    likely = "(memory causes 80%, other causes 20%)"
    assert first(*short)[0].endswith(f"; it is unknown whether memory is short {likely}")
    assert first(*short, side=True)[0].endswith(f"; memory is probably short {likely}")
    assert first(("mem_vtcm", 0.1), ("signing", 0.4), side=False)[0].endswith(
        "; memory is probably not short (memory causes 20%, other causes 80%)"
    )
    assert first(("signing", 0.3), side=False)[0].endswith("; memory is probably not short")
    assert first(("unknown", 0.5))[0].endswith("; it is unknown whether memory is short")
    guessed = first(("mem_vtcm", 0.3), ("timeout", 0.1))
    assert guessed[0].endswith("; it is unknown whether memory is short")
    assert any(line.startswith("   30%  memory: one operator") for line in guessed)
    causes = ("mem_vtcm", "mem_leak", "timeout", "signing", "dsp_crash", "mem_spill_fill")
    assert "   17%  1 more" in first(*((cause, 0.1) for cause in causes))


def test_low_confidence_reads_probably() -> None:
    """Low confidence reads `probably`; a memory-only verdict does not state the cause as fact."""

    def first(**changes: Any) -> str:
        return text_of(incident(shortage_bytes=None, **changes)).splitlines()[0]

    assert first(confidence="low").startswith("graph stage: probably out of memory: the compiler")
    assert first(verdict="memory").startswith("graph stage: out of memory, probably: the compiler")
    both = first(verdict="memory", confidence="low")
    assert both.startswith("graph stage: probably out of memory, perhaps: the compiler")
    side = first(verdict="memory", cause="mem_unknown", confidence="low")
    assert side == (
        "graph stage: probably out of memory; the log does not name the cause (mem_unknown); "
        "confidence low"
    )


def test_a_stage_that_no_line_tells_is_not_said() -> None:
    """A stage that no line shows is left out of the text and marked in the JSON."""
    one = incident(stage_told=False)
    assert text_of(one).startswith("out of memory: the compiler's estimate")
    failed = msgspec.structs.replace(undecided(), stage_told=False)
    assert text_of(failed).startswith("undecided: something failed, but")
    found = json_of(one, incident())["incidents"]
    assert [row.get("stage_told") for row in found] == [False, None]


@pytest.mark.parametrize("verbose", [True, False])
@pytest.mark.parametrize("stored", [True, False])
def test_an_unknown_error_before_the_deciding_line_is_shown(verbose: bool, stored: bool) -> None:
    """An unknown error before the deciding line is always shown, in every format."""
    strange = {"file": "dev.log", "line": 3, "text": f"odd {EVIL}", "count": 1, "decides": False}
    lines = [strange] if stored else []
    rest = msgspec.to_builtins(incident().evidence)
    one = incident(confidence="low", unknown_error=strange, evidence=[*lines, *rest])
    text = "".join(doctor.render_text([one], read(1), verbose=verbose))
    assert text.count("  ? dev.log:3: odd <script>") == 1
    assert "an unknown error line comes before the decisive line: dev.log:3\n" in text
    assert "\x1b" not in text
    assert "\n? dev.log:3: odd" in markdown_of(one)
    assert "an unknown error line comes before the decisive line: dev.log:3\n" in markdown_of(one)
    assert json_of(one)["incidents"][0]["unknown_error"]["line"] == 3
