"""A result as part of the page: the sections of the report."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from qnnmem.report.page.document import PageSection, render_page
from qnnmem.report.page.markup import Html, lines, tag
from qnnmem.report.page.sections import sections_of


def fragment(result: Mapping[str, Any], name: str) -> str:
    """A result as markup, to be put into the page."""
    return lines(part for one in sections_of(result, name) for part in _part(one))


def _part(section: PageSection) -> Iterator[Html]:
    yield Html(f'<section class="shown">\n{tag("h2", section.title)}\n{section.body}\n</section>')


def whole_page(result: Mapping[str, Any], name: str) -> str:
    """The same as a file of its own, as `qnnmem report` writes it."""
    return render_page(sections_of(result, name), name)
