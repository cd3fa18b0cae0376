"""The graph for op ordering: dependencies, live bytes, and independent segments.

A group is a tensor with all its views. It is alive from the first to the last node that uses it, so
the set of nodes that have run determines the live bytes, whatever their order. Two nodes are not
ops: the source uses all inputs and comes first, the sink uses all outputs and comes last. Only
scratch counts: a tensor in another pool is not in a group.

Fusing: two nodes that some best order runs back to back become one node. If a node has only one
successor, and every group that the node uses is used by the successor or is an output, then the
node ends no group. It can be moved to just before that successor without raising the peak, because
its groups then begin later and end at the same time. In reverse, a node that starts no group can be
moved to just after its only predecessor. In both cases the live bytes of the pair are highest at
the partner, so the pair costs as much as one node with the groups of both.

    repeat: fuse a node into its only successor or predecessor if that rule allows it

Segments: a node that every other node must precede or follow is a cut. The same set of nodes runs
before it in every order, so the segments between cuts do not influence each other's live bytes.

Delaying: a transpose of a past key, a cast or a lookup often comes first in a file, although its
result is read a thousand ops later. Each op that raises the live bytes moves to just before the
first op that needs it. In a large graph, the search over sets of ops must drop most sets and often
misses this move. The search therefore starts from the delayed order, and its result is delayed
again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate, pairwise

from qnnmem.ir.lifetime import Lifetime, lifetimes
from qnnmem.ir.model import Effect, Model, Op
from qnnmem.units import round_up


@dataclass(frozen=True, slots=True)
class ScratchRule:
    """Rule that decides which tensors of a model are in scratch."""

    bits: int | None = None
    inplace: bool = False
    align: int = 64
    elsewhere: frozenset[str] = frozenset()  # tensors in other pools, with all their views
    workspaces: dict[str, int] = field(default_factory=dict)  # by op: bytes used only while it runs

    def lives(self, model: Model, *, inplace: bool) -> Iterator[Lifetime]:
        """Yield the lifetimes of those tensors of a model that are in scratch."""
        for life in lifetimes(model, bits=self.bits, inplace=inplace):
            if self.elsewhere.isdisjoint((life.name, *life.aliases)):
                yield life

    def padded(self, size: int) -> int:
        """Return a size rounded up to the alignment."""
        return round_up(size, self.align)


@dataclass(frozen=True, slots=True)
class OrderGraph:
    """The graph of a model: nodes in a valid order, with the source first and the sink last."""

    ops: tuple[tuple[int, ...], ...]  # indexes in model.ops that a node represents, in order
    before: tuple[frozenset[int], ...]  # nodes that must come earlier
    groups: tuple[frozenset[int], ...]  # groups that a node uses
    overwrites: tuple[tuple[int, ...], ...]  # groups that a node may overwrite if they end
    size: tuple[int, ...]  # of each group, in multiples of the alignment

    def __len__(self) -> int:
        return len(self.ops)


def build_graph(model: Model, rule: ScratchRule) -> OrderGraph:
    """Return the graph of a model, with one node for each op."""
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
    """Return for each node the nodes that must run before it.

    A node without other predecessors follows the source. The sink follows all nodes without other
    successors.
    """
    sink = len(model.ops) + 1
    waits: list[set[int]] = [set() for _ in range(sink + 1)]
    inputs, states = set(model.inputs), set(model.states)
    for name, uses in _uses(model).items():
        writers = {node for node, writes in uses if writes}
        if name in states or name in inputs or len(writers) > 1 or uses[0][0] < min(writers):
            # Several writes, or reads before the write: only the original order has a known
            # meaning.
            edges = [(earlier, later) for (earlier, _), (later, _) in pairwise(uses)]
        else:
            edges = [(min(writers), node) for node, _ in uses]
        for earlier, later in edges:
            if earlier != later:
                waits[later].add(earlier)
    waits[sink] = set(range(sink)).difference(*waits[1:sink])
    return (frozenset(), *(frozenset(earlier_nodes or {0}) for earlier_nodes in waits[1:]))


def _uses(model: Model) -> dict[str, list[tuple[int, bool]]]:
    """For each state tensor and op output, by name, return the nodes that use the tensor.

    Each node has a flag: True if the node writes the tensor, False if the node reads it.
    """
    written = dict.fromkeys((*model.states, *(name for op in model.ops for name in op.outputs)))
    uses: dict[str, list[tuple[int, bool]]] = {name: [] for name in written}
    for node, op in enumerate(model.ops, start=1):
        for name in op.inputs:
            if name in written:
                uses[name].append((node, False))
        for name in op.outputs:
            uses[name].append((node, True))
    return {name: nodes for name, nodes in uses.items() if nodes}


# A node with many neighbours would be examined again for each neighbour that is fused into it.
# Above this limit, a pair that could be fused may stay separate.
MOST_LOOKS = 1_000_000


def fuse(graph: OrderGraph) -> OrderGraph:
    """Return the graph with nodes fused; the lowest peak that any order reaches stays the same."""
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
        self.before = [set(nodes) for nodes in graph.before]
        self.after: list[set[int]] = [set() for _ in range(count)]
        for node, earlier_nodes in enumerate(self.before):
            for earlier in earlier_nodes:
                self.after[earlier].add(node)
        self.groups = [set(groups) for groups in graph.groups]
        self.overwrites = list(graph.overwrites)
        self.gone = [False] * count
        self.source, self.sink = graph.groups[0], graph.groups[-1]

    def absorb(self, node: int) -> int | None:
        """Fuse `node` into a neighbour and return the neighbour; None if no fusing is possible."""
        if self.gone[node] or node in (0, len(self.gone) - 1):
            return None
        directions = ((self.after, self.sink, True), (self.before, self.source, False))
        for near, unending, later in directions:
            if len(near[node]) == 1:
                (partner,) = near[node]
                if self.groups[node] <= self.groups[partner] | unending:
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
        """Return the graph of the remaining nodes, renumbered."""
        # A node keeps the position of the partner it was fused into, which is a valid order.
        kept = [node for node, gone in enumerate(self.gone) if not gone]
        number = {node: i for i, node in enumerate(kept)}
        return OrderGraph(
            ops=tuple(self.ops[node] for node in kept),
            before=tuple(frozenset(number[e] for e in self.before[node]) for node in kept),
            groups=tuple(frozenset(self.groups[node]) for node in kept),
            overwrites=tuple(self.overwrites[node] for node in kept),
            size=self.graph.size,
        )


# Limit of nodes for sets of earlier and later nodes, which take (nodes squared / 4) bytes: 16 MB.
MOST_NODES_FOR_BOUND = 8_000
MOST_CHECKS_FOR_BOUND = 300_000


@dataclass(frozen=True)
class Segment:
    """The nodes between two cuts, numbered from 0.

    In bit masks of nodes, bit `len(self)` represents everything before the segment and the next bit
    everything after it.
    """

    nodes: tuple[int, ...]  # numbers in the graph
    before: tuple[int, ...]  # masks of nodes that must come earlier in the segment
    after: tuple[tuple[int, ...], ...]
    # For each node: masks of the nodes that use the same groups, and the bytes of those groups
    groups: tuple[tuple[tuple[int, int], ...], ...]
    overwrites: tuple[tuple[tuple[int, int], ...], ...]
    base: int  # bytes alive during the whole segment

    def __len__(self) -> int:
        return len(self.nodes)

    @cached_property
    def size(self) -> dict[int, int]:
        """The size of each group in this segment, keyed by the mask of nodes that use the group."""
        return {mask: size for touched in self.groups for mask, size in touched}

    def live_at(self, done: int) -> int:
        """Return the number of bytes alive after the nodes in `done` have run."""
        return self.base + sum(
            size for mask, size in self.size.items() if mask & done and mask & ~done
        )

    def peak(self, order: Sequence[int]) -> int:
        """Return the highest number of live bytes at any step of an order of this segment."""
        done, highest = 1 << len(self), 0
        live = self.live_at(done)
        for node in order:
            after = done | 1 << node
            live += sum(size for mask, size in self.groups[node] if not mask & done)
            saved = max((w for m, w in self.overwrites[node] if m & after == m), default=0)
            highest = max(highest, live - saved)
            live -= sum(size for mask, size in self.groups[node] if mask & after == mask)
            done = after
        return highest

    def bound(self) -> int:
        """Return a lower bound on the peak: bytes that are live at one node in every order."""
        if len(self) > MOST_NODES_FOR_BOUND:
            return 0
        early, late = self._reach()
        lowest, checks = 0, MOST_CHECKS_FOR_BOUND
        done = 1 << len(self)
        live = {mask: size for mask, size in self.size.items() if mask & done}
        for node, touched in enumerate(self.groups):
            done |= 1 << node
            live.update(touched)
            # A group that is not alive at this node in this order cannot be alive there in every
            # order.
            near = live if checks > 0 else dict(touched)
            checks -= len(near)
            forced = sum(w for m, w in near.items() if m & early[node] and m & late[node])
            spared = max((size for _, size in self.overwrites[node]), default=0)
            lowest = max(lowest, self.base + forced - spared)
            for mask, _ in touched:
                if mask & done == mask:
                    del live[mask]
        return lowest

    def _reach(self) -> tuple[list[int], list[int]]:
        """Return two masks for each node: its ancestors and itself, its descendants and itself."""
        count = len(self)
        early, late = [0] * count, [0] * count
        for node in range(count):
            mask = 1 << node | 1 << count
            for other in bits(self.before[node]):
                mask |= early[other]
            early[node] = mask
        for node in reversed(range(count)):
            mask = 1 << node | 1 << (count + 1)
            for other in self.after[node]:
                mask |= late[other]
            late[node] = mask
        return early, late


def bits(mask: int) -> list[int]:
    """Return the positions of the set bits of a mask, lowest first."""
    positions = []
    while mask:
        low = mask & -mask
        positions.append(low.bit_length() - 1)
        mask ^= low
    return positions


def split(graph: OrderGraph) -> list[Segment]:
    """Return the segments of a graph in order; each cut is a segment by itself."""
    count = len(graph)
    first_use, last_wait = [count] * count, [-1] * count
    for node, before in enumerate(graph.before):
        for earlier in before:
            first_use[earlier] = min(first_use[earlier], node)
            last_wait[node] = max(last_wait[node], earlier)
    ends = {0, count}
    furthest = 0
    nearest = [count] * (count + 1)
    for node in reversed(range(count)):
        nearest[node] = min(nearest[node + 1], last_wait[node])
    for node in range(count):
        if furthest <= node <= nearest[node + 1]:
            ends |= {node, node + 1}
        furthest = max(furthest, first_use[node])
    return _segments(graph, sorted(ends))


def _segments(graph: OrderGraph, edges: list[int]) -> list[Segment]:
    place = [k for k, (lo, hi) in enumerate(pairwise(edges)) for _ in range(lo, hi)]
    first, last = [-1] * len(graph.size), [-1] * len(graph.size)
    for node, touched in enumerate(graph.groups):
        for g in touched:
            last[g] = place[node]
            if first[g] < 0:
                first[g] = place[node]
    # A group used before and after a segment is alive throughout the segment.
    change = [0] * (len(edges) + 1)
    for g, size in enumerate(graph.size):
        if first[g] < last[g]:
            change[first[g] + 1] += size
            change[last[g]] -= size
    base = list(accumulate(change))
    return [
        _segment(
            graph,
            lo,
            hi,
            base[k],
            {g: (first[g] < k, last[g] > k) for g in _touched(graph, lo, hi)},
        )
        for k, (lo, hi) in enumerate(pairwise(edges))
    ]


def _touched(graph: OrderGraph, lo: int, hi: int) -> list[int]:
    return sorted({g for node in range(lo, hi) for g in graph.groups[node]})


def _segment(
    graph: OrderGraph, lo: int, hi: int, base: int, outside: dict[int, tuple[bool, bool]]
) -> Segment:
    count = hi - lo
    masks = {g: early << count | late << (count + 1) for g, (early, late) in outside.items()}
    before = [0] * count
    after: list[list[int]] = [[] for _ in range(count)]
    for node in range(lo, hi):
        for g in graph.groups[node]:
            masks[g] |= 1 << (node - lo)
        for earlier in sorted(graph.before[node]):
            if earlier >= lo:
                before[node - lo] |= 1 << (earlier - lo)
                after[earlier - lo].append(node - lo)
    changing = {g: mask for g, mask in masks.items() if not all(outside[g])}
    total: dict[int, int] = {}
    for g, mask in changing.items():
        total[mask] = total.get(mask, 0) + graph.size[g]
    return Segment(
        nodes=tuple(range(lo, hi)),
        before=tuple(before),
        after=tuple(map(tuple, after)),
        groups=tuple(
            tuple((m, total[m]) for m in sorted({changing[g] for g in groups if g in changing}))
            for groups in graph.groups[lo:hi]
        ),
        overwrites=tuple(
            tuple((changing[g], graph.size[g]) for g in ends if g in changing)
            for ends in graph.overwrites[lo:hi]
        ),
        base=base,
    )


def delayed(segment: Segment, order: Sequence[int]) -> Iterator[list[int]]:
    """Yield two orders: one with all rising nodes delayed, one with only some of them delayed.

    A rising node raises the live bytes when it runs. The second order delays only rising nodes that
    use no tensor of an earlier node.
    """
    rising, reading = set(), set()
    done = 1 << len(segment)
    for node in order:
        after = done | 1 << node
        started = sum(size for mask, size in segment.groups[node] if not mask & done)
        ended = sum(size for mask, size in segment.groups[node] if mask & after == mask)
        if started > ended:
            rising.add(node)
        if any(mask & done for mask, _ in segment.groups[node]):
            reading.add(node)
        done = after
    yield _delay(segment, order, rising)
    yield _delay(segment, order, rising - reading)


def _delay(segment: Segment, order: Sequence[int], late: Collection[int]) -> list[int]:
    rank = {node: position for position, node in enumerate(order)}
    delayed_order: list[int] = []
    placed = 0
    for first in (*(node for node in order if node not in late), *order):
        stack = [first]
        while stack:
            node = stack[-1]
            missing = segment.before[node] & ~placed
            if missing and not placed >> node & 1:
                stack += sorted(bits(missing), key=rank.__getitem__, reverse=True)
                continue
            stack.pop()
            if not placed >> node & 1:
                placed |= 1 << node
                delayed_order.append(node)
    return delayed_order
