"""Budgets of a project, and two results against each other, as parts of a page."""

from __future__ import annotations

from collections.abc import Iterator

from qnnmem.report.page.charts import Bar, bars
from qnnmem.report.page.document import PageSection
from qnnmem.report.page.markup import Cell, Html, badge, details, lines, table, tag
from qnnmem.results.check import CheckResult, ModelCheck
from qnnmem.results.diff import DiffResult, PoolChange, SubjectChange, TensorChange
from qnnmem.text import counted

_OPEN = 12  # tensors that are shown without being asked for
_MOST = 200
_COLOURS = ("scratch", "persistent", "io", "constants")


def check_section(found: CheckResult) -> PageSection:
    """Every model with its pools against their budgets."""
    fits = {0: True, 1: False}.get(found.exit_code)
    body = [
        tag("p", badge(fits), class_="answer"),
        tag("p", found.verdict),
        *(part for one in found.models for part in _model(one)),
        tag("p", ", ".join(filter(None, (found.config, found.tool))), class_="faint"),
    ]
    return PageSection("Models against their budgets", lines(body))


def _model(one: ModelCheck) -> Iterator[Html]:
    yield tag("h3", one.name, Html(" "), badge(one.fits))
    yield from (tag("p", reason) for reason in one.reasons)
    rows = [
        Bar(check.pool, [("total", check.need_bytes)], check.have_bytes)
        for check in one.checks
        if check.need_bytes is not None and check.have_bytes is not None
    ]
    if rows:
        yield bars(rows, f"Need of {one.name} against each budget")
    if one.pools:
        yield details("All pools", table(("pool", "bytes"), list(one.pools.items())))


def diff_section(found: DiffResult) -> PageSection:
    """Pools before and after, verdicts that turned, tensors that changed."""
    body = lines([*diff_parts(found), tag("p", found.tool, class_="faint")])
    return PageSection("Before and after", body)


def diff_parts(found: DiffResult) -> Iterator[Html]:
    """The answer, then every file before and after."""
    answer = badge(not found.worse, ("not worse", "worse", ""))
    yield tag("p", answer, "" if found.changed else " nothing differs", class_="answer")
    yield tag("p", found.verdict)
    yield from (part for one in found.subjects for part in _subject(one))
    yield from (tag("p", f"only after: {name}") for name in found.appeared)
    yield from (tag("p", f"only before: {name}") for name in found.vanished)


def _subject(one: SubjectChange) -> Iterator[Html]:
    yield tag("h3", one.before if one.before == one.after else f"{one.before} to {one.after}")
    for turned in one.verdicts:
        said = f"{turned.question}: {turned.before}, now {turned.after}"
        yield tag("p", said, class_="bad" if turned.worse else "good")
    rows = [
        Bar(f"{pool.pool}, {when}", [(pool.pool if pool.pool in _COLOURS else "other", size)])
        for pool in one.pools
        for when, size in (("before", pool.before_bytes), ("after", pool.after_bytes))
        if size
    ]
    if rows:
        yield bars(rows, "Pools before and after")
    yield table(("pool", "before", "after", "change", ""), map(_pool, one.pools))
    yield from (tag("p", p.not_comparable) for p in one.pools if p.not_comparable)
    if one.limits:
        limits = [(limit.name, limit.before_bytes, limit.after_bytes) for limit in one.limits]
        yield table(("budget", "before", "after"), limits)
    if one.settings:
        settings = [(setting.name, setting.before, setting.after) for setting in one.settings]
        yield table(("setting", "before", "after"), settings)
    if one.tensors:
        title = f"{counted(len(one.tensors), 'tensor')} changed"
        head = ("tensor", "", "before", "after", "change")
        listed = table(head, map(_tensor, one.tensors[:_MOST]))
        yield details(title, listed, is_open=len(one.tensors) <= _OPEN)


def _pool(pool: PoolChange) -> tuple[Cell, ...]:
    change = pool.change_bytes
    kind = "bad" if pool.worse else "good" if (change or 0) < 0 else "faint"
    share = f"{pool.fraction:+.1%}" if pool.fraction else ""
    said = "not comparable" if pool.not_comparable else None if change is None else _signed(change)
    return pool.pool, pool.before_bytes, pool.after_bytes, said, tag("span", share, class_=kind)


def _tensor(one: TensorChange) -> tuple[Cell, ...]:
    return one.name, one.change, one.before_bytes, one.after_bytes, _signed(one.change_bytes)


def _signed(number: int) -> Html:
    return tag("span", f"{number:+,}" if number else "0", class_="number")
