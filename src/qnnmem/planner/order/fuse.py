"""Nodes that some best order runs back to back become one node.

A node that ends no group costs no more just before its only successor than anywhere earlier: every
group it touches is touched by that successor or is an output. Read backwards in time the same holds
for a node that starts no group and its only predecessor. In both cases the fullest moment of the
pair is that of the partner, so the pair costs what one node with the groups of both would cost.

    repeat: fuse a node into its only successor or predecessor if that rule allows it
"""

from __future__ import annotations

from qnnmem.planner.order.graph import OrderGraph

# A node with many neighbours would have all of them looked at again for each it takes in; past this
# a pair may stay apart that could be one.
MOST_LOOKS = 1_000_000


def fuse(graph: OrderGraph) -> OrderGraph:
    """Fuse all such nodes; the result's best order is as good as the graph's."""
    work = _Fusion(graph)
    waiting = list(range(len(graph) - 2, 0, -1))
    looks = MOST_LOOKS
    while waiting:
        partner = work.absorb(waiting.pop())
        if partner is None:
            continue
        looks -= len(work.before[partner]) + len(work.after[partner])
        if looks > 0:
            waiting.extend(sorted({partner, *work.before[partner], *work.after[partner]}))
    return work.result()


class _Fusion:
    def __init__(self, graph: OrderGraph) -> None:
        count = len(graph)
        self.graph = graph
        self.ops = list(graph.ops)
        self.before = [set(found) for found in graph.before]
        self.after: list[set[int]] = [set() for _ in range(count)]
        for node, found in enumerate(self.before):
            for earlier in found:
                self.after[earlier].add(node)
        self.groups = [set(found) for found in graph.groups]
        self.overwrites = list(graph.overwrites)
        self.gone = [False] * count
        self.source, self.sink = graph.groups[0], graph.groups[-1]

    def absorb(self, node: int) -> int | None:
        """Fuse `node` into its partner and name the partner, if there is one."""
        if self.gone[node] or node in (0, len(self.gone) - 1):
            return None
        for near, kept, later in ((self.after, self.sink, True), (self.before, self.source, False)):
            if len(near[node]) == 1:
                (partner,) = near[node]
                if all(g in self.groups[partner] or g in kept for g in self.groups[node]):
                    self._merge(node, partner, later)
                    return partner
        return None

    def _merge(self, node: int, partner: int, later: bool) -> None:
        pair = (node, partner) if later else (partner, node)
        self.ops[partner] = self.ops[pair[0]] + self.ops[pair[1]]
        self.overwrites[partner] = self.overwrites[pair[0]] + self.overwrites[pair[1]]
        self.groups[partner] |= self.groups[node]
        for near, back in ((self.before, self.after), (self.after, self.before)):
            for other in near[node]:
                back[other].discard(node)
                if other != partner:
                    back[other].add(partner)
                    near[partner].add(other)
        self.gone[node] = True

    def result(self) -> OrderGraph:
        """Give the nodes that are left new numbers."""
        # A node keeps the place of the partner it was fused into, which is a valid order.
        kept = [node for node, gone in enumerate(self.gone) if not gone]
        number = {node: i for i, node in enumerate(kept)}
        return OrderGraph(
            ops=tuple(self.ops[node] for node in kept),
            before=tuple(frozenset(number[e] for e in self.before[node]) for node in kept),
            groups=tuple(frozenset(self.groups[node]) for node in kept),
            overwrites=tuple(self.overwrites[node] for node in kept),
            size=self.graph.size,
        )
