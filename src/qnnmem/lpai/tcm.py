"""Whether a model binary and the inputs and outputs of its graphs fit the TCM pool.

One layout answers for a plan, one graph of a binary, some of its graphs, and all of them:

binary               the first allocation, counted once
inputs, outputs      graph by graph, an allocation each, in the order of a run
sizes, starts        rounded up to the size and the start alignment of the platform
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from qnnmem.errors import UsageError
from qnnmem.lpai.compiled import CompiledContext, CompiledGraph
from qnnmem.lpai.profiles import ALIGNMENTS
from qnnmem.plan import MemoryPlan
from qnnmem.provenance import Sourced
from qnnmem.targets import tcm_pool
from qnnmem.text import quote
from qnnmem.units import MAX_BYTES, Bytes, Size, as_align, as_bytes, round_up

BINARY = "model binary"


@dataclass(frozen=True, slots=True)
class TcmTensor:
    """An input or output: one allocation."""

    name: str
    size: int
    kind: str  # "input" or "output"
    bits: int = 0  # of one element; 0 where not known
    graph: str = ""  # whose tensor it is, where there are several graphs

    @property
    def label(self) -> str:
        """Kind and name, safe to print."""
        return f"{self.kind} {quote(self.name)}"


@dataclass(frozen=True, slots=True)
class TcmAlignment:
    """What the platform asks of an allocation."""

    start: int
    size: int


DEFAULT_ALIGNMENT = TcmAlignment(*ALIGNMENTS["default"])


@dataclass(frozen=True, slots=True)
class TcmRequest:
    """What goes into the pool, in the order of allocation, and how large the pool is."""

    binary: int
    tensors: tuple[TcmTensor, ...]
    alignment: TcmAlignment
    limit: Sourced
    max_buffers: Sourced

    def rows(self) -> Iterator[TcmRow]:
        """Each allocation where it would lie if the pool had no end."""
        free = total = 0
        sizes = [(BINARY, self.binary), *((tensor.label, tensor.size) for tensor in self.tensors)]
        for number, (what, exact) in enumerate(sizes, 1):
            begin = round_up(free, self.alignment.start)
            end = begin + round_up(exact, self.alignment.size)
            fits = end <= self.limit.value and number <= self.max_buffers.value
            yield TcmRow(what, exact, end - total - exact, end, fits)
            # Even an empty tensor has an address of its own. A binary is never empty; one of no
            # bytes is a plan without constants.
            free, total = end if what is BINARY else max(end, begin + 1), end


@dataclass(frozen=True, slots=True)
class TcmRow:
    """One allocation: its bytes, what alignment adds, and where the pool stands after it."""

    what: str
    exact: int
    padding: int  # rounding of the size and the gap before the start
    running_total: int
    fits: bool


@dataclass(frozen=True, slots=True, repr=False)
class TcmVerdict:
    """What model binary and IO take of the TCM pool, an allocation each, and whether they fit."""

    need: Bytes
    limit: Sourced
    buffers: int
    max_buffers: Sourced
    rows: tuple[TcmRow, ...] = ()

    def __repr__(self) -> str:
        """The answer in one line."""
        word = "fits" if self.fits else "does not fit"
        taken = f"{self.need:,} of {self.limit.value:,} bytes"
        counted = f"{self.buffers} of {self.max_buffers.value} allocations"
        return f"<TcmVerdict: {word}, {taken}, {counted}>"

    @property
    def fits(self) -> bool:
        """Whether both the bytes and the number of allocations are within the pool."""
        return not self.missing and self.buffers <= self.max_buffers.value

    @property
    def missing(self) -> int:
        """Bytes that the pool is short of."""
        return max(0, self.need - self.limit.value)

    @property
    def first_failure(self) -> TcmRow | None:
        """The allocation at which a run would fail."""
        return next((row for row in self.rows if not row.fits), None)


@dataclass(frozen=True, slots=True)
class BinaryTcm:
    """Verdicts about a context binary: each graph alone, and all of them in one run.

    A graph without a program is not judged: its binary lacks the constants it would have.
    """

    graphs: tuple[TcmVerdict | None, ...]  # in the order of the binary
    together: TcmVerdict | None  # None where no graph has a program


def judge(request: TcmRequest) -> TcmVerdict:
    """The verdict on a request; every other judgement comes down to this one."""
    sizes = (request.binary, *(tensor.size for tensor in request.tensors))
    if min(sizes) < 0 or request.binary > MAX_BYTES:
        raise UsageError("sizes of model binary, inputs and outputs are numbers of bytes")
    rows = tuple(request.rows())
    need = Bytes(rows[-1].running_total)
    return TcmVerdict(need, request.limit, len(rows), request.max_buffers, rows)


def judge_tcm(
    model_bytes: Size,
    io: Iterable[Size],
    align: Size,
    limit: Sourced | None = None,
    max_buffers: Sourced | None = None,
) -> TcmVerdict:
    """Whether a model and IO of these sizes fit; the limits are the documented ones by default."""
    sizes = enumerate(map(as_bytes, io))
    tensors = tuple(TcmTensor(str(number), size, "tensor") for number, size in sizes)
    alignment = TcmAlignment(as_align(align), as_align(align))
    request = _request(as_bytes(model_bytes), tensors, alignment)
    return judge(
        replace(
            request,
            limit=request.limit if limit is None else limit,
            max_buffers=request.max_buffers if max_buffers is None else max_buffers,
        )
    )


def judge_plan(plan: MemoryPlan, limit: Sourced | None = None) -> TcmVerdict | None:
    """Whether a planned model fits, its constants in place of the binary; None for a bare list.

    The limit is the documented one by default.
    """
    model, sizes = plan.model, dict(plan.io_sizes)
    if model.format == "csv":
        return None
    tensors = tuple(
        TcmTensor(name, sizes[name], kind)
        for kind, names in (("input", model.inputs), ("output", model.outputs))
        for name in names
        if name in sizes  # state is not allocated with IO
    )
    request = _request(plan.constant_bytes, tensors, TcmAlignment(plan.align, plan.align))
    return judge(request if limit is None else replace(request, limit=limit))


def judge_graphs(
    graphs: Sequence[CompiledGraph],
    binary_bytes: int,
    alignment: TcmAlignment = DEFAULT_ALIGNMENT,
) -> TcmVerdict:
    """Whether these graphs of a binary fit in one run."""
    return judge(request_of(graphs, binary_bytes, alignment))


def judge_binary(
    context: CompiledContext,
    binary_bytes: int,
    alignment: TcmAlignment = DEFAULT_ALIGNMENT,
) -> BinaryTcm:
    """Whether each graph of a binary fits alone, and all of them together."""
    programs = [graph for graph in context.graphs if graph.program]
    alone = tuple(
        judge_graphs([graph], binary_bytes, alignment) if graph.program else None
        for graph in context.graphs
    )
    return BinaryTcm(alone, judge_graphs(programs, binary_bytes, alignment) if programs else None)


def request_of(
    graphs: Sequence[CompiledGraph],
    binary_bytes: int,
    alignment: TcmAlignment = DEFAULT_ALIGNMENT,
) -> TcmRequest:
    """What a run of these graphs asks of the pool; with several, names say whose tensor it is."""
    several = len(graphs) > 1
    tensors = tuple(
        tensor for graph in graphs for tensor in _tensors(graph, graph.name if several else "")
    )
    return _request(binary_bytes, tensors, alignment)


def _request(binary: int, tensors: tuple[TcmTensor, ...], alignment: TcmAlignment) -> TcmRequest:
    pool = tcm_pool()
    return TcmRequest(binary, tensors, alignment, pool.size, pool.max_allocations)


def _tensors(graph: CompiledGraph, owner: str) -> Iterator[TcmTensor]:
    for kind, names in (("input", graph.inputs), ("output", graph.outputs)):
        for name in names:
            tensor = graph.model.tensors[name]
            shown = f"{owner}/{name}" if owner else name
            yield TcmTensor(shown, tensor.nbytes, kind, tensor.dtype.bits, owner)
