"""The TCM pool that qnn-net-run's LPAI extensions allocate model binary and IO from.

The five messages are the documented ones, byte for byte; where the documentation leaves the details
open (what is rounded, what counts, which level) the choices are listed in `choices.toml`.
"""

from __future__ import annotations

from qnnmem.errors import QnnError
from qnnmem.lpai.runtime.heap import Heap, HeapBuffer
from qnnmem.lpai.runtime.room import Log, TcmRoom, process_tcm
from qnnmem.qnn.enums import LogLevel, MemType
from qnnmem.units import round_up

_WORDS = {"ddr": MemType.DDR, "tcm": MemType.TCM}


class TcmPool:
    """A pool of fixed size for a fixed number of allocations; nothing falls back to DDR.

    It is the one of the process, unless it has a size or a limit of its own.
    """

    def __init__(
        self,
        log: Log,
        size: int | None = None,
        max_allocations: int | None = None,
        start_alignment: int = 64,
        size_alignment: int = 64,
    ) -> None:
        room = process_tcm()
        if size is not None or max_allocations is not None:
            room = TcmRoom(
                room.size if size is None else size,
                room.max_allocations if max_allocations is None else max_allocations,
            )
        self.size, self.max_allocations = room.size, room.max_allocations
        self.start_alignment, self.size_alignment = start_alignment, size_alignment
        self._room = room
        self._heap = Heap(MemType.TCM, log=log)
        self._heap.cut_from(room, size_alignment)
        self._heap.abandon_with(self)

    @property
    def used(self) -> int:
        """Bytes in use, rounded as they are allocated, whoever uses them."""
        return self._room.used

    @property
    def buffers(self) -> tuple[HeapBuffer, ...]:
        """Allocations that were not freed."""
        return self._heap.live

    def allocate(self, size: int, label: str = "") -> HeapBuffer | None:
        """Room for `size` bytes, or None with a logged error when the pool has no room."""
        rounded = round_up(size, self.size_alignment)
        try:
            return self._heap.allocate(rounded, self.start_alignment, label)
        except QnnError:
            return None

    def free(self) -> None:
        """Free every allocation that is left."""
        for buffer in self.buffers:
            buffer.free()


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
