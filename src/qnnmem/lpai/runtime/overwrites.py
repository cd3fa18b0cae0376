"""Who owns each byte of a pool at each step: finds plans that write onto what is still needed.

    each step: the tensors it writes take their bytes
        bytes of a tensor that is still needed are lost: a collision
        unless both are meant to be the same bytes: a view, an element-wise op over an input that
        dies there, a new state over the old one that no op reads any more

Lifetimes are taken from the ops themselves, not from the plan: a plan with a wrong idea of how long
a tensor lives is caught as well.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from qnnmem.ir import Effect, Op
from qnnmem.lpai.compiled import CompiledGraph
from qnnmem.planner import Pool


@dataclass(frozen=True, slots=True)
class Collision:
    """A tensor that loses bytes to another while it is still needed."""

    victim: str
    writer: str
    op: str
    pool: Pool
    offset: int  # first byte lost, within the pool
    size: int  # bytes lost


def collisions(graph: CompiledGraph) -> Iterator[Collision]:
    """Every overwriting of live bytes in one execution, in order."""
    return _ByteOwners(graph).walk()


def last_uses(graph: CompiledGraph) -> dict[str, int]:
    """The last step that needs each tensor; state and outputs are needed after the end."""
    model = graph.model
    last: dict[str, int] = dict.fromkeys(model.inputs, -1)
    for step, op in enumerate(model.ops):
        last.update(dict.fromkeys((*op.inputs, *op.outputs), step))
    kept = (*model.outputs, *(old for old, _ in graph.states))
    last.update(dict.fromkeys(kept, len(model.ops)))
    return last


class _ByteOwners:
    def __init__(self, graph: CompiledGraph) -> None:
        self.graph = graph
        self.places = graph.places()
        self.tensors = graph.model.tensors
        self.last = last_uses(graph)
        self.old_states = {old for old, _ in graph.states}
        self.read_until = {n: s for s, op in enumerate(graph.model.ops) for n in op.inputs}
        self.buffer = {name: buffer.name for name, buffer in graph.buffer_of.items()}
        self.origin: dict[str, str] = {}  # what a view shows
        self.live: dict[str, tuple[int, int]] = {}

    def walk(self) -> Iterator[Collision]:
        for name in self.graph.model.inputs:
            yield from self._write(name, -1, None)
        self._drop_dead(-1)  # inputs that no op reads
        for step, op in enumerate(self.graph.model.ops):
            if op.effect is Effect.VIEW and op.inputs and op.outputs:
                source = op.inputs[0]
                self.origin[op.outputs[0]] = self.origin.get(source, source)
            for name in op.outputs:
                yield from self._write(name, step, op)
            self._drop_dead(step)

    def _drop_dead(self, step: int) -> None:
        for name in [name for name in self.live if self.last.get(name, -1) <= step]:
            del self.live[name]

    def _write(self, name: str, step: int, op: Op | None) -> Iterator[Collision]:
        place = self.places.get(name)
        if place is None or not self.tensors[name].nbytes:
            return
        start, end = place.offset, place.offset + self.tensors[name].nbytes
        for other, (low, high) in list(self.live.items()):
            apart = self.places[other].pool is not place.pool or end <= low or high <= start
            if other == name or apart:
                continue
            if self._replaces(name, other, step):
                del self.live[other]
            elif op is None or not self._shares(name, other, step, op):
                who = op.name if op is not None else "the application"
                first = max(low, start)
                yield Collision(other, name, who, place.pool, first, min(high, end) - first)
        self.live[name] = (start, end)

    def _replaces(self, name: str, other: str, step: int) -> bool:
        """Whether a new state takes the place of the old one, which no op reads any more."""
        together = self.buffer[name] == self.buffer[other]
        return together and other in self.old_states and self.read_until.get(other, -1) < step

    def _shares(self, name: str, other: str, step: int, op: Op) -> bool:
        if self.places[name] != self.places[other]:
            return False
        root = self.origin.get(other, other)
        if op.effect is Effect.VIEW:
            return self.origin.get(name, name) == root
        roots = {self.origin.get(source, source) for source in op.inputs}
        return op.effect is Effect.ELEMENTWISE and root in roots and self.last[other] <= step
