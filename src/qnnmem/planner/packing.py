"""What the planner's inner loops give, whether they are compiled or plain Python."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple, Protocol

from qnnmem.planner.instance import Instance

SOLVED, EXHAUSTED, CUT = 1, 0, -1  # how a search ended, as in C
# What counts when a section is chosen: only how few choices it has, or also how little slack, or
# also how low its floor is.
FEW, TIGHT, LOW = 0, 1, 2
MEMO_SLOTS = 1 << 20  # failed states that are kept, 16 bytes each
# A list can be made so that each pass of elimination sets aside a single buffer.
MOST_ELIMINATION_LOOKS = 4_000_000


class Strategy(NamedTuple):
    """Which choice a search tries first; every strategy gives the same answer, sooner or later."""

    rank: Sequence[int]  # of buffers that could sit on the same floor: the lowest goes first
    branching_rule: int
    wall_bonus: int  # how far a buffer moves forward in rank for each wall of its pit it touches


class PackingCore(Protocol):
    """An instance and a capacity; a search keeps what it learned for the next."""

    def search(self, strategy: Strategy, work_limit: int) -> tuple[int, int, list[int]]:
        """How a search from the start ended, the work, and the offsets where it is SOLVED."""
        ...

    def forget(self, share: float) -> None:
        """Let the conflicts that were met count less."""
        ...


class Packing(Protocol):
    """The loops for one instance."""

    instance: Instance
    cost: int  # of a unit of work, in units of planner/effort.py
    most_pairs: int  # of overlapping buffers that are searched, as each takes memory

    def eliminate(self, limit: Sequence[int]) -> list[int]:
        """Buffers that fit wherever the others are, as they may be set aside."""
        ...

    def place(
        self, order: list[int], best_fit: bool, offsets: list[int], work_limit: int
    ) -> tuple[int, int, list[int]]:
        """How many of the order were reached, the work, and the offsets: -1 for none yet."""
        ...

    def core(self, limit: Sequence[int], twin: Sequence[int]) -> PackingCore:
        """What a search needs: highest offsets, and the kinds that can be exchanged."""
        ...


def first_of_sections(instance: Instance) -> list[int]:
    """For each section, and for the end, the first buffer born there or later."""
    born = [0] * (instance.sections + 1)
    for lo in instance.lo:
        born[lo + 1] += 1
    return list(accumulate(born))
