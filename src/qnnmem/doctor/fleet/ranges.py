"""Read one byte range of a log, in any process or thread.

The result is JSON, so a worker cannot make this process run code.
"""

from __future__ import annotations

import threading
import zlib

import msgspec

from qnnmem.cache import digest
from qnnmem.doctor.kb.knowledge import Knowledge, unpack
from qnnmem.doctor.logs.pieces import LOOK
from qnnmem.doctor.logs.scanner import REGION, LogScanner
from qnnmem.doctor.logs.session import LogSession, SessionGrouper
from qnnmem.doctor.logs.shapes import KeptShapes
from qnnmem.doctor.logs.source import open_part
from qnnmem.errors import LoadError
from qnnmem.text import printable
from qnnmem.wire import ready


class RangeTask(msgspec.Struct, frozen=True):
    """Task for a worker: read one byte range of an uncompressed log file, or a whole file."""

    name: str
    named: bool = True  # True: named by the user, not found in a folder
    start: int = 0
    end: int | None = None
    size: int | None = None  # bytes of the part, if known
    engine: str | None = None
    region: int = REGION


class RangeResult(msgspec.Struct, frozen=True):
    """Result of one task; `broken` is the reason if the log file cannot be read."""

    lines: int = 0
    bytes: int = 0
    sessions: tuple[LogSession, ...] = ()
    notes: tuple[str, ...] = ()  # without the name of the part
    broken: str = ""
    ours: bool = False  # True: some line is about QNN
    looks_like: str = ""  # apparent format, if no line is about QNN
    unclear: bool = False  # True: a short message without an outcome


class PackedBase(msgspec.Struct, frozen=True):
    """Knowledge base in the form that is sent to workers, with a hash of its content."""

    key: str
    data: bytes

    @classmethod
    def of(cls, knowledge: Knowledge) -> PackedBase:
        """Pack a knowledge base as compressed JSON."""
        text = msgspec.json.encode(knowledge.packed)
        return cls(digest([text]).hex(), zlib.compress(text))


def read_range(task: RangeTask, base: PackedBase) -> bytes:
    """Run one task and return its result as JSON; `decode_result` decodes it."""
    return msgspec.json.encode(_read(task, base))


def decode_result(data: bytes) -> RangeResult:
    """Decode the JSON that `read_range` returned."""
    return msgspec.json.decode(data, type=ready(RangeResult))


def _read(task: RangeTask, base: PackedBase) -> RangeResult:
    known = _known(base)
    try:
        opened = open_part(task.name, task.named)
    except LoadError as exc:
        return RangeResult(broken=printable(exc.reason))
    sessions = SessionGrouper(known.knowledge.counted)
    try:
        if task.start > LOOK:
            opened.seek(task.start - LOOK)
        shapes = known.of(task.size, task.engine)
        scanner = LogScanner(
            known.knowledge,
            shapes.engine,
            opened.readinto,
            task.start,
            task.end,
            task.region,
            task.size,
            shapes,
        )
        for hit in scanner.hits_of_log():
            sessions.add(hit, hit.offset, 0, opened.shift(hit.number) if opened.shift else 0)
    except LoadError as exc:
        return RangeResult(broken=printable(exc.reason))
    finally:
        opened.close()
    found = sorted(sessions.finish(scanner.short), key=lambda session: session.first)
    own = (f"{task.name}: {note}" for note in scanner.budget.notes)
    notes = tuple(note.removeprefix(task.name) for note in (*opened.notes, *own))
    return RangeResult(
        lines=scanner.lines,
        bytes=scanner.bytes,
        sessions=tuple(found),
        notes=notes,
        ours=scanner.ours,
        looks_like=scanner.looks_like,
        unclear=scanner.unclear,
    )


# One cache per thread, because threads cannot share an engine.
_here = threading.local()


def _known(base: PackedBase) -> KeptShapes:
    """Return the unpacked knowledge base with its engines, cached for each thread."""
    if getattr(_here, "key", None) != base.key:
        _here.known = KeptShapes(Knowledge(unpack(zlib.decompress(base.data))))
        _here.key = base.key
    known: KeptShapes = _here.known
    return known
