"""Render the attempts of `fix` as a page section, with the maps before and after."""

from __future__ import annotations

from collections.abc import Iterator

from qnnmem.report.page.charts import Bar, bars
from qnnmem.report.page.document import PageSection
from qnnmem.report.page.htp import file_name
from qnnmem.report.page.markup import Html, answer, command, lines, table, tag
from qnnmem.report.page.memory_map import map_pair, memory_map
from qnnmem.report.table import FITS
from qnnmem.results.fix import FixedModel, RemedyTrial
from qnnmem.units import format_size


def fix_section(fix: FixedModel) -> PageSection:
    """Return a section with the verdict, bars, maps before and after, and all attempts."""
    rows = [_row(number, trial, fix.best) for number, trial in enumerate(fix.tried)]
    head = ("remedy", "change", "of", "bytes", "fits", "results", "extra work", "seconds")
    target = f" for {fix.soc_name}" if fix.soc_name else ""
    return PageSection(
        f"Fix of {file_name(fix.input)}{target}",
        lines(
            [
                *_answer(fix),
                *_bars(fix),
                *([tag("p", f"Obstacle: {fix.obstacle}")] if fix.obstacle else []),
                *_next(fix),
                table(head, rows, "Trials in order; the chosen trial is bold"),
                *_deployment(fix),
                *_maps(fix),
                *_chain(fix),
                *(tag("p", note) for note in fix.notes),
                *(tag("p", f"Wrote {file}") for file in fix.files),
            ]
        ),
        has_map=fix.maps is not None,
    )


def _answer(fix: FixedModel) -> Iterator[Html]:
    chosen = fix.chosen
    change = f"; {chosen.change}" if fix.best else ""
    yield answer(fix.fits, _sizes(fix), change)


def _sizes(fix: FixedModel) -> str:
    before, after = fix.before_bytes, fix.after_bytes
    if before is None or after is None:
        return ""
    limit = "" if fix.limit_bytes is None else f", limit {format_size(fix.limit_bytes)}"
    return f"{fix.chosen.pool} from {format_size(before)} to {format_size(after)}{limit}"


def _chain(fix: FixedModel) -> Iterator[Html]:
    if fix.from_log:
        yield tag("h3", "From the log")
        yield tag("ol", *(tag("li", line) for line in fix.from_log), class_="evidence")


def _deployment(fix: FixedModel) -> Iterator[Html]:
    deployment = fix.deployment
    if deployment is not None:
        plain = deployment.plain_total_bytes
        beside = "" if plain is None else f" (the original model takes {plain:,})"
        parts = f"{deployment.parts:,} parts, {deployment.arrangement}"
        total = f"{deployment.total_bytes:,} bytes in total{beside}"
        load = f"{deployment.load_bytes_per_inference:,} bytes"
        yield tag("p", f"{parts}: {total}; {load} are loaded or moved in each inference")


def _bars(fix: FixedModel) -> Iterator[Html]:
    if fix.before_bytes is not None and fix.after_bytes is not None:
        first, best = fix.tried[0], fix.chosen
        origins = ("computed", "given") if fix.maps is not None else ("", "")
        rows = [
            Bar(f"{when}, {trial.pool}", [(kind, size)], fix.limit_bytes, 0, *origins)
            for when, trial, kind, size in (
                ("before", first, "other", fix.before_bytes),
                ("after", best, "total", fix.after_bytes),
            )
        ]
        yield bars(rows, "Bytes before and after")


def _maps(fix: FixedModel) -> Iterator[Html]:
    """Yield two maps on the same scale, or a single map if nothing changed."""
    if fix.maps is None:
        return
    before, after = fix.maps.before, fix.maps.after
    if before == after:
        yield memory_map(before, "Unchanged", budget=fix.limit_bytes)
        return
    yield tag("h3", "Memory before and after")
    first = f"Before: scratch {before.scratch_bytes:,} bytes"
    yield map_pair(before, after, (first, _after(fix)), fix.limit_bytes)


def _after(fix: FixedModel) -> str:
    if fix.maps is None:
        return ""
    part = ", neediest part" if fix.maps.after_is == "neediest part" else ""
    change = fix.chosen.change
    return f"After ({change}{part}): scratch {fix.maps.after.scratch_bytes:,} bytes"


def _next(fix: FixedModel) -> Iterator[Html]:
    """Yield the next command; its reason is a separate paragraph."""
    why, program, words = fix.next.partition("qnnmem ")
    if program:
        yield tag("h3", "Next")
        yield tag("p", why.rstrip(": ")) if why else Html("")
        yield command(f"{program}{words}")
    elif fix.next:
        yield tag("p", fix.next)


def _row(number: int, trial: RemedyTrial, best: int) -> tuple[str | int | None, ...]:
    results = "the same"
    if not trial.identical:
        difference = trial.largest_difference
        results = "NaN or infinite" if difference is None else f"{difference:.2g} off"
    name: str = tag("strong", trial.remedy) if number == best else trial.remedy
    why = f"{trial.change}: {trial.why}" if trial.why else trial.change
    work = trial.extra_work, f"{trial.seconds:.1f}"
    return name, why, trial.pool, trial.bytes, FITS[trial.fits], results, *work
