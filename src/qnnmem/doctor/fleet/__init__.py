"""Many logs at once, on the cores of one machine or on a cluster.

    files -> byte ranges -> any Executor: lines of each range as sessions -> joined here, in order

A range gives the same sessions wherever it is read, and joining neighbours gives the same sessions
however a log was cut. So the answer is that of reading the logs one after the other, whoever did
the work and however often a worker died over it.
"""

from __future__ import annotations

import os
import threading
import time
import zlib
from collections import deque
from concurrent.futures import Executor, Future
from typing import TYPE_CHECKING, Any, NamedTuple

from qnnmem.doctor.diagnose import Diagnosis
from qnnmem.doctor.kb.knowledge import Knowledge
from qnnmem.doctor.logs.owner import Settler
from qnnmem.doctor.logs.scanner import LOOK, REGION, Window
from qnnmem.doctor.logs.search import Engines
from qnnmem.doctor.logs.session import Sessions
from qnnmem.errors import LoadError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from qnnmem.doctor.logs.session import Session
    from qnnmem.doctor.logs.source import Stream

RANGE_BYTES = 64 << 20

_TRIES = 3  # of a task on the executor; after that it is done here
_WIDTH = 16  # workers of an executor that does not say how many it has


class Task(NamedTuple):
    """A piece of work: one range of a plain part, or a whole part."""

    name: str
    start: int = 0
    end: int | None = None
    size: int | None = None  # bytes of the part, where known
    engine: str | None = None
    region: int = REGION


class Piece(NamedTuple):
    """What one task found; `broken` says why its part cannot be read."""

    lines: int = 0
    bytes: int = 0
    sessions: tuple[Session, ...] = ()
    notes: tuple[str, ...] = ()  # without the name of the part before them
    broken: str = ""


def diagnose_with(
    streams: Sequence[Stream],
    knowledge: Knowledge,
    executor: Executor,
    *,
    range_bytes: int = RANGE_BYTES,
    engine: str | None = None,
    region: int = REGION,
) -> Diagnosis:
    """Reads logs on an executor; the answer is that of `diagnose`."""
    if range_bytes < 1:
        raise UsageError("a range has at least one byte")
    diagnosis = Diagnosis(knowledge)
    work = _Work(executor, knowledge)
    tasks = _tasks(streams, range_bytes, engine, region)
    logs = [_Log(number, stream, diagnosis) for number, stream in enumerate(streams)]
    try:
        for number, part, piece in work.run(tasks):
            logs[number].take(part, piece)
        for log in logs:
            log.finish()
        diagnosis.check(streams)
    except BaseException:
        work.cancel()
        diagnosis.close()
        raise
    return diagnosis


def cluster_executor(address: str) -> Executor:
    """The workers of a running Dask cluster."""
    try:
        from distributed import Client
    except ImportError as exc:
        raise UsageError("a cluster needs pip install 'qnnmem[cluster]'") from exc
    try:
        client: Any = Client(address, timeout=10)  # type: ignore[no-untyped-call]
    except (OSError, ValueError, TimeoutError) as exc:
        raise UsageError(f"no Dask cluster answers at {address}: {exc}") from exc
    executor: Executor = client.get_executor(pure=False, retries=3)
    return executor


def jobs_executor(jobs: int) -> Executor:
    """So many workers on this machine: threads where the engine lets them run side by side."""
    if jobs < 1:
        raise UsageError("--jobs takes a number from 1")
    try:
        import hyperscan  # noqa: F401 - releases the interpreter while it scans
    except ImportError:
        return Processes(jobs)
    from concurrent.futures import ThreadPoolExecutor

    return ThreadPoolExecutor(jobs)


class Processes(Executor):
    """Worker processes; when one dies, which ends such a pool, a new pool takes its place."""

    def __init__(self, jobs: int) -> None:
        self._max_workers = jobs
        self._pool: Executor = self._new()

    def _new(self) -> Executor:
        from concurrent.futures import ProcessPoolExecutor, wait
        from multiprocessing import get_context

        pool = ProcessPoolExecutor(self._max_workers, mp_context=get_context("spawn"))
        # All workers start now: a pool that starts one while another dies gets confused.
        wait([pool.submit(time.sleep, 0.1) for _ in range(self._max_workers)])
        return pool

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Starts a call in a worker."""
        try:
            return self._pool.submit(fn, *args, **kwargs)
        except (RuntimeError, OSError):  # broken, or breaking at this moment
            self.shutdown(wait=False)
            self._pool = self._new()
            return self._pool.submit(fn, *args, **kwargs)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Ends the workers.

        A worker that was killed may have held the lock for which the others wait, and the pool
        would wait for those: a broken pool is ended by force.
        """
        workers = getattr(self._pool, "_processes", None) or {}
        if getattr(self._pool, "_broken", False):
            for worker in list(workers.values()):
                worker.kill()
        self._pool.shutdown(wait, cancel_futures=cancel_futures)


