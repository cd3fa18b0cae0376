"""Results as HTML for the page: alone, in comparison, and as a one-line summary."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from qnnmem.errors import UsageError
from qnnmem.gate.comparison import compare_results
from qnnmem.report.page.budgets import diff_parts
from qnnmem.report.page.document import PageSection, render_page
from qnnmem.report.page.markup import Html, lines, tag
from qnnmem.report.page.memory_map import map_pair
from qnnmem.report.page.sections import sections_of
from qnnmem.results.plan import PlanResult
from qnnmem.results.read import read_result, schema_in
from qnnmem.text import shorten
from qnnmem.wire import ready

_LONGEST = 160
Result = Mapping[str, Any]
# Schemas of results whose exit code can be that of the program that was run.
_OF_PROGRAMS = ("qnnmem.check-client/1", "qnnmem.watch/1", "qnnmem.fail-each/1")


def fragment(result: Result, name: str) -> str:
    """Return a result as HTML to insert into the page."""
    return lines(part for section in sections_of(result, name) for part in _part(section))


def _part(section: PageSection) -> Iterator[Html]:
    yield Html(f'<section class="shown">\n{tag("h2", section.title)}\n{section.body}\n</section>')


def whole_page(result: Result, name: str) -> str:
    """Return a result as a whole page, the way `qnnmem report` writes it."""
    return render_page(sections_of(result, name), name)


def comparison(before: Result, after: Result, names: tuple[str, str]) -> str:
    """Return the comparison of two results as HTML; raise UsageError if their kinds differ."""
    difference = compare_results(before, after, names=names)
    first, second = (tag("code", name) for name in names)
    return lines(
        [
            Html('<section class="shown">'),
            tag("h2", "Before and after"),
            tag("p", "from ", first, " to ", second, class_="faint wraps"),
            *diff_parts(difference),
            *_maps(before, after),
            Html("</section>"),
        ]
    )


def _maps(before: Result, after: Result) -> Iterator[Html]:
    if not all(result.get("schema") == "qnnmem.plan/1" for result in (before, after)):
        return
    try:
        plans = [msgspec.convert(result, ready(PlanResult)) for result in (before, after)]
    except msgspec.ValidationError:
        return
    first, second = (plan.map for plan in plans)
    captions = [
        f"{title}: scratch {plan.scratch_bytes:,} bytes"
        for title, plan in (("Before", first), ("After", second))
    ]
    yield map_pair(first, second, (captions[0], captions[1]))


def summary_of(result: Result) -> str:
    """Return a summary of a result in one line; empty if an uploaded result lacks a field."""
    try:
        return shorten(read_result(result, "").summary, _LONGEST)
    except UsageError:
        return ""


def is_of_program(result: Result) -> bool:
    """Return True if the result is about a program that was run."""
    return schema_in(result) in _OF_PROGRAMS


def exit_code_of(result: Result) -> int:
    """Return the command's exit code, read from the result or inferred from its verdict."""
    code, fits = result.get("exit_code"), result.get("fits", result.get("passes"))
    if is_of_program(result):
        is_open = bool(result.get("not_checked")) and not result.get("findings")
        return 0 if fits is True else 3 if is_open else 1
    if isinstance(code, int) and not isinstance(code, bool) and 0 <= code <= 255:
        return code
    return 1 if fits is False else 0
