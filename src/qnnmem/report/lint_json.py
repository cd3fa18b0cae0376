"""Findings about config files as JSON, schema `qnnmem.lint/1`."""

from __future__ import annotations

import json
from typing import Any

from qnnmem.lpai.config.finding import CheckedFile, ConfigFinding, LintReport, Severity

SCHEMA = "qnnmem.lint/1"


def render(report: LintReport, tool: str) -> str:
    """One JSON object."""
    return json.dumps(as_values(report, tool), indent=1, ensure_ascii=True) + "\n"


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


def schema() -> dict[str, Any]:
    """Read the JSON Schema (2020-12) that every rendered report satisfies."""
    from importlib.resources import files

    text = files("qnnmem.report").joinpath("schemas/lint-1.json").read_text("utf-8")
    found: dict[str, Any] = json.loads(text)
    return found


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
