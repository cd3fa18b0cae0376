"""Heaps of the simulated platform, the TCM pool, and the allocations of qnn-net-run's extensions.

  AddressSpace   allocator of simulated addresses; TcmSpace is the pool of TCM
  HeapBuffer     real bytes at a simulated address, between two guard zones
  Heap           one kind of memory
  Extensions     allocates binary, IO and pools of a run as qnn-net-run's LPAI extensions do

A freed buffer is filled with poison and its bytes stay mapped for a while, so that a later use is
reported and does not crash. TCM has a fixed size: a TCM heap without an explicit capacity uses the
documented pool, which exists once per process. The five messages about TCM are exactly the
documented ones. `choices.toml` lists qnnmem's choices where the documentation is silent.
"""

from __future__ import annotations

import gc
import weakref
import zlib
from collections import deque
from collections.abc import Callable, Iterable
from functools import cache
from threading import Lock
from typing import TYPE_CHECKING, Any

from qnnmem.contract.regions import (
    GUARD,
    GUARD_BYTES,
    Allocation,
    array_address,
    as_address,
    find_allocation,
)
from qnnmem.contract.rules import finding
from qnnmem.errors import QnnError, TcmFatal, UsageError
from qnnmem.lpai.runtime.backend import Backend, Log, ignore_log
from qnnmem.qnn.codes import qnn_error
from qnnmem.qnn.enums import LogLevel, MemType
from qnnmem.targets import tcm_pool
from qnnmem.text import quote
from qnnmem.units import MAX_BYTES, round_up

if TYPE_CHECKING:
    import numpy
    from numpy.typing import NDArray

    from qnnmem.lpai.compiled import CompiledGraph
    from qnnmem.qnn.tensor import QnnTensor

# Start of each heap, far enough apart that an address identifies its heap. The numbers are
# qnnmem's choice.
BASE = {
    MemType.TCM: 0x0300_0000,
    MemType.LLC: 0x2000_0000,
    MemType.PSRAM: 0x4000_0000,
    MemType.DDR: 0x8000_0000,
}

POISON = 0xFF
_QUARANTINE_BYTES = 16 << 20
_MAX_ALIGN = 1 << 20
_MEM_ALLOC = 1002
_TCM_UNIT = 64  # requests for TCM are rounded up to a multiple of this

_WORDS = {"ddr": MemType.DDR, "tcm": MemType.TCM}


class AddressSpace:
    """First-fit allocator of simulated addresses."""

    def __init__(self, base: int, capacity: int | None) -> None:
        self._base, self.capacity = base, capacity
        self._taken: dict[int, int] = {}  # size by address
        self._returned: deque[int] = deque()
        self._lock = Lock()

    @property
    def used(self) -> int:
        """Number of allocated bytes."""
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
        """Return the address of a free block, or None if no free block is large enough."""
        with self._lock:
            self._take_back()
            return self._place(size, align)

    def give(self, address: int) -> None:
        """Free the buffer at an address."""
        # The garbage collector may call this method, even while the lock is held.
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
        self._taken[address] = max(size, 1)  # even an empty buffer has a unique address
        return address


class TcmSpace(AddressSpace):
    """A pool of fixed size for a fixed number of allocations, with the documented messages.

    An allocation in an empty pool registers the pool and logs a line.
    """

    def __init__(self, size: int, max_allocations: int) -> None:
        super().__init__(BASE[MemType.TCM], size)
        self.size, self.max_allocations = size, max_allocations

    def take(self, size: int, align: int, log: Log) -> int | None:
        """Return an address, or None and log an error if the pool is full.

        An allocation beyond the maximum number is fatal.
        """
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
    """Return the documented pool, which exists once per process."""
    facts = tcm_pool()
    return TcmSpace(facts.size.value, facts.max_allocations.value)


