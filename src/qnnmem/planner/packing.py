"""The planner's inner loops: their interface, and the version compiled from `packing.c`.

`plain_packing` has the same loops in Python, for machines without a compiler.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple, Protocol

from qnnmem.native_parts import NativePart, load_library
from qnnmem.planner.instance import Instance

SOLVED, EXHAUSTED, CUT = 1, 0, -1  # the status of a search, as in C
# Rules for choosing a section: by its number of choices alone, or by that number together with its
# slack or with the height of its floor.
FEW, TIGHT, LOW = 0, 1, 2
MEMO_SLOTS = 1 << 20  # failed states that are stored, 16 bytes each
# Limit on the work of elimination: in a hostile list, each pass may remove only one buffer.
MOST_ELIMINATION_LOOKS = 4_000_000


class Strategy(NamedTuple):
    """The order in which a search tries its choices; the search is complete in every order."""

    rank: Sequence[int]  # of buffers for the same floor: the lowest goes first
    branching_rule: int
    wall_bonus: int  # how far a buffer moves forward for each end of its run that it reaches


class PackingCore(Protocol):
    """Exact search for one instance and capacity; each search learns from earlier conflicts."""

    def search(self, strategy: Strategy, work_limit: int) -> tuple[int, int, list[int]]:
        """Return a search's status and work, and offsets that are valid if the status is SOLVED."""
        ...

    def forget(self, share: float) -> None:
        """Multiply by `share` the weights that sections gained in past conflicts."""
        ...


class Packing(Protocol):
    """The inner loops of the exact search, for one packing problem."""

    instance: Instance
    cost: int  # of a unit of work, in units of planner/effort.py
    most_pairs: int  # limit on overlapping pairs, as each takes memory

    def eliminate(self, limit: Sequence[int]) -> list[int]:
        """Return the buffers that fit no matter where the others are placed."""
        ...

    def place(
        self, order: list[int], best_fit: bool, offsets: list[int], work_limit: int
    ) -> tuple[int, int, list[int]]:
        """Place buffers in this order around those already placed, within the work limit.

        Return the number of buffers placed, the work, and all offsets; a buffer that was not placed
        has offset -1.
        """
        ...

    def core(self, limit: Sequence[int], twin: Sequence[int]) -> PackingCore:
        """Return an exact search, given the highest offset and the class of each buffer.

        Buffers of one class are interchangeable.
        """
        ...


_OBJECT = "libqnnmem_packing.so"
# A multiplication fused with an addition would round differently on some machines.
_FLAGS = ("-O3", "-ffp-contract=off")
PACKING = NativePart("qnnmem.planner", "packing.c", {_OBJECT: _FLAGS}, use="compiling the search")


def is_compiled() -> bool:
    """Return True if the compiled loops are available; compiling them once takes seconds."""
    return not why_not_compiled()


@cache  # without a compiler, each call would read the disk again
def why_not_compiled() -> str:
    """Return why the loops run in plain Python; empty if they are compiled."""
    try:
        _library()
    except ImportError as exc:
        return str(exc)
    return ""


@cache
def _library() -> Any:
    """Return the compiled loops; raise ImportError if they are not available."""
    import ctypes

    library = load_library(PACKING, _OBJECT)
    pointer, number = ctypes.c_void_p, ctypes.c_int64
    library.packing_eliminate.argtypes = (pointer, pointer, number, pointer)
    library.packing_eliminate.restype = number
    library.packing_place.argtypes = (
        *(pointer, pointer, number, pointer),
        *(ctypes.c_int, number, pointer),
    )
    library.packing_place.restype = number
    library.packing_prepare.argtypes = (pointer,)
    library.packing_search.argtypes = (
        *(pointer, pointer, number, number),
        *(pointer, pointer, pointer, number, number, pointer),
    )
    return library


def _ints(values: Sequence[int]) -> array[int]:
    return array("q", values)


def _address(values: array[Any]) -> int:
    return values.buffer_info()[0]


class CompiledPacking:
    """The loops in C; the arrays passed to C live as long as this object."""

    cost = 1
    most_pairs = 1 << 60  # only the core stores pairs, see planner/exact.py

    def __init__(self, instance: Instance) -> None:
        fields = (instance.lo, instance.hi, instance.size, instance.align)
        self.instance = instance
        self._arrays = [*map(_ints, fields), _ints(instance.first)]
        addresses = map(_address, self._arrays)
        # The C struct `Buffers`: two numbers and five addresses of eight bytes each.
        self.buffers = _ints([len(instance), instance.sections, *addresses])

    def eliminate(self, limit: Sequence[int]) -> list[int]:
        """Return the buffers that fit no matter where the others are placed."""
        limits, order = _ints(limit), _ints([0]) * len(limit)
        count = _library().packing_eliminate(
            _address(self.buffers), _address(limits), MOST_ELIMINATION_LOOKS, _address(order)
        )
        return order[: _checked(count)].tolist()

    def place(
        self, order: list[int], best_fit: bool, offsets: list[int], work_limit: int
    ) -> tuple[int, int, list[int]]:
        """Place buffers in this order; return how many were placed, the work, and all offsets."""
        turns, placed, work = _ints(order), _ints(offsets), _ints([0])
        reached = _library().packing_place(
            *(_address(self.buffers), _address(turns), len(order), _address(placed)),
            *(best_fit, work_limit, _address(work)),
        )
        return _checked(reached), work[0], placed.tolist()

    def core(self, limit: Sequence[int], twin: Sequence[int]) -> PackingCore:
        """Return an exact search, given the highest offset and the class of each buffer."""
        return _CompiledCore(self, limit, twin)


class _CompiledCore:
    """Exact search in C; Python owns all its arrays, so there is nothing to free."""

    def __init__(self, packing: CompiledPacking, limit: Sequence[int], twin: Sequence[int]) -> None:
        instance = packing.instance
        self._count, self._memo = len(instance), bytearray(16 * MEMO_SLOTS)
        self._weight = array("d", [1.0]) * instance.sections
        lengths = (len(instance) + 1, 2 * instance.pairs, instance.sections)
        arrays = [_ints(limit), _ints(twin), *(_ints([0]) * length for length in lengths)]
        # The C struct `Core`: the struct `Buffers`, then the addresses of these arrays.
        self._core = _ints([*packing.buffers, *map(_address, arrays)])
        self._borrowed = (packing, arrays)  # must live as long as C has their addresses
        _checked(_library().packing_prepare(_address(self._core)))

    def search(self, strategy: Strategy, work_limit: int) -> tuple[int, int, list[int]]:
        import ctypes

        rank, work = _ints(strategy.rank), _ints([0])
        least = _ints([0]) * self._count
        status = _library().packing_search(
            *(_address(self._core), _address(rank), strategy.branching_rule, strategy.wall_bonus),
            *(_address(least), _address(self._weight)),
            *(ctypes.addressof(ctypes.c_char.from_buffer(self._memo)), MEMO_SLOTS),
            *(work_limit, _address(work)),
        )
        if status < CUT:
            raise MemoryError
        return status, work[0], least.tolist()

    def forget(self, share: float) -> None:
        self._weight = array("d", [1.0 + (weight - 1.0) * share for weight in self._weight])


def _checked(count: int) -> int:
    """Return a count from C; raise MemoryError if it is negative."""
    if count < 0:
        raise MemoryError
    return count
