"""Contents of the tightly coupled memory (TCM) pool: model binary, inputs and outputs.

binary               is the first allocation and is counted once
inputs, outputs      follow graph by graph in execution order, with one allocation for each tensor
sizes                are rounded up to the platform's size alignment
starts               are rounded up to the platform's start alignment
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from types import NoneType
from typing import TYPE_CHECKING

from qnnmem.arguments import expect
from qnnmem.errors import UsageError
from qnnmem.provenance import Sourced
from qnnmem.targets import tcm_pool
from qnnmem.text import quote
from qnnmem.units import MAX_BYTES, Bytes, Size, as_align, as_bytes, round_up

if TYPE_CHECKING:
    from qnnmem.results.plan import TcmAnswer

BINARY = "model binary"


@dataclass(frozen=True, slots=True)
class TcmTensor:
    """An input or output, which is one allocation."""

    name: str
    size: int
    kind: str  # "input" or "output"
    bits: int = 0  # of one element; 0 if unknown
    graph: str = ""  # name of the tensor's graph, if there are several

    @property
    def label(self) -> str:
        """Kind and quoted name of the tensor, for messages."""
        return f"{self.kind} {quote(self.name)}"


@dataclass(frozen=True, slots=True)
class TcmAlignment:
    """Alignment that the platform requires for each allocation."""

    start: int
    size: int


@dataclass(frozen=True, slots=True)
class TcmRequest:
    """The allocations in order, and the limits of the pool."""

    binary: int
    tensors: tuple[TcmTensor, ...]
    alignment: TcmAlignment
    limit: Sourced
    max_buffers: Sourced

    def rows(self) -> Iterator[TcmRow]:
        """Yield the allocations with their positions, as if the pool were unlimited."""
        free = total = 0
        sizes = [(BINARY, self.binary), *((tensor.label, tensor.size) for tensor in self.tensors)]
        for number, (label, exact) in enumerate(sizes, 1):
            begin = round_up(free, self.alignment.start)
            end = begin + round_up(exact, self.alignment.size)
            fits = end <= self.limit.value and number <= self.max_buffers.value
            yield TcmRow(label, exact, end - total - exact, end, fits)
            # Even an empty tensor has its own address. A binary is never empty; zero bytes mean a
            # plan without constants.
            free, total = end if label is BINARY else max(end, begin + 1), end


@dataclass(frozen=True, slots=True)
class TcmRow:
    """An allocation: its size, its padding, and the running total after it."""

    what: str
    exact: int
    padding: int  # rounding of the size and the gap before the start
    running_total: int
    fits: bool


@dataclass(frozen=True, slots=True, repr=False)
class TcmVerdict:
    """Verdict on whether the model binary and IO fit the TCM pool, with a row per allocation."""

    need: Bytes
    limit: Sourced
    buffers: int
    max_buffers: Sourced
    rows: tuple[TcmRow, ...] = ()

    def __repr__(self) -> str:
        """Return the verdict in one line."""
        word = "fits" if self.fits else "does not fit"
        taken = f"{self.need:,} of {self.limit.value:,} bytes"
        counted = f"{self.buffers} of {self.max_buffers.value} allocations"
        return f"<TcmVerdict: {word}, {taken}, {counted}>"

    @property
    def fits(self) -> bool:
        """True if the bytes and the number of the allocations are within the pool's limits."""
        return not self.missing and not self.is_crowded

    @property
    def missing(self) -> int:
        """Bytes that the allocations need beyond the pool's size; 0 if they fit."""
        return max(0, self.need - self.limit.value)

    @property
    def is_crowded(self) -> bool:
        """True if there are more allocations than the pool allows."""
        return self.buffers > self.max_buffers.value

    @property
    def answer(self) -> TcmAnswer:
        """The verdict as a result type."""
        from qnnmem.results.plan import TcmAnswer

        return TcmAnswer(
            fits=self.fits,
            need_bytes=self.need,
            limit_bytes=self.limit.value,
            buffers=self.buffers,
            max_buffers=self.max_buffers.value,
        )


def judge(request: TcmRequest) -> TcmVerdict:
    """Return the verdict on whether the allocations of a request fit the pool."""
    sizes = (request.binary, *(tensor.size for tensor in request.tensors))
    if min(sizes) < 0 or request.binary > MAX_BYTES:
        raise UsageError("sizes of model binary, inputs and outputs must be numbers of bytes")
    if request.alignment.start < 1 or request.alignment.size < 1:
        raise UsageError("an alignment must be at least 1")
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
    """Return the verdict on whether a binary and IO of these sizes fit TCM.

    The default limits are the documented ones.
    """
    if isinstance(io, str | bytes | Mapping) or not isinstance(io, Iterable):
        raise UsageError(f"the inputs and outputs must be a list of sizes, not {quote(io)}")
    for sourced in (limit, max_buffers):
        expect(sourced, (Sourced, NoneType), "a limit must be a Sourced number")
    sizes = enumerate(map(as_bytes, io))
    tensors = tuple(TcmTensor(str(number), size, "tensor") for number, size in sizes)
    alignment = TcmAlignment(as_align(align), as_align(align))
    request = request_tcm(as_bytes(model_bytes), tensors, alignment)
    return judge(
        replace(
            request,
            limit=request.limit if limit is None else limit,
            max_buffers=request.max_buffers if max_buffers is None else max_buffers,
        )
    )


def request_tcm(binary: int, tensors: tuple[TcmTensor, ...], alignment: TcmAlignment) -> TcmRequest:
    """Return a request with the documented limits of the pool."""
    pool = tcm_pool()
    return TcmRequest(binary, tensors, alignment, pool.size, pool.max_allocations)
