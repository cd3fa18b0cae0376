"""`rpcmem` of libcdsprpc: where memory that can be registered comes from."""

from __future__ import annotations

from qnnmem.arguments import expect
from qnnmem.htp.qmem.memory import SharedBuffer

RPCMEM_HEAP_ID_SYSTEM = 25
RPCMEM_HEAP_ID_CONTIG = 22
RPCMEM_DEFAULT_FLAGS = 1
_MOST = 1 << 31  # the size is a signed int


def rpcmem_alloc(heap_id: int, flags: int, size: int) -> SharedBuffer | None:
    """`rpcmem_alloc`: a buffer, or None where the real function gives NULL."""
    for number in (heap_id, flags, size):
        expect(number, int, "heap, flags and size are whole numbers")
    if heap_id not in (RPCMEM_HEAP_ID_SYSTEM, RPCMEM_HEAP_ID_CONTIG) or not 0 < size < _MOST:
        return None
    try:
        return SharedBuffer(size)
    except (OSError, ValueError):  # no memory, or no file descriptor is left
        return None


def rpcmem_to_fd(buffer: SharedBuffer | None) -> int:
    """`rpcmem_to_fd`: the file descriptor that a descriptor names; -1 for what is no buffer."""
    return buffer.fd if isinstance(buffer, SharedBuffer) else -1


def rpcmem_free(buffer: SharedBuffer | None) -> None:
    """`rpcmem_free`: only after QnnMem_deRegister."""
    if isinstance(buffer, SharedBuffer):
        buffer.close()
