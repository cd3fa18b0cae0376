"""Follow a growing log and report incidents as they happen.

    new bytes  -> lines -> scanner -> sessions, as for a finished log
    regularly: judge the sessions as if the log ended now; report those that have stopped growing

Early reports do not affect later results: the final diagnosis equals that of the finished log.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from copy import deepcopy
from typing import Protocol, TypeAlias

from qnnmem.doctor.diagnose import Diagnosis
from qnnmem.doctor.folder import reason
from qnnmem.doctor.incident_builder import IncidentBuilder
from qnnmem.doctor.kb.knowledge import Knowledge
from qnnmem.doctor.logs.attribution import Attribution
from qnnmem.doctor.logs.envelope import LOOKED_AT, Step, Unwrapping, steps_of, steps_of_growing
from qnnmem.doctor.logs.line import Hit
from qnnmem.doctor.logs.pieces import LOOK
from qnnmem.doctor.logs.scanner import LogScanner
from qnnmem.doctor.logs.search import SearchEngine, choose_engine
from qnnmem.doctor.logs.session import LogSession, SessionGrouper
from qnnmem.errors import LoadError, Setting
from qnnmem.results.incident import Incident

Report: TypeAlias = Callable[[Incident], None]

QUIET = 2.0  # seconds without a new line after which a chain has paused
_MOMENT = 0.25
_REST = 4  # pause after a check, relative to its duration
_TOLD = float("inf")  # quiet time of a chain that needs no report
_REGION = 64 << 10
_CHUNK = 64 << 10


class Feed(Protocol):
    """Interface of a source of bytes from a growing log."""

    def get(self, seconds: float) -> bytes | None:
        """Return new bytes; None if none arrive within `seconds`; b"" at the end of the log."""
        ...


def follow(name: str, knowledge: Knowledge, report: Report) -> Diagnosis:
    """Read a growing file until Ctrl-C, or a pipe until its end, and report incidents meanwhile."""
    with _stopped_by_ctrl_c() as stopped:
        feed = _open(name, stopped)
        try:
            return Follower(name, knowledge, report, feed, size=feed.size).run()
        finally:
            feed.close()


class Follower:
    """Reads one growing log and reports its incidents."""

    def __init__(
        self,
        name: str,
        knowledge: Knowledge,
        report: Report,
        feed: Feed,
        clock: Callable[[], float] = time.monotonic,
        size: int = 0,
    ) -> None:
        self._parts = (name,)
        self._knowledge, self._report, self._feed, self._clock = knowledge, report, feed, clock
        self._engine = choose_engine(knowledge, size)
        self._diagnosis = Diagnosis(knowledge)
        self._sessions, self._attribution = SessionGrouper(knowledge.counted), Attribution()
        self._scanner = _LiveScanner(knowledge, self._engine, self._readinto, region=_REGION)
        self._left = b""
        self._size, self._ended = size, False
        self._unwrapping: Unwrapping | None = None
        self._next_look = clock() + _MOMENT
        self._fresh = True  # True: bytes arrived since the last check
        self._paused = False  # True: the first bytes were followed by a pause
        # Open sessions by process and first line: last line, and the time since which it is the
        # last.
        self._last: dict[tuple[int | None, int], tuple[int, float]] = {}
        # Reported verdicts, by the offset of each line of an incident.
        self._told: dict[int, tuple[object, ...]] = {}

    def run(self) -> Diagnosis:
        """Read the log to its end, report incidents meanwhile, and return the final diagnosis."""
        diagnosis = self._diagnosis
        scanner = self._scanner
        if steps := self._steps():
            self._unwrapping = Unwrapping(lambda _size: self._came(), steps)
        for hit in scanner.hits_of_log():
            self._sessions.add(hit, hit.offset, 0, self._shift(hit.number))
            if over := self._sessions.closed(hit.offset):
                self._settle(over, self._sessions.open)
        self._settle(self._sessions.finish(scanner.short), ())
        diagnosis.lines, diagnosis.bytes = scanner.lines, scanner.bytes
        diagnosis.notes += scanner.budget.notes
        if scanner.bytes:
            diagnosis.close_log(self._parts[0], scanner.ours, scanner.looks_like, scanner.unclear)
        return diagnosis

    def _settle(self, over: list[LogSession], still_open: Iterable[LogSession]) -> None:
        for session in self._attribution.put(over, still_open):
            self._tell(session)
            for seen in session.seen.values():
                self._told.pop(seen.offset, None)
            self._diagnosis.take(0, (session,), self._parts)

    def _steps(self) -> tuple[Step, ...]:
        """Return the steps that unwrap the log, chosen from the bytes before its first pause."""
        while len(self._left) < LOOKED_AT and not self._ended:
            data = self._feed.get(_MOMENT)
            self._ended = data == b""
            self._left += data or b""
            if data is None and self._left:
                steps = steps_of_growing(self._left)
                if steps is not None:
                    self._paused = True
                    return steps
        return steps_of(self._left, self._size or None)

    def _shift(self, number: int) -> int:
        """Return the line number in the file minus the line's `number` in the log."""
        return 0 if self._unwrapping is None else self._unwrapping.shift(number)

    def _readinto(self, view: memoryview) -> int:
        if self._unwrapping is not None:
            return self._unwrapping.readinto(view)
        self._left = self._came()
        got = min(len(view), len(self._left))
        view[:got], self._left = self._left[:got], self._left[got:]
        return got

    def _came(self) -> bytes:
        """Wait for new bytes and return them; meanwhile report incidents that no longer grow."""
        if self._paused and not self._left:
            self._paused = False
            self._look()
        while not self._left and not self._ended:
            data = self._feed.get(_MOMENT)
            self._ended = data == b""
            if not self._ended:
                self._look()
            if data:
                self._left, self._fresh = data, True
        came, self._left = self._left, b""
        return came

    def _look(self) -> None:
        """Report incidents that have stopped growing, unless the last check was too recent."""
        now = self._clock()
        waiting = any(now - since >= QUIET for _, since in self._last.values())
        if now < self._next_look or not (self._fresh or waiting):
            return
        self._fresh = False
        self._tell_paused(now)
        done = self._clock()
        # The cost of a check grows with the open sessions; checks must leave time for reading.
        self._next_look = done + max(_MOMENT, _REST * (done - now))

    def _tell_paused(self, now: float) -> None:
        sessions = deepcopy(self._sessions)
        scanner = self._scanner
        for hit in scanner.rest(self._knowledge, self._engine):
            shift = self._shift(scanner.lines + hit.number)
            sessions.add(hit, scanner.offset + hit.offset, 0, scanner.lines + shift)
        before, self._last = self._last, {}
        growing = set()
        for session in sessions.open:
            key = session.pid, session.first
            last, since = before.get(key, (-1, now))
            since = since if last == session.last else now
            if now - since < QUIET:
                growing.add(id(session))
            else:
                since = _TOLD
            self._last[key] = session.last, since
        # Judge sessions as if the log ended now; do not report those that may still grow.
        for session in list(deepcopy(self._attribution).put(sessions.finish(), ())):
            if id(session) not in growing:
                self._tell(session)

    def _tell(self, session: LogSession) -> None:
        """Report an incident once, and again if its verdict changes."""
        incident = IncidentBuilder(self._knowledge).build(session, self._parts)
        if incident is None:
            return
        verdict = incident.entry, incident.verdict, incident.stage, incident.cause
        places = [seen.offset for seen in session.seen.values()]
        if all(self._told.get(place) != verdict for place in places):
            self._report(incident)
        self._told.update(dict.fromkeys(places, verdict))


