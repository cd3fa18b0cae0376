"""Memory-aware order of ops: minimises the live bytes at the fullest step.

    fuse nodes that belong together, split the order into independent segments
    while the peak of the fullest segment is above the highest proven bound of a segment:
        move ops that raise the live bytes to just before their use, before and after the search
        search for an order of this segment with fewer bytes
        if there is none, stop: this segment decides the peak

A limit lies between the proven bound and the best peak. A search that fails without having dropped
a state raises the bound; a search that succeeds lowers the peak. The search within one segment:

    states = {nothing has run}
    by number of nodes that have run:
        keep the `width` states with the fewest live bytes
        from each: run every node that fits and does not raise the live bytes, one after the other,
        then branch over the nodes that fit

Running a node that fits and does not raise the live bytes is never a mistake: the more nodes have
run, the more groups end with it and the fewer begin. So every continuation also works after this
node, with no more bytes at any step. The set of nodes that have run determines the live bytes, so
equal sets are one state.

A valley is a state with no more live bytes than the common origin of all states, and no more than
any state between the two. Live bytes are a submodular function of the set of nodes that have run,
so uniting any other state with a valley adds nothing: all other states are dropped. A minimum cut
decides whether a state is a valley: it separates nodes that have run from nodes that have not, and
a group costs its size when it has nodes on both sides:

    flow from the nodes run in the earlier state to the nodes not run in the later one;
    the later state is a valley if the flow equals its live bytes

If no state was dropped for any other reason, failing proves that no order stays within the limit.
The same search runs backwards in time with the roles of before and after exchanged.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from qnnmem.ir.lifetime import reordered
from qnnmem.ir.model import Model
from qnnmem.planner.order_graph import ScratchRule, Segment, bits, build_graph, delayed, fuse, split
from qnnmem.units import Bytes

# Counted in node visits, so that the answer is the same on every machine. The default takes about
# one second on one core of a 2020s laptop.
EFFORT = 500_000
WORK_PER_LOOK = 300  # in the units of planner/effort.py

# Sets of nodes are bit masks; each kind of set takes (nodes squared / 8) bytes: 12 MB at this
# limit.
MOST_OPS = 10_000

_WIDTHS = (1, 4, 16, 64, 256, 1024, 4096)

_EVERYTHING = ScratchRule()


@dataclass(frozen=True, slots=True)
class Reordering:
    """A model in the best order found, and its live bytes at the fullest step."""

    model: Model
    before: Bytes
    after: Bytes
    at_least: Bytes = Bytes(0)  # bound for any order within the dependencies
    skipped: str | None = None  # why no other order was searched for

    @property
    def proven(self) -> bool:
        """True if the order found is proven to need the fewest bytes of all valid orders."""
        return self.skipped is None and self.after == self.at_least


def reorder(model: Model, rule: ScratchRule = _EVERYTHING, *, effort: int = EFFORT) -> Reordering:
    """Return the model in an order with fewer live bytes, if one is found.

    Ops that use the same state keep their relative order. Without a gain, the model is returned
    unchanged.
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
    # In-place pairs depend on the order, which the bound does not model.
    return Reordering(better, before, after, Bytes(0 if rule.inplace else bound))


def _why_not(ops: int, effort: int) -> str | None:
    if ops > MOST_OPS:
        return f"the graph has {ops:,} ops, over the limit of {MOST_OPS:,} for reordering"
    return "the time limit was used up" if effort <= 0 else None


