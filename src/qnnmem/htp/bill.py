"""The memory bill of a context binary: every part in bytes, and where each number came from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec.structs import astuple

from qnnmem.errors import Setting
from qnnmem.flags import flag
from qnnmem.htp.binary.context import HtpContext, HtpGraph
from qnnmem.htp.log import CompileLog, PdEstimate, PdGraph
from qnnmem.provenance import Origin, Sourced
from qnnmem.qnn.enums import DataType
from qnnmem.results.footprint import (
    Bill,
    BillItem,
    BillParts,
    GraphBill,
    PartName,
    SizeRange,
    Trap,
    least_vtcm,
    named_parts,
)
from qnnmem.targets.socs import Soc, htp_constant, pd_budget, soc_by_id
from qnnmem.text import quote
from qnnmem.units import format_size, round_up

RAM_FORMULA = "vendor's formula: op data + weights + DDR tensors + spill/fill + IO + VTCM"
_MANY = "; summed over the graphs, with shared weights and VTCM counted once"
_PEAK = "peak memory of the compiling process"
COMPILE_FORMULA = "weights + shared weights + IO + DDR tensors + spill/fill; error at most 0.03%"


def bill_of(
    context: HtpContext,
    soc: Soc | None = None,
    log: CompileLog | None = None,
    *,
    host_ram: int | None = None,
    weights: tuple[BillItem, ...] = (),
    file: str = "",
) -> Bill:
    """Return the memory bill of a context on a SoC, by default the SoC it was compiled for.

    `log` is the library's log of the compile or load, `host_ram` the peak memory of the compile.
    `weights` lists the largest weights, whose names are only in the model file. `file` is the name
    of the model or binary in the result.
    """
    log = log or CompileLog()
    made_for = None if context.soc_model is None else soc_by_id(context.soc_model)
    soc = soc or made_for
    # The compiler fixed the needs of a graph: a SoC with less VTCM does not reduce them.
    graphs = tuple(_graph_bill(context, graph, made_for or soc, log) for graph in context.graphs)
    parts, traffic = _parts(context, graphs), log.total_traffic
    spill, fill, written, read = (None,) * 4 if traffic is None else astuple(traffic)
    formula = RAM_FORMULA + (_MANY if len(graphs) > 1 else "")
    return Bill(
        file=file,
        file_bytes=context.file_bytes,
        build_id=context.build_id,
        soc=None if soc is None else soc.name,
        made_for_soc_model=context.soc_model,
        dsp_arch=context.dsp_arch,
        total=total((part for _, part in named_parts(parts)), formula),
        dominant=dominant_part(parts),
        parts=parts,
        io_exact=over_graphs(g.io_exact for g in graphs),
        vtcm_stored=largest(g.vtcm_stored for g in graphs),
        compile_estimate=largest(g.compile_estimate for g in graphs),
        compile_limit=logged(log.memory_alloc_limit, log) or (soc.compile_limit if soc else None),
        process_domain=context_pd(graphs, parts["shared weights"], log),
        process_domain_budget=pd_budget(),
        spilled_per_inference=logged(spill, log),
        filled_per_inference=logged(fill, log),
        ddr_read_per_inference=logged(read, log),
        ddr_written_per_inference=logged(written, log),
        host_ram=None if host_ram is None else Sourced(host_ram, Origin.MEASURED, _PEAK),
        graphs=graphs,
        largest_io=largest_io(context),
        largest_weights=weights,
        traps=tuple(find_traps(context, soc, made_for, log, parts["VTCM"])),
    )


def _parts(context: HtpContext, graphs: tuple[GraphBill, ...]) -> BillParts:
    return {
        "weights": over_graphs(g.weights for g in graphs),
        "shared weights": _shared_weights(context),
        "IO": over_graphs(g.io for g in graphs),
        "op data": over_graphs(g.op_data for g in graphs),
        "DDR tensors": over_graphs(g.ddr_tensors for g in graphs),
        "spill/fill": over_graphs(g.spill_fill for g in graphs),
        "VTCM": largest(g.vtcm for g in graphs),
    }


def dominant_part(parts: BillParts) -> PartName | None:
    """Return the name of the largest part of known size; None if every size is unknown or 0."""
    known = [(name, part.value) for name, part in named_parts(parts) if part and part.value]
    return max(known, key=lambda entry: entry[1], default=(None, 0))[0]


def _graph_bill(
    context: HtpContext, graph: HtpGraph, soc: Soc | None, log: CompileLog
) -> GraphBill:
    def stored(value: int | None) -> Sourced | None:
        return None if value is None else Sourced(value, Origin.MEASURED, file_source(context))

    weights, shared = stored(graph.const), stored(graph.shared_weights)
    op_data = stored(graph.op_data)
    ddr, spill = stored(graph.ddr_tensors), stored(graph.spill_fill)
    io = stored(graph.io) or rounded_io(graph)
    vtcm = logged(logged_vtcm(graph.name, log), log) or true_vtcm(context, graph, soc)
    stored_vtcm = stored(graph.vtcm)
    pd_parts = (weights, io, op_data, ddr, spill, vtcm, stored_vtcm)
    return GraphBill(
        name=graph.name,
        weights=weights,
        io=io,
        io_exact=exact_io(graph),
        op_data=op_data,
        ddr_tensors=ddr,
        spill_fill=spill,
        vtcm_stored=stored_vtcm,
        vtcm=vtcm,
        total=total((op_data, weights, ddr, spill, io, vtcm), RAM_FORMULA),
        compile_estimate=total((weights, shared, io, ddr, spill), COMPILE_FORMULA),
        process_domain=logged_pd(graph.name, vtcm, log) or graph_pd(*pd_parts),
    )


def _shared_weights(context: HtpContext) -> Sourced | None:
    """Return the size of the shared weights, counted once although every graph states this size."""
    stated = [g.shared_weights for g in context.graphs if g.shared_weights is not None]
    if not stated:
        return None
    return Sourced(max(stated), Origin.MEASURED, f"{file_source(context)}, counted once")


# --- Numbers: from the file, from the library's log, or as sums of both ---------------------------


LARGEST = 10  # tensors named in a bill


def file_source(context: HtpContext) -> str:
    """Return words that name the file as the source of a number."""
    return f"file of QAIRT {context.build_id[:40]}"


def logged(value: int | None, log: CompileLog) -> Sourced | None:
    """Return a number that the library printed, with its source."""
    return None if value is None else Sourced(value, Origin.MEASURED, log_source(log))


def log_source(log: CompileLog) -> str:
    """Return words that name the library's log as the source of a number."""
    return f"log of QAIRT {(log.library_version or 'without version')[:40]}"


