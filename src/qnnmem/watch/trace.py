"""What was seen of a program, as lines of JSON: written while it runs, read by anyone later.

The first line names the format, the last one says how the program ended. In between come places
(call stacks, by number), libraries, calls and lines of QNN's log. Times are nanoseconds since the
start. A file from elsewhere may hold anything: lines are bounded and every value has its type.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from qnnmem.bounded_file import regular_size
from qnnmem.client.stacks import Frame
from qnnmem.errors import LoadError
from qnnmem.text import shorten
from qnnmem.units import format_size

SCHEMA = "qnnmem.trace/1"
MOST_BYTES = 256 << 20
MOST_PARTS = 1_000_000  # lines, with the handles and the frames in them: what takes memory
LONGEST_LINE = 1 << 20
MOST_HANDLES = 4096  # of one call
MOST_FRAMES = 512  # of one call stack
MOST_RULES = 1000  # of calls that fail on purpose
MOST_MISSED = 1000  # threads and processes that were not seen

Amount = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
Word = Annotated[int, Meta(ge=0)]  # of 64 bits, which is looked at by hand
Small = Annotated[int, Meta(ge=0, le=0xFFFF_FFFF)]
Name = Annotated[str, Meta(max_length=1000)]
FileName = Annotated[str, Meta(max_length=4096)]
Rules = Annotated[tuple[Name, ...], Meta(max_length=MOST_RULES)]


class TraceHead(msgspec.Struct, frozen=True):
    """The first line."""

    schema: Name
    tool: Name
    command: Annotated[tuple[str, ...], Meta(min_length=1)]
    injected: Rules = ()  # which calls were to fail


class FrameSeen(msgspec.Struct, frozen=True, omit_defaults=True):
    """One function on a call stack."""

    function: Name
    file: FileName
    line: Small
    module: FileName
    offset: Amount
    source: Name = ""


class StackSeen(msgspec.Struct, frozen=True, tag_field="event", tag="place"):
    """A call stack that calls refer to by its number."""

    id: Amount
    stack: Annotated[tuple[FrameSeen, ...], Meta(max_length=MOST_FRAMES)]

    @property
    def frames(self) -> tuple[Frame, ...]:
        """As those of a program that runs here."""
        return tuple(
            Frame(one.function, one.file, one.line, one.module, one.offset, one.source)
            for one in self.stack
        )


class LibrarySeen(msgspec.Struct, frozen=True, tag_field="event", tag="library"):
    """A library whose functions the program was given."""

    process: Small
    time: Amount
    slot: Small
    backend: Small
    name: Name
    api: Name
    version: Name
    path: FileName


class CallSeen(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="event", tag="call"):
    """One call."""

    process: Small
    thread: Small
    slot: Small
    function: Name
    begin: Amount
    end: Amount
    code: Small
    on: Word = 0  # the handle that it works on: its first argument
    # That it made, or gave back.
    handles: Annotated[tuple[Word, ...], Meta(max_length=MOST_HANDLES)] = ()
    bytes: Amount = 0
    name: Name = ""
    place: Amount = 0
    injected: bool = False


class LogSeen(msgspec.Struct, frozen=True, tag_field="event", tag="log"):
    """One line of QNN's log."""

    process: Small
    thread: Small
    time: Amount
    level: Small
    text: FileName


class FunctionTotal(msgspec.Struct, frozen=True):
    """All calls of one function, also of those that are only counted."""

    count: Amount
    ns: Amount
    failed: Amount


class MissedSeen(msgspec.Struct, frozen=True):
    """Part of a program that the trace knows nothing of."""

    what: Name
    calls: Amount = 0
    process: Small = 0
    thread: Small = 0


class ProgramEnd(msgspec.Struct, frozen=True, tag_field="event", tag="end"):
    """The last line."""

    time: Amount
    exit_code: Annotated[int, Meta(ge=0, le=255)]
    ended_by: Annotated[str, Meta(max_length=60)]
    timed_out: bool
    totals: dict[Name, FunctionTotal]
    left_out: Amount
    has_lines: bool
    unmatched: Rules = ()  # which calls were to fail and never came
    not_checked: Annotated[tuple[MissedSeen, ...], Meta(max_length=MOST_MISSED)] = ()


Event = StackSeen | LibrarySeen | CallSeen | LogSeen | ProgramEnd


def read_trace(path: Path) -> Iterator[TraceHead | Event]:
    """Every line of a trace, the first one first."""
    if regular_size(path) > MOST_BYTES:
        raise LoadError(path, f"a trace of more than {format_size(MOST_BYTES)} is not read")
    heads = msgspec.json.Decoder(TraceHead)
    events: msgspec.json.Decoder[Event] = msgspec.json.Decoder(Event)
    with path.open("rb") as file:
        number = parts = 0
        while line := file.readline(LONGEST_LINE):
            number += 1
            try:
                found = (events if number > 1 else heads).decode(line)
                _check(found)
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as exc:
                wrong = shorten(str(exc), 200)
                if number == 1:
                    raise LoadError(path, f"it is no trace of {SCHEMA}: {wrong}") from exc
                raise LoadError(path, f"line {number:,} is none of a trace: {wrong}") from exc
            parts += parts_of(found)
            if parts > MOST_PARTS:
                raise LoadError(path, f"a trace of more than {MOST_PARTS:,} parts is not read")
            yield found
    if number == 0:
        raise LoadError(path, f"it is empty, and no trace of {SCHEMA}")


def parts_of(line: TraceHead | Event) -> int:
    """How much of the memory that a trace may take a line takes."""
    if isinstance(line, CallSeen):
        return 1 + len(line.handles)
    return 1 + len(line.stack) if isinstance(line, StackSeen) else 1


def _check(found: TraceHead | Event) -> None:
    """What types cannot say."""
    if isinstance(found, TraceHead) and found.schema != SCHEMA:
        raise msgspec.ValidationError(f"the format is {found.schema}")
    if isinstance(found, CallSeen):
        if found.end < found.begin:
            raise msgspec.ValidationError("a call ends before it begins")
        if max(found.on, *found.handles, 0) >> 64:
            raise msgspec.ValidationError("a handle of more than 64 bits")
