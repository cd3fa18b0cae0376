"""Findings in config files of the QNN tools for LPAI."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from enum import Enum
from typing import Annotated

from msgspec import Meta, Struct
from msgspec.structs import replace

from qnnmem.results.result import Count, Positive, Result, describe
from qnnmem.text import counted


class Severity(Enum):
    """The severity of a finding."""

    ERROR = "error"  # the run fails or the setting has no effect
    WARNING = "warning"  # probably not intended
    NOTE = "note"  # cannot be checked here; never changes the exit code


class ConfigFinding(Struct, frozen=True):
    """A finding in a config file."""

    file: Annotated[str, describe("Path of the file.")]
    line: Annotated[Positive | None, describe("Line counted from 1; null for the whole file.")]
    column: Annotated[
        Positive | None,
        describe("Column in characters, counted from 1; null for the whole file."),
    ]
    severity: Annotated[Severity, describe("Severity of the finding.")]
    key: Annotated[str, describe("Dotted path of the key; empty for the whole file.")]
    check: Annotated[str, describe("Stable name of the check.")]
    sentence: Annotated[str, describe("What is wrong.")]
    cure: Annotated[str, describe("What to do about the finding.")]


class CheckedFile(Struct, frozen=True):
    """A file that was checked."""

    path: Annotated[str, describe("Path as given or found.")]
    kind: Annotated[
        str,
        Meta(pattern="^(tool file|LPAI file|HTP backend file|unknown)$"),
        describe("Kind of file by its content: tool file, LPAI file, HTP backend file or unknown."),
    ]
    named_by: Annotated[
        str | None,
        describe("Tool file that points to this file; null if it was given on the command line."),
    ] = None
    unreadable: Annotated[
        str | None, describe("Why the file is not a JSON object; null if it is a JSON object.")
    ] = None


class LintResult(Result, frozen=True, kw_only=True, tag="qnnmem.lint/1"):
    """Findings in config files of the QNN tools for LPAI."""

    passes: Annotated[bool, describe("Whether every file could be read and no check failed.")]
    strict: Annotated[bool, describe("Whether warnings count as errors.")]
    errors: Annotated[
        Count,
        describe("Number of findings that make a run fail or make a setting ineffective."),
    ]
    warnings: Annotated[Count, describe("Number of findings that are probably mistakes.")]
    notes: Annotated[
        Count,
        describe("Number of checks that this machine cannot do; they never change the exit code."),
    ]
    files: Annotated[tuple[CheckedFile, ...], describe("Files that were checked, each once.")]
    findings: Annotated[
        tuple[ConfigFinding, ...],
        describe("Findings by file, in line order."),
    ]

    @property
    def unreadable(self) -> tuple[CheckedFile, ...]:
        """Files that could not be read."""
        return tuple(file for file in self.files if file.unreadable is not None)

    @property
    def exit_code(self) -> int:
        """2 if a file cannot be read, 1 for errors, else 0."""
        if self.unreadable:
            return 2
        return 0 if self.passes else 1

    @property
    def summary(self) -> str:
        """The result in one line."""
        return f"{counted(self.errors, 'error')}, {counted(self.warnings, 'warning')}"

    def renamed(self, names: Mapping[str, str]) -> LintResult:
        """Return the result with other file names; `names` maps old names to new names."""
        files = (
            replace(
                file,
                path=names.get(file.path, file.path),
                named_by=None if file.named_by is None else names.get(file.named_by, file.named_by),
            )
            for file in self.files
        )
        findings = (
            replace(finding, file=names.get(finding.file, finding.file))
            for finding in self.findings
        )
        return replace(self, files=tuple(files), findings=tuple(findings))


def lint_result(
    files: tuple[CheckedFile, ...], findings: tuple[ConfigFinding, ...], *, strict: bool = False
) -> LintResult:
    """Return the result with counted findings; with `strict`, a warning also fails the check."""
    count = Counter(finding.severity for finding in findings)
    errors, warnings = count[Severity.ERROR], count[Severity.WARNING]
    is_read = all(file.unreadable is None for file in files)
    return LintResult(
        passes=is_read and not errors and not (strict and warnings),
        strict=strict,
        errors=errors,
        warnings=warnings,
        notes=count[Severity.NOTE],
        files=files,
        findings=findings,
    )
