"""What qnn-net-run's LPAI extensions do: allocate the binary, IO and pools for a run.

Binary and IO come from the memory that `mem_type` names, always the same for both; scratch and
persistent are always DDR. The five messages about TCM are the documented ones, byte for byte. Where
the documentation leaves the details open (what is rounded, what counts, which level) the choices
are listed in `choices.toml`.
"""

from __future__ import annotations

from typing import NoReturn

from qnnmem.contract.rules import finding
from qnnmem.errors import QnnError
from qnnmem.lpai.runtime.address_space import Log, TcmSpace, process_tcm
from qnnmem.lpai.runtime.backend import Backend
from qnnmem.lpai.runtime.heap import Heap, HeapBuffer
from qnnmem.qnn.enums import LogLevel, MemType
from qnnmem.units import round_up

_MEM_ALLOC = 1002
_WORDS = {"ddr": MemType.DDR, "tcm": MemType.TCM}


class Extensions:
    """Allocates for one run; `mem_type` is the word of the configuration file."""

    def __init__(self, backend: Backend, mem_type: str = "ddr") -> None:
        profile = backend.profile
        self._backend, self._ddr = backend, Heap(MemType.DDR)
        self._tcm = TcmPool(
            backend.log,
            start_alignment=profile.start_alignment,
            size_alignment=profile.size_alignment,
        )
        self.mem_type = parse_mem_type(mem_type, backend.log)
        if self.mem_type is MemType.TCM and not profile.tcm_allowed:
            mode, version = profile.mode.value, profile.hw_version.word
            sentence = f"TCM is for aDSP direct mode on v6 or later, not for {mode} on {version}"
            backend.fail(1000, finding("T3", sentence))

    def allocate(self, size: int, label: str) -> HeapBuffer:
        """Allocate the binary or one IO tensor."""
        found = allocate_io(
            self.mem_type, size, label, ddr=self._ddr, tcm=self._tcm, log=self._backend.log
        )
        if found is None:
            self._no_room(size, label)
        return found

    def allocate_pool(self, size: int, label: str) -> HeapBuffer:
        """Allocate scratch or persistent."""
        profile = self._backend.profile
        rounded = round_up(size, profile.size_alignment)
        return self._ddr.allocate(rounded, max(64, profile.start_alignment), label)

    def broken_guards(self) -> list[str]:
        """Return the buffers with broken guard zones."""
        buffers = (*self._ddr.live, *self._tcm.buffers)
        return [f"{side} {b.name[:80]!r}" for b in buffers for side in b.guards_broken()]

    def free_tcm(self) -> None:
        """Free what this run has of the TCM pool, which the process shares."""
        self._tcm.free()

    def _no_room(self, size: int, label: str) -> NoReturn:
        if self.mem_type is MemType.UNDEFINED:
            sentence = "the memory type of the configuration is neither ddr nor tcm"
            self._backend.fail(_MEM_ALLOC, finding("T4", sentence, buffer=label))
        need = round_up(size, self._backend.profile.size_alignment)
        left = self._tcm.size - self._tcm.used
        sentence = (
            f"{label} needs {need:,} bytes of TCM, {left:,} of {self._tcm.size:,} are left, "
            f"{need - left:,} missing"
        )
        self._backend.fail(_MEM_ALLOC, finding("T1", sentence, buffer=label, need=need, given=left))


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
            room = TcmSpace(
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
        """Allocate `size` bytes; return None and log an error if the pool is full."""
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
    """Return the memory type that a configuration file names; UNDEFINED for another word."""
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
