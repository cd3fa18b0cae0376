"""A result as part of the page: the sections of the report, and some that only the page has."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from qnnmem.errors import UsageError
from qnnmem.report.page.document import PageSection, render_page
from qnnmem.report.page.markup import Html, badge, lines, table, tag
from qnnmem.report.page.sections import sections_of
from qnnmem.report.page.values import Count, Loose
from qnnmem.text import counted
from qnnmem.workbench.summary import schema_of

_SEVERITIES = {"error": "bad", "warning": "open", "note": "faint"}


class LintFinding(Loose, frozen=True):
    """Something wrong in a config file."""

    file: str
    severity: str
    sentence: str
    key: str | None = None
    line: Count | None = None
    column: Count | None = None
    cure: str | None = None


class LintValues(Loose, frozen=True):
    """`qnnmem.lint/1`."""

    passes: bool
    errors: Count
    warnings: Count
    findings: list[LintFinding]


def shown_sections(result: Mapping[str, Any], name: str) -> list[PageSection]:
    """The parts of a page that show a result; UsageError where nothing shows it."""
    schema = schema_of(result)
    try:
        if schema == "qnnmem.lint/1":
            return [_lint(msgspec.convert(result, LintValues), name)]
    except msgspec.ValidationError as exc:
        raise UsageError(f"{name}: it is no {schema}: {exc}") from exc
    return sections_of(result, name)


def fragment(result: Mapping[str, Any], name: str) -> str:
    """A result as markup, to be put into the page."""
    return lines(part for one in shown_sections(result, name) for part in _part(one))


def _part(section: PageSection) -> Iterator[Html]:
    yield Html(f'<section class="shown">\n{tag("h2", section.title)}\n{section.body}\n</section>')


def whole_page(result: Mapping[str, Any], name: str) -> str:
    """The same as a file of its own, as `qnnmem report` writes it."""
    return render_page(shown_sections(result, name), name)


def _lint(lint: LintValues, name: str) -> PageSection:
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
    answer = badge(lint.passes, ("nothing is wrong", "to be changed", "cannot tell"))
    body = [tag("p", answer, Html(" "), said, class_="answer")]
    if rows:
        body.append(table(("", "where", "key", "what is wrong", "what to write"), rows))
    return PageSection(f"Lint of {name}", lines(body))
