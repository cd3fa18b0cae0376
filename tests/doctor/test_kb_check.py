"""The check of entries, the stored logs, and `qnnmem kb`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path

import jsonschema
import pytest
from command_line import verb

from qnnmem.doctor.kb.check import check, judged, skeleton
from qnnmem.doctor.kb.entry import CAUSES, STAGES, is_memory
from qnnmem.doctor.kb.knowledge import BUILT_IN, Knowledge, built_in, read_folder
from qnnmem.doctor.kb.stored import DECIDABLE, cases, healthy
from qnnmem.doctor.logs.line import Found, match
from qnnmem.errors import UsageError
from qnnmem.results.kb import KbCheckResult
from qnnmem.results.schema import load_schema

GOOD = skeleton("my-entry")


run = verb("kb")


def checked(tmp_path: Path, text: str, name: str = "entry.md") -> KbCheckResult:
    """Return the result of checking a folder with one entry."""
    (tmp_path / name).write_text(text, "utf-8")
    return check([tmp_path])


def sentences(found: KbCheckResult) -> list[str]:
    """Return the findings about `my-entry`."""
    return [one.sentence for one in found.findings if one.entry == "my-entry"]


# The built-in entries


def test_the_built_in_entries_are_good() -> None:
    """The built-in entries have no findings."""
    found = check()
    assert [f"{one.entry}: {one.sentence}" for one in found.findings] == []
    assert found.entries > 50


def test_a_stored_line_is_searched_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each distinct stored line is searched once for all cases."""
    searched: list[bytes] = []

    def noted(knowledge: Knowledge, text: bytes, lines: Iterable[int]) -> list[Found]:
        searched.append(text)
        return match(knowledge, text, lines)

    monkeypatch.setattr("qnnmem.doctor.kb.check.match", noted)
    knowledge = Knowledge(built_in().packed)
    first = [judged(knowledge, case.lines) for case in cases()]
    assert len(searched) == len({line for case in cases() for line in case.lines})
    assert [judged(knowledge, case.lines) for case in cases()] == first
    assert len(searched) == len({line for case in cases() for line in case.lines})


def test_a_call_that_failed_is_no_cause() -> None:
    """A template that only names a failed call is no cause with high confidence."""
    common, entries = read_folder(BUILT_IN)
    texts: dict[str, list[str]] = {}
    for line in (*common, *(line for entry in entries for line in entry.lines)):
        texts.setdefault(line.sign, []).append(line.text)
    bare = re.compile(
        r"\W*(?:\w+[_:]+\w+|\w+[a-z][A-Z]\w+)(?:\(\))?:? failed"
        r"|[Ff]ail(?:ed)? to (?:(?:pre )?register|open|create|execute|start)\b[\w ]*"
    )
    sure = [
        (entry.id, text)
        for entry in entries
        if entry.verdict == "cause" and entry.cause != "benign_noise"
        for when in entry.whens
        if (when.confidence or entry.confidence) == "high" and not (when.needs or when.where)
        for sign in when.signs
        for text in texts[sign]
    ]
    assert [(name, text) for name, text in sure if bare.fullmatch(text)] == []


def test_stored_failures_are_well_formed() -> None:
    """Stored failures have unique ids, valid labels, a source and clean lines."""
    ids = [case.id for case in cases()]
    assert len(ids) == len(set(ids)) > 80
    for case in cases():
        assert case.stage in STAGES, case.id
        assert case.cause in CAUSES, case.id
        assert case.cause == "unknown" or is_memory(case.cause) == case.is_memory, case.id
        assert case.decidable in DECIDABLE, case.id
        assert case.how in ("reported", "provoked"), case.id
        assert case.source, case.id
        assert case.lines, case.id
        assert all(line == line.rstrip("\r\n") for line in case.lines), case.id


def test_stored_healthy_logs_hold_lines_that_look_bad() -> None:
    """The stored healthy logs contain lines that look like failures."""
    assert len(healthy()) >= 5
    bad = re.compile(r"<E>|\[E:|ERROR|failed|UNSUPPORTED|WARNING")
    assert sum(bool(bad.search(line)) for run in healthy() for line in run.lines) > 20


def test_numbers_of_provoked_failures_are_kept() -> None:
    """Each provoked failure over the graph limit keeps its needed bytes."""
    numbers = {case.id: case.needed_bytes for case in cases() if case.id.startswith("htp-graph-l")}
    assert numbers
    assert all(numbers.values())


# A team's entries


def test_a_skeleton_passes(tmp_path: Path) -> None:
    """The file that `kb new` writes passes the check."""
    assert checked(tmp_path, GOOD).findings == ()


def test_an_entry_must_know_its_own_typical_lines(tmp_path: Path) -> None:
    """An entry whose own typical lines do not match gets a finding."""
    text = GOOD.replace("replace this: my entry failed, 1234", "something else happened")
    assert sentences(checked(tmp_path, text)) == ["the entry's Typical Logs match no entry"]


def test_an_entry_must_show_a_line(tmp_path: Path) -> None:
    """An entry without a typical line gets a finding."""
    text = GOOD.replace("replace this: my entry failed, 1234\n", "")
    assert sentences(checked(tmp_path, text)) == ["the section Typical Logs contains no line"]


def test_over_names_entries_that_exist(tmp_path: Path) -> None:
    """A name in `over` that is not an entry gets a finding."""
    text = GOOD.replace("remedies = []", 'remedies = []\nover = ["no-such-entry"]')
    assert sentences(checked(tmp_path, text)) == [
        "`over` names 'no-such-entry', which is not an entry"
    ]


