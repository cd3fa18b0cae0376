"""Sanitizer that detects writes to memory that is still needed, in the plan and at run time.

Check of the plan, before an execution:

  each step: the tensors that the step writes occupy their bytes
    if they overwrite a tensor that is still needed, this is a collision
      unless the two may share bytes: a view; an element-wise op that writes over its input, which
      no later op reads; a new state over its old state, which no later op reads

Check of an execution:

  scratch is filled with poison, except for the inputs
  before an op: its inputs must still hold the bytes that were written
                its outputs must lie on intact poison and on no tensor that is still needed
  after an op:  tensors that no later op needs are filled with poison
  at the end:   all poison must be intact

Lifetimes come from the ops, not from the plan, so that a plan with wrong lifetimes is detected too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from qnnmem.contract.regions import array_address
from qnnmem.contract.rules import finding
from qnnmem.finding import Finding
from qnnmem.ir import Effect, Op
from qnnmem.lpai.compiled import CompiledGraph
from qnnmem.lpai.runtime.heap import POISON, checksum
from qnnmem.planner import Pool

if TYPE_CHECKING:
    from numpy.typing import NDArray


# A wrong tensor corrupts all later tensors: more findings than this add nothing.
MAX_FINDINGS = 20
_PIECE = 1 << 20  # bytes of scratch compared at a time, as a comparison needs as much memory again


@dataclass(frozen=True, slots=True)
class Collision:
    """A tensor that is overwritten by another tensor while the first is still needed."""

    victim: str
    writer: str
    op: str
    pool: Pool
    offset: int  # first lost byte, within the pool
    size: int  # number of lost bytes


def collisions(graph: CompiledGraph) -> Iterator[Collision]:
    """Yield every write that overwrites a tensor that is still needed, in execution order."""
    return _ByteOwners(graph).walk()


def last_uses(graph: CompiledGraph) -> dict[str, int]:
    """For each tensor, return the last step that needs it.

    State and outputs are needed after the last step.
    """
    model = graph.model
    last: dict[str, int] = dict.fromkeys(model.inputs, -1)
    for step, op in enumerate(model.ops):
        last.update(dict.fromkeys((*op.inputs, *op.outputs), step))
    needed_after = (*model.outputs, *(old for old, _ in graph.states))
    last.update(dict.fromkeys(needed_after, len(model.ops)))
    return last


class _ByteOwners:
    def __init__(self, graph: CompiledGraph) -> None:
        self.graph = graph
        self.buffer_of = graph.buffer_of
        self.tensors = graph.model.tensors
        self.last = last_uses(graph)
        self.old_states = {old for old, _ in graph.states}
        self.read_until = {n: s for s, op in enumerate(graph.model.ops) for n in op.inputs}
        self.origin: dict[str, str] = {}  # the tensor whose bytes a view shares
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
        buffer = self.buffer_of.get(name)
        if buffer is None or not self.tensors[name].nbytes:
            return
        start, end = buffer.offset, buffer.offset + self.tensors[name].nbytes
        for other, (low, high) in list(self.live.items()):
            apart = self.buffer_of[other].pool is not buffer.pool or end <= low or high <= start
            if other == name or apart:
                continue
            if self._replaces(name, other, step):
                del self.live[other]
            elif op is None or not self._shares(name, other, step, op):
                writer = op.name if op is not None else "the application"
                first = max(low, start)
                yield Collision(other, name, writer, buffer.pool, first, min(high, end) - first)
        self.live[name] = (start, end)

    def _replaces(self, name: str, other: str, step: int) -> bool:
        """Return whether a new state replaces its old state, which no later op reads."""
        together = self.buffer_of[name].name == self.buffer_of[other].name
        return together and other in self.old_states and self.read_until.get(other, -1) < step

    def _shares(self, name: str, other: str, step: int, op: Op) -> bool:
        buffer, other_buffer = self.buffer_of[name], self.buffer_of[other]
        if (buffer.pool, buffer.offset) != (other_buffer.pool, other_buffer.offset):
            return False
        root = self.origin.get(other, other)
        if op.effect is Effect.VIEW:
            return self.origin.get(name, name) == root
        roots = {self.origin.get(source, source) for source in op.inputs}
        return op.effect is Effect.ELEMENTWISE and root in roots and self.last[other] <= step


def describe(collision: Collision) -> Finding:
    """Return the finding for a collision in the plan."""
    sentence = (
        f"op {collision.op[:80]!r} writes {collision.writer[:80]!r} over "
        f"{collision.size:,} bytes of {collision.victim[:80]!r}, which is still in use, at "
        f"offset {collision.offset:,} of {collision.pool.value}"
    )
    return finding("X1", sentence, buffer=collision.pool.value)


class Sanitizer:
    """Checks memory during an execution, op by op."""

    def __init__(
        self, graph: CompiledGraph, scratch: NDArray[Any], views: Mapping[str, NDArray[Any]]
    ) -> None:
        self._graph, self._scratch, self._views = graph, scratch, views
        self._last = last_uses(graph)
        self._inside = {n for n, b in graph.buffer_of.items() if b.pool is Pool.SCRATCH}
        self._sums: dict[str, int] = {}
        self._owned: dict[str, slice] = {}  # scratch of live tensors; the rest is poison
        self._base = array_address(scratch)
        self.findings: list[Finding] = []

    def begin(self) -> None:
        """Fill scratch with poison, except for the inputs, and record checksums of the inputs."""
        inputs = [n for n in self._graph.model.inputs if n in self._views and self._last[n] >= 0]
        for name in inputs:
            self._sums[name] = checksum(self._views[name])
            self._owned[name] = self._range(name)
        for gap in self._gaps(slice(0, self._scratch.size)):
            self._scratch[gap] = POISON

    def before(self, step: int, op: Op) -> None:
        """Check the inputs of an op and the memory that it is about to write."""
        for name in op.inputs:
            if name in self._sums and self._sums[name] != checksum(self._views[name]):
                self._sums[name] = checksum(self._views[name])
                self._note("X1", f"{name[:80]!r} changed before op {op.name[:80]!r} read it", name)
        for name in op.outputs:
            if name in self._views:
                where = self._range(name)
                self._check(where, f"before op {op.name[:80]!r} wrote {name[:80]!r}")
                self._check_owners(step, op, name, where)
                self._owned[name] = where

    def after(self, step: int, op: Op) -> None:
        """Record checksums of written tensors; poison tensors that are no longer needed."""
        for name in op.outputs:
            if name in self._views:
                self._sums[name] = checksum(self._views[name])
        dead = [name for name in self._sums if self._last.get(name, -1) <= step]
        freed = [self._owned.pop(name) for name in dead]
        for name in dead:
            del self._sums[name]
        for region in freed:
            for gap in self._gaps(region):
                self._scratch[gap] = POISON

    def end(self) -> None:
        """Check that the outputs and all poison are unchanged."""
        for name in self._graph.model.outputs:
            if name in self._sums and self._sums[name] != checksum(self._views[name]):
                self._note("X1", f"output {name[:80]!r} changed before the execution ended", name)
        self._check(slice(0, self._scratch.size), "during the execution")

    def _range(self, name: str) -> slice:
        """Return the byte range of a tensor in scratch; empty if the tensor is elsewhere."""
        view = self._views[name]
        start = array_address(view) - self._base
        inside = name in self._inside and 0 <= start <= self._scratch.size - view.size
        return slice(start, start + view.size) if inside else slice(0, 0)

    def _check_owners(self, step: int, op: Op, name: str, where: slice) -> None:
        """Report X1 if a live tensor occupies the bytes; views and writes in place are allowed."""
        for other, taken in self._owned.items():
            size = min(where.stop, taken.stop) - max(where.start, taken.start)
            if size <= 0 or other == name:
                continue
            dies = self._last.get(other, -1) <= step
            fits = op.effect is Effect.VIEW or (op.effect is Effect.ELEMENTWISE and dies)
            if not fits or where.start != taken.start:
                victim = f"{size:,} bytes of {other[:80]!r}, which is still in use"
                self._note("X1", f"op {op.name[:80]!r} writes {name[:80]!r} over {victim}", name)

    def _gaps(self, where: slice) -> Iterator[slice]:
        """Yield the ranges of `where` that no live tensor occupies."""
        position = where.start
        spans = sorted((s.start, s.stop) for s in self._owned.values())
        for start, stop in spans:
            if stop <= position:
                continue
            if start >= where.stop:
                break
            if start > position:
                yield slice(position, start)
            position = stop
        if position < where.stop:
            yield slice(position, where.stop)

    def _check(self, where: slice, when: str) -> None:
        written = []
        for gap in self._gaps(where):
            for start in range(gap.start, gap.stop, _PIECE):
                piece = slice(start, min(start + _PIECE, gap.stop))
                touched = self._scratch[piece] != POISON
                if touched.any():
                    written.append((start + int(touched.argmax()), int(touched.sum())))
                    self._scratch[piece] = POISON  # so that it is reported once
        if written and len(self.findings) < MAX_FINDINGS:
            offset, size = written[0][0], sum(count for _, count in written)
            sentence = (
                f"{size:,} bytes of scratch outside all tensors were written {when}, the "
                f"first at offset {offset:,}"
            )
            address = self._base + offset
            self.findings.append(finding("X3", sentence, buffer="scratch", address=address))

    def _note(self, rule: str, sentence: str, name: str) -> None:
        if len(self.findings) < MAX_FINDINGS:
            address = array_address(self._views[name])
            self.findings.append(finding(rule, sentence, buffer=name[:80], address=address))
