"""Two results beside each other: what `qnnmem diff` says, with both maps where they are plans."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from qnnmem.gate.comparison import compare_results
from qnnmem.report.page.budgets import diff_parts
from qnnmem.report.page.markup import Html, lines, tag
from qnnmem.report.page.plan import memory_map
from qnnmem.results.plan import PlanResult
from qnnmem.struct_types import ready

Result = Mapping[str, Any]


def comparison(before: Result, after: Result, names: tuple[str, str]) -> str:
    """The comparison as markup; UsageError where the two have nothing in common."""
    found = compare_results(before, after, names=names)
    first, second = (tag("code", name) for name in names)
    return lines(
        [
            Html('<section class="shown">'),
            tag("h2", "Before and after"),
            tag("p", "from ", first, " to ", second, class_="faint wraps"),
            *diff_parts(found),
            *_maps(before, after),
            Html("</section>"),
        ]
    )


def _maps(before: Result, after: Result) -> Iterator[Html]:
    if not all(one.get("schema") == "qnnmem.plan/1" for one in (before, after)):
        return
    try:
        plans = [msgspec.convert(one, ready(PlanResult)) for one in (before, after)]
    except msgspec.ValidationError:
        return
    yield Html('<div class="pair">')
    for title, plan in zip(("Before", "After"), plans, strict=True):
        yield Html(f"<div><h3>{title}</h3>\n{memory_map(plan.map)}</div>")
    yield Html("</div>")