def test_an_entry_must_be_silent_on_healthy_logs(tmp_path: Path) -> None:
    """An entry that matches a healthy log gets a finding."""
    line = "QnnGraph_finalize done. status 0x0"
    text = GOOD.replace("replace this: my entry failed, {code:code}", line)
    text = text.replace("replace this: my entry failed, 1234", line)
    found = sentences(checked(tmp_path, text))
    assert any(one.startswith("the entry reports an incident in the healthy log") for one in found)


def test_a_sign_that_nothing_shows_is_noted(tmp_path: Path) -> None:
    """A sign that no known line matches gets a note, not a finding."""
    more = '[[line]]\nsign = "never-seen"\ntext = "words that nobody writes"\n\n[[when]]'
    found = checked(tmp_path, GOOD.replace("[[when]]", more))
    assert found.passes
    notes = [one.sentence for one in found.notes if one.entry == "my-entry"]
    assert notes == ["no typical or stored line matches the sign 'never-seen'"]


def test_a_common_anchor_is_noted(tmp_path: Path) -> None:
    """An anchor that occurs in many healthy lines gets a note, as it slows the search."""
    text = GOOD.replace("replace this: my entry failed,", "QnnLogging")
    notes = [one.sentence for one in checked(tmp_path, text).notes if one.entry == "my-entry"]
    assert any(one.startswith("'qnnlogging' is in ") for one in notes)


def test_notes_without_front_matter_are_checked_too(tmp_path: Path) -> None:
    """Plain notes without front matter pass the check by their typical lines."""
    text = (
        "## Our board runs out\n\n### Typical Logs\n- frobnicator pool drained at boot\n\n"
        "### Root Cause\n- memory\n\n### Solutions\n- reboot\n"
    )
    assert checked(tmp_path, text).findings == ()


def test_an_unreadable_entry_is_refused(tmp_path: Path) -> None:
    """Invalid front matter is refused with the file's name."""
    with pytest.raises(UsageError, match=r"entry\.md"):
        checked(tmp_path, GOOD.replace('stage = "init"', 'stage = "somewhere"'))


# The verb


def test_list_shows_a_table() -> None:
    """`kb list` counts the entries and filters by stage and cause."""
    lines = run("list").stdout.splitlines()
    assert lines[0] == f"{len(lines) - 2} entries"
    graphs = run("list", "--stage", "graph", "--cause", "mem_graph_limit").stdout.splitlines()
    assert all(line.split()[1:3] == ["graph", "mem_graph_limit"] for line in graphs[2:])
    assert len(graphs) > 2


def test_list_has_json(tmp_path: Path) -> None:
    """`kb list --json` puts a team's entries first and marks them."""
    (tmp_path / "my-entry.md").write_text(GOOD, "utf-8")
    values = json.loads(run("list", "--json", "--kb", str(tmp_path)).stdout)
    jsonschema.validate(values, load_schema("qnnmem.kb/1"))
    assert values["entries"][0]["id"] == "my-entry"
    assert [one["own"] for one in values["entries"][:2]] == [True, False]


def test_list_refuses_causes_that_do_not_exist() -> None:
    """`kb list` refuses an unknown cause and lists the valid ones."""
    result = run("list", "--cause", "nonsense")
    assert isinstance(result.exception, UsageError)
    assert "mem_vtcm" in str(result.exception)


def test_show_gives_markdown() -> None:
    """`kb show` prints body, templates, conditions, remedies and sources as Markdown."""
    text = run("show", "graph-over-limit").stdout
    titles = (
        "Typical Logs",
        "Root Cause",
        "Solutions",
        "Lines",
        "Conditions",
        "Remedies",
        "Sources",
    )
    for title in titles:
        assert f"## {title}\n" in text
    assert "estimated allocation" in text


def test_show_suggests_a_name() -> None:
    """`kb show` suggests the nearest name for a misspelled one."""
    result = run("show", "graph-over-limits")
    assert "did you mean graph-over-limit" in str(result.exception)


def test_new_writes_a_file_that_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`kb new` writes a valid file named after the entry, and replaces it only with --force."""
    monkeypatch.chdir(tmp_path)
    assert run("new", "board-x").return_value == 0
    assert run("check", "--kb", "board-x.md").return_value == 0
    assert "already exists" in str(run("new", "board-x").exception)
    assert run("new", "board-x", "--force").return_value == 0


@pytest.mark.parametrize("name", ["Board", "../x", "", "a b", "x" * 65])
def test_new_refuses_bad_names(name: str) -> None:
    """`kb new` refuses names that are not valid ids."""
    assert isinstance(run("new", name).exception, UsageError)


def test_check_fails_with_findings(tmp_path: Path) -> None:
    """`kb check` with findings exits with 1 and states their count, as text and JSON."""
    path = tmp_path / "bad.md"
    path.write_text(GOOD.replace("remedies = []", 'remedies = []\nover = ["none"]'), "utf-8")
    result = run("check", "--kb", str(path))
    assert result.return_value == 1
    assert result.stdout.startswith("1 findings in 1 entries")
    values = json.loads(run("check", "--kb", str(path), "--json").stdout)
    jsonschema.validate(values, load_schema("qnnmem.kb-check/1"))
    assert not values["passes"]


def test_show_escapes_what_files_say(tmp_path: Path) -> None:
    """`kb show` removes control characters of a team's file."""
    text = GOOD.replace("Why it happens", "Why \x1b[31m it happens")
    (tmp_path / "my-entry.md").write_text(text, "utf-8")
    assert "\x1b" not in run("show", "my-entry", "--kb", str(tmp_path)).stdout
