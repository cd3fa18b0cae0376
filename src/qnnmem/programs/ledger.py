"""Ledger of a run: the number of calls that a program made, counted in the program itself.

The preloaded object counts each message before it is sent, and the server counts each answered
message. The difference is the number of unchecked messages, whatever the reason. `ledger.h` defines
the layout.
"""

from __future__ import annotations

import os
import struct
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from msgspec.structs import replace

from qnnmem.errors import Fault
from qnnmem.programs.functions import FUNCTIONS
from qnnmem.results.programs import NotChecked
from qnnmem.text import counted

_THREADS, _PROCESSES = 4096, 1024
_HEAD = struct.Struct("<5Q")
_PROCESS = struct.Struct("<Q")
_ROW = struct.Struct("<4Q")
FUNCTION = struct.Struct("<3Q")  # calls, nanoseconds and failures
_ROWS_AT = _HEAD.size + _PROCESSES * _PROCESS.size
_FUNCTIONS_AT = _ROWS_AT + (_THREADS + 1) * _ROW.size
LEDGER_BYTES = _FUNCTIONS_AT + FUNCTIONS * FUNCTION.size
_END_S = 5.0  # seconds for processes to end after the program
_LOOK_S = 0.02
_LARGEST = 1 << 48  # no program makes this many calls
_MOST_MAPS = 16 << 20
_DAMAGED = "perhaps some calls: the program overwrote or removed the counter of its calls"
_SAID = 4  # parts named in a verdict
_LISTED = 10  # threads named in the text


class Hangup(Fault):
    """Raised if the program is gone or sent a malformed message."""


class TurnedAway(Hangup):
    """Raised if a program's calls cannot be checked, e.g. because it has too many processes."""


def in_words(missed: Sequence[NotChecked]) -> str:
    """Return a summary of the unchecked calls, for a verdict."""
    threads = [entry for entry in missed if entry.thread]
    said = [entry.what for entry in missed if not entry.thread]
    if len(threads) > 1:
        calls = counted(sum(entry.calls for entry in threads), "call")
        said.insert(0, f"{calls} of {len(threads):,} threads, the first of them {_who(threads[0])}")
    elif threads:
        said.insert(0, threads[0].what)
    more = [f"and {len(said) - _SAID:,} more"] if len(said) > _SAID else []
    return "; ".join((*said[:_SAID], *more))


def listed(missed: Sequence[NotChecked]) -> Iterator[str]:
    """If several threads have unchecked calls, yield a line for each of these threads."""
    threads = [entry for entry in missed if entry.thread]
    if len(threads) > 1:
        yield from (f"  not checked  {entry.what}" for entry in threads[:_LISTED])
        if len(threads) > _LISTED:
            yield f"  and {counted(len(threads) - _LISTED, 'more thread')}"


def _who(entry: NotChecked) -> str:
    return f"thread {entry.thread} of process {entry.process}"


