"""Changes that would make everything fit the TCM pool.

Every change is judged by laying the changed allocations out again, so a change that is called
enough is enough.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from qnnmem.lpai.tcm import TcmRequest, TcmTensor, TcmVerdict, judge

_Change = Callable[[TcmRequest], Iterator[tuple[str, TcmRequest]]]


@dataclass(frozen=True, slots=True)
class TcmChange:
    """A change, or several together, and the bytes the pool then saves."""

    what: str
    saves: int
    sufficient: bool


@dataclass(frozen=True, slots=True)
class TcmAccount:
    """A verdict and what would change it."""

    verdict: TcmVerdict
    changes: tuple[TcmChange, ...]

    @property
    def advice(self) -> str:
        """What to do, in one sentence."""
        enough = [change.what for change in self.changes if change.sufficient]
        if self.verdict.fits:
            return "everything fits, nothing needs to change"
        if not enough:
            return "no change of the known ones is enough; use mem_type ddr"
        if all(" + " in what for what in enough):
            return f"no single change is enough: {enough[0]}"
        return f"enough by itself: {'; or '.join(enough)}"


def explain_tcm(request: TcmRequest) -> TcmAccount:
    """The verdict on a request, with changes where it does not fit."""
    verdict = judge(request)
    return TcmAccount(verdict, () if verdict.fits else _changes(request))


def _changes(request: TcmRequest) -> tuple[TcmChange, ...]:
    """Single changes, the sufficient ones first; where none is enough, the smallest combination."""
    changed = [*_narrower(request), *_without(request), *_joined(request)]
    singles = [_saving(what, request, new) for what, new in changed]
    singles += _smaller_binary("", request, request)
    singles.sort(key=lambda change: not change.sufficient)  # stable: otherwise as found above
    if any(change.sufficient for change in singles):
        return tuple(singles)
    return (*_combined(request), *singles)


def _combined(request: TcmRequest) -> tuple[TcmChange, ...]:
    """The first pair, then three changes together, that is enough."""
    kinds = (_narrower, _joined, _without)
    for count in (1, 2, 3):
        for chosen in combinations(kinds, count):
            for what, new in _chain(request, chosen):
                if _fits(new):
                    return (_saving(what, request, new),)
                if shrunk := _smaller_binary(f"{what} + ", request, new):
                    return tuple(shrunk)
    return ()


def _chain(request: TcmRequest, kinds: Sequence[_Change]) -> Iterator[tuple[str, TcmRequest]]:
    for what, new in kinds[0](request):
        if len(kinds) == 1:
            yield what, new
        else:
            yield from ((f"{what} + {more}", last) for more, last in _chain(new, kinds[1:]))


def _saving(what: str, before: TcmRequest, after: TcmRequest) -> TcmChange:
    return TcmChange(what, judge(before).need - judge(after).need, _fits(after))


def _fits(request: TcmRequest) -> bool:
    return all(row.fits for row in request.rows())


def _smaller_binary(prefix: str, before: TcmRequest, request: TcmRequest) -> list[TcmChange]:
    """The binary smaller by just enough bytes, if that is possible at all."""
    low, high = 0, request.binary  # bisection: a smaller binary never needs more
    if not _fits(replace(request, binary=low)):
        return []
    while low < high:
        middle = (low + high + 1) // 2
        fits = _fits(replace(request, binary=middle))
        low, high = (middle, high) if fits else (low, middle - 1)
    if low == 0:  # no model is that small
        return []
    what = f"{prefix}a model binary smaller by {request.binary - low:,} bytes"
    return [_saving(what, before, replace(request, binary=low))]


def _narrower(request: TcmRequest) -> Iterator[tuple[str, TcmRequest]]:
    """IO of 16 bits or 8 bits in place of wider elements."""
    for bits in (16, 8):
        if any(tensor.bits > bits for tensor in request.tensors):
            tensors = tuple(
                _at(tensor, bits) if tensor.bits > bits else tensor for tensor in request.tensors
            )
            yield f"inputs and outputs of {bits}-bit elements", replace(request, tensors=tensors)


def _at(tensor: TcmTensor, bits: int) -> TcmTensor:
    return replace(tensor, size=-(-tensor.size * bits // tensor.bits), bits=bits)


def _without(request: TcmRequest) -> Iterator[tuple[str, TcmRequest]]:
    """The model without one output or input: the smallest that is enough, else the largest."""

    def less(tensor: TcmTensor) -> TcmRequest:
        kept = tuple(other for other in request.tensors if other is not tensor)
        return replace(request, tensors=kept)

    for kind in ("output", "input"):
        tensors = sorted(_of_kind(request, kind), key=lambda tensor: tensor.size)
        if len(tensors) > 1:  # something must go in and something must come out
            found = bisect_left(tensors, True, key=lambda tensor: _fits(less(tensor)))
            chosen = tensors[min(found, len(tensors) - 1)]
            yield f"the model without {chosen.label}", less(chosen)


def _joined(request: TcmRequest) -> Iterator[tuple[str, TcmRequest]]:
    """Tensors joined into one, where there are too many allocations."""
    excess = 1 + len(request.tensors) - request.max_buffers.value
    if excess <= 0:
        return
    for kind in ("input", "output"):
        small = sorted(_of_kind(request, kind), key=lambda tensor: tensor.size)[: excess + 1]
        if len(small) > excess:
            joined = {id(tensor) for tensor in small}
            rest = (tensor for tensor in request.tensors if id(tensor) not in joined)
            what = f"the {len(small)} smallest {kind}s joined into one"
            yield what, replace(request, tensors=(*rest, _join(kind, small)))
    both = tuple(_join(kind, _of_kind(request, kind)) for kind in ("input", "output"))
    yield "all inputs joined into one, all outputs joined into one", replace(request, tensors=both)


def _of_kind(request: TcmRequest, kind: str) -> list[TcmTensor]:
    return [tensor for tensor in request.tensors if tensor.kind == kind]


def _join(kind: str, tensors: Iterable[TcmTensor]) -> TcmTensor:
    return TcmTensor("joined", sum(tensor.size for tensor in tensors), kind)