class HeapBuffer:
    """A buffer of a heap: real memory at `address`, simulated memory at `heap_address`."""

    def __init__(self, heap: Heap, heap_address: int, size: int, align: int, name: str) -> None:
        if not isinstance(heap, Heap) or not isinstance(heap_address, int):
            raise UsageError("use Heap.allocate to get a buffer")
        _check(size, align, name)
        self.heap, self.heap_address, self.size, self.name = heap, heap_address, size, name
        self._storage = _storage(size + 2 * GUARD_BYTES + align)
        first = array_address(self._storage) + GUARD_BYTES
        self.address = round_up(first, align)
        self._start = self.address - first + GUARD_BYTES
        self._storage[: self._start] = GUARD
        self._storage[self._start + size :] = GUARD
        self.array: NDArray[numpy.uint8] = self._storage[self._start : self._start + size]
        self.allocation = Allocation(self._storage, self._start, size, heap.mem_type, name)

    @property
    def freed(self) -> bool:
        """True if the buffer was freed."""
        return self.allocation.freed

    @property
    def view(self) -> memoryview:
        """The buffer's bytes as a writable memoryview."""
        return self.array.data

    @property
    def mem_type(self) -> MemType:
        """The memory type of the buffer's heap."""
        return self.heap.mem_type

    def guards_broken(self) -> tuple[str, ...]:
        """Return the sides on which guard zones were overwritten: `before`, `behind`."""
        return self.allocation.guards_broken()

    def written_after_free(self) -> bool:
        """Return whether a freed buffer was written to."""
        return self.freed and bool((self.array != POISON).any())

    def free(self) -> None:
        """Free the buffer and fill it with poison; the client must not use it any more."""
        self.heap.release(self)
        self.allocation.freed = True
        self.array[:] = POISON

    def __enter__(self) -> HeapBuffer:
        return self

    def __exit__(self, *_error: object) -> None:
        if not self.freed:
            self.free()

    def __repr__(self) -> str:
        state = ", freed" if self.freed else ""
        name = f" {quote(self.name)}" if self.name else ""
        where = f"{self.mem_type.name} {self.heap_address:#x}"
        return f"<HeapBuffer{name} {self.size} bytes at {where}{state}>"


class Heap:
    """Memory of one kind with a capacity in bytes; None means no limit.

    Without a limit the heap is as large as the machine's memory. A TCM heap without a limit uses
    the documented pool and sends its messages to `log`.
    """

    def __init__(
        self, mem_type: MemType, capacity: int | None = None, *, log: Log | None = None
    ) -> None:
        if not isinstance(mem_type, int) or mem_type not in BASE:
            raise UsageError("a heap must be of type DDR, LLC, TCM or PSRAM")
        if not (capacity is None or isinstance(capacity, int)):
            raise UsageError(
                f"the capacity of a heap must be a number of bytes, not a {type(capacity).__name__}"
            )
        if log is not None and not callable(log):
            raise UsageError("the log of a heap must be a function of a level and a line")
        self.mem_type, self.capacity = MemType(mem_type), capacity
        self._log = ignore_log if log is None else log
        self._space, self._unit = AddressSpace(BASE[self.mem_type], capacity), 1
        self._live: dict[int, HeapBuffer] = {}  # by simulated address
        self._held: set[int] = set()  # the same addresses, needed when the heap no longer exists
        self._freed: deque[HeapBuffer] = deque()
        self._freed_bytes = 0
        self._lock = Lock()
        self._ending = self.abandon_with(self)
        if self.mem_type is MemType.TCM and capacity is None:
            self.cut_from(process_tcm(), _TCM_UNIT)

    def cut_from(self, pool: TcmSpace, unit: int) -> None:
        """From now on, allocate from a pool of TCM, in multiples of a unit."""
        self._space, self._unit = pool, unit
        self._ending()  # no buffers are left in the previous pool
        self._ending = self.abandon_with(self)

    @property
    def live(self) -> tuple[HeapBuffer, ...]:
        """The buffers that were not freed, in order of address."""
        return tuple(self._live[address] for address in sorted(self._live))

    @property
    def used(self) -> int:
        """Number of allocated bytes."""
        return sum(max(buffer.size, 1) for buffer in self._live.values())

    def allocate(self, size: int, align: int = 64, name: str = "") -> HeapBuffer:
        """Return a buffer of `size` bytes at a multiple of `align`.

        A full heap fails with code 1002.
        """
        _check(size, align, name)
        if isinstance(self._space, TcmSpace) and not self._live:
            _collect_dropped(self._space)
        with self._lock:
            address = self._space.take(round_up(size, self._unit), align, self._log)
            if address is None:
                raise self._full(size, name)
            try:
                buffer = HeapBuffer(self, address, size, align, name)
            except MemoryError:
                self._space.give(address)
                raise self._full(size, name) from None
            self._live[address] = buffer
            self._held.add(address)
        return buffer

    def free(self, memory: Any) -> None:
        """Free the block that starts at this buffer, view or address, like C's `free`.

        None is NULL and has no effect.
        """
        number = as_address(memory)
        if memory is None or number == 0:
            return
        address = _start_of(memory) if number is None else number
        block = find_allocation(address)
        buffer = next((b for b in self._live.values() if b.allocation is block), None)
        if buffer is None:
            is_freed = block is not None and block.freed
            what = "was already freed" if is_freed else "is not from this heap"
            raise UsageError(f"the memory at {address:#x} {what}")
        if address != buffer.address:
            raise UsageError(
                f"{address:#x} is {address - buffer.address:,} bytes into the block of "
                f"{buffer.size:,} bytes at {buffer.address:#x}; pass the start of the block"
            )
        buffer.free()

    def release(self, buffer: HeapBuffer) -> None:
        """Make a buffer's memory available again; called by `HeapBuffer.free`."""
        with self._lock:
            if self._live.get(buffer.heap_address) is not buffer:
                raise UsageError(f"buffer {quote(buffer.name)} was already freed")
            del self._live[buffer.heap_address]
            self._held.discard(buffer.heap_address)
            self._space.give(buffer.heap_address)
            self._freed.append(buffer)
            self._freed_bytes += buffer.size
            while self._freed and self._freed_bytes > _QUARANTINE_BYTES:
                self._freed_bytes -= self._freed.popleft().size

    def abandon_with(self, owner: object) -> Callable[[], object]:
        """Free all buffers when Python collects `owner`; return a function that frees them at once.

        If nobody freed them, the buffers would stay allocated in a pool that outlives the owner.
        """
        ending = weakref.finalize(owner, _give_all, self._space, self._held)
        ending.atexit = False
        return ending

    def _full(self, size: int, name: str) -> QnnError:
        what = f" for {quote(name)}" if name else ""
        if isinstance(self._space, TcmSpace):
            need, left = round_up(size, self._unit), self._space.size - self._space.used
            sentence = (
                f"TCM memory allocation failure: required size: {need}{what}, {left:,} of "
                f"{self._space.size:,} bytes are left"
            )
            return qnn_error(
                _MEM_ALLOC, finding("T1", sentence, buffer=name, need=need, given=left)
            )
        of = "" if self.capacity is None else f" of {self.capacity:,} bytes"
        sentence = (
            f"the {self.mem_type.name} heap{of} has no room for {size:,} bytes{what}, "
            f"{self.used:,} are in use"
        )
        free = None if self.capacity is None else self.capacity - self.used
        return qnn_error(_MEM_ALLOC, finding("H1", sentence, buffer=name, need=size, given=free))


