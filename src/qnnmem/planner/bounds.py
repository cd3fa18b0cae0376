"""Lower bounds on the peak that hold for every plan."""

from __future__ import annotations

from collections import Counter
from heapq import heappop, heappush
from itertools import accumulate

from qnnmem.planner.instance import Instance

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
    lo, hi, size, slip, unit = instance.lo, instance.hi, instance.size, instance.slip, instance.unit
    change = [0] * (instance.sections + 1)
    padded = []  # (first section, minus padding, last section + 1), by first section as buffers are
    for i in members:
        true = size[i] * unit - slip[i]
        rounded = -(-true // step) * step
        change[lo[i]] += rounded
        change[hi[i]] -= rounded
        if rounded > true:
            padded.append((lo[i], true - rounded, hi[i]))
    return _highest(change, padded) if padded else max(accumulate(change), default=0)


def _highest(change: list[int], padded: list[tuple[int, int, int]]) -> int:
    best, begun = 0, 0
    saved: list[tuple[int, int]] = []  # (minus padding, last section + 1) of what is alive
    for section, total in enumerate(accumulate(change)):
        while begun < len(padded) and padded[begun][0] == section:
            heappush(saved, padded[begun][1:])
            begun += 1
        while saved and saved[0][1] <= section:
            heappop(saved)
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
