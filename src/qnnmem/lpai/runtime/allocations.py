"""Every allocation of every heap by its address: whose bytes a pointer points to.

A client hands over an address and a size. Whatever object they come in (a buffer, a slice of it, a
numpy view of a view), the address tells the allocation. An allocation is known for as long as its
bytes are mapped, that is as long as anybody refers to any of them: no address means two things.
"""

from __future__ import annotations

import weakref
from bisect import bisect_right, insort
from collections import deque
from threading import Lock
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from qnnmem.qnn.enums import MemType

GUARD_BYTES = 64
GUARD = 0xA5


class Allocation:
    """One block that a heap gave out: real bytes between two guard zones."""

    def __init__(
        self, storage: NDArray[Any], start: int, size: int, mem_type: MemType, name: str
    ) -> None:
        self._storage = weakref.ref(storage, lambda _: _gone.append(self))
        self._start = start
        self.block: int = storage.__array_interface__["data"][0]
        self.block_end: int = self.block + storage.size
        self.address: int = self.block + start
        self.size = size
        self.mem_type, self.name = mem_type, name
        self.freed = False
        self.serial = next_serial()
        # Alignments that were known before it was made, as far as hand-overs have shown.
        self.known_alignments: set[tuple[int, int]] = set()
        _add(self)

    @property
    def end(self) -> int:
        """The address behind its last byte."""
        return self.address + self.size

    def bytes_from(self, address: int) -> NDArray[Any] | None:
        """The bytes from an address to the end; None once they are unmapped."""
        storage = self._storage()
        if storage is None:
            return None
        return storage[address - self.block : self._start + self.size]

    def guards_broken(self) -> tuple[str, ...]:
        """Sides on which something was written past the block: `before`, `behind`."""
        storage = self._storage()
        if storage is None:
            return ()
        end = self._start + self.size
        before = storage[self._start - GUARD_BYTES : self._start]
        behind = storage[end : end + GUARD_BYTES]
        sides = (("before", before), ("behind", behind))
        return tuple(side for side, zone in sides if (zone != GUARD).any())


class ForeignMemory:
    """Bytes of another process: its address there, and a copy here that is executed on.

    Who owns the other process keeps the copy current, and says when the memory there is freed.
    Equal addresses of two address spaces are different memory.
    """

    def __init__(
        self,
        address: int,
        array: NDArray[Any],
        *,
        readonly: bool = False,
        address_space: object = None,
    ) -> None:
        self.address, self.array, self.readonly = address, array, readonly
        self.address_space = address_space
        self.size: int = array.size
        self.mem_type: MemType | None = None  # which heap it is of, only the other process knows
        self.freed = False
        self.serial = next_serial()
        self.known_alignments: set[tuple[int, int]] = set()

    def guards_broken(self) -> tuple[str, ...]:
        """Nothing: the blocks of other processes have no guard zones of ours."""
        return ()


def find_allocation(address: int) -> Allocation | None:
    """The allocation whose block, guard zones included, an address lies in."""
    with _lock:
        _forget_gone()
        at = bisect_right(_blocks, address) - 1
        found = _by_block[_blocks[at]] if at >= 0 else None
    return found if found is not None and address < found.block_end else None


def as_address(memory: object) -> int | None:
    """The number of a pointer that comes as a number; None for anything that holds bytes."""
    import numpy

    if type(memory) is int or isinstance(memory, numpy.integer):
        return int(memory)
    if type(memory).__name__ != "c_void_p":
        return None
    value = getattr(memory, "value", None)
    return value if isinstance(value, int) else 0  # ctypes shows NULL as None


def next_serial() -> int:
    """A number larger than every one before: says what came first."""
    with _lock:
        _serial[0] += 1
        return _serial[0]


def _add(allocation: Allocation) -> None:
    with _lock:
        _forget_gone()
        insort(_blocks, allocation.block)
        _by_block[allocation.block] = allocation


def _forget_gone() -> None:
    # The end of a block may come in the middle of anything, also of what holds the lock: it is
    # only noted there, and acted on here.
    while _gone:
        gone = _gone.popleft()
        if _by_block.get(gone.block) is gone:
            del _by_block[gone.block]
            del _blocks[bisect_right(_blocks, gone.block) - 1]


_lock = Lock()
_serial = [0]
_gone: deque[Allocation] = deque()
_blocks: list[int] = []  # sorted
_by_block: dict[int, Allocation] = {}
