"""Traces: the observed calls of a program as lines of JSON.

The first line names the format, the last line describes the program's end. Between them are call
stacks (by number), libraries, calls, and lines of QNN's log. Times are nanoseconds since the start.
A trace is untrusted: lines are bounded and every value is checked against its type.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from qnnmem.bounded_file import regular_size
from qnnmem.errors import LoadError
from qnnmem.programs.process_memory import ProcessMemory
from qnnmem.programs.stacks import Symbols, Trace, with_source
from qnnmem.results.programs import FunctionTotal, NotChecked, SerialisedRun, Stack
from qnnmem.text import shorten
from qnnmem.units import format_size

SCHEMA = "qnnmem.trace/1"
MOST_BYTES = 256 << 20
MOST_PARTS = 1_000_000  # lines plus their handles and frames: they need the memory
LONGEST_LINE = 1 << 20
MOST_HANDLES = 4096  # handles of one call
MOST_TENSORS = 2048  # tensors of one execution
MOST_FRAMES = 512  # frames of one call stack
MOST_RULES = 1000  # rules for calls that fail on purpose
MOST_MISSED = 1000  # unobserved threads and processes
_STACK_BYTES = 32 << 20  # bytes reserved for call stacks
_OTHER_BYTES = 4 << 20  # bytes reserved for the first and the last line
_STACK_PARTS = 200_000
_MOST_STACKS = 20_000

Amount = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
Word = Annotated[int, Meta(ge=0)]  # 64 bits, checked in `_check`
Small = Annotated[int, Meta(ge=0, le=0xFFFF_FFFF)]
Name = Annotated[str, Meta(max_length=1000)]
FileName = Annotated[str, Meta(max_length=4096)]
Rules = Annotated[tuple[Name, ...], Meta(max_length=MOST_RULES)]


class TraceHead(msgspec.Struct, frozen=True):
    """First line of a trace: schema, tool, command."""

    schema: Name
    tool: Name
    command: Annotated[tuple[str, ...], Meta(min_length=1)]
    injected: Rules = ()  # rules for calls that fail


class StackSeen(msgspec.Struct, frozen=True, tag_field="event", tag="place"):
    """A call stack; calls refer to it by its number."""

    id: Amount
    stack: Annotated[Stack, Meta(max_length=MOST_FRAMES)]


class LibrarySeen(msgspec.Struct, frozen=True, tag_field="event", tag="library"):
    """QNN library whose functions the program obtained."""

    process: Small
    time: Amount
    slot: Small
    backend: Small
    name: Name
    api: Name
    version: Name
    path: FileName


class TensorUse(msgspec.Struct, frozen=True, omit_defaults=True):
    """Tensor that was passed to a graph's first execution."""

    name: Name
    executed: Small  # QNN memory type
    prepared: Small | None = None  # None if unknown
    bytes: Amount = 0
    handle: Word = 0  # handle of registered memory


class CallSeen(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="event", tag="call"):
    """A call with its times, its code and its handles."""

    process: Small
    thread: Small
    slot: Small
    function: Name
    begin: Amount
    end: Amount
    code: Small
    on: Word = 0  # the handle in its first argument
    # handles that it created or freed
    handles: Annotated[tuple[Word, ...], Meta(max_length=MOST_HANDLES)] = ()
    bytes: Amount = 0
    name: Name = ""
    place: Amount = 0
    injected: bool = False
    uses: Annotated[tuple[TensorUse, ...], Meta(max_length=MOST_TENSORS)] = ()


class LogSeen(msgspec.Struct, frozen=True, tag_field="event", tag="log"):
    """A line of QNN's log."""

    process: Small
    thread: Small
    time: Amount
    level: Small
    text: FileName


class ProgramEnd(msgspec.Struct, frozen=True, tag_field="event", tag="end"):
    """Last line of a trace: how the program ended, and totals."""

    time: Amount
    exit_code: Annotated[int, Meta(ge=0, le=255)]
    ended_by: Annotated[str, Meta(max_length=60)]
    timed_out: bool
    totals: dict[Name, FunctionTotal]
    left_out: Amount
    has_lines: bool
    unmatched: Rules = ()  # rules that no call matched
    not_checked: Annotated[tuple[NotChecked, ...], Meta(max_length=MOST_MISSED)] = ()
    serialised: SerialisedRun | None = None


Event = StackSeen | LibrarySeen | CallSeen | LogSeen | ProgramEnd


