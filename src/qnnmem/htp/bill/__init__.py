"""The memory bill of a context binary: every part in bytes, and where each number came from."""

from __future__ import annotations

from qnnmem.htp.bill.io import exact_io, largest_io, rounded_io
from qnnmem.htp.bill.process_domain import context_pd, graph_pd, logged_pd
from qnnmem.htp.bill.source import file_source, logged
from qnnmem.htp.bill.sums import over_graphs, total
from qnnmem.htp.bill.traps import find_traps
from qnnmem.htp.bill.value import Bill, GraphBill, Item, SizeRange, Trap
from qnnmem.htp.bill.vtcm import logged_vtcm, true_vtcm
from qnnmem.htp.binary.context import HtpContext, HtpGraph
from qnnmem.htp.log import CompileLog
from qnnmem.provenance import Origin, Sourced
from qnnmem.targets.socs import Soc, pd_budget, soc_by_id

__all__ = ["Bill", "GraphBill", "Item", "SizeRange", "Trap", "bill_of"]

RAM_FORMULA = "vendor's formula: op data + weights + DDR tensors + spill/fill + IO + VTCM"
_PEAK = "peak of the compiling process"
COMPILE_FORMULA = "weights + IO + DDR tensors + spill/fill; 0.03% off at most where compared"


def bill_of(
    context: HtpContext,
    soc: Soc | None = None,
    log: CompileLog | None = None,
    *,
    host_ram: int | None = None,
    weights: tuple[Item, ...] = (),
) -> Bill:
    """The bill of a context for a SoC, by default the one it was made for.

    `log` is what the library said while it compiled or loaded this context, `host_ram` the peak of
    the process that compiled it; `weights` names the largest weights, which only the model knows.
    """
    log = log or CompileLog()
    made_for = None if context.soc_model is None else soc_by_id(context.soc_model)
    soc = soc or made_for
    # What a graph needs was decided when it was made: on a SoC with less VTCM it needs no less.
    graphs = tuple(_graph_bill(context, graph, made_for or soc, log) for graph in context.graphs)
    shared = _shared_weights(context)
    return Bill(
        context=context,
        soc=soc,
        graphs=graphs,
        weights=over_graphs(g.weights for g in graphs),
        shared_weights=shared,
        io=over_graphs(g.io for g in graphs),
        io_exact=over_graphs(g.io_exact for g in graphs),
        op_data=over_graphs(g.op_data for g in graphs),
        ddr_tensors=over_graphs(g.ddr_tensors for g in graphs),
        spill_fill=over_graphs(g.spill_fill for g in graphs),
        vtcm_stored=over_graphs(g.vtcm_stored for g in graphs),
        vtcm=over_graphs(g.vtcm for g in graphs),
        ram=total((*(g.ram for g in graphs), shared), _ram_source(graphs)),
        compile_estimate=_largest_estimate(graphs),
        compile_limit=logged(log.memory_alloc_limit, log) or (soc.compile_limit if soc else None),
        pd=context_pd(graphs, shared, log),
        pd_budget=pd_budget(),
        spilled=logged(log.spill_bytes, log),
        filled=logged(log.fill_bytes, log),
        ddr_read=logged(log.read_total, log),
        ddr_written=logged(log.write_total, log),
        host_ram=None if host_ram is None else Sourced(host_ram, Origin.MEASURED, _PEAK),
        largest=largest_io(context),
        largest_weights=weights,
        traps=tuple(find_traps(context, soc, made_for, log, _most_vtcm(graphs))),
    )


def _graph_bill(
    context: HtpContext, graph: HtpGraph, soc: Soc | None, log: CompileLog
) -> GraphBill:
    def stored(value: int | None) -> Sourced | None:
        return None if value is None else Sourced(value, Origin.MEASURED, file_source(context))

    weights, op_data = stored(graph.const), stored(graph.op_data)
    ddr, spill = stored(graph.ddr_tensors), stored(graph.spill_fill)
    io = stored(graph.io) or rounded_io(graph)
    vtcm = logged(logged_vtcm(graph.name, log), log) or true_vtcm(context, graph, soc)
    return GraphBill(
        name=graph.name,
        weights=weights,
        io=io,
        io_exact=exact_io(graph),
        op_data=op_data,
        ddr_tensors=ddr,
        spill_fill=spill,
        vtcm_stored=stored(graph.vtcm),
        vtcm=vtcm,
        ram=total((op_data, weights, ddr, spill, io, vtcm), RAM_FORMULA),
        compile_estimate=total((weights, io, ddr, spill), COMPILE_FORMULA),
        pd=logged_pd(graph.name, vtcm, log) or graph_pd(weights, io, op_data, ddr, spill, vtcm),
    )


def _most_vtcm(graphs: tuple[GraphBill, ...]) -> int:
    """Of one graph: graphs of a context use it in turn."""
    return max((graph.vtcm.value for graph in graphs if graph.vtcm is not None), default=0)


def _shared_weights(context: HtpContext) -> Sourced | None:
    """Once per context: each graph states the same pool."""
    stated = [g.shared_weights for g in context.graphs if g.shared_weights is not None]
    if not stated:
        return None
    return Sourced(max(stated), Origin.MEASURED, f"{file_source(context)}, counted once")


def _ram_source(graphs: tuple[GraphBill, ...]) -> str:
    return f"{RAM_FORMULA}, {'of each graph, ' if len(graphs) > 1 else ''}shared weights once"


def _largest_estimate(graphs: tuple[GraphBill, ...]) -> Sourced | None:
    known = [graph.compile_estimate for graph in graphs if graph.compile_estimate is not None]
    if len(known) < len(graphs):
        return None
    return max(known, key=lambda estimate: estimate.value, default=None)
