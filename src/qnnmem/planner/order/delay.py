"""Delay ops that raise the live bytes: each runs just before the first op that needs it.

A transpose of a past key, a cast or a lookup often stands first in a file, although its result is
read a thousand ops later. The search over sets of ops misses this in large graphs, where it has to
drop most sets; the delayed order is where it starts from, and what its result is put through.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from qnnmem.planner.order.segment import Segment, bits


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
