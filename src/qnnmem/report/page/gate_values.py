"""What the page reads of `lint`."""

from __future__ import annotations

from qnnmem.report.page.values import Count, Loose


class LintedFile(Loose, frozen=True):
    """A config file."""

    path: str


class LintedFinding(Loose, frozen=True):
    """Something wrong in a config file."""

    file: str
    severity: str
    sentence: str
    key: str | None = None
    line: Count | None = None
    cure: str | None = None


class LintValues(Loose, frozen=True):
    """`qnnmem.lint/1`."""

    passes: bool
    errors: Count
    warnings: Count
    findings: list[LintedFinding]
    files: tuple[LintedFile, ...] = ()
