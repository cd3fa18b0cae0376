"""Keeps what is seen, in a file of bounded size; call stacks once each."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from qnnmem.client.memory import ClientMemory
from qnnmem.client.stacks import Frame, Symbols, Trace
from qnnmem.watch.trace import (
    LONGEST_LINE,
    MOST_BYTES,
    MOST_FRAMES,
    MOST_PARTS,
    Event,
    FrameSeen,
    StackSeen,
    parts_of,
)

_STACK_BYTES = 32 << 20  # of the bytes of a trace
_OTHER_BYTES = 4 << 20  # for its first and its last line
_STACK_PARTS = 200_000
_MOST_STACKS = 20_000


class TraceRecorder:
    """What one run leaves; threads of the program may be told about at the same time."""

    def __init__(self, file: Path, symbols: Symbols) -> None:
        self.symbols = symbols
        # Read by the same descriptor: the program can put anything into the place of the file.
        self._file = file.open("w+b")
        self._encode = msgspec.json.Encoder().encode
        self._lock = threading.Lock()
        self._bytes = self._parts = 0
        self._known: dict[tuple[ClientMemory, tuple[int, ...]], int] = {}
        self._numbers: dict[Trace, int] = {}
        self._start = time.monotonic_ns()
        self.left_out = 0

    def since_start(self, clock: int) -> int:
        """A time of the machine's clock as one of the trace."""
        return max(0, min(clock, time.monotonic_ns()) - self._start)

    def now(self) -> int:
        """The time of the trace at the moment."""
        return time.monotonic_ns() - self._start

    def add(self, event: Event) -> None:
        """Keep one event, as long as there is room."""
        line = self._encode(event) + b"\n"
        with self._lock:
            bytes_now, parts_now = self._bytes + len(line), self._parts + parts_of(event)
            too_long = bytes_now > MOST_BYTES - _STACK_BYTES - _OTHER_BYTES
            if too_long or parts_now > MOST_PARTS - _STACK_PARTS - 2:
                self.left_out += 1
                return
            self._bytes, self._parts = bytes_now, parts_now
            self._file.write(line)

    def place(self, memory: ClientMemory, addresses: tuple[int, ...]) -> int:
        """The number of a call stack; 0 for none, and where there are too many."""
        if not addresses:
            return 0
        key = memory, addresses  # not its number, which may be another process later
        with self._lock:
            found = self._known.get(key)
            full = len(self._known) >= _MOST_STACKS
        if found is not None or full:
            return found or 0
        trace = self.symbols.trace(memory, addresses)
        with self._lock:
            number = self._numbers.setdefault(trace, len(self._numbers) + 1) if trace else 0
            self._known[key] = number
        return number

    def lines(self) -> Iterator[bytes]:
        """Call stacks with functions and lines, and then every event; nothing more comes."""
        everything = tuple({frame: None for trace in self._numbers for frame in trace})
        self.symbols.stack(everything)  # each file is looked into once
        size = parts = 0
        for trace, number in self._numbers.items():
            frames = map(_frame_seen, self.symbols.stack(trace)[:MOST_FRAMES])
            stack = StackSeen(number, tuple(frames))
            line = self._encode(stack) + b"\n"
            size, parts = size + len(line), parts + parts_of(stack)
            if size > _STACK_BYTES or parts > _STACK_PARTS:
                break
            if len(line) < LONGEST_LINE:
                yield line
        with self._lock, self._file as file:
            file.seek(0)
            yield from file


def _frame_seen(frame: Frame) -> FrameSeen:
    module = frame.module[:4096]
    return FrameSeen(frame.function, frame.file, frame.line, module, frame.offset, frame.source)
