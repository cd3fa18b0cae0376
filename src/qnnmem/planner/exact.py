"""Exact search: whether buffers fit a capacity.

eliminate   set aside the buffers that fit no matter where the others are placed; place them last
core        keep the other buffers; if there are many, start with those alive where memory is
            nearly full
search      search the core exactly, restarted with growing limits and in several orders
            (planner/packing.c)
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from enum import Enum

from qnnmem.planner.effort import Effort
from qnnmem.planner.greedy import Offsets, highest_load, orders
from qnnmem.planner.instance import Instance
from qnnmem.planner.packing import (
    CUT,
    FEW,
    LOW,
    SOLVED,
    TIGHT,
    CompiledPacking,
    Packing,
    Strategy,
    is_compiled,
)

# Above this many buffers, one dive (a path from the search root to a full plan) takes seconds.
LARGE_CORE = 4000
# A slice of the search is short, so that the clock is checked in between.
LONGEST_SLICE = 100_000_000
# Limit of one dive: the clock and Ctrl-C wait at most this long.
LONGEST_DIVE = 300_000_000
PLACING_SLICE = 15_000_000
# A search stores two numbers for each pair of neighbours: 256 MB at this limit.
MOST_CORE_PAIRS = 16_000_000
# Limit on section visits; above it a core grows only by the buffers that did not fit.
MOST_LOOKS = 2_000_000
SHORTEST_DIVE = 250_000
# Work to prepare a restart, for each buffer.
RESTART_WORK = 500
# Conflicts lose weight with each restart; otherwise the first conflicts would steer all searches.
FORGET = 0.5


class Answer(Enum):
    """Whether buffers fit a capacity."""

    FITS = "fits"
    NO = "no"  # proven
    UNKNOWN = "unknown"


def packing(instance: Instance) -> Packing:
    """Return the fastest implementation of the inner loops on this machine."""
    if is_compiled():
        return CompiledPacking(instance)
    from qnnmem.planner.plain_packing import PlainPacking

    return PlainPacking(instance)


def place_packed(
    packing: Packing,
    order: list[int],
    best_fit: bool,
    effort: Effort,
    around: Offsets | None = None,
) -> Offsets | None:
    """Place buffers greedily around those already placed, and return all offsets.

    Return None if the effort runs out.
    """
    offsets = [-1] * len(packing.instance) if around is None else around
    while True:
        slice_work = PLACING_SLICE // packing.cost
        placed, work, offsets = packing.place(order, best_fit, offsets, slice_work)
        effort.spend(work * packing.cost)
        order = order[placed:]
        if not order:
            return offsets
        if effort.over:
            return None


def fit(
    instance: Instance, capacity: int, effort: Effort, seed: int = 0
) -> tuple[Answer, Offsets | None]:
    """Return whether the buffers fit below `capacity` bytes, and offsets if they do."""
    limit = [instance.highest_offset(i, capacity) for i in range(len(instance))]
    if min(limit, default=0) < 0:
        return Answer.NO, None
    loops = packing(instance)
    if instance.pairs > loops.most_pairs:
        return Answer.UNKNOWN, None
    aside = loops.eliminate(limit)
    kept = sorted(set(range(len(instance))) - set(aside))
    offsets = [-1] * len(instance)
    if kept:
        core = instance.subset(kept)
        solve = _search if len(core) <= LARGE_CORE else _grow_core
        answer, core_offsets = solve(core, capacity, effort, seed)
        if core_offsets is None:
            return answer, None
        for i, offset in zip(core.source, core_offsets, strict=True):
            offsets[i] = offset
    placed = place_packed(loops, aside[::-1], False, effort, offsets)
    return (Answer.UNKNOWN if placed is None else Answer.FITS), placed


def dive_work(core: Instance) -> int:
    """Return an upper estimate of the work for one path from the search root to a full plan."""
    width = sum(hi - lo for lo, hi in zip(core.lo, core.hi, strict=True))
    return SHORTEST_DIVE + len(core) * (256 + 8 * len(core) + 3 * core.sections + width // 4)


def _search(
    core: Instance, capacity: int, effort: Effort, seed: int
) -> tuple[Answer, Offsets | None]:
    """Return the answer of an exact search, restarted until it decides or the effort is spent."""
    loops = packing(core)
    limit = [core.highest_offset(i, capacity) for i in range(len(core))]
    prepared = loops.core(limit, _twins(core, limit))
    dive = dive_work(core)
    for length, strategy in _restarts(core, seed):
        longest = min(max(dive, LONGEST_SLICE // loops.cost), LONGEST_DIVE // loops.cost)
        allowed = min(dive * length, longest, effort.at_once // loops.cost)
        effort.spend(RESTART_WORK * len(core))
        status, work, offsets = prepared.search(strategy, allowed)
        effort.spend(work * loops.cost)
        prepared.forget(FORGET)
        if status == SOLVED:
            return Answer.FITS, offsets
        if status != CUT:
            return Answer.NO, None
        if effort.over:
            break
    return Answer.UNKNOWN, None


def _twins(core: Instance, limit: list[int]) -> list[int]:
    """Return a class number for each buffer; interchangeable buffers have the same number."""
    kinds: dict[tuple[int, ...], int] = {}
    alike = zip(core.lo, core.hi, core.size, core.align, limit, strict=True)
    return [kinds.setdefault(key, len(kinds)) for key in alike]


def _restarts(core: Instance, seed: int) -> Iterator[tuple[int, Strategy]]:
    """Yield the length and strategy of each restart, without end.

    A search succeeds early or almost never. So most restarts are short, and a few long ones, in
    Luby's sequence, keep the search complete. The plain orders come first, then randomly disturbed
    ones.
    """
    shuffle = random.Random(seed)  # noqa: S311 - variety, not secrecy
    by_size, by_load, _, _, by_area, by_width = orders(core)
    turn = 0
    for noise in itertools.chain((0.0,), itertools.cycle((0.1, 0.3, 0.1, 1.0))):
        for rule in (FEW, TIGHT, LOW):
            for order in (by_width, by_size, by_load, by_area):
                rank = _disturbed_ranks(order, noise, shuffle)
                turn += 1
                # Preferring buffers that touch walls helps most problems but misleads some.
                bonus = 0 if turn % 5 in (0, 3) else len(core) // 2
                yield _luby(turn), Strategy(rank, rule, bonus)


def _disturbed_ranks(order: list[int], noise: float, shuffle: random.Random) -> list[int]:
    """Return each buffer's rank after random moves by up to `noise` times the order's length."""
    places = [(k + shuffle.random() * noise * len(order), i) for k, i in enumerate(order)]
    rank = [0] * len(order)
    for k, (_, i) in enumerate(sorted(places)):
        rank[i] = k
    return rank


def _luby(turn: int) -> int:
    """Return a term of Luby's sequence 1 1 2 1 1 2 4 1 1 2 …, counted from 1."""
    size = turn.bit_length()
    if turn == (1 << size) - 1:
        return 1 << (size - 1)
    return _luby(turn - (1 << (size - 1)) + 1)


