"""Memory of another process, read and written while one of its calls waits.

Addresses and sizes come from the program and are untrusted: reads are bounded, and an unmapped
address raises `Unreadable`. Linux lets a process open `/proc/PID` of its descendants
if they have the same user.

Large buffers are copied with `process_vm_readv` and `process_vm_writev`, because `/proc/PID/mem`
copies every page twice. An open `/proc/PID/mem` stays attached to its process, but the fast calls
name the process by its pid, which may be reused. They are used only while a pidfd shows that the
same process has the pid.
"""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import struct
import threading
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from qnnmem.errors import Fault
from qnnmem.programs.ledger import TurnedAway

if TYPE_CHECKING:
    from numpy.typing import NDArray

MOST_PROCESSES = 256  # processes of one run, including ended processes

PAGE = 4096
WORTH_IT = 16 << 10  # bytes; for less, ctypes costs more time than it saves

_TOP = 1 << 56  # above all user addresses
_MAX_READ = 1 << 20  # bytes of structs and lists, not of buffers
_MAX_MAPS = 16 << 20  # bytes of the list of mappings
_LONGEST = 4096  # characters of a name
_LARGE_BLOCK = 128 << 10  # bytes that an allocator maps and unmaps directly

# Offsets in the memory that the shim shares; see `shared` in shim.c.
MOST_WATCHED, _RING, _BLOCKS = 1024, 256, 1 << 17
_WATCH_AT = 24
_RING_AT = _WATCH_AT + 16 * MOST_WATCHED + 16
_BLOCKS_AT = _RING_AT + 24 * _RING
_EPOCH_AT = _BLOCKS_AT + 24 * _BLOCKS
_GUARDS_AT, MOST_GUARDS = _EPOCH_AT + 8, 128
_ARENA_AT, _ARENA_BYTES = _GUARDS_AT + 8 * (1 + MOST_GUARDS), 1 << 32
_RANGES_AT, _MOST_RANGES = _ARENA_AT + 8, 512
SHARED_BYTES = _RANGES_AT + 8 + 24 * _MOST_RANGES
_ALIGNMENT_KNOWN, _ISOLATED = 1 << 63, 1 << 62  # flags in the caller of a block
GUARD = b"\xa5qnnmem guard\xa5\x5a\xa5"  # pattern beside each heap block

# ELF files of 64 bits.
_HEAD, _SECTION, _SYMBOL = 64, 64, 24  # bytes of the structs of a 64-bit file
_SYMBOL_TABLES = (2, 11)  # of the linker, of the loader
_OBJECT, _FIXED = 1, 2  # types of a symbol, of a file
_MOST_SYMBOLS = 256 << 20  # bytes of symbols


class Unreadable(Fault):
    """Raised for an address that is not mapped or not writable."""

    def __init__(self, address: int, size: int, place: str = "not mapped memory") -> None:
        self.address, self.size, self.place = address, size, place
        super().__init__(f"the memory at {address:#x} cannot be read or written")


class Gone(Unreadable):
    """Raised if the process has ended, so that its memory no longer exists."""


@dataclass(frozen=True, slots=True)
class Mapping:
    """Line of `/proc/PID/maps`."""

    start: int
    end: int
    readable: bool
    writable: bool
    offset: int
    path: str
    is_private: bool = True


@dataclass(frozen=True, slots=True)
class Block:
    """Block on the client's heap; `caller` is the return address of its allocation call."""

    start: int
    size: int
    caller: int
    is_early: bool = False  # allocated before the alignment was queried
    is_isolated: bool = False  # on pages that hold nothing else

    @property
    def end(self) -> int:
        """Address after the last byte."""
        return self.start + self.size