def _collect_dropped(pool: TcmSpace) -> None:
    """Run the garbage collector while the pool is in use, because dropped heaps may occupy it."""
    for generation in range(3):
        if pool.count:
            gc.collect(generation)


def _give_all(space: AddressSpace, held: set[int]) -> None:
    for address in tuple(held):
        space.give(address)
    held.clear()


def _start_of(memory: Any) -> int:
    import numpy

    if isinstance(memory, HeapBuffer):
        return memory.address
    try:
        return array_address(numpy.frombuffer(memoryview(memory).cast("B"), numpy.uint8))
    except (TypeError, ValueError, BufferError):
        raise UsageError(
            f"a {type(memory).__name__} cannot be freed; pass a buffer, a view of it or its address"
        ) from None


def _check(size: int, align: int, name: str) -> None:
    if not (isinstance(size, int) and isinstance(align, int) and isinstance(name, str)):
        raise UsageError("allocate needs a whole number of bytes, an alignment and a name")
    if not 0 <= size <= MAX_BYTES:
        raise UsageError(f"a buffer cannot have {size:,} bytes")
    if not 1 <= align <= _MAX_ALIGN or align & (align - 1):
        raise UsageError(f"an alignment must be a power of two up to {_MAX_ALIGN:,}, not {align:,}")


def _storage(size: int) -> NDArray[numpy.uint8]:
    import numpy as np

    try:
        return np.zeros(size, np.uint8)
    except ValueError as exc:  # larger than any array
        raise MemoryError from exc


def aligned_array(size: int, align: int = 64) -> NDArray[numpy.uint8]:
    """Return uninitialised bytes that begin at a multiple of `align`."""
    import numpy as np

    block = np.empty(size + align, np.uint8)
    start = -array_address(block) % align
    return block[start : start + size]


def checksum(array: NDArray[Any]) -> int:
    """Return a checksum of an array's bytes, to detect changes."""
    return zlib.crc32(array.data)


