"""Lint results of files that were uploaded alone, without the files they name.

The workbench stores every file by itself. A config file that names another is not wrong for that:
the other one is to be uploaded as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import to_builtins
from msgspec.structs import replace

from qnnmem.results.lint import LintResult, Severity, lint_result
from qnnmem.results.read import read_as
from qnnmem.results.schema import schema_name

_CURE = "drop the other file, too: it is checked by itself"
_MISSING = "missing-file"


def without_neighbours(result: dict[str, Any], exit_code: int) -> tuple[dict[str, Any], int]:
    """Downgrade errors about companion files that were not uploaded."""
    if result.get("schema") != schema_name(LintResult):
        return result, exit_code
    found = read_as(result, "lint", LintResult)
    if not any(finding.check == _MISSING for finding in found.findings):
        return result, exit_code
    findings = tuple(
        replace(finding, severity=Severity.NOTE, cure=_CURE)
        if finding.check == _MISSING
        else finding
        for finding in found.findings
    )
    better = lint_result(found.files, findings, strict=found.strict)
    return to_builtins(better), 0 if better.passes else exit_code


def why_unreadable(result: Mapping[str, Any]) -> str:
    """Why nothing could be checked; empty where something was."""
    if result.get("schema") != schema_name(LintResult) or result["findings"]:
        return ""
    found = read_as(result, "lint", LintResult)
    reasons = [f"{file.path}: {file.unreadable}" for file in found.unreadable]
    return reasons[0] if reasons and len(reasons) == len(found.files) else ""
