"""Memory that the application owns and the runtime uses: its address, size and whether it is gone.

The bytes stay mapped as long as the runtime refers to them, so that a buffer freed too early is a
finding and not a crash. Memory of a heap is known by its address, in whatever object it comes: it
is gone when the allocation there was freed. Other memory is gone when nothing but the runtime
refers to the Python object (or to anything it is a view of) any more; whose it is cannot be told
where ctypes was given an address, and nobody is accused there. Parts of one block are judged
together: the block is there as long as the application holds the block or any of its parts.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from threading import Lock
from typing import TYPE_CHECKING, Any
from weakref import WeakSet, WeakValueDictionary

from qnnmem.errors import UsageError
from qnnmem.lpai.runtime.allocations import (
    Allocation,
    ForeignMemory,
    as_address,
    find_allocation,
)
from qnnmem.lpai.runtime.heap import HeapBuffer

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from qnnmem.qnn.enums import MemType


class ClientBuffer:
    """The application's bytes: any object with the buffer protocol, a heap buffer or an address."""

    __slots__ = (
        "__weakref__",
        "_base",
        "_group",
        "_place",
        "address",
        "allocation",
        "array",
        "readonly",
        "size",
    )

    def __init__(self, memory: Any) -> None:
        import numpy

        if isinstance(memory, ForeignMemory):
            self._take_foreign(memory)
            return
        view = _bytes_of(memory)
        self.readonly = view.readonly
        self.array: NDArray[Any] = numpy.frombuffer(view, numpy.uint8)
        self._base = self.array.base  # slices of the array, ours or not, do not count as owners
        self._group: WeakSet[ClientBuffer] | None = None
        self.size = self.array.size
        self.address: int = self.array.__array_interface__["data"][0]
        self.allocation: Allocation | ForeignMemory | None = _allocation_of(
            memory, self.address, self.size
        )
        self._place = _place(self._base)

    def _take_foreign(self, memory: ForeignMemory) -> None:
        self.readonly, self.array, self._base = memory.readonly, memory.array, memory.array
        self._group, self._place = None, (0, 0)
        self.size, self.address, self.allocation = memory.size, memory.address, memory

    @property
    def is_released(self) -> bool:
        """Whether the owner has let go of the memory."""
        if self.allocation is not None:
            return self.allocation.freed
        if _place(self._base) != self._place:
            return True  # numpy gave the array other memory, as realloc does
        if _is_borrowed(self._base):
            return False
        others = len(self._group) - 1 if self._group is not None else 0
        most = _HELD_BY_ONE + others  # the usual answer, quickly: more than all of ours together
        if any(sys.getrefcount(owner[0]) > most for owner in _owners(self._base)):
            return False
        with _registry:
            together = {self, *(self._group or ())}
        return not _held([buffer._base for buffer in together])

    def watch(self) -> ClientBuffer:
        """Count the runtime's own reference when another part of the same block is judged."""
        if self.allocation is None:
            *_, root = (id(owner[0]) for owner in _owners(self._base))
            with _registry:
                self._group = _groups.setdefault(root, WeakSet())
                self._group.add(self)
        return self

    @property
    def is_freed(self) -> bool:
        """Whether it is memory of a heap that was freed."""
        return self.allocation is not None and self.allocation.freed

    @property
    def mem_type(self) -> MemType | None:
        """The type of the heap it came from; None for memory from elsewhere."""
        return None if self.allocation is None else self.allocation.mem_type

    @property
    def address_space(self) -> object:
        """The process that the address belongs to; None for this one."""
        return getattr(self.allocation, "address_space", None)

    def overlaps(self, other: ClientBuffer) -> bool:
        """Whether the two share a byte."""
        if self.address_space is not other.address_space:
            return False
        ends = self.address + self.size, other.address + other.size
        return self.address < ends[1] and other.address < ends[0]


