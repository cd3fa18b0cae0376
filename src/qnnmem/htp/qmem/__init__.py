"""Raw or memhandle: what each way of handing over inputs and outputs costs a model.

Four combinations, because the way is chosen twice: when the graph is prepared and at each
execution. A raw tensor is copied to and from a buffer that the backend keeps; memory that the
application registered is used where it is.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from msgspec.structs import replace

from qnnmem.errors import CannotTell
from qnnmem.htp.binary.context import HtpContext
from qnnmem.htp.qmem.advice import advise, memhandle_flags, traps
from qnnmem.htp.qmem.layer import io_mode
from qnnmem.htp.qmem.memory import ALIGNMENT, PAGE
from qnnmem.provenance import Origin, Sourced
from qnnmem.qnn.enums import DataType
from qnnmem.qnn.tensor import TensorInfo
from qnnmem.results.footprint import Bill
from qnnmem.results.qmem import CopyTime, IoMode, QmemChoice, QmemResult, QmemRow
from qnnmem.text import quote
from qnnmem.units import round_up

COMBINATIONS = tuple((prepared, executed) for prepared in IoMode for executed in IoMode)

_MOST_COPIED = 32 << 20  # bytes per copy of a measurement; more is scaled up
_COPY_TIME_S = 0.05
_MATRIX = "IO layer emulated after the vendor's description of Qmem graphs"


def qmem_of(
    context: HtpContext, bill: Bill, copy_time: Callable[[int], CopyTime] | None = None
) -> QmemResult:
    """The table of a context; `copy_time` says how long copying a number of bytes takes."""
    tensors = tuple(tensor for graph in context.graphs for tensor in graph.tensors)
    _check_known(tensors)
    if bill.io is None or bill.io_exact is None:
        raise CannotTell("the binary has no graph, so it has no inputs or outputs")
    hinted = sum(io_mode(tensor) is IoMode.MEMHANDLE for tensor in tensors)
    rows = tuple(_rows(context, bill, copy_time or measure_copy))
    # Least memory, then least copied: memhandle in both places.
    best = min(rows, key=lambda row: (row.internal, row.copied))
    result = QmemResult(
        file=bill.file,
        soc=bill.soc,
        tensors=len(tensors),
        memhandle_tensors=hinted,
        io_exact=bill.io_exact,
        io_stored=bill.io,
        process_domain_budget=bill.process_domain_budget,
        rows=rows,
        recommended=QmemChoice(best.prepared, best.executed),
        flags=memhandle_flags(),
        missing=bill.missing_sentence,
    )
    return replace(result, advice=advise(result), traps=tuple(traps(result)))


def _check_known(tensors: tuple[TensorInfo, ...]) -> None:
    for tensor in tensors:
        if tensor.data_type is DataType.UNDEFINED:
            raise CannotTell(f"the data type of tensor {quote(tensor.name)} is not known here")


def _rows(
    context: HtpContext, bill: Bill, copy_time: Callable[[int], CopyTime]
) -> Iterator[QmemRow]:
    graphs = context.graphs
    inputs = sum(tensor.nbytes for graph in graphs for tensor in graph.inputs)
    outputs = sum(tensor.nbytes for graph in graphs for tensor in graph.outputs)
    took = copy_time(inputs + outputs)
    none = CopyTime(0, Origin.COMPUTED, "nothing is copied")
    for prepared, executed in COMBINATIONS:
        raw = executed is IoMode.RAW
        kept = prepared is IoMode.RAW
        at_load = _internal(bill, kept)
        at_first = _internal(bill, raw and not kept)
        shared = 0 if raw else shared_bytes(context)
        pages = f"tensors at multiples of {ALIGNMENT} in one buffer of whole pages"
        yield QmemRow(
            prepared=prepared,
            executed=executed,
            reserved_at_load=at_load,
            reserved_at_first_inference=at_first,
            copied_in=_computed(inputs if raw else 0, "inputs, elements times element size"),
            copied_out=_computed(outputs if raw else 0, "outputs, elements times element size"),
            copy_time=took if raw else none,
            shared_memory=_computed(shared, pages),
            process_domain_left=_room(bill, at_load.value + at_first.value + shared),
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


def measure_copy(size: int) -> CopyTime:
    """How long copying `size` bytes takes on this host."""
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
    return CopyTime(scaled, Origin.MEASURED, how)
