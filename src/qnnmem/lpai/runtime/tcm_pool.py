"""The TCM pool that qnn-net-run's LPAI extensions allocate model binary and IO from.

The five messages are the documented ones, byte for byte; where the documentation leaves the details
open (what is rounded, what counts, which level) the choices are listed in `choices.toml`.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock

from qnnmem.errors import QnnError, TcmFatal
from qnnmem.lpai.runtime.heap import Heap, HeapBuffer
from qnnmem.qnn.enums import LogLevel, MemType
from qnnmem.targets import tcm_pool
from qnnmem.units import round_up

Log = Callable[[LogLevel, str], None]

_WORDS = {"ddr": MemType.DDR, "tcm": MemType.TCM}


class TcmPool:
    """A pool of fixed size for a fixed number of allocations; nothing falls back to DDR."""

    def __init__(
        self,
        log: Log,
        size: int | None = None,
        max_allocations: int | None = None,
        start_alignment: int = 64,
        size_alignment: int = 64,
    ) -> None:
        facts = tcm_pool()
        self.size = facts.size.value if size is None else size
        self.max_allocations = (
            facts.max_allocations.value if max_allocations is None else max_allocations
        )
        self.start_alignment, self.size_alignment = start_alignment, size_alignment
        self._log, self._registered = log, False
        self._heap = Heap(MemType.TCM, self.size)
        self._allocating = Lock()  # counting and taking are one step

    @property
    def used(self) -> int:
        """Bytes in use, rounded as they are allocated."""
        return self._heap.used

    @property
    def buffers(self) -> tuple[HeapBuffer, ...]:
        """Allocations that were not freed."""
        return self._heap.live

    def allocate(self, size: int, label: str = "") -> HeapBuffer | None:
        """Room for `size` bytes, or None with a logged error when the pool has no room."""
        with self._allocating:
            return self._allocate(size, label)

    def _allocate(self, size: int, label: str) -> HeapBuffer | None:
        if not self._registered:
            self._registered = True
            self._log(LogLevel.INFO, f"TCM pool current size: {self.used} max_size: {self.size}")
        if len(self.buffers) >= self.max_allocations:
            raise TcmFatal(self.max_allocations)
        rounded = round_up(size, self.size_alignment)
        try:
            buffer = self._heap.allocate(rounded, self.start_alignment, label)
        except QnnError:
            message = f"TCM memory allocation failure: required size: {rounded}"
            self._log(LogLevel.ERROR, message)
            return None
        self._log(LogLevel.INFO, f"Allocate size {rounded} from tcm pool 0")
        return buffer


def parse_mem_type(text: str, log: Log) -> MemType:
    """The type meant by the word in a configuration file; any other word is UNDEFINED."""
    found = _WORDS.get(text, MemType.UNDEFINED)
    if found is MemType.UNDEFINED:
        log(LogLevel.ERROR, "Invalid memory type")
    return found


def allocate_io(
    mem_type: MemType, size: int, label: str, *, ddr: Heap, tcm: TcmPool, log: Log
) -> HeapBuffer | None:
    """A buffer for IO or the model binary, or None with a logged error; nothing falls back."""
    if mem_type is MemType.TCM:
        return tcm.allocate(size, label)
    if mem_type is MemType.DDR:
        rounded = round_up(size, tcm.size_alignment)
        return ddr.allocate(rounded, tcm.start_alignment, label)
    log(LogLevel.ERROR, "Memory type only supports DDR & TCM")
    return None
