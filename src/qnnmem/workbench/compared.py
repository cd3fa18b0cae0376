"""Two results beside each other: what `qnnmem diff` says, with both maps where they are plans."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from qnnmem.compare import ComparedSubject, compare_results
from qnnmem.report.page.charts import Bar, bars
from qnnmem.report.page.markup import Cell, Html, badge, details, lines, table, tag
from qnnmem.report.page.plan import memory_map
from qnnmem.report.page.values import PlanValues
from qnnmem.text import counted

_MOST = 200  # tensors in the table
_COLOURS = {"scratch": "scratch", "persistent": "persistent", "io": "io", "constants": "constants"}
Result = Mapping[str, Any]


def comparison(before: Result, after: Result, names: tuple[str, str]) -> str:
    """The comparison as markup; UsageError where the two have nothing in common."""
    found = compare_results(before, after, names=names)
    words = ("not worse", "worse", "")
    changed = "" if found.is_changed else " nothing differs"
    first, second = (tag("code", name) for name in names)
    return lines(
        [
            Html('<section class="shown">'),
            tag("h2", "Before and after"),
            tag("p", badge(not found.is_worse, words), changed, class_="answer"),
            tag("p", "from ", first, " to ", second, class_="faint wraps"),
            *(part for subject in found.subjects for part in _subject(subject)),
            *(tag("p", f"only after: {name}") for name in found.appeared),
            *(tag("p", f"only before: {name}") for name in found.vanished),
            *_maps(before, after),
            Html("</section>"),
        ]
    )


def _subject(subject: ComparedSubject) -> Iterator[Html]:
    for turned in subject.verdicts:
        kind = "bad" if turned.is_worse else "good"
        said = f"{turned.question}: {turned.before.words}, now {turned.after.words}"
        yield tag("p", said, class_=kind)
    rows = [
        Bar(f"{one.pool}, {when}", [(_COLOURS.get(one.pool, "other"), size)])
        for one in subject.pools
        for when, size in (("before", one.before), ("after", one.after))
        if size and (one.before or one.after)
    ]
    if rows:
        yield bars(rows, "Pools before and after")
    yield table(("pool", "before", "after", "change", ""), map(_pool, subject.pools))
    if subject.settings:
        settings = [(one.name, one.before, one.after) for one in subject.settings]
        yield table(("setting", "before", "after"), settings)
    if subject.tensors:
        tensors = [
            (one.name, one.change, one.before, one.after, _signed(one.delta))
            for one in subject.tensors[:_MOST]
        ]
        head = ("tensor", "", "before", "after", "change")
        title = f"{counted(len(subject.tensors), 'tensor')} changed"
        yield details(title, table(head, tensors), is_open=len(tensors) <= 12)


def _pool(one: Any) -> tuple[Cell, ...]:
    part = "" if one.fraction is None else f"{one.fraction:+.1%}"
    kind = "bad" if one.is_worse else ("good" if (one.delta or 0) < 0 else "faint")
    change = "" if one.delta is None else _signed(one.delta)
    return one.pool, one.before, one.after, change, tag("span", part, class_=kind)


def _signed(number: int) -> Html:
    return tag("span", f"{number:+,}" if number else "0", class_="number")


def _maps(before: Result, after: Result) -> Iterator[Html]:
    if not all(one.get("schema") == "qnnmem.plan/1" for one in (before, after)):
        return
    try:
        plans = [msgspec.convert(one, PlanValues) for one in (before, after)]
    except msgspec.ValidationError:
        return
    yield Html('<div class="pair">')
    for title, plan in zip(("Before", "After"), plans, strict=True):
        yield Html(f"<div><h3>{title}</h3>\n{memory_map(plan)}</div>")
    yield Html("</div>")