class ProcessMemory:
    """Memory of one process, with the mappings and heap blocks in it."""

    def __init__(self, pid: int, shared: int = 0) -> None:
        self.pid, self._shared = pid, shared
        self.is_crowded = False  # True: more buffers were in use than can be watched
        self._file = os.open(f"/proc/{pid}/mem", os.O_RDWR | os.O_CLOEXEC)
        self._quick = QuickCopies(pid)

    def close(self) -> None:
        """Close the file descriptors for the process."""
        self._quick.close()
        if self._file >= 0:
            os.close(self._file)
        self._file = -1

    def read(self, address: int, size: int) -> bytes:
        """Read the bytes of a struct or a list."""
        if not 0 <= size <= _MAX_READ or not 0 < address < _TOP:
            raise Unreadable(address, size)
        try:
            data = os.pread(self._file, size, address)
        except (OSError, OverflowError, ValueError):
            raise Unreadable(address, size) from None
        if len(data) < size:
            missing = Unreadable if data else Gone  # nothing and no error: nothing is mapped
            raise missing(address + len(data), size - len(data))
        return data

    def unpack(self, form: str, address: int) -> tuple[Any, ...]:
        """Read a struct of little-endian numbers."""
        return struct.unpack(form, self.read(address, struct.calcsize(form)))

    def pointer(self, address: int) -> int:
        """Read one 64-bit word."""
        return int(self.unpack("<Q", address)[0])

    def text(self, address: int) -> str:
        """Read a C string of at most 4,096 characters; a longer string is cut."""
        data = b""
        while len(data) < _LONGEST:
            # A string may end directly before an unmapped page.
            piece = self.read(address + len(data), 64 - (address + len(data)) % 64)
            end = piece.find(b"\0")
            if end >= 0:
                return (data + piece[:end]).decode("utf-8", "surrogateescape")
            data += piece
        return data[:_LONGEST].decode("utf-8", "surrogateescape")

    def fill(self, array: NDArray[Any], address: int) -> None:
        """Fill an array with bytes from an address."""
        self._move(os.preadv, self._quick.read, array, address)

    def store(self, array: NDArray[Any], address: int) -> None:
        """Write the bytes of an array to an address."""
        self._move(os.pwritev, self._quick.write, array, address)

    def _move(self, move: Any, at_once: Any, array: NDArray[Any], address: int) -> None:
        if not 0 < address < _TOP:
            raise Unreadable(address, array.size)
        view, done = array.data, 0
        if array.size >= WORTH_IT and self._is_same(address):
            done = at_once(array, address)
        while done < array.size:
            try:
                moved = move(self._file, [view[done:]], address + done)
            except (OSError, OverflowError):
                raise Unreadable(address + done, array.size - done) from None
            if moved <= 0:
                raise Gone(address + done, array.size - done)
            done += moved

    def _is_same(self, address: int) -> bool:
        """Return True if the process still runs the program that it was opened for."""
        try:
            return bool(os.pread(self._file, 1, address))
        except (OSError, OverflowError):
            return False

    def write(self, data: bytes, address: int) -> None:
        """Write bytes to an address."""
        if not 0 < address < _TOP:
            raise Unreadable(address, len(data))
        try:
            done = os.pwrite(self._file, data, address)
        except (OSError, OverflowError):
            done = 0
        if done < len(data):
            raise Unreadable(address, len(data))

    # Mappings and blocks of the heap

    def mappings(self) -> list[Mapping]:
        """Return all mappings, sorted by address; empty if the process has ended."""
        try:
            with Path(f"/proc/{self.pid}/maps").open("rb") as file:
                lines = file.read(_MAX_MAPS).decode("utf-8", "surrogateescape").splitlines()
        except OSError as exc:
            if exc.errno in (errno.ENOENT, errno.ESRCH):
                return []  # the process has ended
            why = (exc.strerror or str(exc)).lower()
            raise TurnedAway(f"the memory map of a process cannot be read ({why})") from exc
        return [mapping for line in lines if (mapping := _mapping(line)) is not None]

    def extent(self, address: int, size: int) -> tuple[int, bool]:
        """Return the number of readable bytes, at most `size`, and whether all are writable."""
        maps = self.mappings()
        at = bisect_right(maps, address, key=lambda mapping: mapping.start) - 1
        end, writable = address, True
        for mapping in maps[max(at, 0) :]:
            if mapping.start > end or mapping.end <= end or not mapping.readable:
                break
            writable = writable and mapping.writable
            end = mapping.end
            if end >= address + size:
                break
        return min(size, end - address), writable and end > address

    def static_room(self, address: int) -> int | None:
        """Return the number of bytes from an address to the end of the static object there.

        Return None if no known static object contains the address.
        """
        maps = self.mappings()
        at = bisect_right(maps, address, key=lambda mapping: mapping.start) - 1
        while at > 0 and not maps[at].path and maps[at - 1].end == maps[at].start:
            at -= 1  # zeros follow the file without a name
        if at < 0 or not maps[at].path.startswith("/"):
            return None
        path = maps[at].path
        base = next(mapping.start for mapping in maps if mapping.path == path)
        return _room_behind(path, base, address)

    def is_private(self, start: int, end: int) -> bool:
        """Return True if a range is mapped for this process alone, readable and writable."""
        for mapping in self.mappings():
            if (
                mapping.start <= start < mapping.end
                and mapping.is_private
                and mapping.readable
                and mapping.writable
            ):
                start = mapping.end
        return start >= end

    def watch(self, ranges: list[tuple[int, int]]) -> None:
        """Make the shim report when any of these ranges is freed."""
        if not self._shared:
            return
        kept = ranges[:MOST_WATCHED]
        self.is_crowded = self.is_crowded or len(kept) < len(ranges)
        low, high = min((r[0] for r in kept), default=0), max((r[1] for r in kept), default=0)
        words = [word for one in kept for word in one]
        self.write(struct.pack(f"<{len(words)}Q", *words), self._shared + _WATCH_AT)
        self.write(struct.pack("<3Q", len(kept), low, high), self._shared)

    def guard(self, ends: list[int]) -> None:
        """Make the client check the guard pattern after each of these blocks before every call."""
        if self._shared:
            kept = ends[:MOST_GUARDS]
            self.write(
                struct.pack(f"<{1 + len(kept)}Q", len(kept), *kept), self._shared + _GUARDS_AT
            )

    def is_whole(self, end: int) -> bool:
        """Return True if the guard pattern after a block is unchanged."""
        try:
            return self.read(end, len(GUARD)) == GUARD
        except Unreadable:
            return True

    def note_alignment(self) -> None:
        """From now on, mark new blocks as allocated after the query of the alignment."""
        if self._shared:
            self.write(struct.pack("<Q", _ALIGNMENT_KNOWN), self._shared + _EPOCH_AT)

    def block_at(self, address: int) -> Block | None:
        """Return the live heap block that contains an address, if the shim recorded it."""
        return self._nearest(_BLOCKS_AT, _BLOCKS, address)

    def check_inside(self, address: int, size: int) -> None:
        """Raise Unreadable for an address that is between heap blocks, although it is mapped."""
        if not self._shared:
            return
        in_arena = 0 <= address - self.pointer(self._shared + _ARENA_AT) < _ARENA_BYTES
        block = self._nearest(_BLOCKS_AT, _BLOCKS, address, PAGE if in_arena else len(GUARD))
        if block is not None and address >= block.end:
            past = f"{address - block.end:,} bytes past the end of a block of {block.size:,} bytes"
            raise Unreadable(address, size, past)
        if block is None and in_arena:
            raise Unreadable(address, size, "outside all heap blocks")

    def thread_has_ended(self, address: int) -> bool | None:
        """Return whether a thread has ended, given an address in its stack or its variables.

        Return None for other addresses and for the initial thread of the process.
        """
        if not self._shared:
            return None
        count = min(self.pointer(self._shared + _RANGES_AT), _MOST_RANGES)
        rows = struct.iter_unpack("<3Q", self.read(self._shared + _RANGES_AT + 8, 24 * count))
        ended = [has_ended for low, high, has_ended in rows if low <= address < high]
        if not ended or self.block_at(address) is not None:  # the heap uses the addresses again
            return None
        return bool(ended[-1])

    def block_before(self, address: int) -> Block | None:
        """Return the heap block that ends on the page before an address; None if there is none.

        Only blocks that share no page with other memory are considered.
        """
        page = address // PAGE * PAGE
        block = self._nearest(_BLOCKS_AT, _BLOCKS, page - 1, PAGE)
        return block if block is not None and block.is_isolated else None

    def freed_block_at(self, address: int) -> Block | None:
        """Return the recently freed heap block that contained an address; None if none is known.

        The result is also None if the table of live blocks might be incomplete, or for a large
        block without separate pages, because its addresses might already be mapped again.
        """
        if not self._shared or self.pointer(self._shared + _RING_AT - 16):
            return None
        oldest = self.pointer(self._shared + _RING_AT - 8) % _RING
        block = self._nearest(_RING_AT, _RING, address, oldest=oldest)
        is_final = block is not None and (block.is_isolated or block.size < _LARGE_BLOCK)
        return block if is_final else None

    def _nearest(
        self, at: int, count: int, address: int, slack: int = 0, oldest: int | None = None
    ) -> Block | None:
        """Return the newest recorded block that contains an address; None if no block does.

        `oldest` is the row of the oldest block. If `oldest` is None, return the block with the
        highest start instead of the newest.
        """
        import numpy

        if not self._shared:
            return None
        table = numpy.empty(count * 24, numpy.uint8)
        try:
            self.fill(table, self._shared + at)
        except Unreadable:
            return None
        rows = table.view(numpy.uint64).reshape(count, 3)
        starts, ends = rows[:, 0], rows[:, 0] + rows[:, 1]
        inside = numpy.flatnonzero((starts <= address) & (address < ends + slack) & (starts > 0))
        if not inside.size:
            return None
        rank = starts[inside] if oldest is None else (inside - oldest) % count
        start, size, caller = map(int, rows[inside[rank.argmax()]])
        place = caller & (_ISOLATED - 1)
        return Block(start, size, place, caller < _ALIGNMENT_KNOWN, bool(caller & _ISOLATED))

    @cached_property
    def program(self) -> str:
        """Path of the executable of the process."""
        try:
            return str(Path(f"/proc/{self.pid}/exe").readlink())
        except OSError:
            return ""


