from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import command_line
import jsonschema
import published_schemas
import pytest
from budget_project import CONFIG, buffers, grow, make_project

from qnnmem.gate.checked import BudgetRun, CheckedModel
from qnnmem.report import check
from qnnmem.results.check import PoolCheck
from qnnmem.results.schema import encode, load_schema

EVIL = 'a<b>&"c"\n::error::x,y:z%\x07\udcff |@me [l](u) ]]> {0}'


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Set up a project with a broken budget, a grown, an unreadable and a good model."""
    folder = make_project(tmp_path / "project")
    monkeypatch.chdir(folder)
    for name in ("GITHUB_STEP_SUMMARY", "GITHUB_WORKSPACE"):
        monkeypatch.delenv(name, raising=False)
    (folder / "models" / "later.csv").write_text(buffers(10), "utf-8")
    command_line.run("check", "--update-baseline")
    grow(folder)
    config = CONFIG.replace('ram = "64M"', 'ram = "4M"')
    (folder / "pyproject.toml").write_text(config, "utf-8")
    (folder / "models" / "later.csv").write_bytes(b"\0")
    return folder


def shown(form: str, *words: str) -> str:
    """Return the output of `check` in this format; the exit code is 2."""
    done = command_line.run("check", "--format", form, *words)
    assert command_line.exit_code(done) == 2
    return done.stdout


def test_json_is_of_its_schema(project: Path) -> None:
    """The JSON follows its schema and counts every kind of answer."""
    values = json.loads(shown("json"))
    jsonschema.validate(values, load_schema("qnnmem.check/1"))
    assert values["counts"] == {
        **{"models": 4, "good": 1, "broken": 2, "not_checked": 1},
        "cannot_tell": 0,
    }


def test_sarif_names_what_is_broken(project: Path) -> None:
    """SARIF has a result per reason at the model, with the config line as related location."""
    log = published_schemas.check_sarif(shown("sarif"))
    results = {one["ruleId"]: one for one in log["runs"][0]["results"]}
    assert set(results) == {"budget-broken", "worse-than-baseline", "not-checked"}
    broken = results["budget-broken"]
    place = broken["locations"][0]["physicalLocation"]["artifactLocation"]["uri"]
    assert place == "models/small_htp.bin"
    related = broken["relatedLocations"][0]["physicalLocation"]
    assert related["artifactLocation"]["uri"] == "pyproject.toml"
    line = CONFIG.splitlines().index('path = "models/small_htp.bin"') + 1
    assert related["region"]["startLine"] == line


def test_sarif_is_of_the_published_schema(project: Path) -> None:
    """The SARIF follows the published schema, which refuses invalid SARIF."""
    published_schemas.need("sarif-2.1.0.json")
    log = published_schemas.check_sarif(shown("sarif"))
    log["runs"][0]["results"][0]["partialFingerprints"] = {"a": 1}
    with pytest.raises(jsonschema.ValidationError):
        published_schemas.against_sarif(log)


def test_junit_has_a_case_for_each_question(project: Path) -> None:
    """JUnit has a case per question, with stable names without numbers."""
    root = published_schemas.check_junit(shown("junit"))
    faults = {
        (case.get("classname"), case.get("name"), fault.tag, fault.get("type"))
        for case in root.iter("testcase")
        for fault in case
    }
    assert faults == {
        ("models/small_htp.bin (SM8650)", "ram within its budget", "failure", "budget-broken"),
        (
            "models/spotter.csv (LPAI)",
            "scratch no worse than the baseline",
            "failure",
            "worse-than-baseline",
        ),
        ("models/later.csv (LPAI)", "is checked", "error", "not-checked"),
    }


def test_junit_is_of_the_published_schema(project: Path) -> None:
    """The JUnit XML follows the schema of Jenkins' xunit plugin, which refuses invalid XML."""
    published_schemas.need("junit-4.xsd")
    text = shown("junit")
    published_schemas.check_junit(text)
    with pytest.raises(ValueError, match="classes"):
        published_schemas.against_junit(text.replace("classname", "classes"))


def test_github_gets_annotations_and_a_summary(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GitHub gets an annotation per reason, and the summary is appended."""
    summary = project / "summary.md"
    summary.write_text("before\n", "utf-8")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    monkeypatch.setenv("GITHUB_WORKSPACE", str(project.parent))
    lines = shown("github", "--maps", "maps").splitlines()
    assert [line.partition(",")[0] for line in lines[:-1]] == [
        "::error file=project/models/small_htp.bin",
        "::error file=project/models/later.csv",
        "::error file=project/models/spotter.csv",
    ]
    text = summary.read_text("utf-8")
    assert text.startswith("before\n### :x: not checked: 1 of 4")
    assert "15,000 | 16,000 | +1,000 | 16,384" in text
    assert "│" in text  # the map drawn with characters
    assert "`maps/models\\_spotter.csv\\_LPAI.svg`" in text or "models_spotter.csv_LPAI.svg" in text


def test_a_summary_that_cannot_be_written_does_not_hide_the_answer(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An unwritable summary does not suppress the annotations."""
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(project))
    assert "::error" in shown("github")


def test_files_get_the_form_of_their_names(project: Path) -> None:
    """Each `--also` file gets the format of its suffix; an unknown suffix is refused."""
    command_line.run("check", "-o", "x.sarif", "--also", "x.xml", "--also", "x.json")
    published_schemas.check_sarif((project / "x.sarif").read_text("utf-8"))
    published_schemas.check_junit((project / "x.xml").read_text("utf-8"))
    assert json.loads((project / "x.json").read_text("utf-8"))["exit_code"] == 2
    done = command_line.run("check", "--also", "x.png")
    assert "is not a known format" in command_line.sentence(done)


def evil_run() -> BudgetRun:
    """Return a run whose every text is hostile."""
    broken = PoolCheck.of("scratch", 10, 5, False, blockers=(EVIL,))
    evil: dict[str, Any] = {"file": EVIL, "target": EVIL, "place": EVIL}
    return BudgetRun(
        EVIL,
        (
            CheckedModel(**evil, name=EVIL, pools={"scratch": 10}, checks=(broken,)),
            CheckedModel(**evil, name=EVIL + "2", pools={}, why=EVIL, refusal=2),
        ),
    )


def test_no_name_breaks_out_of_any_format() -> None:
    """Hostile names stay text in every format."""
    run = evil_run()
    published_schemas.check_junit(check.render_junit(run))
    published_schemas.check_sarif(check.render_sarif(run))
    jsonschema.validate(json.loads(encode(run.result)), load_schema("qnnmem.check/1"))
    commands = check.render_github(run).splitlines()
    assert sum(line.startswith("::") for line in commands) == 2
    assert all(line.count("::") >= 2 for line in commands[:2])
    assert 'file=a<b>&"c"' in commands[0]
    assert "%2Cy%3Az%25" in commands[0]
    text = check.render_markdown(run)
    assert "<b>" not in text
    assert "@me" not in text
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert {line.count("|") - line.count("\\|") for line in rows} == {8}
    assert "\x07" not in check.render_text(run)
