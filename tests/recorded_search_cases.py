"""Forty packing questions with one answer each, for every implementation of the search."""

from __future__ import annotations

import csv
import random
import tarfile
from collections.abc import Iterator
from pathlib import Path

from qnnmem.ir.model import Buffer, Span
from qnnmem.planner.instance import Instance, arrange, load_bound
from qnnmem.planner.problem import Problem
from qnnmem.units import Bytes, Step

DATA = Path(__file__).parents[1] / "benchmarks" / "data"


def cases() -> Iterator[tuple[str, Instance, int]]:
    """Yield a name, an instance and the capacity in bytes to ask about."""
    for name, problem in sorted(published()):
        yield f"minimalloc-{name}", arrange(problem), 1 << 20
    for seed in range(10):
        instance = arrange(_cut_rectangle(seed))
        yield f"rectangle-{seed}", instance, load_bound(instance)
    for seed in range(10):
        instance = arrange(_scattered(seed, 24 + 4 * seed, (1,)))
        yield f"scattered-{seed}", instance, load_bound(instance) + seed % 3
    for seed in range(9):
        instance = arrange(_scattered(seed, 16 + 2 * seed, (1, 8, 64, 96)))
        yield f"mixed-alignments-{seed}", instance, load_bound(instance) + 32 * (seed % 4)


def published() -> Iterator[tuple[str, Problem]]:
    """Yield minimalloc's challenging problems from the benchmark data."""
    with tarfile.open(DATA / "minimalloc_challenging.tar.xz") as archive:
        for member in archive:
            file = archive.extractfile(member) if member.name.endswith(".csv") else None
            if file is not None:
                rows = csv.DictReader(file.read().decode().splitlines())
                lives = [
                    (row["id"], int(row["size"]), (int(row["lower"]), int(row["upper"])))
                    for row in rows
                ]
                yield Path(member.name).name[0], Problem(Buffer(*life) for life in lives)


def _cut_rectangle(seed: int) -> Problem:
    """Return buffers that fill a rectangle of time and address without a gap."""
    draw = random.Random(f"rectangle {seed}")  # noqa: S311 - reproducible, not secret
    pieces = [(0, 60 + 9 * seed, 0, 64 * (70 + 12 * seed))]
    while len(pieces) < 60 + 12 * seed:
        start, end, low, high = pieces.pop(draw.randrange(len(pieces)))
        if draw.random() < 0.5 and end - start > 1:
            at = draw.randrange(start + 1, end)
            pieces += [(start, at, low, high), (at, end, low, high)]
        elif high - low > 64:
            at = 64 * draw.randrange(low // 64 + 1, high // 64)
            pieces += [(start, end, low, at), (start, end, at, high)]
        else:
            pieces.append((start, end, low, high))
    return Problem(
        Buffer(f"b{i}", Bytes(high - low), Span(Step(start), Step(end)), 64)
        for i, (start, end, low, high) in enumerate(pieces)
    )


def _scattered(seed: int, count: int, aligns: tuple[int, ...]) -> Problem:
    """Return buffers of random sizes and lifetimes."""
    draw = random.Random(f"scattered {seed} {len(aligns)}")  # noqa: S311 - reproducible, not secret
    made = []
    for i in range(count):
        start = draw.randrange(count)
        end = start + 1 + min(int(draw.expovariate(6 / count)), count)
        size = Bytes(draw.randint(1, 400))
        made.append(Buffer(f"b{i}", size, Span(Step(start), Step(end)), draw.choice(aligns)))
    return Problem(made)