def _grow_core(
    core: Instance, capacity: int, effort: Effort, seed: int
) -> tuple[Answer, Offsets | None]:
    """Search with only the buffers alive where memory is nearly full; return answer and offsets.

    The other buffers are placed greedily afterwards. Those that do not fit are added to the
    buffers of the search, which starts again.
    """
    full = highest_load(core)
    hot = {i for i, load in enumerate(full) if load * core.unit > 0.9 * capacity}
    loops, candidates = packing(core), list(orders(core))[:4]
    for _ in range(6):
        inner = core.subset(sorted(hot))
        if inner.pairs > MOST_CORE_PAIRS or effort.over:
            return Answer.UNKNOWN, None
        answer, inner_offsets = _search(inner, capacity, effort, seed)
        if inner_offsets is None or effort.over:
            return (answer if inner_offsets is None else Answer.UNKNOWN), None
        around = [-1] * len(core)
        for i, offset in zip(inner.source, inner_offsets, strict=True):
            around[i] = offset
        fewest: list[int] | None = None
        for order in candidates:
            offsets = place_packed(loops, order, False, effort, around)
            if offsets is None:
                return Answer.UNKNOWN, None
            high = [i for i, o in enumerate(offsets) if core.end_bytes(i, o) > capacity]
            if not high:
                return Answer.FITS, offsets
            if fewest is None or len(high) < len(fewest):
                fewest = high
        hot |= _with_fullest_sections(core, fewest or [])
    return Answer.UNKNOWN, None


def _with_fullest_sections(core: Instance, chosen: list[int]) -> set[int]:
    """Return the chosen buffers, and all buffers alive in the fullest section of one of them."""
    if sum(core.hi[i] - core.lo[i] for i in chosen) > MOST_LOOKS:
        return set(chosen)
    fullest = set(map(core.fullest_section, chosen))
    below = [0, *itertools.accumulate(section in fullest for section in range(core.sections))]
    alive = {i for i in range(len(core)) if below[core.hi[i]] > below[core.lo[i]]}
    return alive | set(chosen)
