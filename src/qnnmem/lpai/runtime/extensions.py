"""What qnn-net-run's LPAI extensions do: allocate the binary, IO and pools for a run.

Binary and IO come from the memory that `mem_type` names, always the same for both; scratch and
persistent are always DDR.
"""

from __future__ import annotations

from typing import NoReturn

from qnnmem.contract.rules import finding
from qnnmem.lpai.runtime.backend import Backend
from qnnmem.lpai.runtime.heap import Heap, HeapBuffer
from qnnmem.lpai.runtime.tcm_pool import TcmPool, allocate_io, parse_mem_type
from qnnmem.qnn.enums import MemType
from qnnmem.units import round_up

_MEM_ALLOC = 1002


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
        """Room for the binary or one IO tensor."""
        found = allocate_io(
            self.mem_type, size, label, ddr=self._ddr, tcm=self._tcm, log=self._backend.log
        )
        if found is None:
            self._no_room(size, label)
        return found

    def allocate_pool(self, size: int, label: str) -> HeapBuffer:
        """Room for scratch or persistent."""
        profile = self._backend.profile
        rounded = round_up(size, profile.size_alignment)
        return self._ddr.allocate(rounded, max(64, profile.start_alignment), label)

    def broken_guards(self) -> list[str]:
        """Buffers past whose ends something was written."""
        buffers = (*self._ddr.live, *self._tcm.buffers)
        return [f"{side} {b.name[:80]!r}" for b in buffers for side in b.guards_broken()]

    def free_tcm(self) -> None:
        """Give the pool back what this run has of it; others in the process need it."""
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
