"""Findings as lines of text."""

from __future__ import annotations

from qnnmem.lpai.config.finding import CheckedFile, ConfigFinding, LintReport, Severity
from qnnmem.report.lint_text import render


def finding(severity: Severity = Severity.ERROR, **changes: object) -> ConfigFinding:
    """Make a finding."""
    values: dict[str, object] = {"file": "a.conf", "line": 3, "column": 5, "key": "x.fps"}
    values |= {"check": "some-check", "sentence": "it is odd", "cure": "write 1", **changes}
    return ConfigFinding(severity=severity, **values)  # type: ignore[arg-type] # of a dict


def report(*findings: ConfigFinding, strict: bool = False) -> LintReport:
    """Make a report about one file."""
    return LintReport((CheckedFile("a.conf", "LPAI file"),), findings, strict)


def test_a_clean_report_is_one_line() -> None:
    """Nothing wrong: the verdict and the files."""
    assert render(report()) == "fine: a.conf\n"


def test_a_finding_is_one_line_with_its_place() -> None:
    """Editors and people can follow file, line and column."""
    text = render(report(finding()))
    assert text == "1 error in 1 file\na.conf:3:5: error: x.fps: it is odd; write 1\n"


def test_a_finding_about_the_file_has_no_line() -> None:
    """What concerns the whole file stands behind its name alone."""
    text = render(report(finding(line=None, column=None, key="")))
    assert text.splitlines()[1] == "a.conf: error: it is odd; write 1"


def test_the_verdict_counts_errors_and_warnings_only() -> None:
    """Notes are shown and not counted."""
    found = (finding(), finding(Severity.WARNING), finding(Severity.WARNING))
    lines = render(report(*found, finding(Severity.NOTE))).splitlines()
    assert lines[0] == "1 error, 2 warnings in 1 file"
    assert len(lines) == 5
    assert render(report(finding(Severity.NOTE))).startswith("fine: a.conf\n")


def test_strict_is_named_when_it_decides() -> None:
    """A reader of the log sees why warnings failed."""
    text = render(report(finding(Severity.WARNING), strict=True))
    assert text.startswith("1 warning in 1 file; warnings count with --strict\n")


def test_nothing_from_a_file_reaches_the_terminal_as_it_is() -> None:
    """Control characters are replaced wherever they stand."""
    text = render(report(finding(sentence="a\x1b[31mb\nc", key="k\r")))
    assert "\x1b" not in text
    assert "\r" not in text
    assert text.count("\n") == 2
