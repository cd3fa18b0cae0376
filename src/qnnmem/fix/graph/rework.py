"""Models rewritten by onnxruntime's optimiser or onnx's inliner, in a child process.

What they write is read like any file of the user, and keeps the order of nodes: which of all orders
that work is taken decides how many bytes are alive.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from qnnmem.child import ChildProcess
from qnnmem.errors import ChildFailed, LoadError
from qnnmem.fix.graph.rework_program import InlineOps, Optimise
from qnnmem.fix.remedy import FixCase, read_again, self_contained
from qnnmem.loader.onnx.graph import reads
from qnnmem.wire import Done, WireMessage

if TYPE_CHECKING:
    import onnx

    from qnnmem.loader.onnx.passes.shape import ShapedModel

_TIME_LIMIT_S = 300.0


def optimised(case: FixCase, model: ShapedModel, without: Sequence[str]) -> ShapedModel:
    """Return the model after the optimiser's first level, without some of its rules."""
    before = self_contained(model)
    with Reworker() as child:
        return taken_over(case, before, child.optimised(before, without))


def inlined(case: FixCase, model: ShapedModel, kinds: Sequence[str]) -> ShapedModel:
    """Return the model with operators of these kinds replaced by their ONNX definition."""
    before = self_contained(model)
    with Reworker() as child:
        return taken_over(case, before, child.inlined(before, kinds))


def taken_over(case: FixCase, before: onnx.ModelProto, after: onnx.ModelProto) -> ShapedModel:
    """Return a rewritten model with every tensor typed and nodes in their former order."""
    known = {node.domain for node in before.graph.node} | {""}
    if any(node.domain not in known for node in after.graph.node):
        raise ChildFailed("operators were put in that are not of the standard")
    keep_order(before, after)
    try:
        made = read_again(after)
    except LoadError as exc:
        raise ChildFailed(f"the rewritten model cannot be read: {exc.reason}") from exc
    return replace(made, resolved=replace(made.resolved, path=case.path))


def keep_order(before: onnx.ModelProto, after: onnx.ModelProto) -> None:
    """Sort nodes in the order of the nodes they came from, matched by outputs."""
    place = {name: at for at, node in enumerate(before.graph.node) for name in node.output if name}
    nodes = list(after.graph.node)
    maker = {name: at for at, node in enumerate(nodes) for name in node.output if name}
    needs = [{maker[name] for name in reads(node) if name in maker} for node in nodes]
    ranks: list[int] = []
    for node in nodes:  # producers come first in every valid order
        own = [place[name] for name in node.output if name in place]
        sources = (
            ranks[maker[name]] for name in reads(node) if maker.get(name, len(ranks)) < len(ranks)
        )
        ranks.append(min(own) if own else max(sources, default=-1))
    order = _sorted(needs, ranks)
    del after.graph.node[:]
    after.graph.node.extend(nodes[at] for at in order)


def _sorted(needs: Sequence[set[int]], ranks: Sequence[int]) -> list[int]:
    """Return a topological order of positions, the lowest rank first."""
    readers: dict[int, list[int]] = {}
    for at, sources in enumerate(needs):
        for source in sources:
            readers.setdefault(source, []).append(at)
    waits = [len(sources) for sources in needs]
    ready = [(ranks[at], at) for at, left in enumerate(waits) if not left]
    heapq.heapify(ready)
    found = []
    while ready:
        _, at = heapq.heappop(ready)
        found.append(at)
        for reader in readers.get(at, ()):
            waits[reader] -= 1
            if not waits[reader]:
                heapq.heappush(ready, (ranks[reader], reader))
    return found


class Reworker(ChildProcess):
    """Child process with onnxruntime's optimiser and onnx's inliner."""

    def __init__(self, time_limit_s: float = _TIME_LIMIT_S) -> None:
        super().__init__("qnnmem.fix.graph.rework_program", time_limit_s)

    def optimised(self, model: onnx.ModelProto, without: Sequence[str]) -> onnx.ModelProto:
        """Return the model from onnxruntime's optimiser without some of its rules."""
        return self._asked(Optimise(list(without)), model)

    def inlined(self, model: onnx.ModelProto, kinds: Sequence[str]) -> onnx.ModelProto:
        """Return the model from onnx's inliner for operators of these kinds."""
        return self._asked(InlineOps(list(kinds)), model)

    def _asked(self, request: WireMessage, model: onnx.ModelProto) -> onnx.ModelProto:
        """Return the rewritten model."""
        import onnx
        from google.protobuf.message import DecodeError  # type: ignore[import-untyped]  # no stubs

        _, blob = self.ask(request, Done, model.SerializeToString(), most=self.memory_limit)
        try:
            made: onnx.ModelProto = onnx.ModelProto.FromString(blob)
        except DecodeError as exc:
            raise ChildFailed("what was written is no model") from exc
        return made
