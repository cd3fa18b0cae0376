"""Heaps of the simulated platform: address ranges whose buffers are real bytes with guard zones.

Every buffer stands between two guard zones of its own. A freed buffer is filled with a poison and
its bytes stay mapped for a while, so that using it later is something to find, not a crash.
"""

from __future__ import annotations

from collections import deque
from threading import Lock
from typing import TYPE_CHECKING, Any

from qnnmem.errors import QnnError, UsageError
from qnnmem.lpai.rules import finding
from qnnmem.qnn.codes import qnn_error
from qnnmem.qnn.enums import MemType
from qnnmem.text import quote
from qnnmem.units import MAX_BYTES, round_up

if TYPE_CHECKING:
    from types import TracebackType

    import numpy
    from numpy.typing import NDArray

GUARD_BYTES = 64
GUARD = 0xA5
POISON = 0xFF

# Where each heap begins, far enough apart that an address tells its heap. The numbers are ours.
BASE = {
    MemType.TCM: 0x0300_0000,
    MemType.LLC: 0x2000_0000,
    MemType.PSRAM: 0x4000_0000,
    MemType.DDR: 0x8000_0000,
}

_QUARANTINE_BYTES = 16 << 20
_MAX_ALIGN = 1 << 20
_MEM_ALLOC = 1002


class HeapBuffer:
    """Bytes of a heap: real memory at `address`, simulated memory at `heap_address`."""

    def __init__(self, heap: Heap, heap_address: int, size: int, align: int, name: str) -> None:
        if not isinstance(heap, Heap) or not isinstance(heap_address, int):
            raise UsageError("a buffer of a heap is made by its allocate")
        _check(size, align, name)
        self.heap, self.heap_address, self.size, self.name = heap, heap_address, size, name
        self._storage = _storage(size + 2 * GUARD_BYTES + align)
        first = _address(self._storage) + GUARD_BYTES
        self.address = round_up(first, align)
        self._start = self.address - first + GUARD_BYTES
        self._storage[: self._start] = GUARD
        self._storage[self._start + size :] = GUARD
        self.array: NDArray[numpy.uint8] = self._storage[self._start : self._start + size]
        self.freed = False

    @property
    def view(self) -> memoryview:
        """The bytes as a writable buffer."""
        return self.array.data

    @property
    def mem_type(self) -> MemType:
        """The heap's type."""
        return self.heap.mem_type

    def guards_broken(self) -> tuple[str, ...]:
        """Sides on which something was written past the buffer: `before`, `behind`."""
        end = self._start + self.size
        before = self._storage[self._start - GUARD_BYTES : self._start]
        behind = self._storage[end : end + GUARD_BYTES]
        sides = (("before", before), ("behind", behind))
        return tuple(side for side, zone in sides if (zone != GUARD).any())

    def written_after_free(self) -> bool:
        """Whether a freed buffer holds anything but the poison."""
        return self.freed and bool((self.array != POISON).any())

    def free(self) -> None:
        """Give the room back; the bytes are poisoned and must not be used any more."""
        self.heap.release(self)
        self.freed = True
        self.array[:] = POISON

    def __enter__(self) -> HeapBuffer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not self.freed:
            self.free()

    def __repr__(self) -> str:
        state = ", freed" if self.freed else ""
        name = f" {quote(self.name)}" if self.name else ""
        where = f"{self.mem_type.name} {self.heap_address:#x}"
        return f"<HeapBuffer{name} {self.size} bytes at {where}{state}>"


class Heap:
    """One kind of memory; `capacity` in bytes, or None for as much as the machine has."""

    def __init__(self, mem_type: MemType, capacity: int | None = None) -> None:
        if not isinstance(mem_type, int) or mem_type not in BASE:
            raise UsageError("a heap is of type DDR, LLC, TCM or PSRAM")
        if not (capacity is None or isinstance(capacity, int)):
            raise UsageError(
                f"the capacity of a heap is a number of bytes, not a {type(capacity).__name__}"
            )
        self.mem_type, self.capacity = mem_type, capacity
        self._live: dict[int, tuple[int, HeapBuffer]] = {}  # by address: bytes taken, buffer
        self._freed: deque[HeapBuffer] = deque()
        self._freed_bytes = 0
        self._lock = Lock()

    @property
    def live(self) -> tuple[HeapBuffer, ...]:
        """Buffers that were not freed, by address."""
        return tuple(self._live[address][1] for address in sorted(self._live))

    @property
    def used(self) -> int:
        """Bytes that buffers hold."""
        return sum(size for size, _ in self._live.values())

    def allocate(self, size: int, align: int = 64, name: str = "") -> HeapBuffer:
        """A buffer of `size` bytes at a multiple of `align`; a full heap is QNN's code 1002."""
        _check(size, align, name)
        with self._lock:
            address = self._room(size, align)
            if address is None:
                raise self._full(size, name)
            try:
                buffer = HeapBuffer(self, address, size, align, name)
            except MemoryError:
                raise self._full(size, name) from None
            self._live[address] = (max(size, 1), buffer)
        return buffer

    def release(self, buffer: HeapBuffer) -> None:
        """Take a buffer back; called by `HeapBuffer.free`."""
        with self._lock:
            if self._live.get(buffer.heap_address, (0, None))[1] is not buffer:
                raise UsageError(f"buffer {quote(buffer.name)} was freed already")
            del self._live[buffer.heap_address]
            self._freed.append(buffer)
            self._freed_bytes += buffer.size
            while self._freed and self._freed_bytes > _QUARANTINE_BYTES:
                self._freed_bytes -= self._freed.popleft().size

    def _room(self, size: int, align: int) -> int | None:
        # First fit: the lowest aligned address between the buffers that are there.
        address = base = BASE[self.mem_type]
        for start in sorted(self._live):
            if address + max(size, 1) <= start:
                break
            address = round_up(start + self._live[start][0], align)
        limit = MAX_BYTES if self.capacity is None else self.capacity
        return address if address + size <= base + limit else None

    def _full(self, size: int, name: str) -> QnnError:
        of = "" if self.capacity is None else f" of {self.capacity:,} bytes"
        what = f" for {quote(name)}" if name else ""
        sentence = (
            f"the {self.mem_type.name} heap{of} has no room for {size:,} bytes{what}, "
            f"{self.used:,} are taken"
        )
        free = None if self.capacity is None else self.capacity - self.used
        return qnn_error(_MEM_ALLOC, finding("H1", sentence, buffer=name, need=size, given=free))


def _check(size: int, align: int, name: str) -> None:
    if not (isinstance(size, int) and isinstance(align, int) and isinstance(name, str)):
        raise UsageError("a buffer has a whole number of bytes, an alignment and a name")
    if not 0 <= size <= MAX_BYTES:
        raise UsageError(f"a buffer cannot have {size:,} bytes")
    if not 1 <= align <= _MAX_ALIGN or align & (align - 1):
        raise UsageError(f"an alignment is a power of two up to {_MAX_ALIGN:,}, not {align:,}")


def _storage(size: int) -> NDArray[numpy.uint8]:
    import numpy as np

    try:
        return np.zeros(size, np.uint8)
    except ValueError as exc:  # more than an array can ever hold
        raise MemoryError from exc


def _address(array: NDArray[Any]) -> int:
    return int(array.__array_interface__["data"][0])
