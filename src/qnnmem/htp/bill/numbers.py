"""Numbers for a bill: from the file, from the library's log, or as sums of both."""

from __future__ import annotations

from collections.abc import Iterable

from qnnmem.htp.binary.context import HtpContext, HtpGraph
from qnnmem.htp.log import CompileLog, PdEstimate, PdGraph
from qnnmem.provenance import Origin, Sourced
from qnnmem.results.footprint import BillItem
from qnnmem.targets.socs import Soc, htp_constant
from qnnmem.units import format_size, round_up

LARGEST = 10  # tensors named in a bill


def file_source(context: HtpContext) -> str:
    """Words for a number that the file states."""
    return f"file of QAIRT {context.build_id[:40]}"


def logged(value: int | None, log: CompileLog) -> Sourced | None:
    """A number that the library printed."""
    return None if value is None else Sourced(value, Origin.MEASURED, log_source(log))


def log_source(log: CompileLog) -> str:
    """Words for a number that the library printed."""
    return f"log of QAIRT {(log.library_version or 'without version')[:40]}"


def loaded_graphs(log: CompileLog) -> tuple[PdGraph, ...]:
    """The graphs of the context that was loaded last."""
    last = last_estimate(log)
    return () if last is None else last.graphs


def last_estimate(log: CompileLog) -> PdEstimate | None:
    """The process-domain estimate of the context that was loaded last."""
    return log.pd_estimates[-1] if log.pd_estimates else None


def total(parts: Iterable[Sourced | None], source: str) -> Sourced | None:
    """The sum of parts; None where one of them is not known."""
    result = 0
    for part in parts:
        if part is None:
            return None
        result += part.value
    return Sourced(result, Origin.COMPUTED, source)


def over_graphs(parts: Iterable[Sourced | None]) -> Sourced | None:
    """The sum of a part over graphs; a single graph keeps its own origin."""
    given = tuple(parts)
    return given[0] if len(given) == 1 else total(given, "sum over graphs")


def largest(parts: Iterable[Sourced | None]) -> Sourced | None:
    """The largest part over graphs; None where one of them is not known.

    For memory that graphs use in turn, and for needs with a limit for each graph.
    """
    given = tuple(parts)
    known = [part for part in given if part is not None]
    if not known or len(known) < len(given):
        return None
    return max(known, key=lambda part: part.value)


def exact_io(graph: HtpGraph) -> Sourced | None:
    """The sum of inputs and outputs; None where a data type is not known."""
    size = graph.io_exact
    return None if size is None else Sourced(size, Origin.COMPUTED, "sum of inputs and outputs")


def rounded_io(graph: HtpGraph) -> Sourced | None:
    """The sum with each tensor rounded up, as newer files store it."""
    if graph.io_exact is None:
        return None
    unit = htp_constant("io", "unit").value
    size = sum(round_up(tensor.nbytes, unit) for tensor in graph.tensors)
    source = f"sum of inputs and outputs, each rounded up to {unit:,} bytes"
    return Sourced(size, Origin.COMPUTED, source)


def largest_io(context: HtpContext) -> tuple[BillItem, ...]:
    """The largest inputs and outputs of all graphs."""
    items = (
        BillItem(graph.name, tensor.name, kind, tensor.nbytes)
        for graph in context.graphs
        for kind, tensors in (("input", graph.inputs), ("output", graph.outputs))
        for tensor in tensors
    )
    order = sorted(items, key=lambda item: (-item.bytes, item.graph, item.name))
    return tuple(order[:LARGEST])


def true_vtcm(context: HtpContext, graph: HtpGraph, soc: Soc | None) -> Sourced | None:
    """VTCM that a graph uses: the stored value, unless an unset option stores the same."""
    largest_size = None if soc is None else soc.vtcm_bytes
    if graph.vtcm is None:
        return largest_size
    if largest_size is None or not may_be_unset(graph, largest_size):
        return Sourced(graph.vtcm, Origin.MEASURED, file_source(context))
    unset = format_size(graph.vtcm)
    source = f"the SoC's largest; the file says {unset}, as it does when VTCM was not set"
    return Sourced(largest_size.value, Origin.COMPUTED, source)


def logged_vtcm(name: str, log: CompileLog) -> int | None:
    """VTCM that the compiler used or the loader reserves."""
    loaded = (graph.vtcm for graph in loaded_graphs(log) if graph.name == name)
    return next(loaded, None) if log.vtcm_size is None else log.vtcm_size


def may_be_unset(graph: HtpGraph, largest_size: Sourced) -> bool:
    """Whether the stored VTCM may come from an unset option, and the SoC has another size."""
    return graph.vtcm == htp_constant("vtcm", "unset").value != largest_size.value
