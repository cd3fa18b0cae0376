"""Memory of a client: its address, which graph or context uses it, and whether it was freed.

    Extent         address range in one address space: a process or a shared file
    Region         allocated memory, with its freed state
    Allocation       a block of a simulated heap, between two guard zones
    ForeignMemory    bytes of another process, with a local copy
    ClientBuffer   memory that a client passed, in any kind of object
    Holding        memory that is reserved for one graph or context

A client passes an address and a size, as a buffer, a slice of a buffer, or a NumPy view of a view;
the address identifies the allocation in all cases. An allocation is tracked as long as its bytes
are mapped, that is as long as anything refers to them, so an address never has two meanings.
"""

from __future__ import annotations

import weakref
from bisect import bisect_right, insort
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from qnnmem.errors import UsageError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from qnnmem.qnn.enums import MemType

GUARD_BYTES = 64
GUARD = 0xA5


class Extent(NamedTuple):
    """Address range from `start` to `end` (exclusive) in one address space.

    Equal addresses in two address spaces are different memory.
    """

    start: int
    end: int
    space: object = None  # None: this process

    @property
    def size(self) -> int:
        """Number of bytes."""
        return self.end - self.start

    def overlap(self, other: Extent) -> int:
        """Return the number of bytes that are in both address ranges."""
        if self.space is not other.space and self.space != other.space:
            return 0
        return max(0, min(self.end, other.end) - max(self.start, other.start))

    def holds(self, address: int) -> bool:
        """Return True if an address is in the address range."""
        return self.start <= address < self.end

    def covers(self, other: Extent) -> bool:
        """Return True if the address range contains all bytes of the other range."""
        return self.overlap(other) == other.size


class Region:
    """Allocated memory, and whether it was freed."""

    mem_type: MemType | None = None  # type of its heap; None if unknown

    def __init__(self, address: int, size: int, space: object = None) -> None:
        self.address, self.size, self.space = address, size, space
        self.freed = False
        self.loss = "freed"  # the verb for sentences about its loss
        self.serial = next_serial()
        # (start, size) alignments that the client had queried before it allocated the memory, as
        # check_alignment_query found out.
        self.known_alignments: set[tuple[int, int]] = set()

    @property
    def end(self) -> int:
        """Return the address after the last byte."""
        return self.address + self.size

    @property
    def extent(self) -> Extent:
        """Return the address range of the memory."""
        return Extent(self.address, self.address + self.size, self.space)

    def guards_broken(self) -> tuple[str, ...]:
        """Return the overwritten guard zones: none, because only an allocation has guard zones."""
        return ()


class Allocation(Region):
    """A block of a heap: real bytes between two guard zones."""

    mem_type: MemType

    def __init__(
        self, storage: NDArray[Any], start: int, size: int, mem_type: MemType, name: str
    ) -> None:
        self.block = array_address(storage)
        super().__init__(self.block + start, size)
        self._storage = weakref.ref(storage, lambda _: _gone.append(self))
        self._start = start
        self.block_end: int = self.block + storage.size
        self.mem_type, self.name = mem_type, name
        _add(self)

    def bytes_from(self, address: int) -> NDArray[Any] | None:
        """Return the bytes from an address to the end of the block; None if the block is gone."""
        storage = self._storage()
        if storage is None:
            return None
        return storage[address - self.block : self._start + self.size]

    def guards_broken(self) -> tuple[str, ...]:
        """Return which guard zones were overwritten: `before` or `behind` the block."""
        storage = self._storage()
        if storage is None:
            return ()
        end = self._start + self.size
        before = storage[self._start - GUARD_BYTES : self._start]
        behind = storage[end : end + GUARD_BYTES]
        sides = (("before", before), ("behind", behind))
        return tuple(side for side, zone in sides if (zone != GUARD).any())


class ForeignMemory(Region):
    """Bytes of another process: their address in that process, and a local copy to execute with.

    The owner of the connection updates the copy and sets the freed state.
    """

    def __init__(
        self, address: int, array: NDArray[Any], *, readonly: bool = False, space: object = None
    ) -> None:
        super().__init__(address, array.size, space)
        self.array, self.readonly = array, readonly


