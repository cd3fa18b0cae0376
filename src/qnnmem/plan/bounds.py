"""Lower bounds on the peak that hold for every plan."""

from __future__ import annotations

from collections import Counter

from qnnmem.plan.instance import Instance
from qnnmem.units import round_up

MOST_STEPS = 32
# Looks at one buffer: above this only the commonest alignments count.
MOST_LOOKS = 1_000_000


def load_bound(instance: Instance) -> int:
    """Bytes below which no plan can go, from what is alive together.

    In one section every buffer stands above or below every other. Looking only at the buffers
    whose alignment is a multiple of `a`, each but the topmost takes its size rounded up to `a`;
    so the sum of the rounded sizes, less the most that the topmost can save, is a bound for every
    `a`.
    """
    best = 0
    for step in _steps(instance):
        members = [i for i, align in enumerate(instance.align) if align % step == 0]
        best = max(best, _rounded_load(instance, members, step * instance.unit))
    return best


def _steps(instance: Instance) -> list[int]:
    # Any set of numbers gives a bound. Alignments themselves do best for the powers of two met in
    # practice; the most common ones are enough, and a hostile file could hold thousands.
    most = min(MOST_STEPS, max(1, MOST_LOOKS // max(len(instance), 1)))
    common = (align for align, _ in Counter(instance.align).most_common(most))
    return list(dict.fromkeys((1, *common)))


def _rounded_load(instance: Instance, members: list[int], step: int) -> int:
    """Largest sum over sections of sizes rounded up to `step` bytes, less the topmost's padding."""
    change = [0] * (instance.sections + 1)
    padding: list[list[tuple[int, int]]] = [[] for _ in range(instance.sections + 1)]
    for i in members:
        true = instance.true_size(i)
        rounded = round_up(true, step)
        change[instance.lo[i]] += rounded
        change[instance.hi[i]] -= rounded
        if rounded > true:
            padding[instance.lo[i]].append((true - rounded, instance.hi[i]))
    return _highest(change, padding)


def _highest(change: list[int], padding: list[list[tuple[int, int]]]) -> int:
    import heapq

    total, best = 0, 0
    saved: list[tuple[int, int]] = []  # (minus padding, last section + 1) of what is alive
    for section, delta in enumerate(change):
        total += delta
        for entry in padding[section]:
            heapq.heappush(saved, entry)
        while saved and saved[0][1] <= section:
            heapq.heappop(saved)
        best = max(best, total + (saved[0][0] if saved else 0))
    return best


def next_peak(instance: Instance, capacity: int) -> int:
    """Least peak above `capacity` bytes that any plan could have."""
    # A peak is some buffer's legal offset plus its true size; buffers alike in size modulo
    # alignment reach the same ends.
    ends = {(instance.true_size(i), align) for i, align in enumerate(instance.align)}
    best = None
    for true, align in ends:
        step = align * instance.unit
        above = max(0, (capacity - true) // step + 1) * step + true
        best = above if best is None else min(best, above)
    return capacity + 1 if best is None else best