class Extensions:
    """The allocator of a run; `mem_type` is the memory type as written in the config file."""

    def __init__(self, backend: Backend, mem_type: str) -> None:
        profile = backend.profile
        self._backend, self._ddr = backend, Heap(MemType.DDR)
        self._tcm = TcmPool(
            backend.log,
            start_alignment=profile.start_alignment,
            size_alignment=profile.size_alignment,
        )
        self.mem_type = _WORDS.get(mem_type, MemType.UNDEFINED)
        if self.mem_type is MemType.UNDEFINED:
            backend.log(LogLevel.ERROR, "Invalid memory type")
        if self.mem_type is MemType.TCM and not profile.tcm_allowed:
            mode, version = profile.mode.value, profile.hw_version.word
            sentence = f"TCM is for aDSP direct mode on v6 or later, not for {mode} on {version}"
            backend.refuse(1000, "T3", sentence, "")

    def allocate(self, size: int, label: str) -> HeapBuffer:
        """Return a buffer for the binary, an input or an output; fail if the memory is full."""
        profile = self._backend.profile
        need = round_up(size, profile.size_alignment)
        if self.mem_type is MemType.DDR:
            return self._ddr.allocate(need, profile.start_alignment, label)
        if self.mem_type is not MemType.TCM:
            self._backend.log(LogLevel.ERROR, "Memory type only supports DDR & TCM")
            sentence = "the memory type of the configuration is neither ddr nor tcm"
            self._backend.refuse(_MEM_ALLOC, "T4", sentence, "", buffer=label)
        buffer = self._tcm.allocate(size, label)
        if buffer is None:
            left = self._tcm.size - self._tcm.used
            sentence = (
                f"{label} needs {need:,} bytes of TCM, but only {left:,} of {self._tcm.size:,} "
                f"are left, {need - left:,} missing"
            )
            self._backend.refuse(
                _MEM_ALLOC, "T1", sentence, "", buffer=label, need=need, given=left
            )
        return buffer

    def allocate_pool(self, size: int, label: str) -> HeapBuffer:
        """Return a buffer for scratch or persistent memory."""
        profile = self._backend.profile
        rounded = round_up(size, profile.size_alignment)
        return self._ddr.allocate(rounded, max(64, profile.start_alignment), label)

    def bring_io(
        self, graph: CompiledGraph, tensors: Iterable[QnnTensor], kind: str
    ) -> dict[str, NDArray[Any]]:
        """Allocate a buffer of exact size for each tensor; return the bytes by name."""
        views = {}
        for tensor in tensors:
            size = graph.model.tensors[tensor.name].nbytes
            buffer = self.allocate(size, f"{kind} {tensor.name[:80]}")
            tensor.client_buf, tensor.data_size = buffer, size
            views[tensor.name] = buffer.array[:size]
        return views

    def note_overruns(self) -> None:
        """Report the buffers with broken guard zones."""
        for buffer in (*self._ddr.live, *self._tcm.buffers):
            for side in buffer.guards_broken():
                sentence = f"bytes {side} {buffer.name[:80]!r} were overwritten"
                self._backend.note(finding("X2", sentence))

    def free_tcm(self) -> None:
        """Free this run's part of the TCM pool, which belongs to the whole process."""
        self._tcm.free()


class TcmPool:
    """A pool of fixed size for a fixed number of allocations, without fallback to DDR.

    The process has one default pool; passing a size or a maximum number creates a separate one.
    """

    def __init__(
        self,
        log: Log,
        size: int | None = None,
        max_allocations: int | None = None,
        start_alignment: int = 64,
        size_alignment: int = 64,
    ) -> None:
        space = process_tcm()
        if size is not None or max_allocations is not None:
            space = TcmSpace(
                space.size if size is None else size,
                space.max_allocations if max_allocations is None else max_allocations,
            )
        self.size, self.max_allocations = space.size, space.max_allocations
        self.start_alignment, self.size_alignment = start_alignment, size_alignment
        self._space = space
        self._heap = Heap(MemType.TCM, log=log)
        self._heap.cut_from(space, size_alignment)
        self._heap.abandon_with(self)

    @property
    def used(self) -> int:
        """Number of bytes that all heaps use in the pool, counted by rounded sizes."""
        return self._space.used

    @property
    def buffers(self) -> tuple[HeapBuffer, ...]:
        """The allocations that were not freed."""
        return self._heap.live

    def allocate(self, size: int, label: str = "") -> HeapBuffer | None:
        """Return a buffer of `size` bytes, or None and log an error if the pool is full."""
        rounded = round_up(size, self.size_alignment)
        try:
            return self._heap.allocate(rounded, self.start_alignment, label)
        except QnnError:
            return None

    def free(self) -> None:
        """Free all allocations."""
        for buffer in self.buffers:
            buffer.free()
