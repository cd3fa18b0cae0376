"""What HTP costs as parts of a page: bill, fit, sweep, place, Qmem."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import PurePath

from qnnmem.report.page.charts import Bar, bars, line
from qnnmem.report.page.document import PageSection
from qnnmem.report.page.markup import Html, badge, details, lines, table, tag
from qnnmem.report.page.values import (
    BillValues,
    FitSoc,
    FitValues,
    PlaceValues,
    Placing,
    QmemValues,
    SourcedBytes,
    SweepValues,
    SweptSetting,
)

_KINDS = {"IO": "io", "VTCM": "persistent", "weights": "constants", "shared weights": "constants"}
_ANSWERS = {"fits": True, "does-not-fit": False, "cannot-tell": None}


def _name(file: str) -> str:
    return PurePath(file).name or file


def bill_section(bill: BillValues) -> PageSection:
    """A bill as a waterfall, and against each limit."""
    rows, start = [], 0
    for name, part in bill.parts.items():
        value = 0 if part is None else part.bytes
        rows.append(Bar(name, [(_KINDS.get(name, "other"), value)], start=start))
        start += value
    total = [] if bill.total is None else [Bar("all together", [("total", bill.total.bytes)])]
    body = [
        tag("p", f"Made for {bill.soc or 'a SoC that is not named'}.", class_="answer"),
        bars([*rows, *total], "What the memory is made of"),
        *_limits(bill),
        *(tag("p", trap.sentence) for trap in bill.traps),
        *_largest(bill),
        _sources(bill),
    ]
    return PageSection(f"HTP bill of {_name(bill.file)}", lines(body))


def _limits(bill: BillValues) -> Iterator[Html]:
    found = []
    if bill.compile_estimate is not None and bill.compile_limit is not None:
        pieces = [("total", bill.compile_estimate.bytes)]
        found.append(Bar("compile limit", pieces, bill.compile_limit.bytes))
    if bill.process_domain is not None and bill.process_domain_budget is not None:
        pieces = [("total", bill.process_domain.high.bytes)]
        found.append(Bar("process domain", pieces, bill.process_domain_budget.bytes))
    if found:
        yield tag("h3", "Against the limits")
        yield bars(found, "Need against each limit")


def _largest(bill: BillValues) -> Iterator[Html]:
    items = [*bill.largest_weights, *bill.largest_io]
    if items:
        rows = [(one.name, one.kind, one.bytes) for one in items]
        yield details("Largest tensors", table(("tensor", "kind", "bytes"), rows))


def _sources(bill: BillValues) -> Html:
    numbers: dict[str, SourcedBytes | None] = {
        **bill.parts,
        "all together": bill.total,
        "compile estimate": bill.compile_estimate,
        "compile limit": bill.compile_limit,
        "process domain budget": bill.process_domain_budget,
    }
    rows = [
        (name, one.bytes, f"{one.origin}: {one.source}")
        for name, one in numbers.items()
        if one is not None
    ]
    rows_ = [*rows, ("library", None, bill.build_id), ("tool", None, bill.tool)]
    return details("Where the numbers come from", table(("what", "bytes", "from"), rows_))


def fit_section(fit: FitValues) -> PageSection:
    """Every SoC with its checks."""
    return PageSection(f"Does {_name(fit.file)} fit", lines(map(_soc, fit.socs)))


def _soc(soc: FitSoc) -> Html:
    checks = [
        Bar(
            one.pool,
            [("total", one.need_high.bytes)],
            None if one.limit is None else one.limit.bytes,
        )
        for one in soc.checks
        if one.need_high is not None
    ]
    rows = [
        (one.setting, "compiled and fits" if one.verified else "", one.reason)
        for one in soc.suggestions
    ]
    head = ("what to change", "verified", "reason")
    return lines(
        [
            tag("h3", soc.soc, Html(" "), badge(_ANSWERS.get(soc.answer))),
            tag("p", soc.why) if soc.why else Html(""),
            bars(checks, f"Need against each limit of {soc.soc}") if checks else Html(""),
            table(head, rows) if rows else Html(""),
        ]
    )


def sweep_section(sweep: SweepValues) -> PageSection:
    """The table, and a line for each number that changes with the setting."""
    names = list(dict.fromkeys(name for row in sweep.rows for name in row.setting))
    head = (*names, "state", "compile", "process domain", "VTCM", "weights", "IO", "spill/fill")
    rows = [
        (
            *(str(row.setting.get(name, "")) for name in names),
            row.state,
            *(row.compile_need, row.pd_need, row.vtcm, row.weights, row.io, row.spill_fill),
        )
        for row in sweep.rows
    ]
    charts = list(_sweep_lines(sweep.rows, names))
    what = f"{sweep.soc}, {sweep.library}"
    body = [tag("p", what, class_="answer"), *charts, table(head, rows)]
    return PageSection(f"Sweep of {_name(sweep.file)}", lines(body))


def _sweep_lines(rows: Sequence[SweptSetting], names: Sequence[str]) -> Iterator[Html]:
    """Where one number varies alone."""
    varied = [n for n in names if len({row.setting.get(n) for row in rows}) > 1]
    if len(varied) != 1:
        return
    name = varied[0]
    for title, field in (("Process domain", "pd_need"), ("Compile estimate", "compile_need")):
        points = []
        for row in rows:
            at, need = row.setting.get(name), getattr(row, field)
            if isinstance(at, int) and need is not None:
                points.append((float(at), need))
        if len(points) > 1:
            yield tag("h3", f"{title} by {name}")
            yield line(sorted(points), f"{title} by {name}")


def place_section(place: PlaceValues) -> PageSection:
    """Process domains as filled bars, in the order given and in the best."""
    body = [
        tag("p", badge(_ANSWERS.get(place.answer)), class_="answer"),
        tag("h3", "In the order given"),
        _domains(place, place.given),
        tag("h3", "In the best order"),
        _domains(place, place.best),
        tag("p", f"Budget of a domain: {place.budget.origin}, {place.budget.source}"),
    ]
    return PageSection("Which contexts find room together", lines(body))


def _domains(place: PlaceValues, placing: Placing) -> Html:
    def named(places: Sequence[int]) -> str:
        known = dict(enumerate(place.contexts))
        return ", ".join(_name(known[at].file) for at in places if at in known)

    numbered = list(enumerate(placing.domains, start=1))
    rows = [
        Bar(f"domain {number}", [("total", domain.used)], place.budget.value)
        for number, domain in numbered
    ]
    listed = [
        (f"domain {number}", named(domain.contexts), domain.used, domain.left)
        for number, domain in numbered
    ]
    refused = [tag("p", f"Too large for any: {named(placing.too_large)}")]
    return lines(
        [
            bars(rows, "Process domains"),
            table(("domain", "contexts", "used", "left"), listed),
            *(refused if placing.too_large else []),
        ]
    )


def qmem_section(qmem: QmemValues) -> PageSection:
    """The four ways in a table."""
    rows = [
        (
            row.prepared,
            row.executed,
            row.reserved_at_load.bytes,
            row.reserved_at_first_inference.bytes,
            row.copied_in.bytes,
            row.copied_out.bytes,
            row.shared_memory.bytes,
        )
        for row in qmem.rows
    ]
    head = (
        "prepared",
        "executed",
        "at load",
        "at first inference",
        "copied in",
        "copied out",
        "shared",
    )
    body = [tag("p", qmem.advice, class_="answer"), table(head, rows)]
    return PageSection(f"Raw and memhandle IO of {_name(qmem.file)}", lines(body))
