"""The memory bill as text: the verdict, then parts, limits, graphs, largest tensors and traps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from qnnmem.htp.fit import checks_of
from qnnmem.provenance import Sourced
from qnnmem.report.limits import limit_lines, source_lines
from qnnmem.report.shell import file_word, next_line, output_words
from qnnmem.report.sizes import size_words
from qnnmem.results.fit import FitCheck
from qnnmem.results.footprint import Bill, BillItem, GraphBill
from qnnmem.targets.socs import find_soc
from qnnmem.text import counted, shorten
from qnnmem.units import format_size

_WIDE = 200  # for paths and sentences
_GRAPHS = 20  # graphs shown; --json has all


def render_text(
    bill: Bill, *, compiled: bool = False, next_step: str = "", verbose: bool = False
) -> str:
    """Total, parts and limits; names from files are made safe to print.

    `compiled` says that the file is a model that was compiled for this bill. `next_step` replaces
    the last line. `verbose` adds where numbers come from, parts of zero bytes and the largest
    tensors.
    """
    parts = [_table(bill, verbose), _estimates(bill, verbose), _graphs(bill)]
    parts += [_largest(bill)] if verbose else []
    parts += [_traps(bill)]
    head = [verdict(bill), *([_total(bill)] if bill.missing_outputs else [])]
    head += [_about(bill, compiled)]
    blocks = ["\n".join(head)]
    blocks += [*map("\n".join, parts), next_step or next_look(bill)]
    return "\n\n".join(block for block in blocks if block) + "\n"


def next_prepare(bill: Bill, given: Sequence[str]) -> str:
    """The last line about a model: the command that keeps the binary, with the options given."""
    soc = [] if bill.soc is None else [f"--soc={bill.soc}"]
    words = ["qnnmem", "prepare", file_word(bill.file), *given]
    return next_line("keep the binary", words, "--backend=htp", *soc, *output_words("model.bin"))


def verdict(bill: Bill) -> str:
    """One line: outputs that are missing, else the sum, or what is missing for one."""
    return bill.missing_sentence or _total(bill)


def _total(bill: Bill) -> str:
    target = f" on {bill.soc}" if bill.soc is not None else ""
    if bill.total is None:
        missing = [name for name, part in bill.named_parts if part is None]
        return f"total not known{target}: the file does not say {', '.join(missing)}"
    scope = " for the part that was compiled" if bill.missing_outputs else ""
    total = f"{size_words(bill.total.value)} of memory{target}{scope}"
    part = None if bill.dominant is None else bill.parts.get(bill.dominant)
    if bill.dominant is None or part is None:
        return total
    name = bill.dominant
    share = f"{total}; {name} {_verb(name)} {_share(part, bill.total)} of it"
    vtcm = next((check for check in _checks(bill) if check.pool == "vtcm"), None)
    if vtcm is None or vtcm.spare is None or vtcm.spare >= 0:
        return share
    most = "" if vtcm.fits is False else "up to "
    return f"{share}, {most}{counted(-vtcm.spare, 'byte')} more than the SoC has"


def _verb(name: str) -> str:
    return "are" if name.endswith(("weights", "tensors")) else "is"


def _share(part: Sourced, total: Sourced) -> str:
    return f"{100 * part.value / total.value:.0f}%"


def _checks(bill: Bill) -> tuple[FitCheck, ...]:
    return checks_of(bill, None if bill.soc is None else find_soc(bill.soc))


def _about(bill: Bill, compiled: bool) -> str:
    graphs = counted(len(bill.graphs), "graph")
    made = shorten(bill.build_id) or "without version"
    arch = "" if bill.dsp_arch is None else f", Hexagon v{bill.dsp_arch}"
    size = size_words(bill.file_bytes)
    kind = "compiles to a" if compiled else "is a"
    what = f"context binary of {size}, {graphs}{arch}, by QAIRT {made}"
    return f"{shorten(bill.file, _WIDE)} {kind} {what}"


def _table(bill: Bill, verbose: bool) -> Iterator[str]:
    yield f"{'part':<16}{'bytes':>16}{'size':>13}  origin"
    for name, part in (*bill.named_parts, ("total", bill.total)):
        if verbose or part is None or part.value:
            yield _row(name, part, verbose)
    if verbose:
        yield _row("IO without pads", bill.io_exact, verbose)
        yield _row("VTCM as stored", bill.vtcm_stored, verbose)


def _row(name: str, part: Sourced | None, verbose: bool) -> str:
    if part is None:
        return f"{name:<16}{'not known':>16}"
    size = f"{part.value:>16,}{format_size(part.value):>13}"
    source = f": {shorten(part.source, _WIDE)}" if verbose else ""
    return f"{name:<16}{size}  {part.origin.value}{source}"


def _estimates(bill: Bill, verbose: bool) -> Iterator[str]:
    checks = _checks(bill)
    yield from limit_lines(checks, verbose=verbose)
    if verbose:
        yield from ("", *source_lines(checks))
    yield from _measured(bill, verbose)


def _measured(bill: Bill, verbose: bool) -> Iterator[str]:
    missing = []
    for name, part in (
        ("spilled to DDR", bill.spilled_per_inference),
        ("filled again", bill.filled_per_inference),
        ("DDR read", bill.ddr_read_per_inference),
        ("DDR written", bill.ddr_written_per_inference),
        ("host RAM", bill.host_ram),
    ):
        if part is None:
            missing.append(name)
        else:
            yield _row(name, part, verbose)
    if missing and verbose:
        yield f"not in the file, only a compile shows it: {', '.join(missing)}"


def _graphs(bill: Bill) -> Iterator[str]:
    if len(bill.graphs) < 2:
        return
    yield f"{'total':>16}{'weights':>16}{'IO':>14}{'spill/fill':>14}{'op data':>14}  graph"
    for graph in bill.graphs[:_GRAPHS]:
        yield _graph_row(graph)
    if len(bill.graphs) > _GRAPHS:
        yield f"… and {len(bill.graphs) - _GRAPHS:,} more graphs; --json lists all"


def _graph_row(graph: GraphBill) -> str:
    wide, narrow = (graph.total, graph.weights), (graph.io, graph.spill_fill, graph.op_data)
    columns = [*((part, 16) for part in wide), *((part, 14) for part in narrow)]
    cells = "".join(
        f"{'-' if p is None else format(p.value, ','):>{width}}" for p, width in columns
    )
    return f"{cells}  {shorten(graph.name)}"


def _largest(bill: Bill) -> Iterator[str]:
    for title, items in (
        ("largest inputs and outputs", bill.largest_io),
        ("largest weights", bill.largest_weights),
    ):
        if items:
            yield f"{title}:"
            yield from (_item(item, len(bill.graphs) > 1) for item in items)


def _item(item: BillItem, with_graph: bool) -> str:
    inside = f" of {shorten(item.graph)}" if with_graph else ""
    return f"{item.bytes:>16,}  {item.kind:<7} {shorten(item.name)}{inside}"


def _traps(bill: Bill) -> Iterator[str]:
    yield from (f"trap: {shorten(trap.sentence, 2 * _WIDE)}" for trap in bill.traps)


def next_look(bill: Bill, given: Sequence[str] = ()) -> str:
    """The last line about a binary: for a SoC if none is known, else every field of the file."""
    if bill.soc is None:
        words = ["qnnmem", "footprint", file_word(bill.file), *given]
        return next_line("with the SoC you mean, for example", words, "--soc=SM8650")
    return next_line(
        "every field of the file", ["qnnmem", "inspect", file_word(bill.file)], "--json"
    )
