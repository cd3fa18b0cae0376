"""The client's buffers that QNN was given: a copy of each here, and whether it is still there.

The client is asked to say when it frees one that is needed. Where its heap notes blocks, a buffer
ends where its block does, whatever the descriptor says.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from threading import RLock
from typing import TYPE_CHECKING, Any

from qnnmem.errors import QnnMemError
from qnnmem.lpai.runtime.allocations import ForeignMemory
from qnnmem.programs.process_memory import ProcessMemory, Unreadable
from qnnmem.programs.stacks import Trace

if TYPE_CHECKING:
    from numpy.typing import NDArray

_MOST_BYTES = 4 << 30  # of all copies
_MOST_BUFFERS = 4096
_MOST_GONE, _MOST_GONE_BYTES = 256, 16 << 20
_UNMAPPED, PROTECTED = 2, 4
HOW = {
    0: "freed",
    1: "reallocated",
    _UNMAPPED: "unmapped",
    3: "freed",
    PROTECTED: "made unreadable",
}


class TooMuchMemory(QnnMemError):
    """The client hands over more than is copied here; QNN's answer is 1002."""


@dataclass(frozen=True, slots=True)
class Freeing:
    """That a buffer was freed: how, and where."""

    how: str
    trace: Trace


class Answers:
    """Memory of a client that held answers of ours, and went with what gave them.

    It is given back late, so that nothing else lies there soon and a pointer into it tells.
    """

    def __init__(self) -> None:
        self._gone: dict[tuple[int, int], Trace] = {}
        self._bytes = 0
        self.releases = 0  # so far

    def release(self, address: int, size: int, trace: Trace) -> list[int]:
        """It is not the client's any more; what is to be freed now, oldest first."""
        self.releases += 1
        self._gone[address, address + size] = trace
        self._bytes += size
        freed = []
        while self._bytes > _MOST_GONE_BYTES or len(self._gone) > _MOST_GONE:
            start, end = next(iter(self._gone))
            del self._gone[start, end]
            self._bytes -= end - start
            freed.append(start)
        return freed

    def freeing(self, pointer: int) -> Trace | None:
        """Where what a pointer points to was freed; None where it points elsewhere."""
        for (start, end), trace in self._gone.items():
            if start <= pointer < end:
                return trace
        return None