def _mapping(line: str) -> Mapping | None:
    parts = line.split(None, 5)
    try:
        start, end = (int(part, 16) for part in parts[0].split("-"))
        path = parts[5] if len(parts) > 5 else ""
        rights, offset = parts[1], int(parts[2], 16)
        readable, writable, is_private = rights[0] == "r", rights[1] == "w", rights[3] == "p"
        return Mapping(start, end, readable, writable, offset, path, is_private)
    except (ValueError, IndexError):
        return None


# Static objects of a program, according to its ELF symbols


def _room_behind(path: str, base: int, address: int) -> int | None:
    """Return the number of bytes from an address to the end of the static object that contains it.

    Return None if no known object contains it. `base` is the address at which the file is loaded.
    """
    is_fixed, objects = _objects(path)
    offset = address - (0 if is_fixed else base)
    starts, ends = objects[:, 0], objects[:, 0] + objects[:, 1]
    inside = ends[(starts <= offset) & (offset < ends)]
    return int(inside.max()) - offset if inside.size else None


@lru_cache(maxsize=64)
def _objects(path: str) -> tuple[bool, NDArray[Any]]:
    """Return whether a file has fixed addresses, and the start and size of each object in it."""
    import numpy

    try:
        objects = _read_objects(Path(path))
    except (OSError, ValueError, struct.error):
        objects = None
    return objects or (False, numpy.empty((0, 2), numpy.int64))


