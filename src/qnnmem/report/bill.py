"""The memory bill of a context binary as text and as JSON, schema `qnnmem.footprint/1`.

The text gives the verdict first, then parts, limits, graphs, the largest tensors and traps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from qnnmem.flags import with_flags
from qnnmem.htp.bill import Bill, GraphBill, Item, SizeRange
from qnnmem.htp.fit import checks_of
from qnnmem.provenance import Sourced
from qnnmem.report.limits import limit_lines, source_lines
from qnnmem.report.shell import file_word, next_line, output_words
from qnnmem.report.sizes import size_words
from qnnmem.report.sourced import bytes_values
from qnnmem.results.schema import write_json
from qnnmem.text import counted, shorten
from qnnmem.units import format_size

SCHEMA = "qnnmem.footprint/1"
_WIDE = 200  # for paths and sentences
_GRAPHS = 20  # graphs shown; --json has all


def render_text(
    bill: Bill, file: str, *, compiled: bool = False, next_step: str = "", verbose: bool = False
) -> str:
    """Total, parts and limits; names from files are made safe to print.

    `compiled` says that `file` is a model that was compiled for this bill; `next_step` is the last
    line where another command is more useful than a look at the file; `verbose` adds where numbers
    come from, parts of zero bytes and the largest tensors.
    """
    parts = [_table(bill, verbose), _estimates(bill, verbose), _graphs(bill)]
    parts += [_largest(bill)] if verbose else []
    parts += [_traps(bill)]
    head = [verdict(bill), *([_total(bill)] if bill.missing else []), _about(bill, file, compiled)]
    blocks = ["\n".join(head)]
    blocks += [*map("\n".join, parts), next_step or next_look(bill, file)]
    return "\n\n".join(block for block in blocks if block) + "\n"


def next_prepare(bill: Bill, file: str, given: Sequence[str]) -> str:
    """The last line about a model: the command that keeps the binary, with the options given."""
    soc = [] if bill.soc is None else [f"--soc={bill.soc.name}"]
    words = ["qnnmem", "prepare", file_word(file), *given]
    return next_line("keep the binary", words, "--backend=htp", *soc, *output_words("model.bin"))


def verdict(bill: Bill) -> str:
    """One line: outputs that are missing, else the sum, or what is missing for one."""
    return _total(bill) if bill.missing is None else bill.missing.sentence


def _total(bill: Bill) -> str:
    target = f" on {bill.soc.name}" if bill.soc is not None else ""
    if bill.ram is None:
        missing = [name for name, part in bill.parts if part is None]
        return f"total not known{target}: the file does not say {', '.join(missing)}"
    scope = "" if bill.missing is None else " for the part that was compiled"
    total = f"{size_words(bill.ram.value)} of memory{target}{scope}"
    if bill.dominant is None:
        return total
    name, part = bill.dominant
    share = f"{total}; {name} {_verb(name)} {_share(part, bill.ram)} of it"
    vtcm = next((check for check in checks_of(bill, bill.soc) if check.pool == "vtcm"), None)
    if vtcm is None or vtcm.spare is None or vtcm.spare >= 0:
        return share
    most = "" if vtcm.fits is False else "up to "
    return f"{share}, {most}{counted(-vtcm.spare, 'byte')} more than the SoC has"


def _verb(name: str) -> str:
    return "are" if name.endswith(("weights", "tensors")) else "is"


def _share(part: Sourced, total: Sourced) -> str:
    return f"{100 * part.value / total.value:.0f}%"


def _about(bill: Bill, file: str, compiled: bool) -> str:
    context = bill.context
    graphs = counted(len(context.graphs), "graph")
    made = shorten(context.build_id) or "without version"
    arch = "" if context.dsp_arch is None else f", Hexagon v{context.dsp_arch}"
    size = size_words(context.file_bytes)
    kind = "compiles to a" if compiled else "is a"
    return (
        f"{shorten(file, _WIDE)} {kind} context binary of {size}, {graphs}{arch}, by QAIRT {made}"
    )


def _table(bill: Bill, verbose: bool) -> Iterator[str]:
    yield f"{'part':<16}{'bytes':>16}{'size':>13}  origin"
    for name, part in (*bill.parts, ("total", bill.ram)):
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
    checks = checks_of(bill, bill.soc)
    yield from limit_lines(checks, verbose=verbose)
    if verbose:
        yield from ("", *source_lines(checks))
    yield from _measured(bill, verbose)


def _measured(bill: Bill, verbose: bool) -> Iterator[str]:
    missing = []
    for name, part in (
        ("spilled to DDR", bill.spilled),
        ("filled again", bill.filled),
        ("DDR read", bill.ddr_read),
        ("DDR written", bill.ddr_written),
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
    wide, narrow = (graph.ram, graph.weights), (graph.io, graph.spill_fill, graph.op_data)
    columns = [*((part, 16) for part in wide), *((part, 14) for part in narrow)]
    cells = "".join(
        f"{'-' if p is None else format(p.value, ','):>{width}}" for p, width in columns
    )
    return f"{cells}  {shorten(graph.name)}"


def _largest(bill: Bill) -> Iterator[str]:
    for title, items in (
        ("largest inputs and outputs", bill.largest),
        ("largest weights", bill.largest_weights),
    ):
        if items:
            yield f"{title}:"
            yield from (_item(item, len(bill.graphs) > 1) for item in items)


def _item(item: Item, with_graph: bool) -> str:
    inside = f" of {shorten(item.graph)}" if with_graph else ""
    return f"{item.size.value:>16,}  {item.kind:<7} {shorten(item.name)}{inside}"


def _traps(bill: Bill) -> Iterator[str]:
    yield from (f"trap: {shorten(with_flags(trap.sentence), 2 * _WIDE)}" for trap in bill.traps)


def next_look(bill: Bill, file: str, given: Sequence[str] = ()) -> str:
    """The last line about a binary: for a SoC if none is known, else every field of the file."""
    if bill.soc is None:
        words = ["qnnmem", "footprint", file_word(file), *given]
        return next_line("with the SoC you mean, for example", words, "--soc=SM8650")
    return next_line("every field of the file", ["qnnmem", "inspect", file_word(file)], "--json")


def render_json(bill: Bill, file: str, tool: str) -> str:
    """One JSON object."""
    return write_json(as_values(bill, file, tool))


def as_values(bill: Bill, file: str, tool: str) -> dict[str, Any]:
    """The object behind the JSON text."""
    context = bill.context
    return {
        "schema": SCHEMA,
        "tool": tool,
        "file": file,
        "file_bytes": context.file_bytes,
        "build_id": context.build_id,
        "soc": None if bill.soc is None else bill.soc.name,
        "made_for_soc_model": context.soc_model,
        "dsp_arch": context.dsp_arch,
        "total": bytes_values(bill.ram),
        "dominant": None if bill.dominant is None else bill.dominant[0],
        "parts": {name: bytes_values(part) for name, part in bill.parts},
        "io_exact": bytes_values(bill.io_exact),
        "vtcm_stored": bytes_values(bill.vtcm_stored),
        "compile_estimate": bytes_values(bill.compile_estimate),
        "compile_limit": bytes_values(bill.compile_limit),
        "process_domain": _range_values(bill.pd),
        "process_domain_budget": bytes_values(bill.pd_budget),
        "spilled_per_inference": bytes_values(bill.spilled),
        "filled_per_inference": bytes_values(bill.filled),
        "ddr_read_per_inference": bytes_values(bill.ddr_read),
        "ddr_written_per_inference": bytes_values(bill.ddr_written),
        "host_ram": bytes_values(bill.host_ram),
        "graphs": [_graph_values(graph) for graph in bill.graphs],
        "missing_outputs": [
            asdict(output) for output in (bill.missing.outputs if bill.missing else ())
        ],
        "largest_io": [_item_values(item) for item in bill.largest],
        "largest_weights": [_item_values(item) for item in bill.largest_weights],
        "traps": [{"id": trap.id, "sentence": with_flags(trap.sentence)} for trap in bill.traps],
    }


def _graph_values(graph: GraphBill) -> dict[str, Any]:
    return {
        "name": graph.name,
        "weights": bytes_values(graph.weights),
        "io": bytes_values(graph.io),
        "io_exact": bytes_values(graph.io_exact),
        "op_data": bytes_values(graph.op_data),
        "ddr_tensors": bytes_values(graph.ddr_tensors),
        "spill_fill": bytes_values(graph.spill_fill),
        "vtcm_stored": bytes_values(graph.vtcm_stored),
        "vtcm": bytes_values(graph.vtcm),
        "total": bytes_values(graph.ram),
        "compile_estimate": bytes_values(graph.compile_estimate),
        "process_domain": _range_values(graph.pd),
    }


def _range_values(found: SizeRange | None) -> dict[str, Any] | None:
    if found is None:
        return None
    return {"low": bytes_values(found.low), "high": bytes_values(found.high)}


def _item_values(item: Item) -> dict[str, Any]:
    return {"graph": item.graph, "name": item.name, "kind": item.kind, "bytes": item.size.value}
