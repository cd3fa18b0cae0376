"""Findings about config files as text: verdict first, then one line for each finding."""

from __future__ import annotations

from collections.abc import Iterator

from qnnmem.lpai.config.finding import ConfigFinding, LintReport, Severity
from qnnmem.text import shorten

_WIDE = 200  # for paths


def render(report: LintReport) -> str:
    """The whole report; names from files are made safe to print."""
    return "\n".join([_verdict(report), *_lines(report)]) + "\n"


def _verdict(report: LintReport) -> str:
    read = [file for file in report.files if file.unreadable is None]
    errors, warnings = report.count(Severity.ERROR), report.count(Severity.WARNING)
    if not errors and not warnings:
        verdict = f"fine: {', '.join(shorten(file.path, _WIDE) for file in read[:5])}"
        return verdict + (f" and {len(read) - 5} more" if len(read) > 5 else "")
    parts = [_count(errors, "error")] * bool(errors) + [_count(warnings, "warning")] * bool(
        warnings
    )
    strict = "; warnings count with --strict" if report.strict and not errors else ""
    return f"{', '.join(parts)} in {_count(len(read), 'file')}{strict}"


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


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
