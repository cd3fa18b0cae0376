"""Render results for a notebook: plain tables, and the memory map as an image, without scripts.

The map is a separate image, so that its styles do not affect the notebook.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from qnnmem.report.page.markup import Html, lines, size, table, tag, text
from qnnmem.report.table import ANSWERS, FITS
from qnnmem.text import counted

if TYPE_CHECKING:
    from qnnmem.fix.remedy_search import FixResult
    from qnnmem.planner import MemoryPlan
    from qnnmem.results.footprint import Bill
    from qnnmem.results.incident import Incident

_MOST_BOXES = 1500  # boxes in an image, to keep notebook files small
_MOST_LINES = 12


def html_of(value: object) -> str:
    """Return a result as HTML; raise TypeError for any other value."""
    for kind in type(value).__mro__:
        if kind.__name__ in _RENDERERS:
            return _RENDERERS[kind.__name__](value)
    raise TypeError(f"a {type(value).__name__} cannot be shown as HTML")


def _plan(plan: MemoryPlan) -> Html:
    scratch = f"scratch {counted(plan.scratch_bytes, 'byte')}, {plan.proof_words}"
    return lines(
        [
            tag("p", tag("strong", plan.model.name or "plan"), f": {scratch}"),
            table(("pool", "bytes", "budget", "answer"), _pools(plan)),
            _map(plan, plan.model.name or "plan"),
        ]
    )


def _pools(plan: MemoryPlan) -> Iterator[tuple[str | int | None, ...]]:
    from qnnmem.planner import Pool

    budgets = {entry.pool: entry for entry in plan.budgets}
    for pool in Pool:
        budget = budgets.get(pool)
        if plan.pool_bytes(pool) or budget is not None:
            have = None if budget is None else size(budget.have)
            answer = "" if budget is None else ANSWERS[budget.fits]
            yield pool.value, size(plan.pool_bytes(pool)), have, answer


def _map(plan: MemoryPlan, title: str) -> Html:
    from qnnmem.planner.planned_file import plan_map
    from qnnmem.report.plan_picture import draw, svg_of

    if not plan.buffers:
        return Html("")
    if len(plan.buffers) > _MOST_BOXES:
        many = counted(len(plan.buffers), "buffer")
        why = f"The map of {many} is too large for a notebook"
        return tag("p", f"{why}; `qnnmem report` writes a page with the map.")
    drawn = svg_of(draw(plan_map(plan), title))
    content = b64encode(drawn.encode("utf-8", "backslashreplace")).decode()
    words = f"Memory map of {title}: time to the right, address up"
    return Html(f'<img alt="{text(words)}" src="data:image/svg+xml;base64,{content}">')


def _bill(bill: Bill) -> Html:
    from qnnmem.report.bill import verdict

    parts = [*bill.named_parts, ("total", bill.total), ("compile estimate", bill.compile_estimate)]
    parts += [
        ("compile limit", bill.compile_limit),
        ("process domain budget", bill.process_domain_budget),
    ]
    rows = [
        (name, size(part.value), part.origin.value, part.source)
        for name, part in parts
        if part is not None
    ]
    head = ("part", "bytes", "origin", "from")
    return lines([tag("p", tag("strong", verdict(bill))), table(head, rows)])


def _incident(incident: Incident) -> Html:
    from qnnmem.report.doctor_words import verdict

    evidence = [(line.line, "decides" * line.decides, line.text) for line in incident.evidence]
    shown = evidence[:_MOST_LINES]
    return lines(
        [
            tag("p", tag("strong", verdict(incident))),
            tag("p", incident.title),
            table(("line", "", "text"), shown),
            tag("ul", *(tag("li", line) for line in incident.remedies)),
        ]
    )


def _fix(result: FixResult) -> Html:
    from qnnmem.report.fix import verdict

    best = result.best
    rows = [
        (
            tag("strong", trial.change.remedy) if trial is best else trial.change.remedy,
            trial.change.what,
            trial.need.what,
            trial.need.size,
            FITS[trial.fits],
        )
        for trial in result.tried
    ]
    before, after = best.before.plan, best.need.plan
    maps = []
    if before is not None and after is not None and before is not after:
        maps = [_map(before, "before"), _map(after, f"after: {best.change.what}")]
    head = ("remedy", "change", "of", "bytes", "fits")
    return lines([tag("p", tag("strong", verdict(result))), table(head, rows), *maps])


_RENDERERS: dict[str, Callable[[Any], Html]] = {
    "MemoryPlan": _plan,
    "Bill": _bill,
    "Incident": _incident,
    "FixResult": _fix,
}