def live_peak(model: Model, rule: ScratchRule = _EVERYTHING) -> Bytes:
    """Return the live bytes of scratch at the fullest step, including padding."""
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
    """A segment with its best order so far and the bounds of its peak."""

    def __init__(self, segment: Segment) -> None:
        self.segment = segment
        self.local = list(range(len(segment)))
        self.peak = segment.peak(self.local)
        self.bound = self.peak if len(segment) == 1 else segment.bound()

    @property
    def order(self) -> list[int]:
        """The best order, as node numbers of the graph."""
        return [self.segment.nodes[i] for i in self.local]

    def improve(self, floor: int, work: Work) -> None:
        """Lower the peak as far as `floor` and the work allow, or raise the bound."""
        original = self.local
        searches = [Search(self.segment, backward=backward) for backward in (False, True)]
        for search in searches:
            self._adopt(search.walk(work))
        self._delay(original, work)
        self._search(searches, floor, work)
        self._delay(self.local, work)

    def _search(self, searches: list[Search], floor: int, work: Work) -> None:
        for width in _WIDTHS:
            for search in searches:
                self._narrow(search, width, floor, work)
                if work.left <= 0 or self.peak <= max(floor, self.bound):
                    return

    def _delay(self, order: list[int], work: Work) -> None:
        """Delay nodes that raise the live bytes, as long as that lowers the peak."""
        better = True
        while better:
            work.left -= 2 * len(self.segment)
            adopted = [self._adopt(other) for other in delayed(self.segment, order)]
            order, better = self.local, any(adopted) and work.left > 0

    def _narrow(self, search: Search, width: int, floor: int, work: Work) -> None:
        """Find, by bisection, the lowest limit within which this search finds an order."""
        failed: int | None = None  # the highest limit that failed
        while work.left > 0:
            lowest = max(floor, self.bound, 0 if failed is None else failed + 1)
            if self.peak <= lowest:
                return
            limit = lowest if failed is None else (lowest + self.peak - 1) // 2
            result = search.run(limit, width, work)
            if isinstance(result, NoOrder):
                failed = limit
                if result.proven:
                    self.bound = max(self.bound, min(result.least, self.peak))
            elif not self._adopt(result):
                return

    def _adopt(self, order: list[int] | None) -> bool:
        """Store an order and return True if its peak is lower than that of the stored order."""
        peak = self.peak if order is None else self.segment.peak(order)
        if order is None or peak >= self.peak:
            return False
        self.local, self.peak = order, peak
        return True


def _improve(parts: list[_Part], work: Work) -> int:
    """Lower the peak of the fullest segment repeatedly; return a lower bound for all segments."""
    bound = max(part.bound for part in parts)
    while work.left > 0:
        fullest = max(parts, key=lambda part: part.peak)
        peak = fullest.peak
        if peak <= bound:
            break
        # Below the peak of the next segment, the effort is better spent on that segment.
        others = max((part.peak for part in parts if part.peak < peak), default=0)
        fullest.improve(max(bound, others), work)
        bound = max(bound, fullest.bound)
        if fullest.peak == peak:
            break
    return bound


_UNBOUNDED = 1 << 62
_FROM, _TO = -1, -2

Flow = dict[int, dict[int, int]]  # remaining flow capacity from one place to another


