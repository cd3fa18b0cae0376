"""What the loader reserves in a process domain: exact from its log, else a range."""

from __future__ import annotations

from qnnmem.htp.bill.numbers import last_estimate, loaded_graphs, log_source
from qnnmem.htp.log import CompileLog
from qnnmem.provenance import Origin, Sourced
from qnnmem.results.footprint import GraphBill, SizeRange, least_vtcm
from qnnmem.targets.socs import htp_constant
from qnnmem.units import round_up

PD_FORMULA = (
    "weights rounded up to 2 MiB + IO + DDR tensors + spill/fill + VTCM + run list, "
    "which is 1.16 to 1.8 times the op data and up to 32 KiB more"
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
    """The loader's estimate; its run list, which holds the DDR tensors too, lies in a range.

    So does VTCM where the file may say less than is used.
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
    """The loader's estimate for one graph, from the parts that its log states."""
    found = next((graph for graph in loaded_graphs(log) if graph.name == name), None)
    if found is None:
        return None
    size = found.vtcm if found.vtcm is not None else vtcm.value if vtcm else None
    if size is None:
        return None
    total = found.weights + found.io + found.runlist + found.spill_fill + size
    exact = Sourced(total, Origin.MEASURED, log_source(log))
    return SizeRange(exact, exact)


def context_pd(
    graphs: tuple[GraphBill, ...], shared: Sourced | None, log: CompileLog
) -> SizeRange | None:
    """What the loader reserves for a context: exact from a load log, else a range.

    The loader reserves for every graph, VTCM and IO included, and rounds the shared weights up
    like those of a graph.
    """
    last = last_estimate(log)
    if last is not None and last.total is not None:
        exact = Sourced(last.total, Origin.MEASURED, log_source(log))
        return SizeRange(exact, exact)
    known = [g.process_domain for g in graphs if g.process_domain is not None]
    if not known or len(known) < len(graphs):
        return None
    once = _in_units(shared.value) if shared else 0
    source = known[0].low.source + ("; of each graph, shared weights once" if known[1:] else "")
    return SizeRange(
        Sourced(once + sum(pd.low.value for pd in known), Origin.COMPUTED, source),
        Sourced(once + sum(pd.high.value for pd in known), Origin.COMPUTED, source),
    )


def _in_units(weights: int) -> int:
    return round_up(weights, htp_constant("process_domain", "weights_unit").value)
