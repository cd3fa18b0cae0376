"""Read many logs in parallel, on the cores of one machine or on a cluster.

    files -> byte ranges -> sessions of each range, from an executor -> joined here, in order

A range gives the same sessions on every worker. Joining the sessions of adjacent ranges gives the
same result wherever the log was cut. Therefore the result always equals that of sequential reading:
it does not depend on which workers read the logs, or on how many workers die.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future

import msgspec

from qnnmem.doctor.diagnose import Diagnosis
from qnnmem.doctor.fleet.executors import answers, width
from qnnmem.doctor.fleet.ranges import (
    PackedBase,
    RangeResult,
    RangeTask,
    decode_result,
    read_range,
)
from qnnmem.doctor.kb.knowledge import Knowledge
from qnnmem.doctor.logs import scanner
from qnnmem.doctor.logs.archive import absolute
from qnnmem.doctor.logs.attribution import Attribution
from qnnmem.doctor.logs.pieces import LOOK
from qnnmem.doctor.logs.scanner import REGION
from qnnmem.doctor.logs.session import LogSession, SessionGrouper
from qnnmem.doctor.logs.source import Stream, size_of
from qnnmem.errors import LoadError, UsageError

RANGE_BYTES = 64 << 20

_TRIES = 3  # attempts of a task on the executor; afterwards this process runs it
_LOOK_S = 1.0  # interval between checks for living workers
_LOST_S = 5.0  # without an answer for this time, no worker is left
_STUCK_S = 600.0  # without a result for this time, the workers are stuck


def diagnose_with(
    streams: Sequence[Stream],
    knowledge: Knowledge,
    executor: Executor,
    *,
    range_bytes: int = RANGE_BYTES,
    engine: str | None = None,
    region: int = REGION,
) -> Diagnosis:
    """Read logs on an executor; the result equals that of `diagnose`."""
    if range_bytes < 1:
        raise UsageError("a range must have at least one byte")
    diagnosis = Diagnosis(knowledge)
    work = _TaskQueue(executor, knowledge)
    tasks = _tasks(streams, range_bytes, engine, region)
    logs = [_LogJoiner(number, stream, diagnosis) for number, stream in enumerate(streams)]
    try:
        for number, part, result in work.run(tasks):
            logs[number].take(part, result)
        for log in logs:
            log.finish()
        diagnosis.check(streams)
    except BaseException:
        work.cancel()
        diagnosis.close()
        raise
    return diagnosis


class _LogJoiner:
    """Joins the ranges of one log, which arrive in order."""

    def __init__(self, number: int, stream: Stream, diagnosis: Diagnosis) -> None:
        self._number, self._parts, self._diagnosis = number, stream.parts, diagnosis
        self._sessions, self._attribution = SessionGrouper(), Attribution()
        self._part = 0
        self._base = 0  # bytes of the earlier parts
        self._bytes = self._lines = 0  # of the current part so far
        self._ours, self._look, self._unclear = False, "", False

    def take(self, part: int, result: RangeResult) -> None:
        if result.broken:
            self._diagnosis.miss(LoadError(self._parts[part], result.broken))
            return
        if part != self._part:
            self._part, self._base = part, self._base + self._bytes
            self._bytes = self._lines = 0
        for session in result.sessions:
            session.shift(self._base, self._lines, part)
            self._sessions.put(session)
        self._bytes += result.bytes
        self._lines += result.lines
        self._ours, self._look = self._ours or result.ours, self._look or result.looks_like
        self._unclear = result.unclear and len(self._parts) == 1
        self._diagnosis.bytes += result.bytes
        self._diagnosis.lines += result.lines
        self._diagnosis.notes += [self._parts[part] + note for note in result.notes]
        # A message of the next range may have begun in the last line of this range.
        if over := self._sessions.closed(self._base + self._bytes - LOOK):
            self._hand_on(over, self._sessions.open)

    def finish(self) -> None:
        self._hand_on(self._sessions.finish(), ())
        if self._base + self._bytes:
            self._diagnosis.close_log(self._parts[0], self._ours, self._look, self._unclear)

    def _hand_on(self, over: Iterable[LogSession], still_open: Iterable[LogSession]) -> None:
        self._diagnosis.take(self._number, self._attribution.put(over, still_open), self._parts)


class _Pending(msgspec.Struct, frozen=True):
    number: int
    part: int
    task: RangeTask
    future: Future[bytes] | None  # None: this process runs the task


class _TaskQueue:
    """Queue that keeps an executor busy and yields results in the order of the tasks."""

    def __init__(self, executor: Executor, knowledge: Knowledge) -> None:
        self._executor, self._base = executor, PackedBase.of(knowledge)
        self._waiting: deque[_Pending] = deque()
        self._answered = self._moved = time.monotonic()

    def run(
        self, tasks: Iterator[tuple[int, int, RangeTask]]
    ) -> Iterator[tuple[int, int, RangeResult]]:
        """Yield the log number, the part number and the result of each task, in order."""
        most = 2 * width(self._executor)
        for number, part, task in tasks:
            future = None if _only_here(task.name) else self._submit(task)
            self._waiting.append(_Pending(number, part, task, future))
            if len(self._waiting) >= most:
                yield self._next()
        while self._waiting:
            yield self._next()

    def cancel(self) -> None:
        """Cancel tasks that have not started."""
        for pending in self._waiting:
            if pending.future is not None:
                pending.future.cancel()

    def _next(self) -> tuple[int, int, RangeResult]:
        pending = self._waiting.popleft()
        return pending.number, pending.part, self._result(pending.task, pending.future)

    def _result(self, task: RangeTask, future: Future[bytes] | None) -> RangeResult:
        for _ in range(_TRIES):
            if future is None:
                break
            try:
                data = self._awaited(future)
                if data is None:
                    break
                result = decode_result(data)
            except Exception:  # a worker died: run the task again
                future = self._submit(task)
            else:
                self._answered = self._moved = time.monotonic()
                return result
        return decode_result(read_range(task, self._base))

    def _awaited(self, future: Future[bytes]) -> bytes | None:
        """Return the result of a task; None if no worker is left or none answers in time."""
        while True:
            now = time.monotonic()
            gone = now - self._answered > _LOST_S or now - self._moved > _STUCK_S
            try:
                return future.result(0 if gone else _LOOK_S)
            except TimeoutError:
                if future.done():  # the task itself timed out
                    raise
            if gone:
                future.cancel()
                return None
            if answers(self._executor):
                self._answered = time.monotonic()

    def _submit(self, task: RangeTask) -> Future[bytes] | None:
        try:
            return self._executor.submit(read_range, task, self._base)
        except Exception:  # the executor is broken, with an error that depends on its kind
            return None


def _tasks(
    streams: Sequence[Stream], range_bytes: int, engine: str | None, region: int
) -> Iterator[tuple[int, int, RangeTask]]:
    for number, stream in enumerate(streams):
        for part, name in enumerate(stream.parts):
            size = _size_of(name)
            whole = RangeTask(name, stream.named, size=size, engine=engine, region=region)
            if "://" not in name and name != "-":
                whole = msgspec.structs.replace(whole, name=absolute(name))
            # A short log is not divided, because its lines are judged together.
            starts = range(0, size or 1, max(range_bytes, scanner.SHORT_LOG))
            for start in starts:
                # The last range has no end, so that it includes bytes written meanwhile.
                end = None if start == starts[-1] else start + starts.step
                yield number, part, msgspec.structs.replace(whole, start=start, end=end)


def bytes_of(streams: Sequence[Stream]) -> int:
    """Return the total size of those logs whose size is known before reading."""
    return sum(_size_of(part) or 0 for stream in streams for part in stream.parts)


def _only_here(name: str) -> bool:
    """Return True if only this process can read the log, because it is standard input or a pipe."""
    if name == "-":
        return True
    return "://" not in name and os.path.exists(name) and not os.path.isfile(name)  # noqa: PTH110, PTH113


def _size_of(name: str) -> int | None:
    try:
        return size_of(name)
    except LoadError:
        return None  # its reader reports the error