class Ledger:
    """Counter file that every process of a program maps, and the number of answered messages."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "ledger"
        self._heard: Counter[int] = Counter()  # answered messages by row
        self._missed: dict[str, None] = {}  # parts that could not be checked
        self._refusals: dict[str, None] = {}  # reasons for refused messages or processes
        self._lock = threading.Lock()
        # Opened only once: the program can replace the file.
        self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(self._file, 0, LEDGER_BYTES)  # a full disk would kill the program
            os.pwrite(self._file, _HEAD.pack(os.getpid(), 0, 0, 0, 0), 0)
        except OSError:
            self.close()
            raise

    def close(self) -> None:
        """Close the file."""
        if self._file >= 0:
            os.close(self._file)
        self._file = -1

    def row(self, number: int) -> int:
        """Return the row number that a thread claims; raise Hangup if it is invalid."""
        if number > _THREADS:
            raise Hangup("the program sent an invalid row number")
        return number

    def hear(self, row: int) -> None:
        """Count an answered message."""
        with self._lock:
            self._heard[row] += 1

    def begun(self, process: int) -> int:
        """Return the number of calls that a process has begun, except calls that were lost."""
        if self._file < 0:
            return 0
        data = os.pread(self._file, _FUNCTIONS_AT - _ROWS_AT, _ROWS_AT)
        rows = _ROW.iter_unpack(data[: len(data) // _ROW.size * _ROW.size])
        return sum(made - lost for number, _, made, lost in rows if number == process)

    def refuse(self, why: str) -> None:
        """Record the reason for a refusal; it is reported only if calls are missing."""
        with self._lock:
            self._refusals.setdefault(why)

    def miss(self, what: str) -> None:
        """Record a part of the program that could not be checked."""
        with self._lock:
            self._missed.setdefault(what)

    def functions(self) -> Iterator[tuple[int, int, int]]:
        """Yield for each function: number of calls, time in nanoseconds, number of failures."""
        data = os.pread(self._file, FUNCTIONS * FUNCTION.size, _FUNCTIONS_AT)
        return FUNCTION.iter_unpack(data.ljust(FUNCTIONS * FUNCTION.size, b"\0"))

    def not_checked(self, foreign_calls: str) -> tuple[NotChecked, ...]:
        """Return the calls and parts of the program that were not checked.

        First wait briefly for processes that outlive the program. `foreign_calls` describes the
        calls that are missed if the program loads QNN libraries that are not observed.
        """
        running = self._running()
        data = os.pread(self._file, LEDGER_BYTES, 0).ljust(LEDGER_BYTES, b"\0")
        parent, _, processes, unpreloaded, foreign = _HEAD.unpack_from(data)
        rows = tuple(_ROW.iter_unpack(data[_ROWS_AT:_FUNCTIONS_AT]))
        with self._lock:
            heard, refusals = Counter(self._heard), tuple(self._refusals)
            missed = tuple(map(NotChecked, self._missed))
        parts = [*_missing(rows, heard), *missed]
        if parts and refusals:
            parts.append(NotChecked(f"limit: {'; '.join(refusals)}"))
        is_wrong = any(heard[n] > row[2] or row[2] > _LARGEST for n, row in enumerate(rows))
        if parent != os.getpid() or is_wrong or not self._is_in_place():
            parts.append(NotChecked(_DAMAGED))
        if processes > _PROCESSES:
            parts.append(NotChecked(f"limit: at most {_PROCESSES:,} processes can use QNN"))
        if unpreloaded:
            parts.append(
                NotChecked(
                    "a process without LD_PRELOAD tried to use QNN and was refused", unpreloaded
                )
            )
        if foreign:
            parts.append(NotChecked(foreign_calls))
        parts += (
            NotChecked((f"process {process} is still running and may call QNN"), process=process)
            for process in running
        )
        return tuple(parts)

    def _running(self) -> tuple[int, ...]:
        """Return processes that use QNN and have not ended."""
        end = time.monotonic() + _END_S
        while True:
            size = _PROCESSES * _PROCESS.size
            data = os.pread(self._file, size, _HEAD.size).ljust(size, b"\0")
            noted = {number for (number,) in _PROCESS.iter_unpack(data) if 0 < number < 1 << 31}
            processes = tuple(sorted(filter(self._is_mapped, noted)))
            if not processes or time.monotonic() >= end:
                return processes
            time.sleep(_LOOK_S)

    def _is_in_place(self) -> bool:
        """Return True if the ledger's path still leads to this file, not to a replacement."""
        try:
            return os.path.samestat(os.fstat(self._file), self._path.lstat())
        except OSError:
            return False

    def _is_mapped(self, process: int) -> bool:
        """Return True if a process maps this ledger; a reused pid belongs to another program."""
        try:
            with Path(f"/proc/{process}/maps").open("rb") as file:
                return os.fsencode(self._path) in file.read(_MOST_MAPS)
        except OSError:
            return False


def _missing(rows: Iterable[tuple[int, ...]], heard: Counter[int]) -> Iterator[NotChecked]:
    for number, (process, thread, made, lost) in enumerate(rows):
        missing = max(made - heard[number], lost)
        if missing <= 0 or max(made, lost) > _LARGEST:
            continue
        entry = NotChecked("", missing, process, thread)
        who = _who(entry) if thread else "other threads"
        yield replace(entry, what=f"{counted(missing, 'call')} of {who}")