class ClientBuffer:
    """Memory that a client passed: an object with the buffer protocol, or an address.

    The bytes stay mapped as long as the buffer exists, so that a use after free is a finding and
    not a crash. Heap memory is gone when its allocation is freed, other memory when the client
    calls `release`. Dropping a Python reference is invisible and frees nothing.
    """

    __slots__ = (
        "__weakref__",
        "_is_given_back",
        "_place",
        "_root",
        "address",
        "allocation",
        "array",
        "readonly",
        "size",
    )

    def __init__(self, memory: Any) -> None:
        import numpy

        self._is_given_back = False
        self.array: NDArray[Any]
        self.address: int
        self.allocation: Region | None
        if isinstance(memory, ForeignMemory):
            self.readonly, self.array = memory.readonly, memory.array
            self._root, self._place = None, (0, 0)
            self.size, self.address, self.allocation = memory.size, memory.address, memory
            return
        view = _bytes_of(memory)
        self.readonly = view.readonly
        self.array = numpy.frombuffer(view, numpy.uint8)
        self._root = _root_array(view)
        self._place = _place(self._root)
        self.size = self.array.size
        self.address = array_address(self.array)
        self.allocation = _allocation_of(memory, self.address, self.size)

    def watch(self) -> ClientBuffer:
        """Register the buffer so that `release` can mark it; return the buffer."""
        if self.allocation is None:
            with _lock:
                _watched.add(self)
        return self

    @property
    def is_released(self) -> bool:
        """Return True if the client has freed or released the memory."""
        if self.allocation is not None:
            return self.allocation.freed
        # A resized NumPy array has new memory, as after realloc.
        return self._is_given_back or _place(self._root) != self._place

    @property
    def is_freed(self) -> bool:
        """Return True if the buffer is freed memory of a heap or of another process."""
        return self.allocation is not None and self.allocation.freed

    @property
    def loss(self) -> str:
        """Return a verb that states how the memory was lost: freed, unmapped or made unreadable."""
        return "freed" if self.allocation is None else self.allocation.loss

    @property
    def mem_type(self) -> MemType | None:
        """Return the memory type of the buffer's heap; None for memory that is not from a heap."""
        return None if self.allocation is None else self.allocation.mem_type

    @property
    def extent(self) -> Extent:
        """Return the address range, in this address space or in that of another process."""
        space = None if self.allocation is None else self.allocation.space
        return Extent(self.address, self.address + self.size, space)

    def overlaps(self, other: ClientBuffer) -> bool:
        """Return True if the two buffers share a byte."""
        return self.extent.overlap(other.extent) > 0

    def give_back(self) -> None:
        """Mark the buffer as released by the client."""
        self._is_given_back = True


def release(memory: Any) -> None:
    """Release memory that is not from a heap, as `free` does in C.

    Pools and binaries that share a byte with it count as freed from now on. Heap memory must be
    freed with the `free` method of its heap or buffer.
    """
    given = ClientBuffer(memory)
    if given.allocation is not None:
        raise UsageError("free heap memory with the `free` method of its heap or buffer")
    with _lock:
        known = tuple(_watched)
    for buffer in known:
        if buffer.overlaps(given):
            buffer.give_back()


def _bytes_of(memory: Any) -> memoryview:
    address = as_address(memory)
    if address is not None:
        return _bytes_at(address)
    try:
        view = memoryview(memory.view if _heap_block(memory) is not None else memory)
        view = view.cast("B") if view.nbytes else memoryview(b"")
        if _holds_objects(memory) or _holds_objects(view.obj):
            raise TypeError  # raw bytes there would be treated as pointers
    except (TypeError, ValueError, BufferError, NotImplementedError) as exc:
        raise UsageError(
            f"a {type(memory).__name__} cannot be used as memory; give an object with the "
            "buffer protocol and contiguous memory, such as a numpy array, a bytearray or an mmap"
        ) from exc
    return view


def _bytes_at(address: int) -> memoryview:
    """Return the bytes from a C address to the end of its allocation."""
    allocation = find_allocation(address)
    content = None if allocation is None else allocation.bytes_from(address)
    if allocation is None or content is None or not allocation.extent.holds(address):
        raise UsageError(
            f"address {address:#x} cannot be used as memory, because no heap block contains it"
        )
    return content.data


def _heap_block(memory: Any) -> Allocation | None:
    """Return the allocation of a heap buffer; None for other objects."""
    found = getattr(memory, "allocation", None)
    return found if isinstance(found, Allocation) else None