def is_lowest(
    groups: Sequence[tuple[tuple[int, int], ...]], before: Sequence[int], early: int, late: int
) -> bool:
    """Return True if no set of nodes between `early` and `late` has fewer live bytes than `late`.

    Only sets that can have run count. `before` holds for each node the mask of nodes that must run
    first.
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
        # A group is two places after all nodes; its cost is the capacity from the first to the
        # second.
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
    """Return the edges of a shortest path with remaining capacity; empty if there is none."""
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


_NEVER = 1 << 62

# Each branch copies its state, so this bounds memory where most nodes are ready at the same time.
_MOST_BRANCHES = 64

# Larger sets are not checked, because the time grows faster than their size.
_MOST_BETWEEN_VALLEYS = 200

# The nodes run so far, latest first, as a linked list shared between states.
_Path = tuple["_Path | None", int] | None


@dataclass(slots=True)
class Work:
    """Remaining effort of the search, counted in examined nodes."""

    left: int


@dataclass(frozen=True, slots=True)
class NoOrder:
    """The failure of a search; if `proven`, no order needs fewer bytes than `least`."""

    proven: bool
    least: int


_Steps = dict[int, tuple[int, int]]  # by node: bytes it adds while it runs, and afterwards


@dataclass(slots=True)
class _State:
    done: int
    ready: int
    live: int
    falling: _Steps  # ready nodes that do not raise the live bytes
    rising: _Steps  # all other ready nodes
    path: _Path


class _Levels:
    """States of a search, by the number of nodes run; at most `width` states for each number."""

    def __init__(self, width: int) -> None:
        self.width, self.complete = width, True
        self.states: dict[int, dict[int, _State]] = {}
        self.sizes: list[int] = []

    def add(self, state: _State) -> None:
        size = state.done.bit_count()
        if size not in self.states:
            self.states[size] = {}
            heapq.heappush(self.sizes, size)
        self.states[size].setdefault(state.done, state)

    def pop(self) -> list[_State]:
        """Remove and return the states with the fewest nodes run; empty if there are none."""
        if not self.sizes:
            return []
        states = list(self.states.pop(heapq.heappop(self.sizes)).values())
        states.sort(key=lambda state: (state.live, state.done))
        if len(states) > self.width:
            self.complete = False
            states = states[: self.width]
        return states

    def limited(self, state: _State, nodes: list[int]) -> list[int]:
        """Return the nodes that raise the live bytes the least, at most 64 nodes."""
        if len(nodes) <= _MOST_BRANCHES:
            return nodes
        self.complete = False
        return heapq.nsmallest(_MOST_BRANCHES, nodes, key=lambda n: (state.rising[n][::-1], n))

    def clear(self) -> None:
        """Drop all states."""
        self.states, self.sizes = {}, []


class Search:
    """Search for an order of a segment, forwards or backwards in time."""

    def __init__(self, segment: Segment, *, backward: bool) -> None:
        count = len(segment)
        self.count, self.backward = count, backward
        self.price = 1 + count // 8_000  # long masks take more time
        self.groups, self.overwrites = segment.groups, segment.overwrites
        self.start = 1 << (count + backward)
        self.live = segment.live_at(self.start)
        if backward:
            self.after = [tuple(bits(before)) for before in segment.before]
            self.before = [sum(1 << node for node in after) for after in segment.after]
        else:
            self.after, self.before = list(segment.after), list(segment.before)

    def run(self, limit: int, width: int, work: Work) -> list[int] | NoOrder:
        """Return an order that never needs more than `limit` bytes, or NoOrder."""
        self.limit, self.least, self.work = limit, _NEVER, work
        valley = self._first()
        levels, seen = _Levels(width), set[int]()
        levels.add(valley)
        while work.left > 0 and (states := levels.pop()):
            if states[0].live <= valley.live and (
                not levels.complete or self._is_valley(valley, states[0])
            ):
                valley = states[0]
                states = [valley]
                levels.clear()
                seen.clear()  # dropped states may be reached again from here
            for state in states:
                if not state.ready:
                    return self._order(state.path)
                for node in levels.limited(state, self._fitting(state)):
                    done = state.done | 1 << node
                    if done not in seen:
                        seen.add(done)
                        levels.add(self._child(state, node))
        return NoOrder(work.left > 0 and levels.complete, self.least)

    def _is_valley(self, early: _State, late: _State) -> bool:
        count = (late.done & ~early.done).bit_count()
        self.work.left -= count
        if count > _MOST_BETWEEN_VALLEYS:
            return False
        return is_lowest(self.groups, self.before, early.done, late.done)

    def walk(self, work: Work) -> list[int] | None:
        """Return a greedy order: each step runs the node that leaves the fewest bytes alive.

        Return None if the work runs out.
        """
        self.limit, self.work = _NEVER, work
        state = self._first()
        heap = [(raised, rise, node) for node, (rise, raised) in state.rising.items()]
        heapq.heapify(heap)
        while heap and work.left > 0:
            raised, rise, node = heapq.heappop(heap)
            if state.rising.get(node) == (rise, raised):
                for other in self._run(state, node):
                    if cost := state.rising.get(other):
                        heapq.heappush(heap, (cost[1], cost[0], other))
        return None if state.ready else self._order(state.path)

    def _run(self, state: _State, node: int) -> set[int]:
        """Run a node that raises the live bytes, then all ready nodes that do not.

        Return the nodes whose cost changed.
        """
        changed = {*self._advance(state, node, state.rising)}
        while state.falling:
            changed.update(self._advance(state, next(iter(state.falling)), state.falling))
        return changed

    def _first(self) -> _State:
        state = _State(self.start, 0, self.live, {}, {}, None)
        for node in range(self.count):
            if not self.before[node]:
                state.ready |= 1 << node
                self._assess(state, node)
        return self._settle(state)

    def _fitting(self, state: _State) -> list[int]:
        """Return the ready nodes within the limit; record the fewest bytes that the others need."""
        room = self.limit - state.live
        fitting = [node for node, (rise, _) in state.rising.items() if rise <= room]
        blocked = [rise for rise, _ in state.falling.values()]
        blocked += [rise for rise, _ in state.rising.values() if rise > room]
        self.least = min(self.least, state.live + min(blocked, default=_NEVER))
        self.work.left -= (len(blocked) + len(fitting)) // 8
        return fitting

    def _child(self, state: _State, node: int) -> _State:
        child = _State(
            state.done,
            state.ready,
            state.live,
            state.falling.copy(),
            state.rising.copy(),
            state.path,
        )
        self.work.left -= (len(state.falling) + len(state.rising)) // 8
        self._advance(child, node, child.rising)
        return self._settle(child)

    def _settle(self, state: _State) -> _State:
        """Run all nodes that fit and do not raise the live bytes, and return the state."""
        while True:
            room = self.limit - state.live
            node = next((n for n, (rise, _) in state.falling.items() if rise <= room), None)
            if node is None:
                return state
            self._advance(state, node, state.falling)

    def _advance(self, state: _State, node: int, steps: _Steps) -> list[int]:
        """Run a node; return the ready nodes whose cost changed."""
        state.live += steps.pop(node)[1]
        was = state.done
        state.done |= 1 << node
        state.ready &= ~(1 << node)
        state.path = (state.path, node)
        missing = ~state.done
        changed = 0
        for mask, _ in self.groups[node]:
            rest = mask & missing
            # Only groups that have begun, or have one node left that can end them, change a cost.
            if not mask & was or not rest & (rest - 1):
                changed |= rest
        assessed = bits(state.ready & changed)
        ready = [other for other in self.after[node] if not self.before[other] & missing]
        for other in ready:
            state.ready |= 1 << other
        assessed += ready
        for other in assessed:
            self._assess(state, other)
        self.work.left -= (2 + len(assessed)) * self.price
        return assessed

    def _assess(self, state: _State, node: int) -> None:
        """Record the cost of running a ready node in this state."""
        after = state.done | 1 << node
        rise = ending = 0
        for mask, size in self.groups[node]:
            if not mask & state.done:
                rise += size
            if mask & after == mask:
                ending += size
        state.rising.pop(node, None)
        steps = state.falling if rise <= ending else state.rising
        steps[node] = rise - self._spared(node, state.done), rise - ending

    def _spared(self, node: int, done: int) -> int:
        """Return the bytes saved by overwriting an operand that ends at this node."""
        spared = 0
        for mask, size in self.overwrites[node]:
            rest = mask & ~(1 << node)
            if not rest & done if self.backward else rest & done == rest:
                spared = max(spared, size)
        return spared

    def _order(self, path: _Path) -> list[int]:
        order = []
        while path is not None:
            path, node = path
            order.append(node)
        return order if self.backward else order[::-1]
