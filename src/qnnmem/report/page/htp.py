"""Render HTP results as page sections: bills, fits, sweeps, resident contexts, IO modes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import PurePath

from msgspec import UNSET

from qnnmem.provenance import Sourced
from qnnmem.report.page.charts import Bar, bars, curves, limit_bars, mark
from qnnmem.report.page.document import PageSection
from qnnmem.report.page.markup import Html, answer, badge, command, details, lines, table, tag
from qnnmem.report.shell import command_line, file_word
from qnnmem.results.carrier import CarrierFacts, CarrierResult
from qnnmem.results.fit import FitCheck, FitResult, SocFit
from qnnmem.results.footprint import Bill
from qnnmem.results.place import PlacedDomain, Placement, PlaceResult
from qnnmem.results.qmem import QmemChoice, QmemResult, QmemRow
from qnnmem.results.result import SourcedNumber
from qnnmem.results.sweep import LargestValue, SweepResult, SweptSetting
from qnnmem.text import counted
from qnnmem.units import format_size

_KINDS = {"IO": "io", "weights": "constants", "shared weights": "constants"}
_POOLS = {"compile": "compile limit", "pd": "process domain", "vtcm": "VTCM"}
_MOST_GRAPHS, _MOST_TENSORS = 24, 16  # graphs and tensors drawn
_MOST = 50  # rows of each kind
_HOLDS = ("holds", "wrong", "not checked")
_CONTEXTS = ("context", "bytes in the file", "bill", "process domain at most", "used by")


def file_name(file: str) -> str:
    """Return the last part of a path."""
    return PurePath(file).name or file


def bill_section(bill: Bill) -> PageSection:
    """Return a section about a bill: each limit, a waterfall chart, graphs and tensors."""
    body = [
        *_missing(bill),
        *_answer(bill),
        limit_bars(list(_limits(bill)), "Need against each limit"),
        *_next(bill),
        tag("h3", "Parts of the memory in DDR"),
        bars(list(_waterfall(bill)), "Parts of the memory in DDR"),
        *_vtcm(bill),
        *_graphs(bill),
        *_largest(bill),
        *_traffic(bill),
        *(() if bill.carrier is UNSET else carrier_parts(bill.carrier)),
        *(tag("p", trap.sentence) for trap in bill.traps),
        _sources(bill),
    ]
    return PageSection(f"HTP bill of {file_name(bill.file)}", lines(body))


def _answer(bill: Bill) -> Iterator[Html]:
    over = [row for row in _limits(bill) if row.share > 1]
    target = bill.soc or "an unnamed SoC"
    if not over:
        yield tag("p", f"Takes {_taken(bill)} on {target}.", class_="answer")
        return
    worst = max(over, key=lambda row: row.share)
    more = format_size(worst.total - (worst.limit or 0))
    yield answer(False, f"{worst.label}: {more} over the limit of {target}")
    yield tag("p", f"Takes {_taken(bill)}.")


def _taken(bill: Bill) -> str:
    """Describe the memory in DDR and in VTCM, without a sum, because graphs share VTCM."""
    parts = _in_ddr(bill)
    known = {name: part.value for name, part in parts.items() if part is not None}
    ddr = f"{format_size(sum(known.values()))} of DDR"
    if len(known) < len(parts):
        ddr = f"at least {ddr}"
    largest = max(known, key=lambda name: known[name], default="")
    if known.get(largest):
        ddr += f" (most of it {largest}: {format_size(known[largest])})"
    lanes = _lanes(bill)
    if not lanes:
        return ddr
    turn = f", which {counted(len(lanes), 'graph')} use in turn" if len(lanes) > 1 else ""
    return f"{ddr}, and {format_size(max(lane.total for lane in lanes))} of VTCM{turn}"


def _in_ddr(bill: Bill) -> dict[str, Sourced | None]:
    return {name: part for name, part in bill.named_parts if name != "VTCM"}


def _lanes(bill: Bill) -> list[Bar]:
    """Return bars for the VTCM that each graph uses while it runs."""
    lanes = [
        Bar(graph.name, [("persistent", graph.vtcm.value)], origin=graph.vtcm.origin.value)
        for graph in bill.graphs
        if graph.vtcm is not None
    ]
    whole = dict(bill.named_parts).get("VTCM")
    if len(bill.graphs) > 1 or whole is None:
        return lanes
    return [Bar("VTCM", [("persistent", whole.value)], origin=whole.origin.value)]


def _next(bill: Bill) -> Iterator[Html]:
    """Yield the `fit` command, which checks every limit and tries similar settings."""
    words = ["qnnmem", "fit", file_word(bill.file), f"--soc={bill.soc}"]
    pasted = command_line(words) if bill.soc else ""
    if pasted:
        yield tag("p", "Check the limits, and find what to change:")
        yield command(pasted)


def _vtcm(bill: Bill) -> Iterator[Html]:
    lanes = _lanes(bill)
    if lanes:
        yield tag("h3", "VTCM, which graphs use in turn" if len(lanes) > 1 else "VTCM")
        yield bars(lanes[:_MOST_GRAPHS], "VTCM of each graph")


def _graphs(bill: Bill) -> Iterator[Html]:
    """Yield a bar for each graph of a context, if there are several."""
    if len(bill.graphs) < 2:
        return
    shown = bill.graphs[:_MOST_GRAPHS]
    rows = [
        Bar(
            graph.name,
            [
                (kind, part.value)
                for kind, part in (
                    ("constants", graph.weights),
                    ("io", graph.io),
                    ("other", graph.op_data),
                    ("scratch", graph.ddr_tensors),
                    ("total", graph.spill_fill),
                )
                if part is not None
            ],
            origin="computed",
        )
        for graph in shown
    ]
    yield tag("h3", "Memory in DDR of each graph")
    yield bars(rows, "Memory of each graph")
    yield shade_keys(
        ("constants", "weights"),
        ("io", "IO"),
        ("other", "op data"),
        ("scratch", "DDR tensors"),
        ("total", "spill/fill"),
    )
    if len(bill.graphs) > len(shown):
        yield tag(
            "p", f"{counted(len(bill.graphs) - len(shown), 'more graph')} in the JSON result."
        )


def shade_keys(*kinds: tuple[str, str]) -> Html:
    """Return a legend for the colours of bars."""
    keys = (tag("span", tag("i", "", class_=kind), name, class_="key") for kind, name in kinds)
    return tag("div", *keys, class_="tools")


def _traffic(bill: Bill) -> Iterator[Html]:
    """Yield the bytes that one inference moves between VTCM and DDR, as bars and numbers."""
    moved = (
        ("spilled to DDR", bill.spilled_per_inference),
        ("filled from DDR", bill.filled_per_inference),
        ("DDR read", bill.ddr_read_per_inference),
        ("DDR written", bill.ddr_written_per_inference),
    )
    rows = [
        Bar(name, [("total", part.value)], origin=part.origin.value)
        for name, part in moved
        if part is not None
    ]
    if rows:
        yield tag("h3", "Traffic of one inference")
        yield bars(rows, "Bytes moved in one inference")
    if rows or (bill.spill_fill is not None and bill.spill_fill.value):
        yield tag("p", "The library reports only totals, not single ops.", class_="faint")


def _missing(bill: Bill) -> Iterator[Html]:
    """Yield the outputs that the context lacks; the bill does not cover their part of the model."""
    if bill.missing_outputs:
        rows = [(output.name, output.reason) for output in bill.missing_outputs]
        words = "The context binary lacks these outputs of the model."
        yield tag("p", badge(None), Html(" "), words, class_="answer")
        yield table(("output", "reason"), rows)


def _waterfall(bill: Bill) -> Iterator[Bar]:
    """Yield the bars of a waterfall: each part begins at the end of the previous part."""
    start = 0
    parts = _in_ddr(bill)
    for name, part in parts.items():
        kind = _KINDS.get(name, "other")
        pieces = [] if part is None else [(kind, part.value)]
        if part is None or part.value:
            origin = "" if part is None else part.origin.value
            yield Bar(name, pieces, start=start, origin=origin)
        start += 0 if part is None else part.value
    if None not in parts.values():
        yield Bar("all together", [("total", start)], origin="computed")


def _limits(bill: Bill) -> Iterator[Bar]:
    high = None if bill.process_domain is None else bill.process_domain.high
    pairs = (
        ("compile limit", bill.compile_estimate, bill.compile_limit),
        ("process domain", high, bill.process_domain_budget),
    )
    for name, need, limit in pairs:
        if need is not None and limit is not None:
            origins = need.origin.value, limit.origin.value
            yield Bar(name, [("total", need.value)], limit.value, 0, *origins)


def _largest(bill: Bill) -> Iterator[Html]:
    """Yield the largest tensors as bars on one scale, and as a table."""
    items = sorted((*bill.largest_weights, *bill.largest_io), key=lambda item: -item.bytes)
    if items:
        kinds = {"weights": "constants"}
        yield tag("h3", "Largest tensors")
        rows = [Bar(item.name, [(kinds.get(item.kind, "io"), item.bytes)]) for item in items]
        yield bars(rows[:_MOST_TENSORS], "Largest tensors")
        cells = [(item.name, item.graph, item.kind, item.bytes) for item in items]
        yield details("Table of these tensors", table(("tensor", "graph", "kind", "bytes"), cells))


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
        (name, part.value, part.origin.value, part.source)
        for name, part in numbers.items()
        if part is not None
    ]
    rows += [("library", None, "", bill.build_id), ("tool", None, "", bill.tool)]
    rows += [("file", None, "", bill.file)]
    head = ("what", "bytes", "origin", "from")
    return details("Where the numbers come from", table(head, rows))


def fit_section(fit: FitResult) -> PageSection:
    """Return a section with the checks of each SoC; SoCs that do not fit come first."""
    order = {False: 0, None: 1, True: 2}
    socs = sorted(fit.socs, key=lambda soc: order[soc.fits])
    body = [part for soc in socs for part in _soc(soc, fit.file)]
    if len(socs) > 1:
        good = sum(soc.fits is True for soc in socs)
        cells = (
            (tag("a", soc.soc, href=f"#{soc.soc}"), badge(soc.fits), _tightest_words(soc))
            for soc in socs
        )
        each = (details(soc.soc, lines(_soc(soc, fit.file)), name=soc.soc) for soc in socs)
        body = [
            answer(fit.fits, f"fits {good:,} of {counted(len(socs), 'SoC')}"),
            table(("SoC", "", "tightest limit"), cells),
            details("Every limit of each SoC", lines(each)),
        ]
    return PageSection(f"Does {file_name(fit.file)} fit", lines(body))


def _tightest_words(soc: SocFit) -> str:
    """Return the need and the tightest limit in words; `why` if they do not decide the verdict."""
    check = None if soc.fits is None or soc.wrong_arch else soc.tightest
    if check is None or check.spare is None or check.limit is None or check.need_high is None:
        return soc.why
    name, limit = _POOLS.get(check.pool, check.pool), format_size(check.limit.value)
    if check.spare < 0:
        return f"{name} {format_size(-check.spare)} over the limit of {limit}"
    need = format_size(check.need_high.value)
    return f"{name} takes {need} of {limit}, {format_size(check.spare)} left"


def _soc(soc: SocFit, file: str) -> Iterator[Html]:
    checks = [bar for check in soc.checks if (bar := _check(check)) is not None]
    # A graph uses all VTCM it is given: reaching that limit exactly means nothing.
    aside = [
        bar
        for bar in checks
        if not bar.pieces or bar.limit is None or (bar.label == "VTCM" and bar.total == bar.limit)
    ]
    deciding = _tightest_words(soc)
    yield answer(soc.fits, f"{soc.soc}: {deciding}" if deciding else soc.soc)
    drawn = [bar for bar in checks if bar not in aside]
    yield limit_bars(drawn, f"Limits of {soc.soc}", aside)
    if soc.why and soc.why != deciding:
        yield tag("p", soc.why)
    if soc.suggestions:
        yield tag("h4", "What to change: options to add")
    for suggestion in soc.suggestions:
        verified = ", compiled and fits" if suggestion.verified else ""
        yield tag("p", f"{suggestion.reason}{verified}:")
        yield command(suggestion.setting)
    if soc.fits is False and not soc.wrong_arch and file.lower().endswith(".onnx"):
        words = ["qnnmem", "fix", file_word(file), "--backend=htp", f"--soc={soc.soc}"]
        pasted = command_line([*words, "-o", "fixed"])
        if pasted:
            yield tag("p", "Search for a change that makes the model fit:")
            yield command(pasted)
    sources = [
        (_POOLS.get(check.pool, check.pool), f"{number.origin.value}: {number.source}")
        for check in soc.checks
        for number in (check.need_high, check.limit)
        if number is not None
    ]
    if sources:
        yield details("Where the numbers come from", table(("what", "from"), sources))


def _check(check: FitCheck) -> Bar | None:
    name, need, limit = _POOLS.get(check.pool, check.pool), check.need_high, check.limit
    if need is None and limit is None:
        return None
    there, source = (None, "") if limit is None else (limit.value, limit.origin.value)
    if need is None:
        return Bar(name, [], there, 0, "", source)
    return Bar(name, [("total", need.value)], there, 0, need.origin.value, source)


_DRAWN = (
    ("Process domain", "pd_need"),
    ("Compile estimate", "compile_need"),
    ("Spill/fill", "spill_fill"),
)
_MOST_LINES = 12  # lines in a chart, and reasons below it
_SHADES = ("total", "io", "persistent", "constants", "scratch", "other")


def sweep_section(sweep: SweepResult) -> PageSection:
    """Return a section with a table of all settings, and charts of numbers that vary."""
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
    reasons = [tag("p", row.reason) for row in sweep.rows if row.reason][:_MOST_LINES]
    best = [
        tag("p", f"Largest {largest.name} that {largest.until}: {largest.value}{_held(largest)}.")
        for largest in sweep.largest
        if largest.value is not None
    ]
    summary = tag("p", sweep.summary, class_="answer")
    body = [summary, *best, *charts, table(head, rows, "Sizes in bytes"), *reasons]
    return PageSection(f"Sweep of {file_name(sweep.file)}", lines(body))


def _held(largest: LargestValue) -> str:
    setting = largest.setting.items()
    held = ", ".join(f"{name} {value}" for name, value in setting if name != largest.name)
    return f" with {held}" if held else ""


def _sweep_lines(rows: Sequence[SweptSetting], names: Sequence[str]) -> Iterator[Html]:
    """Yield charts over the numeric setting that has the most values.

    Each chart has a curve for each combination of the other settings.
    """
    values = {name: {row.setting.get(name) for row in rows} for name in names}
    numbers = [
        n for n in names if len(values[n]) > 1 and all(isinstance(v, int) for v in values[n])
    ]
    if not numbers:
        return
    name = max(numbers, key=lambda setting: len(values[setting]))
    others = [other for other in names if other != name and len(values[other]) > 1]
    for title, field in _DRAWN:
        series: dict[str, list[tuple[float, int]]] = {}
        for row in rows:
            value, need = row.setting.get(name), getattr(row, field)
            if isinstance(value, int) and need is not None:
                held = ", ".join(f"{other} {row.setting.get(other, '')}" for other in others)
                series.setdefault(held, []).append((float(value), need))
        drawn = [(held, sorted(points)) for held, points in series.items() if len(points) > 1]
        if any(need for _, points in drawn for _, need in points):
            yield tag("h3", f"{title} by {name}")
            yield curves(drawn[:_MOST_LINES], f"{title} by {name}", unit=name)


def place_section(place: PlaceResult) -> PageSection:
    """Return a section that shows process domains as bars, in the given and the best order."""
    body = [
        answer(
            place.fits,
            f"{counted(len(place.contexts), 'context')} in "
            f"{counted(len(place.best.domains), 'process domain')}, "
            f"{len(place.given.domains):,} in the order given",
        ),
        *(tag("p", sentence) for sentence in place.unjudged),
        tag("h3", "In the order given"),
        _domains(place, place.given),
        tag("h3", "In the best order"),
        tag("p", "The given order is the best: no order needs fewer domains.")
        if place.best == place.given
        else _domains(place, place.best),
        tag("p", f"Budget of a domain: {place.budget.origin.value}, {place.budget.source}"),
    ]
    return PageSection("Contexts that fit together", lines(body))


def _domains(place: PlaceResult, placing: Placement) -> Html:
    contexts = [(file_name(context.file), context.size) for context in place.contexts]

    def named(indexes: Sequence[int]) -> str:
        return ", ".join(contexts[index][0] for index in indexes if index < len(contexts))

    rows = [
        (f"domain {number}", named(domain.contexts), domain.used, domain.left)
        for number, domain in enumerate(placing.domains)
    ]
    refused = [tag("p", f"Too large for any domain: {named(placing.too_large)}")]
    return lines(
        [
            *domain_bars(placing, contexts, place.budget),
            table(("domain", "contexts", "bytes used", "bytes left"), rows),
            *(refused if placing.too_large else []),
        ]
    )


def domain_bars(
    placing: Placement, contexts: Sequence[tuple[str, int]], budget: Sourced | SourcedNumber
) -> Iterator[Html]:
    """Yield a bar for each process domain, and a legend; `contexts` are names and sizes."""

    def pieces(domain: PlacedDomain) -> list[tuple[str, int]]:
        known = [index for index in domain.contexts if index < len(contexts)]
        shaded = [(_SHADES[index % len(_SHADES)], contexts[index][1]) for index in known]
        if sum(size for _, size in shaded) != domain.used:
            return [("total", domain.used)]
        return shaded

    origins = "computed", budget.origin.value
    rows = [
        Bar(f"domain {number}", pieces(domain), budget.value, 0, *origins)
        for number, domain in enumerate(placing.domains)
    ]
    yield bars(rows, "Process domains")
    if len(contexts) <= len(_SHADES):
        yield shade_keys(*zip(_SHADES, (name for name, _ in contexts), strict=False))


def qmem_section(qmem: QmemResult) -> PageSection:
    """Return a section with a table of the four ways to pass inputs and outputs."""
    head = (
        *("prepared", "executed", "reserved at load", "at first inference"),
        *("copied in", "copied out", "shared memory", "bytes left in the process domain"),
    )
    rows = [_way(row, qmem.recommended) for row in qmem.rows]
    body = [
        tag("p", qmem.advice, class_="answer"),
        table(head, rows, "Bytes of each combination; the recommended combination is bold"),
        *(tag("p", trap) for trap in qmem.traps),
    ]
    return PageSection(f"Raw and memhandle IO of {file_name(qmem.file)}", lines(body))


def _way(row: QmemRow, best: QmemChoice) -> tuple[Html | str, ...]:
    is_best = (row.prepared, row.executed) == (best.prepared, best.executed)
    words = (row.prepared.value, row.executed.value)
    names = [tag("strong", word) if is_best else word for word in words]
    reserved = row.reserved_at_load, row.reserved_at_first_inference
    copied = row.copied_in, row.copied_out
    numbers = (*reserved, *copied, row.shared_memory, row.process_domain_left)
    return *names, *map(_number, numbers)


def _number(number: Sourced | None) -> Html:
    if number is None:
        return tag("span", "-", class_="faint")
    return lines([tag("span", f"{number.value:,}", title=number.source), mark(number.origin.value)])


def carrier_section(result: CarrierResult) -> PageSection:
    """Return a section with the contents of a deployed file."""
    title = tag("p", result.facts.title, class_="answer")
    name = file_name(result.file)
    return PageSection(f"What {name} contains", lines([title, *carrier_parts(result.facts)]))


def carrier_parts(facts: CarrierFacts) -> Iterator[Html]:
    """Yield tables: contexts, the application's memory, statements of the file, unread parts.

    A context that several methods or models use is one row. What the file says about its binaries
    is next to what the binaries say.
    """
    contexts = [
        (
            binary.name,
            binary.bytes,
            None if binary.total is None else binary.total.value,
            None if binary.need_high is None else binary.need_high.value,
            ", ".join(binary.used_by[:_MOST]),
        )
        for binary in facts.binaries
    ]
    state = [] if facts.state is None else [("KV cache, part of the IO", facts.state)]
    host = [*((part.name, part.size) for part in facts.host), *state]
    sides = [(name, size.value, size.origin.value, size.source) for name, size in host]
    claims = [(c.what, c.claimed, c.found, badge(c.holds, _HOLDS)) for c in facts.claims]
    unread = [(unread.name, unread.bytes, unread.why) for unread in facts.unread]
    for title, head, rows in (
        ("Contexts, each counted once", _CONTEXTS, contexts),
        ("Memory of the application", ("what", "bytes", "origin", "from"), sides),
        ("What the file claims", ("what", "the file states", "the binaries state", ""), claims),
        ("Parts without a bill", ("part", "bytes in the file", "why"), unread),
    ):
        if rows:
            yield tag("h3", title)
            yield table(head, rows[:_MOST])
            if len(rows) > _MOST:
                yield tag("p", f"{len(rows) - _MOST:,} more are in the JSON.", class_="faint")
