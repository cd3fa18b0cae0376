"""Stretches of an order that can be improved on their own.

A node that every other node must precede or follow is a cut: what runs before it is the same set in
every order, so the stretches between cuts do not influence each other's live bytes.

Delaying: a transpose of a past key, a cast or a lookup often stands first in a file, although its
result is read a thousand ops later. Each op that raises the live bytes moves to just before the
first op that needs it. The search over sets of ops misses this in large graphs, where it must drop
most sets; it starts from the delayed order, and its result is delayed again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise

from qnnmem.planner.order.graph import OrderGraph

# The sets of earlier and later nodes take (nodes squared / 4) bytes: 16 MB here.
MOST_NODES_FOR_BOUND = 8_000
MOST_CHECKS_FOR_BOUND = 300_000


@dataclass(frozen=True)
class Segment:
    """The nodes between two cuts, numbered from 0; two further numbers stand for the rest.

    In sets of nodes (bit masks) bit `len(self)` is everything before the segment and the next bit
    everything after it.
    """

    nodes: tuple[int, ...]  # numbers in the graph
    before: tuple[int, ...]  # masks of nodes that must come earlier in the segment
    after: tuple[tuple[int, ...], ...]
    # For each node: masks of the nodes that touch the same groups, and the bytes of those groups
    groups: tuple[tuple[tuple[int, int], ...], ...]
    overwrites: tuple[tuple[tuple[int, int], ...], ...]
    base: int  # alive all the time

    def __len__(self) -> int:
        return len(self.nodes)

    @cached_property
    def size(self) -> dict[int, int]:
        """Bytes of the groups that change here, by mask of the nodes that touch them."""
        return {mask: size for touched in self.groups for mask, size in touched}

    def live_at(self, done: int) -> int:
        """Bytes alive between two steps once `done` has run."""
        return self.base + sum(
            size for mask, size in self.size.items() if mask & done and mask & ~done
        )

    def peak(self, order: Sequence[int]) -> int:
        """Most bytes alive at a step of an order of this segment."""
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
        """Bytes below which no order can stay: what must be alive at some node in every order."""
        if len(self) > MOST_NODES_FOR_BOUND:
            return 0
        early, late = self._reach()
        lowest, checks = 0, MOST_CHECKS_FOR_BOUND
        done = 1 << len(self)
        live = {mask: size for mask, size in self.size.items() if mask & done}
        for node, touched in enumerate(self.groups):
            done |= 1 << node
            live.update(touched)
            # Only what is alive here in this order can be alive here in all orders.
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
        """Masks of each node with all that precedes it, and with all that follows it."""
        count = len(self)
        early, late = [0] * count, [0] * count
        for node in range(count):
            found = 1 << node | 1 << count
            for other in bits(self.before[node]):
                found |= early[other]
            early[node] = found
        for node in reversed(range(count)):
            found = 1 << node | 1 << (count + 1)
            for other in self.after[node]:
                found |= late[other]
            late[node] = found
        return early, late


def bits(mask: int) -> list[int]:
    """Positions of the ones in a mask, lowest first."""
    found = []
    while mask:
        low = mask & -mask
        found.append(low.bit_length() - 1)
        mask ^= low
    return found


def split(graph: OrderGraph) -> list[Segment]:
    """Cut a graph into its segments, in order; each cut is a segment by itself."""
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
    # What is touched before and after a segment is alive all through it.
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
    """Orders with all nodes that raise the live bytes delayed, and only those that read nothing."""
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
    rank = {node: at for at, node in enumerate(order)}
    found: list[int] = []
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
                found.append(node)
    return found
