"""What is wrong in config files, as part of a page."""

from __future__ import annotations

from pathlib import PurePath

from qnnmem.report.page.document import PageSection
from qnnmem.report.page.gate_values import LintValues
from qnnmem.report.page.markup import Html, badge, lines, table, tag
from qnnmem.text import counted

_SEVERITIES = {"error": "bad", "warning": "open", "note": "faint"}
_ANSWER = ("nothing is wrong", "to be changed", "cannot tell")


def lint_section(lint: LintValues) -> PageSection:
    """Every finding with its place and what to write instead."""
    said = f"{counted(lint.errors, 'error')}, {counted(lint.warnings, 'warning')}"
    rows = [
        (
            tag("strong", one.severity, class_=_SEVERITIES.get(one.severity, "faint")),
            one.file if one.line is None else f"{one.file}:{one.line}",
            tag("code", one.key or ""),
            one.sentence,
            one.cure or "",
        )
        for one in lint.findings
    ]
    body = [tag("p", badge(lint.passes, _ANSWER), Html(" "), said, class_="answer")]
    if rows:
        body.append(table(("", "where", "key", "what is wrong", "what to write"), rows))
    names = ", ".join(PurePath(one.path).name for one in lint.files[:3])
    return PageSection(f"Lint of {names or 'config files'}", lines(body))
