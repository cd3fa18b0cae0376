"""`rpcmem` of libcdsprpc: the allocator of memory that can be registered."""

from __future__ import annotations

from typing import Protocol
from weakref import WeakSet

from qnnmem.arguments import expect
from qnnmem.contract.leaks import note_freed_twice, of_process
from qnnmem.contract.rules import finding
from qnnmem.finding import Finding
from qnnmem.htp.qmem.memory import SharedBuffer

RPCMEM_HEAP_ID_SYSTEM = 25
RPCMEM_HEAP_ID_CONTIG = 22
RPCMEM_DEFAULT_FLAGS = 1
_MOST = 1 << 31  # the size is a signed int
_FREE = "rpcmem_free"


class RpcListener(Protocol):
    """Keeps findings about the heap: a backend."""

    is_freed: bool

    def note(self, found: Finding) -> None:
        """Keep a finding."""


class RpcHeap:
    """The heap of the process, whatever backends it has: buffers that are not freed are leaks."""

    def __init__(self) -> None:
        self._listeners: WeakSet[RpcListener] = WeakSet()

    def tell(self, listener: RpcListener) -> None:
        """Report findings to a backend from now on."""
        self._listeners.add(listener)

    def add(self, buffer: SharedBuffer) -> None:
        """Count a buffer as a leak until it is freed."""
        what = f"a buffer of {buffer.size:,} bytes"
        made = of_process().part("buffer", "Q15", what, never="is never freed")
        buffer.when_freed(lambda _: made.freed())

    def freed_again(self, buffer: SharedBuffer) -> None:
        """Report a second free to the living backends; without one, also when the process ends."""
        place = buffer.freed_at.split(": ", 1)[0]
        where = f" at {place}" if place else ""
        what = f"the buffer of {buffer.size:,} bytes was freed already{where}"
        found = finding("Q15", what, _FREE)
        living = [one for one in self._listeners if not one.is_freed]
        for one in living or list(self._listeners):
            one.note(found)
        if not living:
            note_freed_twice(found)


HEAP = RpcHeap()


def rpcmem_alloc(heap_id: int, flags: int, size: int) -> SharedBuffer | None:
    """`rpcmem_alloc`: return a buffer, or None where the real function returns NULL."""
    for number in (heap_id, flags, size):
        expect(number, int, "heap, flags and size are whole numbers")
    if heap_id not in (RPCMEM_HEAP_ID_SYSTEM, RPCMEM_HEAP_ID_CONTIG) or not 0 < size < _MOST:
        return None
    try:
        buffer = SharedBuffer(size)
    except (OSError, ValueError):  # no memory, or no file descriptor is left
        return None
    HEAP.add(buffer)
    return buffer


def rpcmem_to_fd(buffer: SharedBuffer | None) -> int:
    """`rpcmem_to_fd`: return the file descriptor; -1 if it is not a buffer."""
    return buffer.fd if isinstance(buffer, SharedBuffer) else -1


def rpcmem_free(buffer: SharedBuffer | None) -> None:
    """`rpcmem_free`: only after QnnMem_deRegister, and once; NULL is ignored."""
    if not isinstance(buffer, SharedBuffer):
        return
    if buffer.is_freed:
        HEAP.freed_again(buffer)
    buffer.close()
