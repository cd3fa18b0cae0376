"""Whether a state of the search is the lowest point between an earlier state and itself.

Live bytes are what a cut between nodes that have run and nodes that have not separates, so the
least of them is a minimum cut: a group costs its size when it has nodes on both sides.

    flow from the nodes run in the earlier state to the nodes not run in the later one;
    the later state is a lowest point if as much can flow as it has bytes alive
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from qnnmem.planner.order.segment import bits

_UNBOUNDED = 1 << 62
_FROM, _TO = -1, -2

Flow = dict[int, dict[int, int]]  # what can still flow from one place to another


def is_lowest(
    groups: Sequence[tuple[tuple[int, int], ...]], before: Sequence[int], early: int, late: int
) -> bool:
    """Whether no set of nodes between `early` and `late` that could have run has fewer bytes alive.

    `before` holds for each node the mask of nodes that have to run first.
    """
    between = late & ~early
    changing = {pair for node in bits(between) for pair in groups[node]}
    alive = sum(size for mask, size in changing if mask & late and mask & ~late)
    return _most_flow(_network(sorted(changing), before, early, late)) >= alive


def _network(changing: list[tuple[int, int]], before: Sequence[int], early: int, late: int) -> Flow:
    flow: Flow = {_FROM: {}, _TO: {}}

    def connect(start: int, end: int, size: int) -> None:
        flow.setdefault(start, {})[end] = size
        flow.setdefault(end, {}).setdefault(start, 0)

    between = late & ~early
    for node in bits(between):
        for earlier in bits(before[node] & between):
            connect(node, earlier, _UNBOUNDED)
    for number, (mask, size) in enumerate(changing):
        # A group is two places behind all nodes; what it costs flows from the first to the second.
        first = len(before) + 2 * number
        connect(first, first + 1, size)
        for node in bits(mask & between):
            connect(node, first, _UNBOUNDED)
            connect(first + 1, node, _UNBOUNDED)
        if mask & early:
            connect(_FROM, first, _UNBOUNDED)
        if mask & ~late:
            connect(first + 1, _TO, _UNBOUNDED)
    return flow


def _most_flow(flow: Flow) -> int:
    total = 0
    while path := _path(flow):
        size = min(flow[start][end] for start, end in path)
        for start, end in path:
            flow[start][end] -= size
            flow[end][start] += size
        total += size
    return total


def _path(flow: Flow) -> list[tuple[int, int]]:
    """Find the steps of a shortest path along which something can flow, if there is one."""
    came: dict[int, int] = {_FROM: _FROM}
    waiting = deque([_FROM])
    while waiting and _TO not in came:
        place = waiting.popleft()
        for end, size in flow[place].items():
            if size and end not in came:
                came[end] = place
                waiting.append(end)
    steps, place = [], _TO
    while place in came and place != _FROM:
        steps.append((came[place], place))
        place = came[place]
    return steps