class _Log:
    """Joins the pieces of one log, which come in order."""

    def __init__(self, number: int, stream: Stream, diagnosis: Diagnosis) -> None:
        self._number, self._parts, self._diagnosis = number, stream.parts, diagnosis
        self._sessions, self._settler = Sessions(), Settler()
        self._part = 0
        self._base = 0  # bytes of the parts before
        self._bytes = self._lines = 0  # of the part so far

    def take(self, part: int, piece: Piece) -> None:
        if piece.broken:
            self._diagnosis.miss(LoadError(self._parts[part], piece.broken))
            return
        if part != self._part:
            self._part, self._base = part, self._base + self._bytes
            self._bytes = self._lines = 0
        for session in piece.sessions:
            session.shift(self._base, self._lines, part)
            self._sessions.put(session)
        self._bytes += piece.bytes
        self._lines += piece.lines
        self._diagnosis.bytes += piece.bytes
        self._diagnosis.lines += piece.lines
        self._diagnosis.notes += [self._parts[part] + note for note in piece.notes]
        # A message of the next range may have begun in the last line of this one.
        if over := self._sessions.closed(self._base + self._bytes - LOOK):
            self._hand_on(over, self._sessions.open)

    def finish(self) -> None:
        self._hand_on(self._sessions.finish(), ())

    def _hand_on(self, over: Sequence[Session], still_open: Any) -> None:
        self._diagnosis.take(self._number, self._settler.put(over, still_open), self._parts)


class _Pending(NamedTuple):
    number: int
    part: int
    task: Task
    future: Future[Piece] | None  # None when the task is to be done here


class _Work:
    """Keeps an executor busy and hands out results in the order of the tasks."""

    def __init__(self, executor: Executor, knowledge: Knowledge) -> None:
        import json

        self._executor = executor
        text = json.dumps(knowledge.packed, separators=(",", ":")).encode()
        self._packed = zlib.compress(text)
        self._key = f"{knowledge.key}-{zlib.crc32(text)}"
        self._waiting: deque[_Pending] = deque()

    def run(self, tasks: Iterator[tuple[int, int, Task]]) -> Iterator[tuple[int, int, Piece]]:
        """Number of the log, number of the part and what was found, in order."""
        most = 2 * _width(self._executor)
        for number, part, task in tasks:
            here = task.name == "-"  # nobody else can read it
            future = None if here else self._submit(task)
            self._waiting.append(_Pending(number, part, task, future))
            if len(self._waiting) >= most:
                yield self._next()
        while self._waiting:
            yield self._next()

    def cancel(self) -> None:
        """Drops what has not begun."""
        for pending in self._waiting:
            if pending.future is not None:
                pending.future.cancel()

    def _next(self) -> tuple[int, int, Piece]:
        pending = self._waiting.popleft()
        return pending.number, pending.part, self._result(pending.task, pending.future)

    def _result(self, task: Task, future: Future[Piece] | None) -> Piece:
        for _ in range(_TRIES):
            if future is None:
                break
            try:
                return future.result()
            except Exception:  # a worker died, whatever its executor calls that: done again
                future = self._submit(task)
        return read_piece(task, self._key, self._packed)

    def _submit(self, task: Task) -> Future[Piece] | None:
        try:
            return self._executor.submit(read_piece, task, self._key, self._packed)
        except RuntimeError:  # broken for good
            return None


def _width(executor: Executor) -> int:
    """How many tasks run at once: pools of the standard library know, and so does Dask."""
    client = getattr(executor, "_client", None)
    if client is not None:
        return max(int(sum(client.ncores().values())), 1)
    return int(getattr(executor, "_max_workers", _WIDTH))


def _tasks(
    streams: Sequence[Stream], range_bytes: int, engine: str | None, region: int
) -> Iterator[tuple[int, int, Task]]:
    for number, stream in enumerate(streams):
        for part, name in enumerate(stream.parts):
            size = _size_of(name)
            whole = Task(name, size=size, engine=engine, region=region)
            if "://" not in name and name != "-":
                whole = whole._replace(name=os.path.abspath(name))  # noqa: PTH100
            starts = range(0, size or 1, range_bytes)
            for start in starts:
                # The last range has no end: it reads what was written meanwhile, as others do.
                end = None if start == starts[-1] else start + range_bytes
                yield number, part, whole._replace(start=start, end=end)


def _size_of(name: str) -> int | None:
    from qnnmem.doctor.logs.source import size_of

    try:
        return size_of(name)
    except LoadError:
        return None  # who reads it will say why it cannot be read


def read_piece(task: Task, key: str, packed: bytes) -> Piece:
    """Does one task, in whatever process or thread this is."""
    from qnnmem.doctor.logs.source import open_part

    known = _known(key, packed)
    try:
        opened = open_part(task.name)
    except LoadError as exc:
        return Piece(broken=exc.reason)
    sessions = Sessions()
    try:
        if task.start > LOOK:
            opened.seek(task.start - LOOK)
        window = Window(
            known.knowledge,
            known.engines(task.engine).of(task.size),
            opened.readinto,
            task.start,
            task.end,
            task.region,
            task.size,
        )
        for hit in window.hits():
            sessions.add(hit, hit.offset, 0, 0)
    except LoadError as exc:
        return Piece(broken=exc.reason)
    finally:
        opened.close()
    found = sorted(sessions.finish(), key=lambda session: session.first)
    notes = tuple(note.removeprefix(task.name) for note in opened.notes)
    return Piece(window.lines, window.bytes, tuple(found), notes)


class _Known:
    """A knowledge base in a worker, with its engines."""

    def __init__(self, packed: bytes) -> None:
        import json

        self.knowledge = Knowledge(json.loads(zlib.decompress(packed)))
        self._engines: dict[str | None, Engines] = {}

    def engines(self, asked: str | None) -> Engines:
        if asked not in self._engines:
            self._engines[asked] = Engines(self.knowledge, asked)
        return self._engines[asked]


# One for each thread: an engine has memory of its own while it scans.
_here = threading.local()


def _known(key: str, packed: bytes) -> _Known:
    if getattr(_here, "key", None) != key:
        _here.known, _here.key = _Known(packed), key
    known: _Known = _here.known
    return known
