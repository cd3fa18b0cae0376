"""Looks at memory between any two ops of one execution.

scratch is filled with poison, except for the inputs
before an op: what it reads must be what was written, bit for bit
              where it writes, poison must be untouched
after an op:  what no later op needs is poisoned again
at the end:   all poison must be untouched
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from qnnmem.ir import Op
from qnnmem.lpai.compiled import CompiledGraph
from qnnmem.lpai.heap import POISON
from qnnmem.lpai.rules import finding
from qnnmem.lpai.shadow import Collision, last_uses
from qnnmem.plan import Pool
from qnnmem.qnn.finding import Finding

if TYPE_CHECKING:
    from numpy.typing import NDArray

# One wrong tensor makes all that follow wrong: more findings than this tell nothing new.
MAX_FINDINGS = 20


def describe(collision: Collision) -> Finding:
    """A collision of the plan as a broken rule."""
    sentence = (
        f"op {collision.op[:80]!r} writes {collision.writer[:80]!r} over {collision.size:,} bytes "
        f"of {collision.victim[:80]!r}, which is still needed, at offset {collision.offset:,} of "
        f"{collision.pool.value}"
    )
    return finding("X1", sentence, buffer=collision.pool.value)


class Sanitizer:
    """Watches one execution, op by op."""

    def __init__(
        self, graph: CompiledGraph, scratch: NDArray[Any], views: Mapping[str, NDArray[Any]]
    ) -> None:
        import numpy

        self._graph, self._scratch, self._views = graph, scratch, views
        self._last = last_uses(graph)
        self._inside = {n for n, p in graph.places().items() if p.pool is Pool.SCRATCH}
        self._poisoned = numpy.zeros(scratch.size, bool)
        self._sums: dict[str, int] = {}
        self._base = scratch.__array_interface__["data"][0]
        self.findings: list[Finding] = []

    def begin(self) -> None:
        """Poison all of scratch but the inputs, and remember those."""
        inputs = [name for name in self._graph.model.inputs if name in self._views]
        self._poisoned[:] = True
        for name in inputs:
            self._sums[name] = _sum(self._views[name])
            self._poisoned[self._range(name)] = False
        self._scratch[self._poisoned] = POISON

    def before(self, op: Op) -> None:
        """Check what an op is about to read and where it is about to write."""
        for name in op.inputs:
            if name in self._sums and self._sums[name] != _sum(self._views[name]):
                self._sums[name] = _sum(self._views[name])
                self._note("X1", f"{name[:80]!r} changed before op {op.name[:80]!r} read it", name)
        for name in op.outputs:
            if name in self._views:
                self._check(self._range(name), f"before op {op.name[:80]!r} wrote {name[:80]!r}")
                self._poisoned[self._range(name)] = False

    def after(self, step: int, op: Op) -> None:
        """Remember what was written and poison what died."""
        for name in op.outputs:
            if name in self._views:
                self._sums[name] = _sum(self._views[name])
        dead = [name for name in self._sums if self._last.get(name, -1) <= step]
        for name in dead:
            del self._sums[name]
        for name in dead:
            if name in self._inside:
                self._bury(name)

    def end(self) -> None:
        """Check outputs and every poisoned byte."""
        for name in self._graph.model.outputs:
            if name in self._sums and self._sums[name] != _sum(self._views[name]):
                self._note("X1", f"output {name[:80]!r} changed before the end", name)
        self._check(slice(0, self._scratch.size), "during the execution")

    def _range(self, name: str) -> slice:
        """Bytes of a tensor in scratch; empty for one that lies elsewhere."""
        view = self._views[name]
        start = view.__array_interface__["data"][0] - self._base
        inside = name in self._inside and 0 <= start <= self._scratch.size - view.size
        return slice(start, start + view.size) if inside else slice(0, 0)

    def _bury(self, name: str) -> None:
        """Poison the bytes of a dead tensor that no live one shares."""
        import numpy

        where = self._range(name)
        free = numpy.ones(where.stop - where.start, bool)
        for other in self._sums:
            if other in self._inside:
                taken = self._range(other)
                low, high = max(taken.start, where.start), min(taken.stop, where.stop)
                if low < high:
                    free[low - where.start : high - where.start] = False
        self._scratch[where][free] = POISON
        self._poisoned[where] |= free

    def _check(self, where: slice, when: str) -> None:
        touched = self._poisoned[where] & (self._scratch[where] != POISON)
        if touched.any():
            offset = where.start + int(touched.argmax())
            sentence = (
                f"{int(touched.sum()):,} bytes of scratch that no tensor owns were written {when}, "
                f"the first at offset {offset:,}"
            )
            if len(self.findings) < MAX_FINDINGS:
                at = self._base + offset
                self.findings.append(finding("X3", sentence, buffer="scratch", address=at))
            self._poisoned[where] &= ~touched

    def _note(self, rule: str, sentence: str, name: str) -> None:
        if len(self.findings) < MAX_FINDINGS:
            address = self._views[name].__array_interface__["data"][0]
            self.findings.append(finding(rule, sentence, buffer=name[:80], address=address))


def _sum(view: NDArray[Any]) -> int:
    return zlib.crc32(view.data)
