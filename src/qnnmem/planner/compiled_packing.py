"""The planner's inner loops, compiled from `packing.c`."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from functools import cache
from typing import Any

from qnnmem.native_parts import NativePart, load_library
from qnnmem.planner.instance import Instance
from qnnmem.planner.packing import (
    CUT,
    MEMO_SLOTS,
    MOST_ELIMINATION_LOOKS,
    PackingCore,
    Strategy,
    first_of_sections,
)

_OBJECT = "libqnnmem_packing.so"
# A product that is fused with a sum would round otherwise on some machines.
_FLAGS = ("-O3", "-ffp-contract=off")
PACKING = NativePart("qnnmem.planner", "packing.c", {_OBJECT: _FLAGS}, use="compiling the search")


def is_compiled() -> bool:
    """Whether the loops are compiled, or can be now; that takes seconds once on a machine."""
    return not why_not_compiled()


@cache  # a search asks often, and without a compiler each look would read the disk again
def why_not_compiled() -> str:
    """Why the loops run in plain Python; empty where they do not."""
    try:
        _library()
    except ImportError as exc:
        return str(exc)
    return ""


@cache
def _library() -> Any:
    """The compiled loops; ImportError where there are none."""
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
    """The loops in C; the arrays live as long as this object."""

    cost = 1
    most_pairs = 1 << 60  # only the core keeps pairs, see planner/exact.py

    def __init__(self, instance: Instance) -> None:
        fields = (instance.lo, instance.hi, instance.size, instance.align)
        self.instance = instance
        self._arrays = [*map(_ints, fields), _ints(first_of_sections(instance))]
        addresses = map(_address, self._arrays)
        # The struct `Buffers`: two numbers and five addresses, all of eight bytes.
        self.buffers = _ints([len(instance), instance.sections, *addresses])

    def eliminate(self, limit: Sequence[int]) -> list[int]:
        """Buffers that fit wherever the others are, as they may be set aside."""
        limits, order = _ints(limit), _ints([0]) * len(limit)
        count = _library().packing_eliminate(
            _address(self.buffers), _address(limits), MOST_ELIMINATION_LOOKS, _address(order)
        )
        return order[: _checked(count)].tolist()

    def place(
        self, order: list[int], best_fit: bool, offsets: list[int], work_limit: int
    ) -> tuple[int, int, list[int]]:
        """How many of the order were reached, the work, and the offsets."""
        turns, placed, work = _ints(order), _ints(offsets), _ints([0])
        reached = _library().packing_place(
            *(_address(self.buffers), _address(turns), len(order), _address(placed)),
            *(best_fit, work_limit, _address(work)),
        )
        return _checked(reached), work[0], placed.tolist()

    def core(self, limit: Sequence[int], twin: Sequence[int]) -> PackingCore:
        """What a search needs: highest offsets, and the kinds that can be exchanged."""
        return _CompiledCore(self, limit, twin)


class _CompiledCore:
    """The core of a search in C; all its arrays are Python's, so that nothing has to be freed."""

    def __init__(self, packing: CompiledPacking, limit: Sequence[int], twin: Sequence[int]) -> None:
        instance = packing.instance
        self._count, self._memo = len(instance), bytearray(16 * MEMO_SLOTS)
        self._weight = array("d", [1.0]) * instance.sections
        lengths = (len(instance) + 1, 2 * instance.pairs, instance.sections)
        made = [_ints(limit), _ints(twin), *(_ints([0]) * length for length in lengths)]
        # The struct `Core`: the struct `Buffers`, then the addresses of these.
        self._core = _ints([*packing.buffers, *map(_address, made)])
        self._borrowed = (packing, made)  # as long as C has their addresses
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
    """A count as C returned it; negative without memory."""
    if count < 0:
        raise MemoryError
    return count