def loaded_graphs(log: CompileLog) -> tuple[PdGraph, ...]:
    """Return the graphs of the context that was loaded last."""
    last = last_estimate(log)
    return () if last is None else last.graphs


def last_estimate(log: CompileLog) -> PdEstimate | None:
    """Return the process-domain estimate of the context that was loaded last."""
    return log.pd_estimates[-1] if log.pd_estimates else None


def total(parts: Iterable[Sourced | None], source: str) -> Sourced | None:
    """Return the sum of the parts; None if a part is unknown."""
    result = 0
    for part in parts:
        if part is None:
            return None
        result += part.value
    return Sourced(result, Origin.COMPUTED, source)


def over_graphs(parts: Iterable[Sourced | None]) -> Sourced | None:
    """Return the sum of a part over all graphs; a single graph's part is returned unchanged."""
    values = tuple(parts)
    return values[0] if len(values) == 1 else total(values, "sum over graphs")


def largest(parts: Iterable[Sourced | None]) -> Sourced | None:
    """Return the largest of the graphs' values for a part; None if a value is unknown.

    Used for memory that graphs use one after the other, and for limits that apply to each graph.
    """
    values = tuple(parts)
    known = [part for part in values if part is not None]
    if not known or len(known) < len(values):
        return None
    return max(known, key=lambda part: part.value)


def exact_io(graph: HtpGraph) -> Sourced | None:
    """Return the sum of inputs and outputs; None if a data type is unknown."""
    size = graph.io_exact
    return None if size is None else Sourced(size, Origin.COMPUTED, "sum of inputs and outputs")


def rounded_io(graph: HtpGraph) -> Sourced | None:
    """Return the sum of inputs and outputs, each rounded up as newer SDKs round sizes."""
    if graph.io_exact is None:
        return None
    unit = htp_constant("io", "unit").value
    size = sum(round_up(tensor.nbytes, unit) for tensor in graph.tensors)
    source = f"sum of inputs and outputs, each rounded up to {unit:,} bytes"
    return Sourced(size, Origin.COMPUTED, source)


