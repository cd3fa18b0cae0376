"""Findings about config files: text with the verdict first, and JSON (`qnnmem.lint/1`)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from qnnmem.lpai.config.finding import CheckedFile, ConfigFinding, LintReport, Severity
from qnnmem.results.schema import write_json
from qnnmem.text import counted, shorten

SCHEMA = "qnnmem.lint/1"
_WIDE = 200  # for paths


def render_text(report: LintReport) -> str:
    """The verdict, then one line for each finding; names from files are made safe to print."""
    return "\n".join([verdict(report), *_lines(report)]) + "\n"


def render_json(report: LintReport, tool: str) -> str:
    """One JSON object."""
    return write_json(as_values(report, tool))


def as_values(report: LintReport, tool: str) -> dict[str, Any]:
    """The object behind the JSON text."""
    return {
        "schema": SCHEMA,
        "tool": tool,
        "passes": report.passes,
        "strict": report.strict,
        "errors": report.count(Severity.ERROR),
        "warnings": report.count(Severity.WARNING),
        "notes": report.count(Severity.NOTE),
        "files": [_file(file) for file in report.files],
        "findings": [_finding(finding) for finding in report.findings],
    }


def _file(file: CheckedFile) -> dict[str, Any]:
    return {
        "path": file.path,
        "kind": file.kind,
        "named_by": file.named_by,
        "unreadable": file.unreadable,
    }


def _finding(finding: ConfigFinding) -> dict[str, Any]:
    return {
        "file": finding.file,
        "line": finding.line,
        "column": finding.column,
        "severity": finding.severity.value,
        "key": finding.key,
        "check": finding.check,
        "sentence": finding.sentence,
        "cure": finding.cure,
    }


def verdict(report: LintReport) -> str:
    """One line: fine, or how much is wrong."""
    read = [file for file in report.files if file.unreadable is None]
    errors, warnings = report.count(Severity.ERROR), report.count(Severity.WARNING)
    if not errors and not warnings:
        verdict = f"fine: {', '.join(shorten(file.path, _WIDE) for file in read[:5])}"
        return verdict + (f" and {len(read) - 5} more" if len(read) > 5 else "")
    numbers = ((errors, "error"), (warnings, "warning"))
    parts = [counted(number, noun) for number, noun in numbers if number]
    strict = "; warnings count with --strict" if report.strict and not errors else ""
    return f"{', '.join(parts)} in {counted(len(read), 'file')}{strict}"


def _lines(report: LintReport) -> Iterator[str]:
    for file in report.files:
        if file.named_by is not None and any(f.file == file.path for f in report.findings):
            yield f"{shorten(file.path, _WIDE)}: named by {shorten(file.named_by, _WIDE)}"
        yield from (_line(finding) for finding in report.findings if finding.file == file.path)


def _line(finding: ConfigFinding) -> str:
    where = shorten(finding.file, _WIDE)
    if finding.line is not None:
        where += f":{finding.line}:{finding.column}"
    about = f"{finding.key}: " if finding.key else ""
    text = f"{finding.severity.value}: {about}{finding.sentence}; {finding.cure}"
    return f"{where}: {shorten(text, 600)}"
