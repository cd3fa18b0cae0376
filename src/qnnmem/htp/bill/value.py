"""What a memory bill holds: parts in bytes, each with its origin."""

from __future__ import annotations

from dataclasses import dataclass, replace

from qnnmem.errors import Words
from qnnmem.htp.bill.sums import total
from qnnmem.htp.binary.context import HtpContext
from qnnmem.htp.missing_outputs import MissingOutputs
from qnnmem.provenance import Origin, Sourced
from qnnmem.targets.socs import Soc


@dataclass(frozen=True, slots=True)
class SizeRange:
    """A number known between two bounds, which are equal when it is known exactly."""

    low: Sourced
    high: Sourced

    @property
    def is_exact(self) -> bool:
        """Whether both bounds are the same."""
        return self.low.value == self.high.value


def least_vtcm(used: Sourced, stored: Sourced | None) -> Sourced:
    """The stored size, where a larger one was only assumed to be used."""
    if stored is None or used.origin is not Origin.COMPUTED:
        return used
    return min(stored, used, key=lambda size: size.value)


@dataclass(frozen=True, slots=True)
class Item:
    """One tensor of a graph and its bytes."""

    graph: str
    name: str
    kind: str  # input, output or weights
    size: Sourced


@dataclass(frozen=True, slots=True)
class Trap:
    """A number that misleads, and why."""

    id: str
    sentence: Words


@dataclass(frozen=True, slots=True)
class GraphBill:
    """The bill of one graph; None is a number that the file does not hold."""

    name: str
    weights: Sourced | None
    io: Sourced | None  # each tensor rounded up, as the file stores it
    io_exact: Sourced | None  # sum of the tensors as they are
    op_data: Sourced | None
    ddr_tensors: Sourced | None
    spill_fill: Sourced | None
    vtcm_stored: Sourced | None
    vtcm: Sourced | None  # what the graph really uses
    ram: Sourced | None
    compile_estimate: Sourced | None
    pd: SizeRange | None


@dataclass(frozen=True, slots=True)
class Bill:
    """The bill of a whole context: sums over its graphs, shared weights and VTCM once."""

    context: HtpContext
    soc: Soc | None
    graphs: tuple[GraphBill, ...]
    weights: Sourced | None
    shared_weights: Sourced | None
    io: Sourced | None
    io_exact: Sourced | None
    op_data: Sourced | None
    ddr_tensors: Sourced | None
    spill_fill: Sourced | None
    vtcm_stored: Sourced | None  # of the graph that asks for most; graphs use VTCM in turn
    vtcm: Sourced | None
    ram: Sourced | None
    compile_estimate: Sourced | None  # of the largest graph: the limit is per graph
    compile_limit: Sourced | None
    pd: SizeRange | None
    pd_budget: Sourced
    spilled: Sourced | None  # from VTCM to DDR in one inference
    filled: Sourced | None  # and back
    ddr_read: Sourced | None
    ddr_written: Sourced | None
    host_ram: Sourced | None
    largest: tuple[Item, ...]
    largest_weights: tuple[Item, ...]
    traps: tuple[Trap, ...]
    missing: MissingOutputs | None = None  # where the context is a part of the model

    def _repr_html_(self) -> str:
        """As a notebook shows it."""
        from qnnmem.notebook import shown

        return shown(self)

    @property
    def vtcm_range(self) -> SizeRange | None:
        """VTCM that is used; a file that says 4 MiB may say so because none was asked for."""
        if self.vtcm is None:
            return None
        return SizeRange(least_vtcm(self.vtcm, self.vtcm_stored), self.vtcm)

    @property
    def ram_range(self) -> SizeRange | None:
        """All memory, with the least and the most VTCM that may be used."""
        vtcm = self.vtcm_range
        if self.ram is None or vtcm is None:
            return None
        less = vtcm.high.value - vtcm.low.value
        return SizeRange(replace(self.ram, value=self.ram.value - less), self.ram)

    @property
    def all_weights(self) -> Sourced | None:
        """Weights of every graph, and those that graphs share."""
        shared = self.shared_weights
        if self.weights is None or shared is None or not shared.value:
            return self.weights
        return total((self.weights, shared), "weights of all graphs, shared ones once")

    @property
    def parts(self) -> tuple[tuple[str, Sourced | None], ...]:
        """The parts that the total is made of, by name."""
        return (
            ("weights", self.weights),
            ("shared weights", self.shared_weights),
            ("IO", self.io),
            ("op data", self.op_data),
            ("DDR tensors", self.ddr_tensors),
            ("spill/fill", self.spill_fill),
            ("VTCM", self.vtcm),
        )

    @property
    def dominant(self) -> tuple[str, Sourced] | None:
        """The largest part that is known."""
        known = [(name, part) for name, part in self.parts if part is not None and part.value]
        return max(known, key=lambda named: named[1].value, default=None)
