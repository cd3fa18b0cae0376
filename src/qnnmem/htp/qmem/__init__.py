"""Raw or memhandle: what each way of handing over inputs and outputs costs a model.

Four combinations, because the way is chosen twice: when the graph is prepared and at each
execution. A raw tensor is copied to and from a buffer that the backend keeps; memory that the
application registered is used where it is.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from qnnmem.errors import CannotTell
from qnnmem.htp.binary.context import HtpContext, HtpTensor
from qnnmem.htp.qmem.layer import IoMode
from qnnmem.htp.qmem.memory import ALIGNMENT, PAGE
from qnnmem.provenance import Origin, Sourced
from qnnmem.qnn.enums import DataType
from qnnmem.results.footprint import Bill
from qnnmem.text import quote
from qnnmem.units import round_up

COMBINATIONS = tuple((prepared, executed) for prepared in IoMode for executed in IoMode)

_MOST_COPIED = 32 << 20  # bytes per copy of a measurement; more is scaled up
_COPY_TIME_S = 0.05
_MATRIX = "IO layer emulated after the vendor's description of Qmem graphs"


@dataclass(frozen=True, slots=True)
class QmemRow:
    """One combination; bytes over all graphs, copies for one inference of each graph."""

    prepared: IoMode
    executed: IoMode
    at_load: Sourced  # internal IO memory reserved when the graph is made or loaded
    at_first: Sourced  # the same, reserved by the first inference
    copied_in: Sourced
    copied_out: Sourced
    copy_ns: Sourced  # nanoseconds on this host
    shared: Sourced  # memory of the application that is mapped into the process domain
    pd_room: Sourced | None  # process domain left after the first inference

    @property
    def internal(self) -> int:
        """Bytes of internal IO memory from the first inference on."""
        return self.at_load.value + self.at_first.value

    @property
    def copied(self) -> int:
        """Bytes copied per inference."""
        return self.copied_in.value + self.copied_out.value


@dataclass(frozen=True, slots=True)
class Qmem:
    """The four rows for one context, and which of them its binary is prepared for."""

    context: HtpContext
    bill: Bill
    exact: Sourced  # inputs and outputs as they are
    stored: Sourced  # the same as the binary counts them
    memhandles: int  # tensors that carry the hint
    tensors: int
    rows: tuple[QmemRow, ...]

    @property
    def prepared(self) -> IoMode | None:
        """What the binary says of its tensors; None when they differ."""
        if self.memhandles in (0, self.tensors):
            return IoMode.MEMHANDLE if self.memhandles else IoMode.RAW
        return None

    def row(self, prepared: IoMode, executed: IoMode) -> QmemRow:
        """One of the four."""
        return next(r for r in self.rows if (r.prepared, r.executed) == (prepared, executed))

    @property
    def best(self) -> QmemRow:
        """Least memory, then least copied: memhandle in both places."""
        return min(self.rows, key=lambda row: (row.internal, row.copied))


def qmem_of(
    context: HtpContext, bill: Bill, copy_ns: Callable[[int], Sourced] | None = None
) -> Qmem:
    """The table of a context; `copy_ns` gives the time that copying a number of bytes takes."""
    tensors = tuple(tensor for graph in context.graphs for tensor in graph.tensors)
    _check_known(tensors)
    if bill.io is None or bill.io_exact is None:
        raise CannotTell("the binary has no graph, so it has no inputs or outputs")
    hinted = sum(IoMode.of(tensor) is IoMode.MEMHANDLE for tensor in tensors)
    rows = tuple(_rows(context, bill, copy_ns or measure_copy))
    return Qmem(context, bill, bill.io_exact, bill.io, hinted, len(tensors), rows)


def _check_known(tensors: tuple[HtpTensor, ...]) -> None:
    for tensor in tensors:
        if tensor.data_type is DataType.UNDEFINED:
            raise CannotTell(f"the data type of tensor {quote(tensor.name)} is not known here")


def _rows(context: HtpContext, bill: Bill, copy_ns: Callable[[int], Sourced]) -> Iterator[QmemRow]:
    graphs = context.graphs
    inputs = sum(tensor.nbytes for graph in graphs for tensor in graph.inputs)
    outputs = sum(tensor.nbytes for graph in graphs for tensor in graph.outputs)
    took, none = copy_ns(inputs + outputs), _computed(0, "nothing is copied")
    for prepared, executed in COMBINATIONS:
        raw = executed is IoMode.RAW
        kept = prepared is IoMode.RAW
        at_load = _internal(bill, kept)
        at_first = _internal(bill, raw and not kept)
        shared = 0 if raw else shared_bytes(context)
        yield QmemRow(
            prepared,
            executed,
            at_load,
            at_first,
            _computed(inputs if raw else 0, "inputs, elements times element size"),
            _computed(outputs if raw else 0, "outputs, elements times element size"),
            took if raw else none,
            _computed(shared, f"tensors at multiples of {ALIGNMENT} in one buffer of whole pages"),
            _room(bill, at_load.value + at_first.value + shared),
        )


def _internal(bill: Bill, reserved: bool) -> Sourced:
    size = bill.io.value if reserved and bill.io is not None else 0
    source = "" if bill.io is None else bill.io.source
    return _computed(size, f"{_MATRIX}; size from {source}")


def shared_bytes(context: HtpContext) -> int:
    """Bytes of one shared buffer for each graph with all its inputs and outputs."""
    return sum(
        round_up(sum(round_up(t.nbytes, ALIGNMENT) for t in graph.tensors), PAGE)
        for graph in context.graphs
    )


def _room(bill: Bill, io: int) -> Sourced | None:
    """The loader counts IO whatever its type; what is mapped in the end differs."""
    if bill.process_domain is None or bill.io is None:
        return None
    domain = bill.process_domain
    left = bill.process_domain_budget.value - (domain.high.value - bill.io.value + io)
    source = "budget - loader's estimate, in which IO is what is mapped"
    return _computed(left, source if domain.is_exact else f"{source}; at least")


def _computed(value: int, source: str) -> Sourced:
    return Sourced(value, Origin.COMPUTED, source)


def measure_copy(size: int) -> Sourced:
    """Nanoseconds that copying `size` bytes takes on this host."""
    part = min(size, _MOST_COPIED)
    source, target = memoryview(bytearray(part)), memoryview(bytearray(part))
    target[:] = source  # pages are given out at the first touch
    best, end = float("inf"), time.perf_counter() + _COPY_TIME_S
    while True:
        started = time.perf_counter_ns()
        target[:] = source
        now = time.perf_counter_ns()
        best = min(best, now - started)
        if now / 1e9 > end:
            break
    how = "best of several copies on this host, not on a device"
    if part < size:
        how += f"; {part:,} bytes measured, scaled up"
    scaled = round(best * size / part) if part else 0
    return Sourced(scaled, Origin.MEASURED, how)
