"""Seeded instances of shapes that this planner was not tuned on."""

from __future__ import annotations

import random

from qnnmem.ir import Span
from qnnmem.planner import Buffer, Problem
from qnnmem.units import Align, Bytes, Step

KINDS = ("uniform", "short", "heavy", "chain", "cut", "mixed")


def make(kind: str, count: int, seed: int) -> Problem:
    """Return a problem of about `count` buffers; the same arguments give the same problem."""
    draw = random.Random(f"{kind} {count} {seed}")  # noqa: S311 - data, not secrets
    rows = (
        _cut(draw, count) if kind == "cut" else [_row(draw, kind, i, count) for i in range(count)]
    )
    return Problem(
        tuple(
            Buffer(str(i), Bytes(size), Span(Step(lower), Step(upper)), Align(align))
            for i, (lower, upper, size, align) in enumerate(rows)
        )
    )


def _row(draw: random.Random, kind: str, i: int, count: int) -> tuple[int, int, int, int]:
    begin = draw.randrange(count)
    if kind == "uniform":  # long and short lifetimes
        low, high = sorted(draw.sample(range(count + 1), 2))
        return low, high, draw.randint(1, 10_000), 1
    if kind == "short":
        return begin, begin + 1 + int(draw.expovariate(1 / 8)), draw.randint(1, 100_000), 1
    if kind == "heavy":  # a few lifetimes are very long, a few buffers very large
        return begin, begin + 1 + int(draw.paretovariate(1.1)), int(2 ** draw.uniform(4, 20)), 1
    if kind == "chain":  # a network with skip connections
        skip = draw.randint(3, 60) if draw.random() < 0.2 else 0
        return i, i + 2 + skip, 64 * draw.choice((64, 128, 256, 512)) * draw.randint(1, 200), 64
    align = draw.choice((1, 4, 16, 64, 128, 256, 1024))
    return begin, begin + 1 + int(draw.expovariate(1 / 15)), int(2 ** draw.uniform(3, 16)), align


def _cut(draw: random.Random, count: int) -> list[tuple[int, int, int, int]]:
    """Return pieces of a rectangle of memory and time: a plan without any gap exists."""
    pieces = [(0, 4 * count, 0, 1 << 20)]
    while len(pieces) < count:
        area = [(x1 - x0) * (y1 - y0) * draw.random() for x0, x1, y0, y1 in pieces]
        x0, x1, y0, y1 = pieces.pop(area.index(max(area)))
        if draw.random() < 0.5 and x1 - x0 > 1:
            at = draw.randint(x0 + 1, x1 - 1)
            pieces += [(x0, at, y0, y1), (at, x1, y0, y1)]
        elif y1 - y0 >= 128:
            at = draw.randint(y0 // 64 + 1, (y1 - 1) // 64) * 64
            pieces += [(x0, x1, y0, at), (x0, x1, at, y1)]
        else:
            pieces.append((x0, x1, y0, y1))
    return [(x0, x1, y1 - y0, 1) for x0, x1, y0, y1 in pieces]
