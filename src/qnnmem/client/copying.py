"""Large buffers of another process read at once, by `process_vm_readv` where the C library has it.

`/proc/PID/mem` copies every page twice. But that file stays with the process that it was opened
for, while a number may be given out again: so nothing is written in this way.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy.typing import NDArray

WORTH_IT = 16 << 10  # bytes; below, the call through ctypes takes longer than it saves


class _Piece(ctypes.Structure):
    """`struct iovec`."""

    _fields_ = (("base", ctypes.c_void_p), ("size", ctypes.c_size_t))


@cache
def _function() -> Any:
    found = getattr(ctypes.CDLL(None), "process_vm_readv", None)
    if found is not None:
        piece, count = ctypes.POINTER(_Piece), ctypes.c_ulong
        found.argtypes = (ctypes.c_int, piece, count, piece, count, count)
        found.restype = ctypes.c_ssize_t
    return found


def read_at_once(pid: int, array: NDArray[Any], address: int) -> int:
    """Fill an array; how many bytes came, 0 where it has to be done in another way."""
    function = _function()
    if function is None or not array.flags.c_contiguous or not array.flags.writeable:
        return 0
    here = _Piece(array.__array_interface__["data"][0], array.nbytes)
    there = _Piece(address, array.nbytes)
    return max(0, int(function(pid, ctypes.byref(here), 1, ctypes.byref(there), 1, 0)))
