"""What ordering the ops of a model has to know: who waits for whom and which bytes each op touches.

A group is a tensor with all its views. It is alive from the first to the last node that touches
it, so the set of nodes that have run fixes the live bytes, whatever their order. Two nodes stand
for no op: the source touches all inputs and comes first, the sink touches all outputs and comes
last.

Only scratch counts. A tensor that lies in another pool is no group: an op that turns an input of
the application into a tensor of scratch raises the live bytes and should run late.

Fusing: nodes that some best order runs back to back become one node. A node that ends no group
costs no more just before its only successor than anywhere earlier: every group it touches is
touched by that successor or is an output. Read backwards in time the same holds for a node that
starts no group and its only predecessor. In both cases the fullest moment of the pair is that of
the partner, so the pair costs what one node with the groups of both would cost.

    repeat: fuse a node into its only successor or predecessor if that rule allows it
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise

from qnnmem.ir.lifetime import Lifetime, lifetimes
from qnnmem.ir.model import Effect, Model, Op
from qnnmem.units import round_up


@dataclass(frozen=True, slots=True)
class ScratchRule:
    """Which bytes of a model count as scratch."""

    bits: int | None = None
    inplace: bool = False
    align: int = 64
    elsewhere: frozenset[str] = frozenset()  # tensors in other pools, with all their views
    workspaces: dict[str, int] = field(default_factory=dict)  # by op: bytes only while it runs

    def lives(self, model: Model, *, inplace: bool) -> Iterator[Lifetime]:
        """Lifetimes of what lies in scratch."""
        for life in lifetimes(model, bits=self.bits, inplace=inplace):
            if self.elsewhere.isdisjoint((life.name, *life.aliases)):
                yield life

    def padded(self, size: int) -> int:
        """A size with the padding that alignment adds."""
        return round_up(size, self.align)


@dataclass(frozen=True, slots=True)
class OrderGraph:
    """Nodes in a valid order with the source first and the sink last."""

    ops: tuple[tuple[int, ...], ...]  # positions in model.ops that a node stands for, in order
    before: tuple[frozenset[int], ...]  # nodes that must come earlier
    groups: tuple[frozenset[int], ...]  # groups that a node touches
    overwrites: tuple[tuple[int, ...], ...]  # groups on which a node may put its result if they end
    size: tuple[int, ...]  # of each group, in multiples of the alignment

    def __len__(self) -> int:
        return len(self.ops)


def build_graph(model: Model, rule: ScratchRule) -> OrderGraph:
    """Make the graph of a model, one node for each op."""
    shared = tuple(rule.lives(model, inplace=False))
    group = {name: i for i, life in enumerate(shared) for name in (life.name, *life.aliases)}
    touches = [
        model.inputs,
        *((*op.inputs, *op.outputs) for op in model.ops),
        model.outputs,
    ]
    groups = [frozenset(group[n] for n in names if n in group) for names in touches]
    size = [rule.padded(life.size) // rule.align for life in shared]
    for node, op in enumerate(model.ops, start=1):
        if op.name in rule.workspaces:
            groups[node] |= {len(size)}
            size.append(rule.padded(rule.workspaces[op.name]) // rule.align)
    inputs = {group[name] for name in model.inputs if name in group}

    def overwrites(op: Op) -> tuple[int, ...]:
        result = group.get(op.outputs[0]) if op.outputs else None
        if not rule.inplace or op.effect is not Effect.ELEMENTWISE or result is None:
            return ()
        read = dict.fromkeys(group[name] for name in op.inputs if name in group)
        own = shared[result].size
        return tuple(g for g in read if g != result and g not in inputs and shared[g].size == own)

    return OrderGraph(
        ops=((), *((i,) for i in range(len(model.ops))), ()),
        before=_before(model),
        groups=tuple(groups),
        overwrites=((), *map(overwrites, model.ops), ()),
        size=tuple(size),
    )


def _before(model: Model) -> tuple[frozenset[int], ...]:
    """Find the nodes each node waits for.

    Those that wait for no other wait for the source; the sink for all that no other waits for.
    """
    sink = len(model.ops) + 1
    waits: list[set[int]] = [set() for _ in range(sink + 1)]
    given, states = set(model.inputs), set(model.states)
    for name, uses in _uses(model).items():
        writers = {node for node, writes in uses if writes}
        if name in states or name in given or len(writers) > 1 or uses[0][0] < min(writers):
            # Several writes, or reads before the write: only the given order has a known meaning.
            edges = [(earlier, later) for (earlier, _), (later, _) in pairwise(uses)]
        else:
            edges = [(min(writers), node) for node, _ in uses]
        for earlier, later in edges:
            if earlier != later:
                waits[later].add(earlier)
    waits[sink] = set(range(sink)).difference(*waits[1:sink])
    return (frozenset(), *(frozenset(found or {0}) for found in waits[1:]))


def _uses(model: Model) -> dict[str, list[tuple[int, bool]]]:
    """Nodes that touch each name that is written somewhere or is state, and whether they write."""
    written = dict.fromkeys((*model.states, *(name for op in model.ops for name in op.outputs)))
    uses: dict[str, list[tuple[int, bool]]] = {name: [] for name in written}
    for node, op in enumerate(model.ops, start=1):
        for name in op.inputs:
            if name in written:
                uses[name].append((node, False))
        for name in op.outputs:
            uses[name].append((node, True))
    return {name: found for name, found in uses.items() if found}


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
