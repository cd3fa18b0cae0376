"""What is wrong in config files, as part of a page."""

from __future__ import annotations

from pathlib import PurePath

from qnnmem.report.page.document import PageSection
from qnnmem.report.page.markup import Html, badge, lines, table, tag
from qnnmem.results.lint import LintResult, Severity

_SEVERITIES = {Severity.ERROR: "bad", Severity.WARNING: "open", Severity.NOTE: "faint"}
_ANSWER = ("nothing is wrong", "must be changed", "cannot tell")


def lint_section(lint: LintResult) -> PageSection:
    """Every finding with its place and what to write instead."""
    rows = [
        (
            tag("strong", one.severity.value, class_=_SEVERITIES[one.severity]),
            one.file if one.line is None else f"{one.file}:{one.line}",
            tag("code", one.key),
            one.sentence,
            one.cure,
        )
        for one in lint.findings
    ]
    body = [tag("p", badge(lint.passes, _ANSWER), Html(" "), lint.summary, class_="answer")]
    if rows:
        body.append(table(("", "where", "key", "what is wrong", "what to write"), rows))
    names = ", ".join(PurePath(one.path).name for one in lint.files[:3])
    return PageSection(f"Lint of {names or 'config files'}", lines(body))
