"""The pools of a graph: whether they lie apart from everything else, are there and are intact."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any

from qnnmem.contract.rules import finding
from qnnmem.finding import Finding
from qnnmem.lpai.compiled import CompiledGraph
from qnnmem.lpai.runtime.backend import Backend
from qnnmem.lpai.runtime.client_buffer import ClientBuffer
from qnnmem.lpai.runtime.heap import Heap
from qnnmem.lpai.runtime.holdings import Holder, Holding, holders
from qnnmem.lpai.runtime.overwrites import collisions
from qnnmem.lpai.runtime.sanitizer import MAX_FINDINGS, describe
from qnnmem.qnn.enums import MemType

if TYPE_CHECKING:
    from numpy.typing import NDArray

_SET = "QnnGraph_setConfig"
_RULES = {"persistent": "R8", "scratch": "R7"}

Pools = dict[str, ClientBuffer | None]


def check_plan(backend: Backend, compiled: CompiledGraph) -> None:
    """No tensor of the plan lies on another that is still needed, or finalize fails."""
    found = [describe(one) for one in islice(collisions(compiled), MAX_FINDINGS)]
    for one in found[1:]:
        backend.note(one)
    if found:
        backend.fail(6022, found[0])


def check_pools(backend: Backend, graph: str, own: Holder, new: Pools, now: Pools) -> None:
    """New pools share no byte with each other, with the old ones or with what others hold."""
    scratch = new["scratch"] or now["scratch"]
    persistent = new["persistent"] or now["persistent"]
    if scratch is not None and persistent is not None and scratch.overlaps(persistent):
        sentence = "scratch and persistent share bytes, state would not survive an execution"
        backend.fail(6000, finding("X6", sentence, call=_SET, buffer="persistent"))
    for what, buffer in new.items():
        if buffer is not None:
            _check_others(backend, graph, own, what, buffer)


def _check_others(
    backend: Backend, graph: str, own: Holder, what: str, buffer: ClientBuffer
) -> None:
    others = [held for held in holders.touching(buffer) if held.holder is not own]
    for held in others:
        if {what, held.what} not in ({"scratch"}, {"persistent"}):
            sentence = f"{what} of graph {graph[:80]!r} shares bytes with {held.label}"
            found = finding("X8", sentence, call=_SET, buffer=what, address=buffer.address)
            backend.fail(6000, found)
    for held in others:
        shared = _shared(backend, graph, what, held)
        if shared is not None:
            backend.note(shared)


def _shared(backend: Backend, graph: str, what: str, held: Holding) -> Finding | None:
    """Two pools of one kind: nothing is lost at once, so the call succeeds."""
    pair = f"graphs {graph[:80]!r} and {held.owner[:80]!r}"
    if what == "persistent":
        return finding("X5", f"{pair} share persistent memory", call=_SET, buffer=what)
    if backend.profile.shared_scratch:
        return None
    return finding("X8", f"{pair} share bytes of scratch", call=_SET, buffer=what)


def gone(pools: Pools, call: str) -> Iterator[Finding]:
    """Pools that the application let go of."""
    for what, rule in _RULES.items():
        buffer = pools[what]
        if buffer is not None and buffer.is_released:
            sentence = f"{what} was freed while the context lives"
            yield finding(rule, sentence, call=call, buffer=what, address=buffer.address)


def note_gap(backend: Backend, old: ClientBuffer | None) -> None:
    """Scratch that was freed before another one took its place: for a while there was none."""
    if old is not None and old.is_released:
        sentence = "scratch was freed before another one was handed over"
        backend.note(finding("R7", sentence, call=_SET, buffer="scratch", address=old.address))


def overrun(lent: Mapping[str, ClientBuffer | None], call: str) -> Iterator[Finding]:
    """Blocks of heaps past whose ends something was written; one of several pieces is told once."""
    seen: set[int] = set()
    for what, buffer in lent.items():
        made = None if buffer is None else buffer.allocation
        if buffer is None or made is None or made.address in seen:
            continue
        seen.add(made.address)
        whole = made.address == buffer.address and made.size == buffer.size
        block = what if whole else f"the block that {what} is in"
        for side in made.guards_broken():
            yield finding("X2", f"bytes {side} {block} were overwritten", call=call, buffer=what)


def own_pool(name: str, size: int, align: int) -> ClientBuffer:
    """A pool that the runtime allocates itself."""
    return ClientBuffer(Heap(MemType.DDR).allocate(size, max(64, align), name))


def lies_in(start: int, end: int, view: NDArray[Any]) -> bool:
    """Whether addresses from start to end are all of bytes of a view."""
    first: int = view.__array_interface__["data"][0]
    return first <= start and end <= first + view.size