class ClientBuffers:
    """Buffers of one client process by address and size."""

    def __init__(self, memory: ProcessMemory, stack_range: tuple[int, int] = (0, 0)) -> None:
        self._memory = memory
        self.answers = Answers()
        self._known: dict[tuple[int, int], ForeignMemory] = {}
        self._freed: dict[int, Freeing] = {}  # by the id of the buffer
        self._bytes = 0
        self._changes = 0
        self._lock = RLock()
        self.stacks = {stack_range}  # of all threads: from, to

    @property
    def changes(self) -> int:
        """How often memory of the client came or went, so far."""
        return self._changes + self.answers.releases

    def take(self, address: int, size: int) -> ForeignMemory:
        """The buffer at an address; smaller than said where less is there."""
        with self._lock:
            known = self._known.get((address, size))
            if known is not None and (not known.freed or not self._is_back(known)):
                return known
            made = self._make(address, size)
            if known is not None:
                self._forget((address, size))
            elif len(self._known) >= _MOST_BUFFERS:
                self._drop_oldest()
            self._known[address, size] = made
            self._watch()
            return made

    def _is_back(self, known: ForeignMemory) -> bool:
        """Whether the address of a freed buffer was given out again since."""
        if self._freed[id(known)].how == HOW[_UNMAPPED]:
            return self._memory.extent(known.address, known.size)[0] == known.size
        return self._memory.block_at(known.address) is not None

    def _make(self, address: int, size: int) -> ForeignMemory:
        import numpy

        block = self._memory.block_at(address)
        room, writable = self._memory.extent(address, size)
        if block is not None:
            room = min(room, block.end - address)
        if room <= 0:
            raise Unreadable(address, size)
        self._drop_freed(_MOST_BYTES - room)
        if self._bytes + room > _MOST_BYTES:
            raise TooMuchMemory(f"{room:,} bytes more are handed over than can be copied here")
        try:
            array = numpy.zeros(room, numpy.uint8)
        except MemoryError as exc:
            raise TooMuchMemory(f"there is no room here for {room:,} bytes") from exc
        self._bytes += room
        made = ForeignMemory(
            address,
            _aligned(array, room),
            readonly=not writable,
            address_space=self._memory,  # exec replaces it, so it outlives no program
        )
        gone = None if block is not None else self._memory.freed_block_at(address)
        if gone is not None:
            made.freed = True
            self._freed[id(made)] = Freeing(HOW[3], ())
        return made

    def freed_before(self, buffer: ForeignMemory) -> int:
        """The return address of the `free` of a buffer that was freed before it came here."""
        gone = self._memory.freed_block_at(buffer.address)
        return 0 if gone is None else gone.caller

    def free(self, start: int, size: int, how: int, trace: Trace) -> None:
        """Note that the client frees memory; buffers that share a byte with it are gone."""
        with self._lock:
            for buffer in self._sharing(start, size):
                if not buffer.freed:
                    buffer.freed = True
                    self._freed[id(buffer)] = Freeing(HOW.get(how, "freed"), trace)
            self._watch()

    def protect(self, start: int, size: int, trace: Trace) -> None:
        """Note that the client has changed who may read and write some of its memory."""
        with self._lock:
            for buffer in self._sharing(start, size):
                if not buffer.freed or self._is_closed(buffer):
                    room, writable = self._memory.extent(buffer.address, buffer.size)
                    buffer.freed, buffer.readonly = room < buffer.size, not writable
                    self._freed[id(buffer)] = Freeing(HOW[PROTECTED], trace)
            self._watch()

    def _sharing(self, start: int, size: int) -> Iterator[ForeignMemory]:
        """Buffers that share a byte with a range."""
        for buffer in self._known.values():
            if start < buffer.address + buffer.size and buffer.address < start + size:
                yield buffer

    def _is_closed(self, buffer: ForeignMemory) -> bool:
        """Whether it is there and cannot be read: that may change again."""
        return buffer.freed and self._freed[id(buffer)].how == HOW[PROTECTED]

    def lose(self, address: int) -> None:
        """Note that an address has no memory any more, and nobody said so.

        The program may have moved it, or made the file behind it shorter.
        """
        self.free(address, 1, _UNMAPPED, ())

    def freeing(self, address: int | None) -> tuple[ForeignMemory, Freeing] | None:
        """How the buffer that an address lies in was freed, if it was."""
        with self._lock:
            for buffer in reversed(self._known.values()):
                inside = address is not None and buffer.address <= address < buffer.address + max(
                    buffer.size, 1
                )
                if inside and buffer.freed:
                    return buffer, self._freed[id(buffer)]
        return None

    def is_on_stack(self, buffer: ForeignMemory) -> bool:
        """Whether it lies on the stack of any thread that called QNN."""
        return any(low <= buffer.address < high for low, high in self.stacks)

    def refresh(self, buffer: ForeignMemory, most: int | None = None) -> None:
        """Read what the client has there now; what is freed stays as it was.

        What cannot be read any more is gone, too.
        """
        if buffer.freed:
            return
        try:
            self._memory.fill(buffer.array if most is None else buffer.array[:most], buffer.address)
        except Unreadable as exc:
            self.lose(exc.address)

    def store(self, buffer: ForeignMemory, size: int | None = None) -> None:
        """Write results to the client; never to what it has freed."""
        if not buffer.freed:
            self._memory.store(
                buffer.array if size is None else buffer.array[:size], buffer.address
            )

    def translate(self, address: int | None) -> int | None:
        """An address of a copy as the client's own; others as they are."""
        if address is None:
            return None
        with self._lock:
            for buffer in self._known.values():
                start = int(buffer.array.__array_interface__["data"][0])
                if start <= address < start + buffer.size:
                    return buffer.address + address - start
        return address

    def _watch(self) -> None:
        self._changes += 1
        needed = (b for b in self._known.values() if not b.freed or self._is_closed(b))
        alive = sorted((b.address, b.address + b.size) for b in needed)
        self._memory.watch(list(_merged(alive)))

    def _drop_oldest(self) -> None:
        """Forget buffers that were freed, else the first of all."""
        gone = [key for key, one in self._known.items() if one.freed] or [next(iter(self._known))]
        for key in gone[: _MOST_BUFFERS // 4]:
            self._forget(key)

    def _drop_freed(self, most: int) -> None:
        """Forget buffers that were freed, the first of them first, until there is room."""
        for key in [key for key, one in self._known.items() if one.freed]:
            if self._bytes <= most:
                return
            self._forget(key)

    def _forget(self, key: tuple[int, int]) -> None:
        buffer = self._known.pop(key)
        self._bytes -= buffer.size
        self._freed.pop(id(buffer), None)


def _aligned(array: NDArray[Any], size: int) -> NDArray[Any]:
    """Zeros at a multiple of 256, as kernels like them."""
    import numpy

    if array.__array_interface__["data"][0] % 256 == 0:
        return array
    block = numpy.zeros(size + 256, numpy.uint8)
    start = -block.__array_interface__["data"][0] % 256
    return block[start : start + size]


def _merged(ranges: list[tuple[int, int]]) -> Iterable[tuple[int, int]]:
    """Sorted ranges, those that touch as one."""
    if not ranges:
        return
    low, high = ranges[0]
    for _, (start, end) in pairwise(ranges):
        if start <= high:
            high = max(high, end)
        else:
            yield low, high
            low, high = start, end
    yield low, high
