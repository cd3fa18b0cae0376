"""Memory-aware order of ops: the fullest step with as few live bytes as can be found.

    fuse nodes that belong together, split the order into independent segments
    while the fullest segment is above what is proven for some segment:
        delay ops that raise the live bytes to their use, before and after the search
        search an order of it with fewer bytes; if there is none, stop: it decides the peak

Limits lie between what is proven and what is known; a search that fails without having dropped
anything raises the former, a search that succeeds lowers the latter.
"""

from __future__ import annotations

from dataclasses import dataclass

from qnnmem.ir.lifetime import reordered
from qnnmem.ir.model import Model
from qnnmem.planner.order.graph import ScratchRule, build_graph, fuse
from qnnmem.planner.order.search import NoOrder, Search, Work
from qnnmem.planner.order.segment import Segment, delayed, split
from qnnmem.units import Bytes

# Counted in looks at one node, so that the answer is the same on every machine; the default keeps
# the search near one second on one core of a 2020s laptop.
EFFORT = 500_000
WORK_PER_LOOK = 300  # in the units of planner/effort.py

# Sets of nodes are masks, which take (nodes squared / 8) bytes for each kind of set: 12 MB here.
MOST_OPS = 10_000

_WIDTHS = (1, 4, 16, 64, 256, 1024, 4096)

_EVERYTHING = ScratchRule()


@dataclass(frozen=True, slots=True)
class Reordering:
    """A model in the best order found and its live bytes at the fullest step."""

    model: Model
    before: Bytes
    after: Bytes
    at_least: Bytes = Bytes(0)  # in any order within the dependencies
    skipped: str | None = None  # why no other order was looked for

    @property
    def proven(self) -> bool:
        """Whether no order within the dependencies needs fewer bytes."""
        return self.skipped is None and self.after == self.at_least


def reorder(model: Model, rule: ScratchRule = _EVERYTHING, *, effort: int = EFFORT) -> Reordering:
    """Put the ops of a model in an order that needs fewer live bytes, if one is found.

    Ops that touch the same state keep their relative order. Without a gain the model is returned
    as it is.
    """
    before = live_peak(model, rule)
    skipped = _why_not(len(model.ops), effort)
    if skipped is not None:
        return Reordering(model, before, before, skipped=skipped)
    graph = fuse(build_graph(model, rule))
    parts = [_Part(segment) for segment in split(graph)]
    bound = _improve(parts, Work(effort)) * rule.align
    order = [op for part in parts for node in part.order for op in graph.ops[node]]
    better = reordered(model, order)
    after = live_peak(better, rule)
    if after >= before:
        better, after = model, before
    # In-place pairs depend on the order in ways that the bound does not see.
    return Reordering(better, before, after, Bytes(0 if rule.inplace else bound))


def _why_not(ops: int, effort: int) -> str | None:
    if ops > MOST_OPS:
        return f"the graph has {ops:,} ops, more than the {MOST_OPS:,} that are reordered"
    return "there was no time left for it" if effort <= 0 else None


def live_peak(model: Model, rule: ScratchRule = _EVERYTHING) -> Bytes:
    """Live bytes of scratch at the fullest step, each tensor with its padding."""
    change = [0] * (len(model.ops) + 3)
    for life in rule.lives(model, inplace=rule.inplace):
        size = rule.padded(life.size)
        change[life.live.lower + 1] += size
        change[life.live.upper + 1] -= size
    for step, op in enumerate(model.ops):
        size = rule.padded(rule.workspaces.get(op.name, 0))
        change[step + 1] += size
        change[step + 2] -= size
    live = highest = 0
    for delta in change:
        live += delta
        highest = max(highest, live)
    return Bytes(highest)


class _Part:
    """A segment with the best order so far and what is known about its peak."""

    def __init__(self, segment: Segment) -> None:
        self.segment = segment
        self.local = list(range(len(segment)))
        self.peak = segment.peak(self.local)
        self.bound = self.peak if len(segment) == 1 else segment.bound()

    @property
    def order(self) -> list[int]:
        """The best order in numbers of the graph."""
        return [self.segment.nodes[i] for i in self.local]

    def improve(self, floor: int, work: Work) -> None:
        """Lower the peak as far as `floor` or the work allows, or raise the bound to it."""
        given = self.local
        searches = [Search(self.segment, backward=backward) for backward in (False, True)]
        for search in searches:
            self._adopt(search.walk(work))
        self._delay(given, work)
        self._search(searches, floor, work)
        self._delay(self.local, work)

    def _search(self, searches: list[Search], floor: int, work: Work) -> None:
        for width in _WIDTHS:
            for search in searches:
                self._narrow(search, width, floor, work)
                if work.left <= 0 or self.peak <= max(floor, self.bound):
                    return

    def _delay(self, order: list[int], work: Work) -> None:
        """Delay nodes of an order that raise the live bytes, as long as that lowers the peak."""
        better = True
        while better:
            work.left -= 2 * len(self.segment)
            found = [self._adopt(other) for other in delayed(self.segment, order)]
            order, better = self.local, any(found) and work.left > 0

    def _narrow(self, search: Search, width: int, floor: int, work: Work) -> None:
        """Close in on the least limit for which this search finds an order."""
        failed: int | None = None  # the highest limit without success
        while work.left > 0:
            lowest = max(floor, self.bound, 0 if failed is None else failed + 1)
            if self.peak <= lowest:
                return
            limit = lowest if failed is None else (lowest + self.peak - 1) // 2
            found = search.run(limit, width, work)
            if isinstance(found, NoOrder):
                failed = limit
                if found.proven:
                    self.bound = max(self.bound, min(found.least, self.peak))
            elif not self._adopt(found):
                return

    def _adopt(self, order: list[int] | None) -> bool:
        """Take an order over if it is better."""
        peak = self.peak if order is None else self.segment.peak(order)
        if order is None or peak >= self.peak:
            return False
        self.local, self.peak = order, peak
        return True


def _improve(parts: list[_Part], work: Work) -> int:
    """Lower the fullest segment until it cannot be; return a proven bound for the whole."""
    bound = max(part.bound for part in parts)
    while work.left > 0:
        fullest = max(parts, key=lambda part: part.peak)
        peak = fullest.peak
        if peak <= bound:
            break
        # Below the next segment's peak the effort is better spent there.
        others = max((part.peak for part in parts if part.peak < peak), default=0)
        fullest.improve(max(bound, others), work)
        bound = max(bound, fullest.bound)
        if fullest.peak == peak:
            break
    return bound
