"""How much VTCM a graph really uses; the file tells the truth only when VTCM was set."""

from __future__ import annotations

from qnnmem.htp.bill.source import file_source, loaded_graphs
from qnnmem.htp.binary.context import HtpContext, HtpGraph
from qnnmem.htp.log import CompileLog
from qnnmem.provenance import Origin, Sourced
from qnnmem.targets.socs import Soc, htp_constant
from qnnmem.units import format_size


def true_vtcm(context: HtpContext, graph: HtpGraph, soc: Soc | None) -> Sourced | None:
    """What the graph uses: the stored value, unless that is what an unset option stores."""
    largest = None if soc is None else soc.vtcm_bytes
    if graph.vtcm is None:
        return largest
    if largest is None or not may_be_unset(graph, largest):
        return Sourced(graph.vtcm, Origin.MEASURED, file_source(context))
    unset = format_size(graph.vtcm)
    source = f"the SoC's largest; the file says {unset}, as it does when VTCM was not set"
    return Sourced(largest.value, Origin.COMPUTED, source)


def logged_vtcm(name: str, log: CompileLog) -> int | None:
    """What the compiler used or the loader reserves."""
    loaded = (graph.vtcm for graph in loaded_graphs(log) if graph.name == name)
    return next(loaded, None) if log.vtcm_size is None else log.vtcm_size


def may_be_unset(graph: HtpGraph, largest: Sourced) -> bool:
    """Whether the stored value is what an unset option stores, and not what the SoC has."""
    return graph.vtcm == htp_constant("vtcm", "unset").value != largest.value
