"""The memory bill of a context binary: every part in bytes, and where each number came from."""

from __future__ import annotations

from qnnmem.htp.bill.numbers import (
    exact_io,
    file_source,
    largest,
    largest_io,
    logged,
    logged_vtcm,
    over_graphs,
    rounded_io,
    total,
    true_vtcm,
)
from qnnmem.htp.bill.process_domain import context_pd, graph_pd, logged_pd
from qnnmem.htp.bill.traps import find_traps
from qnnmem.htp.binary.context import HtpContext, HtpGraph
from qnnmem.htp.log import CompileLog
from qnnmem.provenance import Origin, Sourced
from qnnmem.results.footprint import (
    Bill,
    BillItem,
    BillParts,
    GraphBill,
    PartName,
    named_parts,
)
from qnnmem.targets.socs import Soc, pd_budget, soc_by_id

RAM_FORMULA = "vendor's formula: op data + weights + DDR tensors + spill/fill + IO + VTCM"
_MANY = "; of each graph, but shared weights and VTCM once: graphs use VTCM in turn"
_PEAK = "peak of the compiling process"
COMPILE_FORMULA = "weights, own and shared, + IO + DDR tensors + spill/fill; 0.03% off at most"


def bill_of(
    context: HtpContext,
    soc: Soc | None = None,
    log: CompileLog | None = None,
    *,
    host_ram: int | None = None,
    weights: tuple[BillItem, ...] = (),
    file: str = "",
) -> Bill:
    """The bill of a context for a SoC, by default the one it was made for.

    `log` is what the library said while it compiled or loaded this context, `host_ram` the peak of
    the process that compiled it; `weights` names the largest weights, which only the model knows;
    `file` names the model or the binary in the result.
    """
    log = log or CompileLog()
    made_for = None if context.soc_model is None else soc_by_id(context.soc_model)
    soc = soc or made_for
    # What a graph needs was decided when it was made: on a SoC with less VTCM it needs no less.
    graphs = tuple(_graph_bill(context, graph, made_for or soc, log) for graph in context.graphs)
    parts = _parts(context, graphs)
    formula = RAM_FORMULA + (_MANY if len(graphs) > 1 else "")
    return Bill(
        file=file,
        file_bytes=context.file_bytes,
        build_id=context.build_id,
        soc=None if soc is None else soc.name,
        made_for_soc_model=context.soc_model,
        dsp_arch=context.dsp_arch,
        total=total((part for _, part in named_parts(parts)), formula),
        dominant=_dominant(parts),
        parts=parts,
        io_exact=over_graphs(g.io_exact for g in graphs),
        vtcm_stored=largest(g.vtcm_stored for g in graphs),
        compile_estimate=largest(g.compile_estimate for g in graphs),
        compile_limit=logged(log.memory_alloc_limit, log) or (soc.compile_limit if soc else None),
        process_domain=context_pd(graphs, parts["shared weights"], log),
        process_domain_budget=pd_budget(),
        spilled_per_inference=logged(log.spill_bytes, log),
        filled_per_inference=logged(log.fill_bytes, log),
        ddr_read_per_inference=logged(log.read_total, log),
        ddr_written_per_inference=logged(log.write_total, log),
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


def _dominant(parts: BillParts) -> PartName | None:
    """The largest part that is known."""
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
    """Once per context: each graph states the same pool."""
    stated = [g.shared_weights for g in context.graphs if g.shared_weights is not None]
    if not stated:
        return None
    return Sourced(max(stated), Origin.MEASURED, f"{file_source(context)}, counted once")
