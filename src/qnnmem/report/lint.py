"""Findings about config files as text, with the verdict first."""

from __future__ import annotations

from collections.abc import Iterator

from qnnmem.results.lint import ConfigFinding, LintResult
from qnnmem.text import counted, shorten

_WIDE = 200  # for paths


def render_text(report: LintResult) -> str:
    """The verdict, then one line for each finding; names from files are made safe to print."""
    return "\n".join([verdict(report), *_lines(report)]) + "\n"


def verdict(report: LintResult) -> str:
    """One line: fine, or how much is wrong."""
    read = [file for file in report.files if file.unreadable is None]
    errors, warnings = report.errors, report.warnings
    if not errors and not warnings:
        verdict = f"fine: {', '.join(shorten(file.path, _WIDE) for file in read[:5])}"
        return verdict + (f" and {len(read) - 5} more" if len(read) > 5 else "")
    numbers = ((errors, "error"), (warnings, "warning"))
    parts = [counted(number, noun) for number, noun in numbers if number]
    strict = "; warnings count with --strict" if report.strict and not errors else ""
    return f"{', '.join(parts)} in {counted(len(read), 'file')}{strict}"


def _lines(report: LintResult) -> Iterator[str]:
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
