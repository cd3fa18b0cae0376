"""Large buffers of another process copied at once, by `process_vm_readv` and `process_vm_writev`.

`/proc/PID/mem` copies every page twice. But that file stays with the process that it was opened
for, while a number may be given out again: so the number is used only while the process that it
was opened for still has it. A process that ended keeps its number until its parent has noticed,
and numbers are given out in turn, so nobody else has it a moment later.
"""

from __future__ import annotations

import ctypes
import os
import signal
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy.typing import NDArray

WORTH_IT = 16 << 10  # bytes; below, the call through ctypes takes longer than it saves


class _Piece(ctypes.Structure):
    """`struct iovec`."""

    _fields_ = (("base", ctypes.c_void_p), ("size", ctypes.c_size_t))


@cache
def _function(name: str) -> Any:
    found = getattr(ctypes.CDLL(None), name, None)
    if found is not None:
        piece, count = ctypes.POINTER(_Piece), ctypes.c_ulong
        found.argtypes = (ctypes.c_int, piece, count, piece, count, count)
        found.restype = ctypes.c_ssize_t
    return found


class QuickCopies:
    """Copies from and to one process; each says how many bytes it did, perhaps none."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        try:
            self._process = os.pidfd_open(pid)
        except (OSError, AttributeError):  # an old system: everything goes the slow way
            self._process = -1

    def close(self) -> None:
        """Copy no more."""
        if self._process >= 0:
            os.close(self._process)
        self._process = -1

    def read(self, array: NDArray[Any], address: int) -> int:
        """Fill an array."""
        return self._copy("process_vm_readv", array, address) if array.flags.writeable else 0

    def write(self, array: NDArray[Any], address: int) -> int:
        """Write an array."""
        return self._copy("process_vm_writev", array, address)

    def _copy(self, name: str, array: NDArray[Any], address: int) -> int:
        function = _function(name)
        if function is None or not array.flags.c_contiguous or not self._is_there():
            return 0
        here = _Piece(array.__array_interface__["data"][0], array.nbytes)
        there = _Piece(address, array.nbytes)
        return max(0, int(function(self._pid, ctypes.byref(here), 1, ctypes.byref(there), 1, 0)))

    def _is_there(self) -> bool:
        if self._process < 0:
            return False
        try:
            signal.pidfd_send_signal(self._process, 0)  # which sends nothing
        except OSError:
            return False
        return True
