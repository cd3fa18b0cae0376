"""What takes the room in the TCM pool, and which changes would make everything fit.

Every suggestion is checked by laying the changed allocations out again, so a change that is called
enough is enough.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from qnnmem.errors import UsageError
from qnnmem.lpai.compiled import CompiledGraph
from qnnmem.targets import tcm_pool
from qnnmem.text import quote
from qnnmem.units import MAX_BYTES, round_up

_BINARY = "model binary"


@dataclass(frozen=True, slots=True)
class TcmRow:
    """One allocation: its bytes, what rounding adds, and where the pool stands after it."""

    what: str
    exact: int
    rounded: int
    padding: int  # rounding and, where the start alignment is larger, the gap before it
    running_total: int
    fits: bool


@dataclass(frozen=True, slots=True)
class Cure:
    """A change, or several together, and the bytes the pool then saves."""

    what: str
    saves: int
    sufficient: bool


@dataclass(frozen=True, slots=True)
class TcmBill:
    """The whole account of the pool."""

    rows: tuple[TcmRow, ...]
    total: int
    limit: int
    max_allocations: int
    cures: tuple[Cure, ...]

    @property
    def allocations(self) -> int:
        """Allocations asked for."""
        return len(self.rows)

    @property
    def missing(self) -> int:
        """Bytes the pool is short of."""
        return max(0, self.total - self.limit)

    @property
    def fits(self) -> bool:
        """Whether bytes and number of allocations are both within the pool."""
        return not self.missing and self.allocations <= self.max_allocations

    @property
    def first_failure(self) -> TcmRow | None:
        """The allocation at which initialisation would fail."""
        return next((row for row in self.rows if not row.fits), None)

    @property
    def advice(self) -> str:
        """What to do, in one sentence."""
        enough = [cure.what for cure in self.cures if cure.sufficient]
        if self.fits:
            return "everything fits, nothing needs to change"
        if not enough:
            return "no change of the known ones is enough; use mem_type ddr"
        if all(" + " in what for what in enough):
            return f"no single change is enough: {enough[0]}"
        return f"enough by itself: {'; or '.join(enough)}"


@dataclass(frozen=True, slots=True)
class _Io:
    name: str
    size: int
    kind: str  # "input" or "output"
    bits: int  # of one element; 0 where not known

    @property
    def label(self) -> str:
        return f"{self.kind} {quote(self.name)}"


@dataclass(frozen=True, slots=True)
class _Ask:
    binary: int
    io: tuple[_Io, ...]
    start: int
    unit: int
    limit: int
    most: int

    def rows(self) -> Iterator[TcmRow]:
        cursor = 0
        sizes = [(_BINARY, self.binary), *((io.label, io.size) for io in self.io)]
        for number, (what, exact) in enumerate(sizes, 1):
            rounded = round_up(exact, self.unit)
            end = round_up(cursor, self.start) + rounded
            fits = end <= self.limit and number <= self.most
            yield TcmRow(what, exact, rounded, end - cursor - exact, end, fits)
            cursor = end

    @property
    def total(self) -> int:
        return max(row.running_total for row in self.rows())

    @property
    def fits(self) -> bool:
        return all(row.fits for row in self.rows())


_Maker = Callable[[_Ask], Iterator[tuple[str, _Ask]]]


def explain_tcm(
    binary_bytes: int,
    inputs: Iterable[tuple[str, int]],
    outputs: Iterable[tuple[str, int]],
    start_alignment: int = 64,
    size_alignment: int = 64,
    *,
    io_bits: Mapping[str, int] | None = None,
    limit: int | None = None,
    max_allocations: int | None = None,
) -> TcmBill:
    """The account of a model in TCM; `io_bits` (element width by name) allows more suggestions."""
    bits, facts = io_bits or {}, tcm_pool()
    ask = _Ask(
        binary_bytes,
        tuple(
            _Io(name, size, kind, bits.get(name, 0))
            for kind, tensors in (("input", inputs), ("output", outputs))
            for name, size in tensors
        ),
        start_alignment,
        size_alignment,
        facts.size.value if limit is None else limit,
        facts.max_allocations.value if max_allocations is None else max_allocations,
    )
    if min(ask.binary, *(io.size for io in ask.io), 0) < 0 or ask.binary > MAX_BYTES:
        raise UsageError("sizes of model binary, inputs and outputs are numbers of bytes")
    rows = tuple(ask.rows())
    return TcmBill(rows, ask.total, ask.limit, ask.most, () if ask.fits else _cures(ask))


def _cures(ask: _Ask) -> tuple[Cure, ...]:
    """Single changes, the sufficient ones first; where none is enough, the smallest combination."""
    changes = [*_narrower(ask), *_without(ask), *_joined(ask)]
    singles = [Cure(what, ask.total - new.total, new.fits) for what, new in changes]
    singles += _smaller_binary("", ask, ask)
    singles.sort(key=lambda cure: not cure.sufficient)  # stable: otherwise in the order above
    if any(cure.sufficient for cure in singles):
        return tuple(singles)
    return (*_combined(ask), *singles)


def _combined(ask: _Ask) -> tuple[Cure, ...]:
    """The first pair, then three changes together, that is enough."""
    makers = (_narrower, _joined, _without)
    for count in (1, 2, 3):
        for chosen in combinations(makers, count):
            for what, new in _chain(ask, chosen):
                if new.fits:
                    return (Cure(what, ask.total - new.total, True),)
                if shrunk := _smaller_binary(f"{what} + ", ask, new):
                    return tuple(shrunk)
    return ()


def _chain(ask: _Ask, makers: Sequence[_Maker]) -> Iterator[tuple[str, _Ask]]:
    for what, new in makers[0](ask):
        if len(makers) == 1:
            yield what, new
        else:
            yield from ((f"{what} + {more}", last) for more, last in _chain(new, makers[1:]))


def _smaller_binary(prefix: str, before: _Ask, ask: _Ask) -> list[Cure]:
    """The binary smaller by just enough bytes, if that is possible at all."""
    low, high = 0, ask.binary  # bisection: a smaller binary never needs more
    if not replace(ask, binary=low).fits:
        return []
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if replace(ask, binary=middle).fits else (low, middle - 1)
    if low == 0:  # a model of no bytes is no model
        return []
    smaller = replace(ask, binary=low)
    what = f"{prefix}a model binary smaller by {ask.binary - low:,} bytes"
    return [Cure(what, before.total - smaller.total, True)]


def _narrower(ask: _Ask) -> Iterator[tuple[str, _Ask]]:
    """IO of 16 bits or 8 bits in place of wider elements."""
    for bits in (16, 8):
        if any(io.bits > bits for io in ask.io):
            io = tuple(_at(io, bits) if io.bits > bits else io for io in ask.io)
            yield f"inputs and outputs of {bits}-bit elements", replace(ask, io=io)


def _at(io: _Io, bits: int) -> _Io:
    return replace(io, size=-(-io.size * bits // io.bits), bits=bits)


def _without(ask: _Ask) -> Iterator[tuple[str, _Ask]]:
    """The model without one output or input: the smallest that is enough, else the largest."""

    def less(io: _Io) -> _Ask:
        return replace(ask, io=tuple(other for other in ask.io if other is not io))

    for kind in ("output", "input"):
        tensors = sorted((io for io in ask.io if io.kind == kind), key=lambda io: io.size)
        if len(tensors) > 1:  # something must go in and something must come out
            found = bisect_left(tensors, True, key=lambda io: less(io).fits)
            chosen = tensors[min(found, len(tensors) - 1)]
            yield f"the model without {chosen.label}", less(chosen)


def _joined(ask: _Ask) -> Iterator[tuple[str, _Ask]]:
    """Tensors joined into one, where there are too many allocations."""
    excess = 1 + len(ask.io) - ask.most
    if excess <= 0:
        return
    by_kind = {kind: [io for io in ask.io if io.kind == kind] for kind in ("input", "output")}
    for kind, tensors in by_kind.items():
        small = sorted(tensors, key=lambda io: io.size)[: excess + 1]
        if len(small) > excess:
            joined = {id(io) for io in small}
            rest = (io for io in ask.io if id(io) not in joined)
            what = f"the {len(small)} smallest {kind}s joined into one"
            yield what, replace(ask, io=(*rest, _join(kind, small)))
    both = tuple(_join(kind, tensors) for kind, tensors in by_kind.items())
    yield "all inputs joined into one, all outputs joined into one", replace(ask, io=both)


def _join(kind: str, tensors: Iterable[_Io]) -> _Io:
    return _Io("joined", sum(io.size for io in tensors), kind, 0)


def bill_graph(
    graph: CompiledGraph, binary_bytes: int, start_alignment: int = 64, size_alignment: int = 64
) -> TcmBill:
    """The account of one graph of a binary of that many bytes."""
    tensors = graph.model.tensors
    return explain_tcm(
        binary_bytes,
        [(name, tensors[name].nbytes) for name in graph.inputs],
        [(name, tensors[name].nbytes) for name in graph.outputs],
        start_alignment,
        size_alignment,
        io_bits={name: tensors[name].dtype.bits for name in (*graph.inputs, *graph.outputs)},
    )
