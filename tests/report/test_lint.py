"""Lint findings as text, and as JSON that follows the schema."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest

from qnnmem.lpai.config.check import lint_files
from qnnmem.report.lpai import lint_text
from qnnmem.results.lint import CheckedFile, ConfigFinding, LintResult, Severity, lint_result
from qnnmem.results.schema import encode, load_schema

SCHEMA = "qnnmem.lint/1"


def finding(severity: Severity = Severity.ERROR, **changes: object) -> ConfigFinding:
    """Return a finding."""
    values: dict[str, object] = {"file": "a.conf", "line": 3, "column": 5, "key": "x.fps"}
    values |= {"check": "some-check", "sentence": "it is odd", "cure": "write 1", **changes}
    return ConfigFinding(severity=severity, **values)  # type: ignore[arg-type] # mixed types


def report(*findings: ConfigFinding, strict: bool = False) -> LintResult:
    """Return a report about one file."""
    return lint_result((CheckedFile("a.conf", "LPAI file"),), findings, strict=strict)


def test_a_clean_report_is_one_line() -> None:
    """Without findings, the text is one line with the files."""
    assert lint_text(report()) == "fine: a.conf\n"


def test_a_finding_is_one_line_with_its_place() -> None:
    """A finding is one line with file, line and column."""
    text = lint_text(report(finding()))
    assert text == "1 error in 1 file\na.conf:3:5: error: x.fps: it is odd; write 1\n"


def test_a_finding_about_the_file_has_no_line() -> None:
    """A finding about the whole file has no line number."""
    text = lint_text(report(finding(line=None, column=None, key="")))
    assert text.splitlines()[1] == "a.conf: error: it is odd; write 1"


def test_the_verdict_counts_errors_and_warnings_only() -> None:
    """The verdict counts errors and warnings, but not notes."""
    found = (finding(), finding(Severity.WARNING), finding(Severity.WARNING))
    lines = lint_text(report(*found, finding(Severity.NOTE))).splitlines()
    assert lines[0] == "1 error, 2 warnings in 1 file"
    assert len(lines) == 5
    assert lint_text(report(finding(Severity.NOTE))).startswith("fine: a.conf\n")


def test_strict_is_named_when_it_decides() -> None:
    """With --strict, the verdict says that warnings fail."""
    text = lint_text(report(finding(Severity.WARNING), strict=True))
    assert text.startswith("1 warning in 1 file; with --strict, warnings fail too\n")


def test_nothing_from_a_file_reaches_the_terminal_as_it_is() -> None:
    """Control characters in a finding are replaced."""
    text = lint_text(report(finding(sentence="a\x1b[31mb\nc", key="k\r")))
    assert "\x1b" not in text
    assert "\r" not in text
    assert text.count("\n") == 2


@pytest.mark.parametrize(
    "content",
    [
        '{"lpai_backend": {"target_env": "arm"}}',
        '{"lpai_backend": {"target_env": "q", "<script>": 1}, // x\n}',
        '{"backend_extensions": {"shared_library_path": "/x/y.so", "config_file_path": "z"}}',
        '{"graphs": []}',
        '{"lpai_backend": ',
    ],
)
def test_every_report_satisfies_the_schema(content: str, tmp_path: Path) -> None:
    """Reports on clean, faulty, foreign and unreadable files follow the schema."""
    path = tmp_path / "a.conf"
    path.write_text(content)
    values = json.loads(encode(lint_files([path])))
    jsonschema.Draft202012Validator(load_schema(SCHEMA)).validate(values)
    assert values["schema"] == SCHEMA == load_schema(SCHEMA)["title"]


def test_the_schema_lists_every_key_and_no_other() -> None:
    """The schema lists exactly the keys of a report."""
    schema = load_schema(SCHEMA)
    jsonschema.Draft202012Validator.check_schema(schema)
    assert set(schema["required"]) == set(schema["properties"])
    assert set(json.loads(encode(lint_files([])))) == set(schema["properties"])