def largest_io(context: HtpContext) -> tuple[BillItem, ...]:
    """Return the largest input and output tensors of all graphs, the largest first."""
    items = (
        BillItem(graph.name, tensor.name, kind, tensor.nbytes)
        for graph in context.graphs
        for kind, tensors in (("input", graph.inputs), ("output", graph.outputs))
        for tensor in tensors
    )
    order = sorted(items, key=lambda item: (-item.bytes, item.graph, item.name))
    return tuple(order[:LARGEST])


def true_vtcm(context: HtpContext, graph: HtpGraph, soc: Soc | None) -> Sourced | None:
    """Return a graph's VTCM: the stored size or, if that might be unset, the SoC's largest size."""
    largest_size = None if soc is None else soc.vtcm_bytes
    if graph.vtcm is None:
        return largest_size
    if largest_size is None or not may_be_unset(graph, largest_size):
        return Sourced(graph.vtcm, Origin.MEASURED, file_source(context))
    unset = format_size(graph.vtcm)
    source = (
        f"the SoC's largest size; the file states {unset}, which can also mean that no size was set"
    )
    return Sourced(largest_size.value, Origin.COMPUTED, source)


def logged_vtcm(name: str, log: CompileLog) -> int | None:
    """Return a graph's VTCM size from the log of a compile or load; None if the log has no size."""
    loaded = (graph.vtcm for graph in loaded_graphs(log) if graph.name == name)
    return next(loaded, None) if log.vtcm_size is None else log.vtcm_size


def may_be_unset(graph: HtpGraph, largest_size: Sourced) -> bool:
    """Return True if the stored VTCM size might only mean that no size was set.

    This is the case if the stored size is the default and the SoC has another size.
    """
    return graph.vtcm == htp_constant("vtcm", "unset").value != largest_size.value


# --- The process domain: exact from the loader's log, else a range --------------------------------


PD_FORMULA = (
    "weights rounded up to 2 MiB + IO + DDR tensors + spill/fill + VTCM + run list (up "
    "to 32 KiB plus 1.16 to 1.8 times the op data)"
)


def graph_pd(
    weights: Sourced | None,
    io: Sourced | None,
    op_data: Sourced | None,
    ddr_tensors: Sourced | None,
    spill_fill: Sourced | None,
    vtcm: Sourced | None,
    stored_vtcm: Sourced | None,
) -> SizeRange | None:
    """Return a graph's need in the process domain as a range; None if a part is unknown.

    The run list is not known exactly, and neither is VTCM if the file might understate it.
    """
    if not (weights and io and op_data and ddr_tensors and spill_fill and vtcm):
        return None
    base = _in_units(weights.value) + io.value + spill_fill.value + ddr_tensors.value
    low = base + least_vtcm(vtcm, stored_vtcm).value + _percent(op_data.value, "runlist_low")
    high = base + vtcm.value + _percent(op_data.value, "runlist_high")
    high += htp_constant("process_domain", "runlist_base").value
    return SizeRange(
        Sourced(low, Origin.COMPUTED, PD_FORMULA), Sourced(high, Origin.COMPUTED, PD_FORMULA)
    )


