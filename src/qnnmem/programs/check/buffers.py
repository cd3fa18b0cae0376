"""Buffers that the client passed to QNN, each with a copy and a record of how it was freed.

The client reports when it frees a buffer that is in use. If the heap block of a buffer is known,
the buffer ends where the block ends, even if the descriptor states another size.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from threading import RLock
from typing import TYPE_CHECKING, Any

from qnnmem.contract.regions import Extent, ForeignMemory
from qnnmem.errors import QnnMemError
from qnnmem.programs.process_memory import GUARD, Block, Gone, ProcessMemory, Unreadable
from qnnmem.programs.stacks import Trace

if TYPE_CHECKING:
    from numpy.typing import NDArray

_MOST_BYTES = 4 << 30  # limit of all copies together
_MOST_BUFFERS = 4096
_MOST_GONE, _MOST_GONE_BYTES = 256, 16 << 20
_LARGEST_ALIGNMENT = _PAGE = 4096
_UNMAPPED, PROTECTED = 2, 4
_LARGEST_SLACK = 512  # bytes of a block around its buffer
HOW = {
    0: "freed",
    1: "reallocated",
    _UNMAPPED: "unmapped",
    3: "freed",
    PROTECTED: "made unreadable",
}


class TooMuchMemory(QnnMemError):
    """Raised if the client passes more memory than can be copied; the call returns 1002."""


@dataclass(frozen=True, slots=True)
class Freeing:
    """How and where a buffer was freed: a word such as "freed", and the call stack."""

    how: str
    trace: Trace


class Answers:
    """Client memory that held the answers of a freed system context.

    The memory is released late: its address is not reused soon, so stale pointers are detected.
    """

    def __init__(self) -> None:
        self._gone: dict[Extent, Trace] = {}
        self._bytes = 0
        self.releases = 0  # number of released answers

    def release(self, address: int, size: int, trace: Trace) -> list[int]:
        """Record that answers were freed; return the addresses to release now, oldest first."""
        self.releases += 1
        self._gone[Extent(address, address + size)] = trace
        self._bytes += size
        freed = []
        while self._bytes > _MOST_GONE_BYTES or len(self._gone) > _MOST_GONE:
            oldest = next(iter(self._gone))
            del self._gone[oldest]
            self._bytes -= oldest.size
            freed.append(oldest.start)
        return freed

    def freeing(self, pointer: int) -> Trace | None:
        """Return the call stack that freed the memory at a pointer; None if it was not freed."""
        return next((t for extent, t in self._gone.items() if extent.holds(pointer)), None)


class ClientBuffers:
    """Buffers of one client process, by address and size."""

    def __init__(self, memory: ProcessMemory, stack_range: tuple[int, int] = (0, 0)) -> None:
        self._memory = memory
        self.answers = Answers()
        self._known: dict[tuple[int, int], ForeignMemory] = {}
        self._freed: dict[int, Freeing] = {}  # by the id of the buffer
        self._bytes = 0
        self._changes = 0
        self._lock = RLock()
        self._guarded: dict[int, ForeignMemory] = {}  # by the place of the pattern beside the block
        self._overrun: list[tuple[int, ForeignMemory]] = []  # already overwritten at hand-over
        self.stacks = {stack_range}  # of all threads that called QNN
        self._traced: set[Extent] = set()  # pages made read-only to trace writes
        self._covered: list[Extent] = []  # pages of outputs, closed until the execution ends
        self._gone: deque[tuple[Extent, Freeing]] = deque(maxlen=_MOST_GONE)  # unmapped ranges

    @property
    def changes(self) -> int:
        """Number of times that buffers of the client were added or freed."""
        return self._changes + self.answers.releases

    def take(self, address: int, size: int) -> ForeignMemory:
        """Return the buffer at an address; the buffer is shorter than `size` if less is mapped."""
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
        """Return True if memory was allocated again at the address of a freed buffer."""
        if self._freed[id(known)].how == HOW[_UNMAPPED]:
            return self._memory.extent(known.address, known.size)[0] == known.size
        return self._memory.block_at(known.address) is not None

    def _make(self, address: int, size: int) -> ForeignMemory:
        import numpy

        block = self._memory.block_at(address)
        room, writable = self._memory.extent(address, size)
        wanted = Extent(address, address + size, self._memory)
        if any(_whole_pages(extent).overlap(wanted) for extent in self._covered):
            room, writable = size, True
        gone = None if block is not None else self._memory.freed_block_at(address)
        if block is None and gone is None:
            self._memory.check_inside(address, size)
        if block is not None:
            room = min(room, block.end - address)
        elif gone is not None and room <= 0:
            room = min(size, gone.end - address)
        elif (known := self._memory.static_room(address)) is not None:
            room = min(room, known)
        if room <= 0:
            self._memory.read(address, 1)
            raise Unreadable(address, size)
        self._drop_freed(_MOST_BYTES - room)
        if self._bytes + room > _MOST_BYTES:
            raise TooMuchMemory(f"a buffer of {room:,} bytes is over the limit of one call")
        try:
            array = numpy.zeros(room, numpy.uint8)
        except MemoryError as exc:
            raise TooMuchMemory(f"no address range of {room:,} bytes is free") from exc
        self._bytes += room
        made = ForeignMemory(
            address,
            _aligned(array, room),
            readonly=not (writable or self.is_traced(address, size)),
            space=self._memory,  # keyed by process memory: after exec the program has another
        )
        if block is not None:
            self._guard(block, made)
        if gone is not None:
            made.freed = True
            self._freed[id(made)] = Freeing(HOW[3], ())
        return made

    def _guard(self, block: Block, made: ForeignMemory) -> None:
        """Check the guard patterns beside the block now, and register them for later checks."""
        around = made.address - block.start, block.end - made.end
        if block.is_early and max(around) < _LARGEST_ALIGNMENT:  # not cut from an arena later
            made.serial = 0
        if not block.caller:
            return  # a sanitizer's block has its own guard
        places = []
        if block.is_isolated and block.start % _PAGE:
            places.append(block.start - len(GUARD))
        if not block.is_isolated or -block.end % _PAGE >= len(GUARD):
            places.append(block.end)  # else the page after it is the guard
        for place in places:
            if place not in self._guarded and not self._memory.is_whole(place):
                self._overrun.append((place, made))
                self._memory.write(GUARD, place)
            self._guarded[place] = made

    def cover(self, buffer: ForeignMemory) -> Extent | None:
        """Return the pages whose access can be blocked, because they hold only this buffer.

        Return None if there are no such pages.
        """
        low = -(-buffer.address // _PAGE) * _PAGE
        high = buffer.end // _PAGE * _PAGE
        block = self._memory.block_at(buffer.address)
        if block and block.is_isolated and block.size < buffer.size + _LARGEST_SLACK:
            low, high = buffer.address, buffer.end
        if low >= high or buffer.freed or not self._memory.is_private(low, high):
            return None
        extent = Extent(low, high, self._memory)
        with self._lock:
            self._covered.append(extent)
        return extent

    def uncover(self, extent: Extent) -> None:
        """Record that the pages of an output can be accessed again."""
        with self._lock:
            self._covered.remove(extent)

    def trace(self, buffer: ForeignMemory) -> None:
        """Record that the pages of a buffer are read-only from now on, to trace writes."""
        self._traced.add(_whole_pages(buffer.extent))

    def is_traced(self, address: int, size: int) -> bool:
        """Return whether writes to a range are traced."""
        wanted = Extent(address, address + size, self._memory)
        return any(extent.overlap(wanted) for extent in self._traced)

    def guarded(self, end: int) -> ForeignMemory | None:
        """Return the buffer whose guard pattern is at `end`, and restore the pattern."""
        with self._lock:
            buffer = self._guarded.get(end)
        if buffer is not None:
            self._memory.write(GUARD, end)
        return buffer

    def overruns(self, start: int = 0, size: int = 0) -> list[tuple[int, ForeignMemory]]:
        """Return addresses of overwritten bytes beside blocks, each with the buffer in the block.

        The addresses are those recorded since the last call, and those beside blocks in the given
        range. Each address is returned once.
        """
        if not size and not self._overrun:
            return []
        with self._lock:
            overrun, self._overrun = self._overrun, []
            ends = [
                end
                for end, buffer in self._guarded.items()
                if start < end <= start + size or buffer.address > end == start - len(GUARD)
            ]
            overrun += ((e, self._guarded[e]) for e in ends if not self._memory.is_whole(e))
            for end in ends:
                del self._guarded[end]
        return overrun

    def freed_before(self, buffer: ForeignMemory) -> int:
        """Return the caller of `free` if a buffer was freed before it was passed to QNN, else 0."""
        gone = self._memory.freed_block_at(buffer.address)
        return 0 if gone is None else gone.caller

    def free(self, start: int, size: int, how: int, trace: Trace) -> None:
        """Record that the client freed memory, and with it every buffer that overlaps it."""
        with self._lock:
            if how == _UNMAPPED:
                freeing = Freeing(HOW[how], trace)
                self._gone.append((Extent(start, start + size, self._memory), freeing))
            for buffer in self._sharing(start, size):
                if not buffer.freed:
                    buffer.freed, buffer.loss = True, HOW.get(how, "freed")
                    self._freed[id(buffer)] = Freeing(buffer.loss, trace)
            self._watch()

    def protect(self, start: int, size: int, trace: Trace) -> None:
        """Record that the client changed the protection of some of its memory."""
        with self._lock:
            for buffer in self._sharing(start, size):
                if not buffer.freed or self._is_closed(buffer):
                    room, writable = self._memory.extent(buffer.address, buffer.size)
                    is_traced = self.is_traced(buffer.address, buffer.size)
                    buffer.freed, buffer.readonly = room < buffer.size, not (writable or is_traced)
                    buffer.loss = HOW[PROTECTED]
                    self._freed[id(buffer)] = Freeing(HOW[PROTECTED], trace)
            self._watch()

    def _sharing(self, start: int, size: int) -> Iterator[ForeignMemory]:
        """Return the buffers that share a byte with a range."""
        freed = Extent(start, start + size, self._memory)
        return (buffer for buffer in self._known.values() if buffer.extent.overlap(freed))

    def _is_closed(self, buffer: ForeignMemory) -> bool:
        """Return True if the client made a buffer unreadable; it can become readable again."""
        return buffer.freed and self._freed[id(buffer)].how == HOW[PROTECTED]

    def lose(self, address: int) -> None:
        """Record that an address is unmapped although no call freed it.

        The program may have moved the mapping, or truncated the mapped file.
        """
        self.free(address, 1, _UNMAPPED, ())

    def freeing(self, address: int | None) -> tuple[ForeignMemory, Freeing] | None:
        """Return the freed buffer that contains an address, and how it was freed."""
        with self._lock:
            for buffer in reversed(self._known.values()):
                if address is not None and buffer.freed and buffer.extent.holds(address):
                    return buffer, self._freed[id(buffer)]
        return None

    def unmapping(self, address: int) -> Trace:
        """Return the call stack that unmapped an address, whether or not a buffer was there."""
        with self._lock:
            gone = [freeing for extent, freeing in self._gone if extent.holds(address)]
        return gone[-1].trace if gone else ()

    def is_on_stack(self, buffer: ForeignMemory) -> bool:
        """Return True if a buffer is on the stack of a thread that called QNN."""
        return any(low <= buffer.address < high for low, high in tuple(self.stacks))

    def refresh(self, buffer: ForeignMemory, most: int | None = None) -> None:
        """Update the copy of a buffer from the client's memory, unless the buffer is freed.

        Bytes that cannot be read count as freed.
        """
        if buffer.freed:
            return
        try:
            self._memory.fill(buffer.array if most is None else buffer.array[:most], buffer.address)
        except Gone:
            return
        except Unreadable as exc:
            self.lose(exc.address)

    def peek(self, buffer: ForeignMemory) -> bytes:
        """Return the client's bytes of a buffer, not the copy; empty if they cannot be read."""
        import numpy

        there = numpy.empty(buffer.size, numpy.uint8)
        try:
            self._memory.fill(there, buffer.address)
        except Unreadable:
            return b""
        return there.tobytes()

    def store(self, buffer: ForeignMemory, size: int | None = None) -> None:
        """Write results to the client, unless it has freed the buffer."""
        if not buffer.freed:
            self._memory.store(
                buffer.array if size is None else buffer.array[:size], buffer.address
            )

    def translate(self, address: int | None) -> int | None:
        """Return the client's address for an address in a copy; return other values unchanged."""
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
        known = {id(buffer) for buffer in self._known.values() if not buffer.freed}
        self._memory.guard([end for end, b in self._guarded.items() if id(b) in known])

    def nearest(self, address: int) -> ForeignMemory | None:
        """Return the buffer that contains an address, else the last buffer that ends before it."""
        with self._lock:
            before = [b for b in self._known.values() if b.address <= address]
        holding = [b for b in before if address < b.end]
        return holding[-1] if holding else max(before, key=lambda b: b.end, default=None)

    def _drop_oldest(self) -> None:
        """Drop freed buffers, or the oldest buffer if none was freed."""
        gone = [key for key, buffer in self._known.items() if buffer.freed] or [
            next(iter(self._known))
        ]
        for key in gone[: _MOST_BUFFERS // 4]:
            self._forget(key)

    def _drop_freed(self, most: int) -> None:
        """Drop freed buffers, oldest first, until at most `most` bytes remain."""
        for key in [key for key, buffer in self._known.items() if buffer.freed]:
            if self._bytes <= most:
                return
            self._forget(key)

    def _forget(self, key: tuple[int, int]) -> None:
        buffer = self._known.pop(key)
        self._bytes -= buffer.size
        self._freed.pop(id(buffer), None)


def _whole_pages(extent: Extent) -> Extent:
    """Return an extent, extended at both ends to whole pages."""
    return Extent(extent.start // _PAGE * _PAGE, -(-extent.end // _PAGE) * _PAGE, extent.space)


def _aligned(array: NDArray[Any], size: int) -> NDArray[Any]:
    """Return an array of zeros aligned to 256 bytes, the alignment that kernels prefer."""
    import numpy

    if array.__array_interface__["data"][0] % 256 == 0:
        return array
    block = numpy.zeros(size + 256, numpy.uint8)
    start = -block.__array_interface__["data"][0] % 256
    return block[start : start + size]


def _merged(ranges: list[tuple[int, int]]) -> Iterable[tuple[int, int]]:
    """Yield the ranges with adjacent ranges joined; the input must be sorted."""
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
