"""What HTP costs as parts of a page: the bill, and whether it fits."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePath

from qnnmem.provenance import Sourced
from qnnmem.report.page.charts import Bar, bars
from qnnmem.report.page.document import PageSection
from qnnmem.report.page.markup import Html, badge, details, lines, table, tag
from qnnmem.results.fit import FitCheck, FitResult, SocFit
from qnnmem.results.footprint import Bill

_KINDS = {"IO": "io", "VTCM": "persistent", "weights": "constants", "shared weights": "constants"}
_POOLS = {"compile": "compile limit", "pd": "process domain", "vtcm": "VTCM"}


def file_name(file: str) -> str:
    """The last part of a path."""
    return PurePath(file).name or file


def bill_section(bill: Bill) -> PageSection:
    """A bill as a waterfall, and against each limit."""
    body = [
        *_missing(bill),
        tag("p", f"Made for {bill.soc or 'a SoC that is not named'}.", class_="answer"),
        bars(list(_waterfall(bill)), "What the memory is made of"),
        *_limits(bill),
        *(tag("p", trap.sentence) for trap in bill.traps),
        *_largest(bill),
        _sources(bill),
    ]
    return PageSection(f"HTP bill of {file_name(bill.file)}", lines(body))


def _missing(bill: Bill) -> Iterator[Html]:
    """Outputs that are not in the context: the bill is of a part of the model."""
    if bill.missing_outputs:
        rows = [(one.name, one.reason) for one in bill.missing_outputs]
        words = "Not the whole model: these outputs are not in the context binary."
        yield tag("p", badge(None), Html(" "), words, class_="answer")
        yield table(("output", "reason"), rows)


def _waterfall(bill: Bill) -> Iterator[Bar]:
    """Each part begins where the one before it ends."""
    start = 0
    for name, part in bill.named_parts:
        if part is None:
            yield Bar(name, [], start=start)
            continue
        kind = _KINDS.get(name, "other")
        yield Bar(name, [(kind, part.value)], start=start, origin=part.origin.value)
        start += part.value
    if bill.total is not None:
        yield Bar("all together", [("total", bill.total.value)], origin=bill.total.origin.value)


def _limits(bill: Bill) -> Iterator[Html]:
    high = None if bill.process_domain is None else bill.process_domain.high
    pairs = [
        ("compile limit", bill.compile_estimate, bill.compile_limit),
        ("process domain", high, bill.process_domain_budget),
    ]
    found = [
        Bar(name, [("total", need.value)], limit.value, 0, need.origin.value, limit.origin.value)
        for name, need, limit in pairs
        if need is not None and limit is not None
    ]
    if found:
        yield tag("h3", "Against the limits")
        yield bars(found, "Need against each limit")


def _largest(bill: Bill) -> Iterator[Html]:
    items = [*bill.largest_weights, *bill.largest_io]
    if items:
        rows = [(one.name, one.kind, one.bytes) for one in items]
        yield details("Largest tensors", table(("tensor", "kind", "bytes"), rows))


def _sources(bill: Bill) -> Html:
    domain = bill.process_domain
    numbers: dict[str, Sourced | None] = {
        **dict(bill.named_parts),
        "all together": bill.total,
        "IO without pads": bill.io_exact,
        "VTCM as stored": bill.vtcm_stored,
        "compile estimate": bill.compile_estimate,
        "compile limit": bill.compile_limit,
        "process domain": None if domain is None else domain.high,
        "process domain budget": bill.process_domain_budget,
        "DDR read by an inference": bill.ddr_read_per_inference,
        "DDR written by an inference": bill.ddr_written_per_inference,
        "RAM of the compiling host": bill.host_ram,
    }
    rows: list[tuple[str, int | None, str, str]] = [
        (name, one.value, one.origin.value, one.source)
        for name, one in numbers.items()
        if one is not None
    ]
    rows += [("library", None, "", bill.build_id), ("tool", None, "", bill.tool)]
    rows += [("file", None, "", bill.file)]
    head = ("what", "bytes", "origin", "from")
    return details("Where the numbers come from", table(head, rows))


def fit_section(fit: FitResult) -> PageSection:
    """Every SoC with its checks."""
    tool = tag("p", f"{fit.file}, {fit.tool}", class_="faint")
    return PageSection(
        f"Does {file_name(fit.file)} fit", lines([*map(_soc, fit.socs), *([tool] * bool(fit.tool))])
    )


def _soc(soc: SocFit) -> Html:
    checks = [bar for one in soc.checks if (bar := _check(one)) is not None]
    sources = [
        (_POOLS.get(one.pool, one.pool), f"{number.origin.value}: {number.source}")
        for one in soc.checks
        for number in (one.need_high, one.limit)
        if number is not None
    ]
    rows = [
        (one.setting, "compiled and fits" if one.verified else "", one.reason)
        for one in soc.suggestions
    ]
    head = ("what to change", "verified", "reason")
    origins = details(f"Where the numbers of {soc.soc} come from", table(("what", "from"), sources))
    return lines(
        [
            tag("h3", soc.soc, Html(" "), badge(soc.fits)),
            tag("p", soc.why) if soc.why else Html(""),
            bars(checks, f"Need against each limit of {soc.soc}") if checks else Html(""),
            table(head, rows) if rows else Html(""),
            origins if sources else Html(""),
        ]
    )


def _check(one: FitCheck) -> Bar | None:
    name, need, limit = _POOLS.get(one.pool, one.pool), one.need_high, one.limit
    if need is None and limit is None:
        return None
    there, source = (None, "") if limit is None else (limit.value, limit.origin.value)
    if need is None:
        return Bar(name, [], there, 0, "", source)
    return Bar(name, [("total", need.value)], there, 0, need.origin.value, source)
