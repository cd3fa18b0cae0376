"""What `fix` tried as part of a page, with the maps before and after where plans are at hand."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePath

from qnnmem.report.page.charts import Bar, bars
from qnnmem.report.page.document import PageSection
from qnnmem.report.page.markup import Html, badge, command, lines, table, tag
from qnnmem.report.page.values import FixTry, FixValues


def fix_section(fix: FixValues) -> PageSection:
    """Verdict, bars before and after, the table of what was tried."""
    name = PurePath(fix.input).name or fix.input
    rows = [_row(number, one, fix.best) for number, one in enumerate(fix.tried)]
    head = ("remedy", "change", "of", "bytes", "fits", "results", "extra work", "seconds")
    return PageSection(
        f"Fix of {name}",
        lines(
            [
                tag("p", badge(fix.fits), class_="answer"),
                *_bars(fix),
                tag("p", f"In the way: {fix.obstacle}") if fix.obstacle else Html(""),
                table(head, rows, "What was tried, in order"),
                *(tag("p", note) for note in fix.notes),
                *(tag("p", f"Wrote {file}") for file in fix.files),
                command(fix.next) if fix.next else Html(""),
            ]
        ),
    )


def _bars(fix: FixValues) -> Iterator[Html]:
    if fix.before_bytes is not None and fix.after_bytes is not None:
        rows = [
            Bar("before", [("other", fix.before_bytes)], fix.limit_bytes),
            Bar("after", [("total", fix.after_bytes)], fix.limit_bytes),
        ]
        yield bars(rows, "Bytes before and after")


def _row(number: int, one: FixTry, best: int) -> tuple[str | int | None, ...]:
    fits = {True: "yes", False: "no", None: "-"}[one.fits]
    results = "the same"
    if not one.identical:
        most = one.largest_difference
        results = "numbers lost" if most is None else f"{most:.2g} off"
    extra = f"{one.extra_macs / one.macs:+.1%}" if one.macs else "-"
    name: str = (
        Html(f"<strong>{tag('span', one.remedy)}</strong>") if number == best else one.remedy
    )
    return name, one.change, one.pool, one.bytes, fits, results, extra, f"{one.seconds:.1f}"