class _LiveScanner(LogScanner):
    """Scanner that scans the available bytes instead of waiting for a full buffer."""

    def _read(self) -> bool:
        got = self._readinto(self._view[self._fill :]) if self._fill < len(self._buffer) else -1
        self._fill += max(got, 0)
        return got != 0

    @property
    def offset(self) -> int:
        """Offset of the buffer in the log."""
        return self._base

    def rest(self, knowledge: Knowledge, engine: SearchEngine) -> Iterator[Hit]:
        """Yield the hits in the part not yet scanned, as if the log ended here.

        Offsets count from the start of the buffer. Line 1 is the first line that `lines` does not
        count yet.
        """
        data = memoryview(bytes(self._view[: self._fill]))
        start = self._at

        def readinto(view: memoryview) -> int:
            nonlocal data
            got = min(len(view), len(data))
            view[:got], data = data[:got], data[got:]
            return got

        if start > LOOK:
            data = data[start - LOOK :]
        return LogScanner(knowledge, engine, readinto, start, region=_REGION).hits()


class _Growing:
    """Byte source for a file that can still grow."""

    def __init__(self, name: str, stopped: Callable[[], bool]) -> None:
        self._file = open(name, "rb", buffering=0)  # noqa: PTH123, SIM115 - closed by close()
        self._stopped = stopped
        self.size = os.fstat(self._file.fileno()).st_size

    def get(self, seconds: float) -> bytes | None:
        if self._stopped():
            return b""
        data = self._file.read(_CHUNK)
        if not data:
            time.sleep(seconds)
        return data or None

    def close(self) -> None:
        self._file.close()