def _allocation_of(memory: Any, address: int, size: int) -> Allocation | None:
    block = _heap_block(memory)
    if block is not None:
        return block
    known = find_allocation(address) if size else None
    if known is not None and not known.extent.covers(Extent(address, address + size)):
        past = max(address + size - known.end, known.address - address)
        raise UsageError(
            f"the memory at {address:#x} reaches {past:,} bytes past its allocation of "
            f"{known.size:,} bytes"
        )
    return known


def _root_array(memory: Any) -> Any:
    """Return the innermost NumPy array in the chain of objects behind a view."""
    root = None
    while memory is not None:
        if hasattr(memory, "__array_interface__"):
            root = memory
        memory = memory.obj if isinstance(memory, memoryview) else getattr(memory, "base", None)
    return root


def _place(array: Any) -> tuple[int, int]:
    """Return the address and size of an array's bytes; (0, 0) if there is no array."""
    return (0, 0) if array is None else (array_address(array), array.nbytes)


def array_address(array: NDArray[Any]) -> int:
    """Return the address of an array's first byte."""
    address: int = array.__array_interface__["data"][0]
    return address


def _holds_objects(memory: Any) -> bool:
    return bool(getattr(getattr(memory, "dtype", None), "hasobject", False))


# All allocations by address


def find_allocation(address: int) -> Allocation | None:
    """Return the allocation that contains an address, guard zones included; else None."""
    with _lock:
        _forget_gone()
        at = bisect_right(_blocks, address) - 1
        allocation = _by_block[_blocks[at]] if at >= 0 else None
    return allocation if allocation is not None and address < allocation.block_end else None


def as_address(memory: object) -> int | None:
    """Return the address of memory given as a number or c_void_p; None for other objects."""
    import numpy

    if type(memory) is int or isinstance(memory, numpy.integer):
        return int(memory)
    if type(memory).__name__ != "c_void_p":
        return None
    value = getattr(memory, "value", None)
    return value if isinstance(value, int) else 0  # ctypes represents NULL as None


def next_serial() -> int:
    """Return the next serial number: a later event has a higher number."""
    with _lock:
        _serial[0] += 1
        return _serial[0]


def _add(allocation: Allocation) -> None:
    with _lock:
        _forget_gone()
        insort(_blocks, allocation.block)
        _by_block[allocation.block] = allocation


def _forget_gone() -> None:
    # The garbage collector may run at any time, even while this thread holds the lock. Therefore it
    # only queues collected blocks, and they are removed here.
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
_watched: weakref.WeakSet[ClientBuffer] = weakref.WeakSet()


# Memory held by graphs and contexts


@dataclass(frozen=True, slots=True)
class Holding:
    """Memory that is reserved for one graph or context."""

    what: str  # "scratch", "persistent" or "binary"
    owner: str  # name of the graph; empty for a binary
    buffer: ClientBuffer
    holder: Holder

    @property
    def label(self) -> str:
        """Return the name of the memory for messages, e.g. `scratch of graph 'g'`."""
        return f"{self.what} of graph {self.owner[:80]!r}" if self.owner else f"a {self.what}"


class Holder(Protocol):
    """A graph or a context that holds memory."""

    shares_scratch: bool  # with another graph
    is_executing: bool

    def holdings(self) -> Iterable[Holding]:
        """Return the reserved memory; none once the context is freed."""

    def lends(self, start: int, end: int) -> bool:
        """Return True if the client knows these bytes of scratch as bytes of an input or output."""


class _Holders:
    """All graphs and contexts that hold memory, with a version that increases with every change.

    The list is needed to find overlaps: C clients often place all buffers in one block, and a wrong
    offset makes two buffers share bytes.
    """

    def __init__(self) -> None:
        self._all: weakref.WeakSet[Holder] = weakref.WeakSet()
        self._lock = Lock()
        self.version = 0

    def changed(self, holder: Holder) -> None:
        """Add a graph or context to those that hold memory, and increase the version."""
        with self._lock:
            self._all.add(holder)
            self.version += 1

    def touching(self, buffer: ClientBuffer) -> Iterator[Holding]:
        """Yield all reserved memory that shares a byte with a buffer."""
        with self._lock:
            everybody = list(self._all)
        for holder in everybody:
            yield from (held for held in holder.holdings() if held.buffer.overlaps(buffer))


holders = _Holders()