def read_trace(path: Path) -> Iterator[TraceHead | Event]:
    """Yield the lines of a trace in order."""
    if regular_size(path) > MOST_BYTES:
        raise LoadError(path, f"is larger than {format_size(MOST_BYTES)}, which is the limit")
    heads = msgspec.json.Decoder(TraceHead)
    events: msgspec.json.Decoder[Event] = msgspec.json.Decoder(Event)
    with path.open("rb") as file:
        number = parts = 0
        while line := file.readline(LONGEST_LINE):
            number += 1
            try:
                event = (events if number > 1 else heads).decode(line)
                _check(event)
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as exc:
                wrong = shorten(str(exc), 200)
                if number == 1:
                    raise LoadError(path, f"is not a trace of {SCHEMA}: {wrong}") from exc
                raise LoadError(path, f"line {number:,} is not valid in a trace: {wrong}") from exc
            parts += parts_of(event)
            if parts > MOST_PARTS:
                raise LoadError(path, f"has more than {MOST_PARTS:,} parts, which is the limit")
            yield event
    if number == 0:
        raise LoadError(path, f"is empty, so it is not a trace of {SCHEMA}")


def parts_of(line: TraceHead | Event) -> int:
    """Return 1 plus the number of all handles, tensors and frames in a line of a trace."""
    if isinstance(line, CallSeen):
        return 1 + len(line.handles) + len(line.uses)
    return 1 + len(line.stack) if isinstance(line, StackSeen) else 1


def _check(event: TraceHead | Event) -> None:
    """Raise ValidationError for values beyond limits that the types cannot express."""
    if isinstance(event, TraceHead) and event.schema != SCHEMA:
        raise msgspec.ValidationError(f"the format is {event.schema}")
    if isinstance(event, CallSeen):
        if event.end < event.begin:
            raise msgspec.ValidationError("a call ends before it begins")
        if max(event.on, *event.handles, *(one.handle for one in event.uses), 0) >> 64:
            raise msgspec.ValidationError("a handle has more than 64 bits")


class TraceRecorder:
    """Writes the trace of one run; several threads may add events."""

    def __init__(self, file: Path, symbols: Symbols) -> None:
        self.symbols = symbols
        # The trace is read through the same descriptor, because the program can replace the file.
        self._file = file.open("w+b")
        self._encode = msgspec.json.Encoder().encode
        self._lock = threading.Lock()
        self._bytes = self._parts = 0
        self._known: dict[tuple[ProcessMemory, tuple[int, ...], Stack], int] = {}
        self._numbers: dict[tuple[Trace, Stack], int] = {}
        self._start = time.monotonic_ns()
        self.left_out = 0

    def since_start(self, clock: int) -> int:
        """Convert a time of the monotonic clock to trace time."""
        return max(0, min(clock, time.monotonic_ns()) - self._start)

    def now(self) -> int:
        """Return the current trace time."""
        return time.monotonic_ns() - self._start

    def add(self, event: Event) -> None:
        """Record one event, unless the trace has reached its limit."""
        line = self._encode(event) + b"\n"
        with self._lock:
            bytes_now, parts_now = self._bytes + len(line), self._parts + parts_of(event)
            too_long = bytes_now > MOST_BYTES - _STACK_BYTES - _OTHER_BYTES
            if too_long or parts_now > MOST_PARTS - _STACK_PARTS - 2:
                self.left_out += 1
                return
            self._bytes, self._parts = bytes_now, parts_now
            self._file.write(line)

    def place(self, memory: ProcessMemory, addresses: tuple[int, ...], python: Stack = ()) -> int:
        """Return the number of a call stack; 0 if it is empty or the trace has too many stacks.

        `python` frames follow the compiled frames.
        """
        if not addresses:
            return 0
        key = memory, addresses, python  # not its pid, which may be reused
        with self._lock:
            found = self._known.get(key)
            full = len(self._known) >= _MOST_STACKS
        if found is not None or full:
            return found or 0
        trace = self.symbols.trace(memory, addresses)
        with self._lock:
            unknown = len(self._numbers) + 1
            number = self._numbers.setdefault((trace, python), unknown) if trace else 0
            self._known[key] = number
        return number

    def lines(self) -> Iterator[bytes]:
        """Yield call stacks with functions and lines, then every event; call it once at the end."""
        everything = tuple({frame: None for trace, _ in self._numbers for frame in trace})
        self.symbols.stack(everything)  # looks into each file only once
        size = parts = 0
        for (trace, python), number in self._numbers.items():
            frames = (*self.symbols.stack(trace), *map(with_source, python))
            stack = StackSeen(number, frames[:MOST_FRAMES])
            line = self._encode(stack) + b"\n"
            size, parts = size + len(line), parts + parts_of(stack)
            if size > _STACK_BYTES or parts > _STACK_PARTS:
                break
            if len(line) < LONGEST_LINE:
                yield line
        with self._lock, self._file as file:
            file.seek(0)
            yield from file
