"""Simulated address ranges that heaps cut buffers from, and the one TCM pool of the process."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import cache
from threading import Lock

from qnnmem.errors import TcmFatal
from qnnmem.qnn.enums import LogLevel, MemType
from qnnmem.targets import tcm_pool
from qnnmem.units import MAX_BYTES, round_up

Log = Callable[[LogLevel, str], None]

# Where each heap begins, far enough apart that an address tells its heap. The numbers are ours.
BASE = {
    MemType.TCM: 0x0300_0000,
    MemType.LLC: 0x2000_0000,
    MemType.PSRAM: 0x4000_0000,
    MemType.DDR: 0x8000_0000,
}


class AddressSpace:
    """First-fit allocator of simulated addresses."""

    def __init__(self, base: int, capacity: int | None) -> None:
        self._base, self.capacity = base, capacity
        self._taken: dict[int, int] = {}  # bytes by address
        self._returned: deque[int] = deque()
        self._lock = Lock()

    @property
    def used(self) -> int:
        """Bytes that are taken."""
        with self._lock:
            self._take_back()
            return sum(self._taken.values())

    @property
    def count(self) -> int:
        """Number of buffers."""
        with self._lock:
            self._take_back()
            return len(self._taken)

    def take(self, size: int, align: int, _log: Log) -> int | None:
        """Return a free address, or None if there is no room."""
        with self._lock:
            self._take_back()
            return self._place(size, align)

    def give(self, address: int) -> None:
        """Free the bytes at an address."""
        # It may be called when Python collects garbage, also while the lock is held.
        self._returned.append(address)

    def _take_back(self) -> None:
        while self._returned:
            self._taken.pop(self._returned.popleft(), None)

    def _place(self, size: int, align: int) -> int | None:
        address = self._base
        for start in sorted(self._taken):
            if address + max(size, 1) <= start:
                break
            address = round_up(start + self._taken[start], align)
        limit = MAX_BYTES if self.capacity is None else self.capacity
        if address + size > self._base + limit:
            return None
        self._taken[address] = max(size, 1)  # even an empty buffer has an address of its own
        return address


class TcmSpace(AddressSpace):
    """A pool of fixed size for a fixed number of allocations, with the documented messages.

    It is registered, with a line of its own, by the first allocation, and again by the first one
    after everything was freed.
    """

    def __init__(self, size: int, max_allocations: int) -> None:
        super().__init__(BASE[MemType.TCM], size)
        self.size, self.max_allocations = size, max_allocations

    def take(self, size: int, align: int, log: Log) -> int | None:
        """An address, or None with a logged error; one allocation too many is fatal."""
        with self._lock:
            self._take_back()
            is_first, used = not self._taken, sum(self._taken.values())
            is_fatal = len(self._taken) >= self.max_allocations
            address = None if is_fatal else self._place(size, align)
        if is_first:
            log(LogLevel.INFO, f"TCM pool current size: {used} max_size: {self.size}")
        if is_fatal:
            raise TcmFatal(self.max_allocations)
        if address is None:
            log(LogLevel.ERROR, f"TCM memory allocation failure: required size: {size}")
        else:
            log(LogLevel.INFO, f"Allocate size {size} from tcm pool 0")
        return address


@cache
def process_tcm() -> TcmSpace:
    """The documented pool; a process has one, whoever allocates from it."""
    facts = tcm_pool()
    return TcmSpace(facts.size.value, facts.max_allocations.value)
