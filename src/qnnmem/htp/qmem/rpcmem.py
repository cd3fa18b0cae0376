"""`rpcmem` of libcdsprpc: where memory that can be registered comes from."""

from __future__ import annotations

import atexit
from typing import Protocol
from weakref import WeakSet

from qnnmem.arguments import expect
from qnnmem.caller import caller_line
from qnnmem.finding import Finding
from qnnmem.htp.qmem.leaks import say_at_end
from qnnmem.htp.qmem.memory import MAX_KEPT, SharedBuffer
from qnnmem.htp.qmem.rules import broken
from qnnmem.qnn.shared_memory import FileId

RPCMEM_HEAP_ID_SYSTEM = 25
RPCMEM_HEAP_ID_CONTIG = 22
RPCMEM_DEFAULT_FLAGS = 1
_MOST = 1 << 31  # the size is a signed int
_FREE = "rpcmem_free"


class RpcListener(Protocol):
    """Who keeps findings about the heap: a backend."""

    is_freed: bool

    def note(self, finding: Finding) -> None:
        """Keep a finding."""


class RpcHeap:
    """Which buffers were not freed yet. The process has one heap, whatever backends it has."""

    def __init__(self) -> None:
        self._listeners: WeakSet[RpcListener] = WeakSet()
        self._left: dict[FileId, tuple[int, str]] = {}  # size, and the line that made it
        self._unheard: list[Finding] = []
        self._says_at_exit = False

    def tell(self, listener: RpcListener) -> None:
        """Tell a backend of what goes wrong from now on."""
        self._listeners.add(listener)

    def add(self, buffer: SharedBuffer) -> None:
        """Miss a buffer until it is freed."""
        if not self._says_at_exit:
            self._says_at_exit = True
            atexit.register(self.say)
        self._left[buffer.file] = (buffer.size, caller_line())
        buffer.when_freed(self._forget)

    def freed_again(self, buffer: SharedBuffer) -> None:
        """Report a second free to the living backends; without one, also when the process ends."""
        place = buffer.freed_at.split(": ", 1)[0]
        where = f" at {place}" if place else ""
        what = f"the buffer of {buffer.size:,} bytes was freed already{where}"
        finding = broken("Q15", what, _FREE)
        living = [one for one in self._listeners if not one.is_freed]
        for one in living or list(self._listeners):
            one.note(finding)
        if not living and len(self._unheard) < MAX_KEPT:
            self._unheard.append(finding)

    def say(self) -> None:
        """Say what was never freed, and what was freed twice when no backend was left."""
        left = [
            broken("Q15", f"a buffer of {size:,} bytes is never freed", _FREE, line=line)
            for size, line in self._left.values()
        ]
        say_at_end(left, "not freed")
        say_at_end(self._unheard, "freed twice")

    def _forget(self, file: FileId) -> None:
        self._left.pop(file, None)


HEAP = RpcHeap()


def rpcmem_alloc(heap_id: int, flags: int, size: int) -> SharedBuffer | None:
    """`rpcmem_alloc`: a buffer, or None where the real function gives NULL."""
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
    """`rpcmem_to_fd`: the file descriptor that a descriptor names; -1 for what is no buffer."""
    return buffer.fd if isinstance(buffer, SharedBuffer) else -1


def rpcmem_free(buffer: SharedBuffer | None) -> None:
    """`rpcmem_free`: only after QnnMem_deRegister, and once; NULL is ignored."""
    if not isinstance(buffer, SharedBuffer):
        return
    if buffer.is_freed:
        HEAP.freed_again(buffer)
    buffer.close()