def _read_objects(path: Path) -> tuple[bool, NDArray[Any]] | None:
    import numpy

    row = numpy.dtype("<u4, u1, u1, <u2, <u8, <u8")
    if not path.is_file():  # the program may have mapped anything
        return None
    with path.open("rb") as file:
        head = file.read(_HEAD)
        if head[:6] != b"\x7fELF\x02\x01":  # 64 bits, little-endian
            return None
        (at,) = struct.unpack_from("<Q", head, 40)
        (count,) = struct.unpack_from("<H", head, 60)
        file.seek(at)
        sections = file.read(count * _SECTION)
        tables = []
        for start in range(0, count * _SECTION, _SECTION):
            (kind,) = struct.unpack_from("<I", sections, start + 4)
            place, size = struct.unpack_from("<2Q", sections, start + 24)
            if kind in _SYMBOL_TABLES and size <= _MOST_SYMBOLS:
                file.seek(place)
                symbols = numpy.frombuffer(file.read(size // _SYMBOL * _SYMBOL), row)
                chosen = symbols[(symbols["f1"] & 15 == _OBJECT) & (symbols["f5"] > 0)]
                tables.append(numpy.stack((chosen["f4"], chosen["f5"]), axis=1).astype(numpy.int64))
    return (head[16] == _FIXED, numpy.concatenate(tables)) if tables else None


class _Piece(ctypes.Structure):
    """The C struct `iovec`."""

    _fields_ = (("base", ctypes.c_void_p), ("size", ctypes.c_size_t))


@cache
def _function(name: str) -> Any:
    function = getattr(ctypes.CDLL(None), name, None)
    if function is not None:
        piece, count = ctypes.POINTER(_Piece), ctypes.c_ulong
        function.argtypes = (ctypes.c_int, piece, count, piece, count, count)
        function.restype = ctypes.c_ssize_t
    return function


class QuickCopies:
    """Fast copies from and to one process; each copy returns how many bytes it copied, maybe 0."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        try:
            self._process = os.pidfd_open(pid)
        except (OSError, AttributeError):  # an old kernel: all copies use /proc
            self._process = -1

    def close(self) -> None:
        """Close the pidfd."""
        if self._process >= 0:
            os.close(self._process)
        self._process = -1

    def read(self, array: NDArray[Any], address: int) -> int:
        """Fill an array from the process; return the number of bytes copied."""
        return self._copy("process_vm_readv", array, address) if array.flags.writeable else 0

    def write(self, array: NDArray[Any], address: int) -> int:
        """Write an array to the process; return the number of bytes copied."""
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
            signal.pidfd_send_signal(self._process, 0)  # signal 0 only checks
        except OSError:
            return False
        return True


@dataclass(frozen=True, slots=True)
class Presence:
    """Shows whether a process still runs its program, whose executable contains `address`.

    An unknown address is 0.
    """

    memory: ProcessMemory
    address: int

    def is_there(self) -> bool:
        """Return False if the process has ended or runs another program."""
        try:
            return not self.address or bool(self.memory.read(self.address, 1))
        except Unreadable:
            return False


def presence(memory: ProcessMemory) -> Presence:
    """Return an object that shows later whether the process still runs this program."""
    maps = (
        mapping
        for mapping in memory.mappings()
        if mapping.readable and mapping.path == memory.program
    )
    return Presence(memory, next((mapping.start for mapping in maps), 0))


class LookedInto(Protocol):
    """Interface of a process whose memory is open."""

    @property
    def memory(self) -> ProcessMemory:
        """Memory of the process."""

    def is_there(self) -> bool:
        """Return False if the process has ended or runs another program."""


One = TypeVar("One", bound=LookedInto)


class KnownProcesses(Generic[One]):
    """Processes that sent a hello message, by pid; a pid may be reused."""

    def __init__(self) -> None:
        self._now: dict[int, One] = {}
        self._gone: list[One] = []  # ended processes whose pids were reused
        self._lock = threading.Lock()

    def find(self, pid: int, look_into: Callable[[], One]) -> One:
        """Return the process with this pid; open it if it is new."""
        with self._lock:
            process = self._now.get(pid)
            if process is not None and not process.is_there():
                self._gone.append(process)
                process = None
            if process is None:
                if len(self._now) + len(self._gone) >= MOST_PROCESSES:
                    raise TurnedAway(f"at most {MOST_PROCESSES:,} processes of one program")
                try:
                    process = self._now[pid] = look_into()
                except OSError as exc:
                    why = (exc.strerror or str(exc)).lower()
                    raise TurnedAway(f"a process cannot be inspected ({why})") from exc
            return process

    def now(self) -> tuple[One, ...]:
        """Return the latest process of each pid."""
        with self._lock:
            return tuple(self._now.values())

    def close(self) -> None:
        """Close all processes; call this only when no thread uses their memory."""
        for process in (*self.now(), *self._gone):
            process.memory.close()
