"""Checks whether a model binary and the IO of its graphs fit TCM, and finds changes that help.

`planner.tcm_pool` plans the layout for one graph of a binary, for some graphs or for all of them. A
change is judged by planning again with the changed allocations, so its effect is exact.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import combinations

from msgspec import Struct

from qnnmem.lpai.compiled import CompiledContext, CompiledGraph
from qnnmem.lpai.profiles import ALIGNMENTS
from qnnmem.planner.tcm_pool import (
    BINARY,
    TcmAlignment,
    TcmRequest,
    TcmTensor,
    TcmVerdict,
    judge,
    request_tcm,
)
from qnnmem.text import quote

DEFAULT_ALIGNMENT = TcmAlignment(*ALIGNMENTS["default"])

_Change = Callable[[TcmRequest], Iterator[tuple[str, TcmRequest]]]


class BinaryTcm(Struct, frozen=True):
    """Verdicts on whether a binary fits TCM: each graph alone, and all graphs in one run.

    A graph without a program has no verdict, because the binary lacks its constants.
    """

    graphs: tuple[TcmVerdict | None, ...]  # in the order of the binary
    together: TcmVerdict | None  # None if no graph has a program


def judge_graphs(
    graphs: Sequence[CompiledGraph],
    binary_bytes: int,
    alignment: TcmAlignment = DEFAULT_ALIGNMENT,
) -> TcmVerdict:
    """Return the verdict on whether these graphs of a binary fit TCM in one run."""
    return judge(request_of(graphs, binary_bytes, alignment))


def judge_binary(
    context: CompiledContext,
    binary_bytes: int,
    alignment: TcmAlignment = DEFAULT_ALIGNMENT,
) -> BinaryTcm:
    """Return verdicts on whether graphs of a binary fit TCM, each alone and all together."""
    programs = [graph for graph in context.graphs if graph.program]
    alone = tuple(
        judge_graphs([graph], binary_bytes, alignment) if graph.program else None
        for graph in context.graphs
    )
    return BinaryTcm(alone, judge_graphs(programs, binary_bytes, alignment) if programs else None)


def judge_binaries(
    binaries: Sequence[tuple[str, int]], graphs: Sequence[CompiledGraph]
) -> TcmVerdict:
    """Return the verdict on whether several binaries and the IO of their graphs fit TCM together.

    `binaries` are pairs of a name and a size in bytes.
    """
    (_, first), *others = binaries
    request = request_of(graphs, first)
    more = tuple(TcmTensor(name, size, BINARY) for name, size in others)
    return judge(replace(request, tensors=(*more, *request.tensors)))


def request_of(
    graphs: Sequence[CompiledGraph],
    binary_bytes: int,
    alignment: TcmAlignment = DEFAULT_ALIGNMENT,
) -> TcmRequest:
    """Return the TCM request of a run; labels contain graph names if there are several graphs."""
    several = len(graphs) > 1
    tensors = tuple(
        tensor for graph in graphs for tensor in _tensors(graph, graph.name if several else "")
    )
    return request_tcm(binary_bytes, tensors, alignment)


def _tensors(graph: CompiledGraph, owner: str) -> Iterator[TcmTensor]:
    for kind, names in (("input", graph.inputs), ("output", graph.outputs)):
        for name in names:
            tensor = graph.model.tensors[name]
            shown = f"{owner}/{name}" if owner else name
            yield TcmTensor(shown, tensor.nbytes, kind, tensor.dtype.bits, owner)


class TcmChange(Struct, frozen=True):
    """A change, or a combination of changes, and how many bytes of the pool it saves."""

    what: str
    saves: int
    sufficient: bool


class TcmAccount(Struct, frozen=True):
    """A verdict, and changes that would reduce the request."""

    verdict: TcmVerdict
    changes: tuple[TcmChange, ...]

    @property
    def advice(self) -> str:
        """The recommended change, in a sentence."""
        enough = [change.what for change in self.changes if change.sufficient]
        if self.verdict.fits:
            return "everything fits; no change is needed"
        if not enough:
            return "no known change is enough; use mem_type ddr"
        if all(" + " in what for what in enough):
            what = "no single change is enough, but together these are"
            return f"{what}: {enough[0]}; or use mem_type ddr"
        return f"any one of these is enough: {'; or '.join(enough)}; or mem_type ddr"


def explain_tcm(request: TcmRequest) -> TcmAccount:
    """Return the verdict on a request, with possible changes if the request does not fit."""
    verdict = judge(request)
    return TcmAccount(verdict, () if verdict.fits else _changes(request))


def _changes(request: TcmRequest) -> tuple[TcmChange, ...]:
    """Return possible changes to a request; those that make it fit come first.

    If no single change makes it fit, the smallest combination that does comes first.
    """
    changed = [change for kind in _KINDS for change in kind(request)]
    singles = [_saving(what, request, new) for what, new in changed]
    singles += _smaller_binary("", request, request)
    singles.sort(key=lambda change: not change.sufficient)  # stable: otherwise in the order above
    if any(change.sufficient for change in singles):
        return tuple(singles)
    return (*_combined(request), *singles)


def _combined(request: TcmRequest) -> tuple[TcmChange, ...]:
    """Return the smallest combination of changes that makes the request fit; empty if none does."""
    for count in range(1, len(_KINDS) + 1):
        for chosen in combinations(_KINDS, count):
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
    """Return a change that makes the binary just small enough to fit; empty if impossible."""
    low, high = 0, request.binary  # bisection: a smaller binary never needs more
    if not _fits(replace(request, binary=low)):
        return []
    while low < high:
        middle = (low + high + 1) // 2
        fits = _fits(replace(request, binary=middle))
        low, high = (middle, high) if fits else (low, middle - 1)
    if low == 0:  # no model is that small
        return []
    what = f"{prefix}a model binary that is smaller by {request.binary - low:,} bytes"
    return [_saving(what, before, replace(request, binary=low))]


def _narrower(request: TcmRequest) -> Iterator[tuple[str, TcmRequest]]:
    """Yield changes that narrow IO to 16 or 8 bits, each with the changed request."""
    for bits in (16, 8):
        if any(tensor.bits > bits for tensor in request.tensors):
            tensors = tuple(
                replace(tensor, size=-(-tensor.size * bits // tensor.bits), bits=bits)
                if tensor.bits > bits
                else tensor
                for tensor in request.tensors
            )
            yield f"inputs and outputs of {bits}-bit elements", replace(request, tensors=tensors)


def _fewer_tensors(request: TcmRequest) -> Iterator[tuple[str, TcmRequest]]:
    """Yield changes that drop an output or an input, each with the changed request.

    The dropped tensor is the smallest one without which the request fits. If dropping one tensor
    is never enough, the largest tensor is dropped.
    """
    for kind in ("output", "input"):
        # Each graph needs an input and an output.
        spare = [t for group in _groups(request, kind) if len(group) > 1 for t in group]
        if spare:
            chosen = _least(request, [[tensor] for tensor in spare])
            yield f"the model without {chosen[0].label}", _without(request, chosen)


def _fewer_graphs(request: TcmRequest) -> Iterator[tuple[str, TcmRequest]]:
    """Yield the change that drops a graph, with the changed request.

    The dropped graph is the smallest one without which the request fits. If dropping one graph
    is never enough, the largest graph is dropped.
    """
    graphs = list(dict.fromkeys(tensor.graph for tensor in request.tensors))
    if len(graphs) > 1:
        chosen = _least(request, [[t for t in request.tensors if t.graph == g] for g in graphs])
        yield f"a run without graph {quote(chosen[0].graph)}", _without(request, chosen)


def _least(request: TcmRequest, choices: list[list[TcmTensor]]) -> list[TcmTensor]:
    """Return the smallest group without which the request fits, else the largest group."""
    ordered = sorted(choices, key=lambda tensors: sum(tensor.size for tensor in tensors))
    first = bisect_left(ordered, True, key=lambda tensors: _fits(_without(request, tensors)))
    return ordered[min(first, len(ordered) - 1)]


def _without(request: TcmRequest, dropped: Sequence[TcmTensor]) -> TcmRequest:
    ids = {id(tensor) for tensor in dropped}  # equal tensors are separate allocations
    return replace(request, tensors=tuple(t for t in request.tensors if id(t) not in ids))


def _joined(request: TcmRequest) -> Iterator[tuple[str, TcmRequest]]:
    """Yield changes that join tensors into one allocation, each with the changed request."""
    excess = 1 + len(request.tensors) - request.max_buffers.value
    if excess <= 0:
        return
    groups = [group for kind in ("input", "output") for group in _groups(request, kind)]
    for group in groups:
        small = sorted(group, key=lambda tensor: tensor.size)[: excess + 1]
        if len(small) > excess:
            of = f" of {quote(group[0].graph)}" if group[0].graph else ""
            rest = _without(request, small).tensors
            what = f"the {len(small)} smallest {group[0].kind}s{of} joined into one"
            yield what, replace(request, tensors=(*rest, _join(small)))
    each = " of each graph" if len(groups) > 2 else ""
    what = f"all inputs{each} joined into one, all outputs{each} joined into one"
    yield what, replace(request, tensors=tuple(map(_join, groups)))


def _groups(request: TcmRequest, kind: str) -> list[list[TcmTensor]]:
    """Return the tensors of one kind, grouped by graph."""
    groups: dict[str, list[TcmTensor]] = {}
    for tensor in request.tensors:
        if tensor.kind == kind:
            groups.setdefault(tensor.graph, []).append(tensor)
    return list(groups.values())


def _join(tensors: Sequence[TcmTensor]) -> TcmTensor:
    first = tensors[0]
    size = sum(tensor.size for tensor in tensors)
    return TcmTensor("joined", size, first.kind, graph=first.graph)


_KINDS: tuple[_Change, ...] = (_fewer_graphs, _narrower, _fewer_tensors, _joined)