def _percent(size: int, name: str) -> int:
    return -(-size * htp_constant("process_domain", name).value // 100)


def logged_pd(name: str, vtcm: Sourced | None, log: CompileLog) -> SizeRange | None:
    """Return a graph's exact need in the process domain, from the load log; None if not logged."""
    loaded = next((graph for graph in loaded_graphs(log) if graph.name == name), None)
    if loaded is None:
        return None
    size = loaded.vtcm if loaded.vtcm is not None else vtcm.value if vtcm else None
    if size is None:
        return None
    total = loaded.weights + loaded.io + loaded.runlist + loaded.spill_fill + size
    exact = Sourced(total, Origin.MEASURED, log_source(log))
    return SizeRange(exact, exact)


def context_pd(
    graphs: tuple[GraphBill, ...], shared: Sourced | None, log: CompileLog
) -> SizeRange | None:
    """Return the bytes that the loader reserves for a context: exact with a log, else a range.

    The loader reserves memory for every graph, including VTCM and IO. The loader rounds up the
    shared weights in the same way as the weights of a graph.
    """
    last = last_estimate(log)
    if last is not None and last.total is not None:
        exact = Sourced(last.total, Origin.MEASURED, log_source(log))
        return SizeRange(exact, exact)
    known = [g.process_domain for g in graphs if g.process_domain is not None]
    if not known or len(known) < len(graphs):
        return None
    once = _in_units(shared.value) if shared else 0
    source = known[0].low.source + (
        ("; summed over the graphs, with shared weights counted once") if known[1:] else ""
    )
    return SizeRange(
        Sourced(once + sum(pd.low.value for pd in known), Origin.COMPUTED, source),
        Sourced(once + sum(pd.high.value for pd in known), Origin.COMPUTED, source),
    )


def _in_units(weights: int) -> int:
    return round_up(weights, htp_constant("process_domain", "weights_unit").value)


# --- Numbers in a context binary that mislead its readers -----------------------------------------


NO_OUTPUTS = "no-outputs"
# A binary with one of these traps, or a part of a file with one, gets no verdict.
UNJUDGED = (NO_OUTPUTS, "unread-part", "claim", "several-socs", "too-many-domains")


def find_traps(
    context: HtpContext,
    soc: Soc | None,
    made_for: Soc | None,
    log: CompileLog,
    vtcm: Sourced | None = None,
) -> Iterator[Trap]:
    """Yield a warning about each misleading number in a context's bill, most important first.

    `vtcm` is the largest VTCM size of all graphs.
    """
    if soc is None:
        option = flag(Setting("soc"))
        sentence = f"the file does not state a known SoC; choose a SoC with {option}"
        yield Trap("no-soc", sentence)
    elif made_for is not None and made_for.model_id != soc.model_id:
        yield Trap(
            "other-soc",
            f"the file was made for {made_for.name}; a compile for {soc.name} can give other sizes",
        )
    if soc is not None and (older := wrong_architecture(context.dsp_arch, soc)):
        yield Trap("older-hexagon", f"{older}; the x86 library can still load it")
    if any(graph.const is None for graph in context.graphs):
        yield Trap(
            "no-sizes",
            "the file does not state the sizes of weights, op data and DDR tensors (files of SDK "
            f"2.34 and older do not); its blob has {context.blob_bytes:,} bytes",
        )
    if any(t.data_type is DataType.UNDEFINED for g in context.graphs for t in g.tensors):
        yield Trap("unknown-type", "an input or output has an unknown data type")
    silent = next((graph.name for graph in context.graphs if not graph.outputs), None)
    if silent is not None:
        yield Trap(NO_OUTPUTS, f"graph {quote(silent)} does not state its outputs")
    yield from _vtcm_traps(context, made_for or soc, log)
    yield from _vtcm_over(soc, 0 if vtcm is None else vtcm.value)
    if len(context.graphs) > 1:
        yield Trap(
            "many-graphs",
            "the loader reserves space in the process domain for every enabled graph (at most "
            f"{len(context.graphs):,}), including VTCM for each; the total includes VTCM only once",
        )


def _vtcm_traps(context: HtpContext, soc: Soc | None, log: CompileLog) -> Iterator[Trap]:
    largest = None if soc is None else soc.vtcm_bytes
    if soc is None or largest is None:
        return
    whole = format_size(largest.value)
    unknown = [g for g in context.graphs if logged_vtcm(g.name, log) is None]
    if any(may_be_unset(graph, largest) for graph in unknown):
        unset = format_size(htp_constant("vtcm", "unset").value)
        yield Trap(
            "vtcm-unset",
            f"the file states {unset} of VTCM, which can also mean that no size was set; the "
            f"compiler then takes all {whole} of {soc.name}, so {whole} are counted",
        )


def _vtcm_over(soc: Soc | None, used: int) -> Iterator[Trap]:
    largest = None if soc is None else soc.vtcm_bytes
    if soc is not None and largest is not None and used > largest.value:
        yield Trap(
            "vtcm-over",
            f"a graph asks for {format_size(used)} of VTCM but {soc.name} has "
            f"{format_size(largest.value)}; the compiler accepts this, but a device might not",
        )


def wrong_architecture(arch: int | None, soc: Soc) -> str:
    """Return why a binary for a newer Hexagon cannot run on this SoC; empty if it can run."""
    if arch is None or soc.arch is None or arch <= soc.arch:
        return ""
    return (
        f"the binary was made for Hexagon v{arch} but {soc.name} is v{soc.arch}; compile "
        f"the model for {soc.name}"
    )