class _Pipe:
    """Byte source for a pipe, read by a thread, because some systems have no timeout for pipes."""

    size = 0

    def __init__(self, descriptor: int, stopped: Callable[[], bool]) -> None:
        import queue
        import threading

        self._came: queue.Queue[bytes] = queue.Queue(64)
        self._nothing = queue.Empty
        self._stopped, self._descriptor = stopped, descriptor
        threading.Thread(target=self._pass_on, daemon=True).start()

    def _pass_on(self) -> None:
        data = b"."
        while data:
            try:
                data = os.read(self._descriptor, _CHUNK)
            except OSError:
                data = b""
            self._came.put(data)

    def get(self, seconds: float) -> bytes | None:
        if self._stopped():
            return b""
        try:
            return self._came.get(timeout=seconds)
        except self._nothing:
            return None

    def close(self) -> None:
        """Do nothing: the thread ends when the pipe or the program ends."""


def _open(name: str, stopped: Callable[[], bool]) -> _Growing | _Pipe:
    from qnnmem.doctor.logs.archive import split_name
    from qnnmem.doctor.logs.source import size_of, standard_input

    if "://" in name:
        raise LoadError(name, "only files and pipes can be followed")
    try:
        if name == "-":
            return _Pipe(standard_input().fileno(), stopped)
        packed = split_name(name) is not None
        if packed or os.path.isfile(name):  # noqa: PTH113 - avoids importing pathlib
            if packed or size_of(name, ("plain", "wrapped")) is None:
                raise LoadError(
                    name, ("a compressed log does not grow; read it without ", Setting("follow"))
                )
            return _Growing(name, stopped)
        return _Pipe(os.open(name, os.O_RDONLY), stopped)
    except OSError as exc:
        raise LoadError(name, reason(exc)) from exc


def _stopped_by_ctrl_c() -> AbstractContextManager[Callable[[], bool]]:
    """Return a context manager that records Ctrl-C; a second Ctrl-C ends the program at once."""
    import signal
    from contextlib import contextmanager

    @contextmanager
    def watch() -> Iterator[Callable[[], bool]]:
        pressed: list[bool] = []

        def note(_number: int, _frame: object) -> None:
            pressed.append(True)
            signal.signal(signal.SIGINT, signal.default_int_handler)

        try:
            before = signal.signal(signal.SIGINT, note)
        except ValueError:  # outside the main thread, another program handles Ctrl-C
            yield lambda: False
            return
        try:
            yield lambda: bool(pressed)
        finally:
            signal.signal(signal.SIGINT, before)

    return watch()