def _bytes_of(memory: Any) -> memoryview:
    address = as_address(memory)
    if address is not None:
        return _bytes_at(address)
    try:
        view = memoryview(memory.view if isinstance(memory, HeapBuffer) else memory)
        view = view.cast("B") if view.nbytes else memoryview(b"")
        if _holds_objects(memory) or _holds_objects(view.obj):
            raise TypeError  # raw bytes there would be taken for pointers
    except (TypeError, ValueError, BufferError, NotImplementedError) as exc:
        raise UsageError(
            f"a {type(memory).__name__} cannot be used as memory; give an object with the "
            "buffer protocol in one piece, such as a numpy array, a bytearray or an mmap"
        ) from exc
    return view


def _bytes_at(address: int) -> memoryview:
    """From an address, as C has it, to the end of the allocation that it lies in."""
    found = find_allocation(address)
    content = None if found is None else found.bytes_from(address)
    if found is None or content is None or not found.address <= address < found.end:
        raise UsageError(
            f"address {address:#x} cannot be used as memory: it lies in no block that a heap gave"
        )
    return content.data


def _allocation_of(memory: Any, address: int, size: int) -> Allocation | None:
    if isinstance(memory, HeapBuffer):
        return memory.allocation
    found = find_allocation(address) if size else None
    if found is not None and not (found.address <= address and address + size <= found.end):
        past = max(address + size - found.end, found.address - address)
        raise UsageError(
            f"the memory at {address:#x} reaches {past:,} bytes past its allocation of "
            f"{found.size:,} bytes"
        )
    return found


def _owners(memory: Any) -> Iterator[list[Any]]:
    """The object behind a buffer, then what that is a view of, and so on.

    Each comes alone in a list: a list adds one reference that is known, a variable of the caller
    would add one that depends on the version of Python.
    """
    box = [memory]
    while box[0] is not None:
        if isinstance(box[0], memoryview):
            # All memoryviews of one export share a managed buffer, slices of slices included.
            yield gc.get_referents(box[0])
        else:
            yield box
        box = [_behind(box[0])]


def _is_borrowed(memory: Any) -> bool:
    """Whether nothing at the bottom owns the bytes: ctypes points to them by address alone."""
    *_, needs_free = (getattr(owner[0], "_b_needsfree_", 1) for owner in _owners(memory))
    *_, is_bottom = (_behind(owner[0]) is None for owner in _owners(memory))
    return is_bottom and not needs_free


def _place(memory: Any) -> tuple[int, int]:
    """Where the array at the bottom of views has its bytes, and how many; zeros for no array."""
    found = (0, 0)
    for owner in _owners(memory):
        interface = getattr(owner[0], "__array_interface__", None)
        if interface is not None:
            found = (interface["data"][0], owner[0].nbytes)
    return found


def _behind(memory: Any) -> Any:
    if isinstance(memory, memoryview):
        return memory.obj
    lent = getattr(memory, "_objects", None)  # what an array of ctypes was made from
    return (
        next(iter(lent.values()), None) if isinstance(lent, dict) else getattr(memory, "base", None)
    )


def _holds_objects(memory: Any) -> bool:
    return bool(getattr(getattr(memory, "dtype", None), "hasobject", False))


def _held(bases: list[Any]) -> bool:
    """Whether anybody but these views, which are all of one block, holds any part of it."""
    holders = _holders(bases)
    return any(
        sys.getrefcount(owner[0]) > _HELD_BY_ONE + len(holders[id(owner[0])]) - 1
        for base in bases
        for owner in _owners(base)
    )


def _holders(bases: list[Any]) -> dict[int, set[int]]:
    """What refers to each object among the views; ids only, because a variable would count."""
    found: dict[int, set[int]] = {}
    for base in bases:
        above = id(base)
        for owner in _owners(base):
            found.setdefault(id(owner[0]), set()).add(above)
            above = id(owner[0])
    return found


def _calibrate() -> int:
    """How many references one view accounts for, measured on an object that nothing else holds."""
    owners = _owners(memoryview(bytearray(1)))
    next(owners)
    return sys.getrefcount(next(owners)[0])


_HELD_BY_ONE = _calibrate()

# By the object at the bottom of what they are views of. A group goes with its last buffer.
_groups: WeakValueDictionary[int, WeakSet[ClientBuffer]] = WeakValueDictionary()
_registry = Lock()
