"""Inputs and outputs of a graph in bytes: as they are, as the backend rounds them, the largest."""

from __future__ import annotations

from qnnmem.htp.bill.value import Item
from qnnmem.htp.binary.context import HtpContext, HtpGraph, HtpTensor
from qnnmem.provenance import Origin, Sourced
from qnnmem.targets.socs import htp_constant
from qnnmem.units import round_up

LARGEST = 10  # tensors named in a bill


def exact_io(graph: HtpGraph) -> Sourced | None:
    """The sum of inputs and outputs; None where a data type is not known."""
    total = graph.io_exact
    return None if total is None else Sourced(total, Origin.COMPUTED, "sum of inputs and outputs")


def rounded_io(graph: HtpGraph) -> Sourced | None:
    """The sum with each tensor rounded up, which is how newer files store it."""
    if graph.io_exact is None:
        return None
    unit = htp_constant("io", "unit").value
    total = sum(round_up(tensor.nbytes, unit) for tensor in graph.tensors)
    source = f"sum of inputs and outputs, each rounded up to {unit:,} bytes"
    return Sourced(total, Origin.COMPUTED, source)


def largest_io(context: HtpContext) -> tuple[Item, ...]:
    """The largest inputs and outputs of all graphs."""
    found = (
        Item(graph.name, tensor.name, kind, _size_of(tensor))
        for graph in context.graphs
        for kind, tensors in (("input", graph.inputs), ("output", graph.outputs))
        for tensor in tensors
    )
    order = sorted(found, key=lambda item: (-item.size.value, item.graph, item.name))
    return tuple(order[:LARGEST])


def _size_of(tensor: HtpTensor) -> Sourced:
    return Sourced(tensor.nbytes, Origin.COMPUTED, "elements times element size")
