"""The HTP library in a child process: requests and their outcomes.

The process runs on this machine, or is a worker that a command starts on another machine.
"""

from __future__ import annotations

import os
import select
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import msgspec

from qnnmem.child import ChildProcess
from qnnmem.child import memory_limit as child_memory_limit
from qnnmem.deadline import Deadline
from qnnmem.errors import UsageError, WorkerError
from qnnmem.htp.installed import Library
from qnnmem.htp.library import find_library
from qnnmem.htp.log import KEYWORDS, LogLine, host_memory, read_line
from qnnmem.htp.requests import (
    END_MARK,
    MAX_FRAME,
    OWN_MARK,
    AnyRequest,
    CallTensor,
    Ended,
    LibraryRefusal,
    LibraryRequest,
    OutcomeKind,
    Reply,
    RequestOutcome,
    Served,
    Started,
    Tick,
    Watch,
)
from qnnmem.qnn.shared_memory import MappedBytes
from qnnmem.wire import Frame, decode, read_frame, write_frame

if TYPE_CHECKING:
    from qnnmem.htp.remote.client import RemoteLibrary

# --- The log of a child, read while it is written ------------------------------------------------


MAX_KEPT = 16 << 20  # bytes; a compile logs some kilobytes, a broken one may repeat itself
MAX_LINE = 1 << 20  # one line may list all nodes of a model
_CHUNK = 1 << 20
_TAIL = 32 << 10
_CALL = f"{OWN_MARK} call ".encode()  # the child writes it in one piece before each call
# A compiler writes its log in tiny pieces. Waking for each piece would cost a core.
_PAUSE_S = 0.004


def _forget(_chunk: bytes) -> None:
    """Ignore a chunk of the log."""


@dataclass(slots=True)
class _Record:
    """The stored log lines and state of one request."""

    end: bytes = b""
    stop_at: bytes | None = None
    pass_on: Callable[[bytes], None] = _forget
    stopped: threading.Event = field(default_factory=threading.Event)
    ended: threading.Event = field(default_factory=threading.Event)
    partial: bytes = b""  # an incomplete line
    tail: bytes = b""
    kept: list[bytes] = field(default_factory=list)
    room: int = field(default_factory=lambda: MAX_KEPT)
    size: int = 0
    calls: int = 0  # number of calls that the child announced

    def take(self, chunk: bytes) -> None:
        """Read the next bytes of the log, and store the relevant lines in these bytes."""
        self.size += len(chunk)
        self.calls += chunk.count(_CALL)
        self.pass_on(chunk)
        whole, newline, rest = (self.partial + chunk).rpartition(b"\n")
        self.partial = rest[-MAX_LINE:]
        if not newline:
            return
        text = whole + newline
        self.tail = (self.tail + text)[-_TAIL:]
        for line in _matching(text):
            self._keep(line[:MAX_LINE])
        if self.end and self.end in text:
            self.ended.set()

    def _keep(self, line: bytes) -> None:
        if len(line) <= self.room:
            self.room -= len(line)
            self.kept.append(line)
        if self.stop_at is not None and self.stop_at in line:
            self.stopped.set()


class LogTap:
    """Reads a pipe to its end in a separate thread, so that the writer never waits."""

    def __init__(self, descriptor: int, end_mark: bytes) -> None:
        self._descriptor, self._mark = descriptor, end_mark
        _widen(descriptor)
        self._lock = threading.Lock()
        self._now, self._closed = _Record(), False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def begin(
        self, request: int, stop_at: bytes | None, pass_on: Callable[[bytes], None] = _forget
    ) -> None:
        """Start a request, and drop the log bytes of all earlier requests.

        `stopped` becomes true when a line contains both `stop_at` and a keyword. All bytes go to
        `pass_on` as they arrive.
        """
        with self._lock:
            self._now = _Record(self._mark + b" %d\n" % request, stop_at, pass_on)
            if self._closed:
                self._now.ended.set()

    @property
    def stopped(self) -> bool:
        """True if a log line stopped the request."""
        return self._now.stopped.is_set()

    def wait_for_end(self, timeout_s: float) -> None:
        """Wait until all log lines of a request have arrived, or until the pipe is closed."""
        self._now.ended.wait(timeout_s)

    def lines(self) -> tuple[LogLine, ...]:
        """Return the relevant log lines of the request, in order."""
        with self._lock:
            kept = [line for line in self._now.kept if self._mark not in line]
        return tuple(read_line(line) for line in kept)

    def tail(self, count: int) -> tuple[str, ...]:
        """Return the last `count` log lines of the request, relevant or not."""
        with self._lock:
            lines = (self._now.tail + self._now.partial).split(b"\n")
        wanted = [line for line in lines if line.strip() and self._mark not in line][-count:]
        return tuple(read_line(line).text for line in wanted)

    @property
    def calls(self) -> int:
        """Number of calls of the request that have begun."""
        return self._now.calls

    @property
    def bytes_read(self) -> int:
        """Number of log bytes of the request."""
        return self._now.size

    def close(self) -> None:
        """Wait for the end of the pipe; its writers must have exited."""
        self._thread.join(timeout=5)

    def _run(self) -> None:
        try:
            while chunk := os.read(self._descriptor, _CHUNK):
                with self._lock:
                    self._now.take(chunk)
                if len(chunk) < _CHUNK // 2:
                    time.sleep(_PAUSE_S)
        except OSError:
            pass  # the rest of the log is lost, the request is not
        finally:
            os.close(self._descriptor)
            with self._lock:
                self._closed = True
                self._now.ended.set()


def _widen(descriptor: int) -> None:
    """Enlarge the pipe's buffer to the size of one read, where the system supports it."""
    import fcntl

    with suppress(AttributeError, OSError):
        fcntl.fcntl(descriptor, fcntl.F_SETPIPE_SZ, _CHUNK)


def _matching(text: bytes) -> list[bytes]:
    """Return the lines with a keyword; searching blocks is far cheaper than searching lines."""
    starts = set()
    for word in KEYWORDS:
        place = text.find(word)
        while place >= 0:
            starts.add(text.rfind(b"\n", 0, place) + 1)
            place = text.find(word, text.find(b"\n", place))
    return [text[start : text.find(b"\n", start)] for start in sorted(starts)]


# --- Outcomes: done, refused, crashed, out of time, out of memory ---------------------------------


TAIL_LINES = 40


def outcome_of(
    request: LibraryRequest, frame: Frame[Ended] | None, tap: LogTap, watch: Watch
) -> RequestOutcome:
    """Return the outcome of a request; `frame` is None if the child died before it replied."""
    unknown = RequestOutcome(
        "crashed",
        log=tap.lines(),
        tail=tap.tail(TAIL_LINES),
        seconds=watch.seconds,
        log_bytes=tap.bytes_read,
        peak_rss=watch.peak_rss,
    )
    if frame is None:
        return _cut_short(unknown, tap, watch)
    ended, payload = frame
    number = -ended.status if ended.status < 0 else None
    unknown = replace(
        unknown,
        peak_rss=ended.peak_rss,
        cpu_seconds=ended.cpu_seconds,
        exit_status=ended.status,
        signal=number,
    )
    reply = _reply(request, payload)
    refusal = (LogLine(reply.sentence),) if isinstance(reply, LibraryRefusal) else ()
    no_memory = host_memory((*unknown.log, *refusal))
    if reply is None:
        kind: OutcomeKind = "memory" if no_memory else "crashed"
        return replace(unknown, kind=kind, sentence=_died(number, ended.status, no_memory))
    if not isinstance(reply, LibraryRefusal):
        return replace(unknown, kind="done", reply=reply)
    kind = "memory" if no_memory or reply.memory else "refused"
    said_why = replace(unknown, sentence=reply.sentence, code=reply.code, stage=reply.stage)
    return replace(said_why, kind=kind)


def _reply(request: LibraryRequest, payload: bytes) -> Reply | LibraryRefusal | None:
    try:
        kinds: Any = request.reply | LibraryRefusal
        reply: Reply | LibraryRefusal = decode(payload, kinds)
    except ValueError:  # the process died before it sent everything
        return None
    return reply


def _cut_short(unknown: RequestOutcome, tap: LogTap, watch: Watch) -> RequestOutcome:
    """Return the outcome of a request that was stopped, or whose child vanished."""
    if watch.expired:
        sentence = f"not finished within {watch.deadline.limit_s:g} s"
        return replace(unknown, kind="timeout", sentence=sentence)
    if host_memory(unknown.log):
        return replace(unknown, kind="memory", sentence="stopped because memory ran out")
    if tap.stopped:
        return replace(
            unknown,
            kind="refused",
            sentence="stopped early, because the log already shows the result",
        )
    return replace(unknown, sentence="the process was killed from outside")


def signal_name(number: int) -> str:
    """Return the name of a signal, or its number if it has no name."""
    return signal.Signals(number).name if number in set(signal.Signals) else str(number)


def _died(number: int | None, status: int, no_memory: bool) -> str:
    if number is None:
        ending = f"the library ended its process with status {status}"
    else:
        ending = f"the library's process was ended by {signal_name(number)}"
    return f"{ending} because memory ran out" if no_memory else ending


# --- The child process, with one more pipe for its log --------------------------------------------


_TICK_S = 0.1
_PROGRAM = "qnnmem.htp.native.child"


class LibraryProcess(ChildProcess):
    """A child process that serves one request after another until it is killed."""

    def __init__(self, warm: bool) -> None:
        try:
            log, log_end = os.pipe()
        except OSError as exc:
            raise UsageError(f"no child process can be started ({exc.strerror})") from exc
        words = ("warm",) if warm else ()
        try:
            super().__init__(
                _PROGRAM, threading.TIMEOUT_MAX, {"NO_COLOR": "1"}, words=words, errors=log_end
            )
        except BaseException as exc:
            os.close(log)
            if isinstance(exc, OSError):  # no more file descriptors
                raise UsageError(f"no child process can be started ({exc.strerror})") from exc
            raise
        finally:
            os.close(log_end)
        self.deadline = Deadline.after(None)  # each request has its own
        # Unbuffered: a buffer would hide a second frame from poll.
        self._replies: Any = self._process.stdout.raw  # type: ignore[union-attr]  # a buffered pipe
        try:
            self.tap = LogTap(log, END_MARK.encode())
        except RuntimeError as exc:  # no thread could be started
            os.close(log)
            self._end()
            raise UsageError(f"no child process can be watched ({exc})") from exc

    @property
    def pid(self) -> int:
        """Process id of the child, which is also its process group."""
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        """True if the child can take a request."""
        return self._process.poll() is None

    def serve(self, served: Served, watch: Watch) -> Frame[Ended] | None:
        """Pass a request to the child; return the last frame of its answer, or None if it died."""
        try:
            write_frame(self._process.stdin, served)  # type: ignore[arg-type]  # IO[bytes] of Popen
            while self._wait(watch):
                frame: Frame[Any] | None = read_frame(self._replies, Started | Ended, MAX_FRAME)
                if frame is None:
                    break
                if isinstance(frame[0], Ended):
                    self.tap.wait_for_end(5.0)
                    return frame
                watch.pid = frame[0].pid
        except (OSError, ValueError):
            pass  # the child died during the request
        except BaseException:  # from the caller's progress, or Ctrl-C: the answer is not needed
            self.kill()
            raise
        watch.look()
        self.kill()
        return None

    def _wait(self, watch: Watch) -> bool:
        """Wait for the child's reply; return False if the request must be stopped."""
        poll = select.poll()
        poll.register(self._replies, select.POLLIN)
        begun = self.tap.calls
        while True:
            if watch.per_call and self.tap.calls != begun:
                begun = self.tap.calls
                watch.deadline = Deadline.after(watch.deadline.limit_s)
            left = watch.deadline.left_s
            if left <= 0:
                watch.expired = True
                return False
            if poll.poll(1000 * min(left, _TICK_S)):
                return True
            if self.tap.stopped or not self.is_alive:
                return False
            watch.look()

    def kill(self) -> None:
        """Kill the whole process group and reap it."""
        self._end()
        self.tap.close()


# --- Workers --------------------------------------------------------------------------------------


TIME_LIMIT_S = 600.0
MAX_LOG_FILE = 256 << 20


class Worker:
    """Serves requests one after another in a child process; a crash affects only one request."""

    def __init__(self, *, warm: bool = False, library: Library | None = None) -> None:
        self.library = find_library() if library is None else library
        self._warm, self._count = warm, 0
        self._lock = threading.Lock()
        self._child: LibraryProcess | None = None
        self._remote: RemoteLibrary | None = None
        if self.library.command:
            from qnnmem.htp.remote.client import RemoteLibrary

            self._remote = RemoteLibrary(self.library)
        if warm and self._remote is None:  # the child imports while the caller reads a model
            self._child = LibraryProcess(warm)

    @classmethod
    def ready(cls, library: Library) -> Worker:
        """Return a worker with a started child, or with a connection to a remote worker."""
        worker = cls(warm=True, library=library)
        if worker._remote is not None:
            worker._remote.connect()
        return worker

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop the child or the remote connection, including any running request."""
        if self._remote is not None:
            self._remote.close()
        child, self._child = self._child, None
        if child is not None:
            child.kill()

    @property
    def pid(self) -> int | None:
        """Process id of the child, or of the command that connects to a remote worker."""
        if self._remote is not None:
            return self._remote.pid
        return None if self._child is None else self._child.pid

    @property
    def memory_limit(self) -> int:
        """Maximum address space of a request on the library's machine, in bytes."""
        return default_memory_limit() if self._remote is None else self._remote.memory_limit

    def ask(
        self,
        request: AnyRequest,
        *,
        places: Sequence[MappedBytes] = (),
        time_limit_s: float = TIME_LIMIT_S,
        memory_limit: int | None = None,
        stop_at: bytes | None = None,
        log_file: Path | None = None,
        progress: Callable[[Tick], None] | None = None,
        time_limit_per_call: bool = False,
    ) -> RequestOutcome:
        """Return the outcome of a request.

        `places` is the memory that tensors share with the caller. `memory_limit` is the limit of
        the address space in bytes, by default three quarters of the machine's memory. A log line
        that contains `stop_at` stops the request, which then counts as refused. `log_file` receives
        the whole log. If `time_limit_per_call` is true and the library is on this
        machine, the time limit applies to each call.
        """
        with self._lock:
            watch = Watch(Deadline.after(time_limit_s), progress, per_call=time_limit_per_call)
            if self._remote is not None:
                with _sink(log_file) as keep:
                    wanted = None if log_file is None else keep
                    limits = (memory_limit, stop_at)
                    return self._remote.ask(request, places, watch, *limits, wanted)
            self._count += 1
            served = Served(
                self._count,
                memory_limit or default_memory_limit(),
                self.library.folder.absolute(),
                with_files(request, places),
            )
            if self._child is None or not self._child.is_alive:
                self.close()
                self._child = LibraryProcess(self._warm)
            with _sink(log_file) as keep:
                self._child.tap.begin(self._count, stop_at, keep)
                ended = self._child.serve(served, watch)
                outcome = outcome_of(request, ended, self._child.tap, watch)
            if not self._child.is_alive:
                self.close()
            return outcome


def with_files(request: AnyRequest, places: Sequence[MappedBytes]) -> AnyRequest:
    """Return the request for a local child, which opens shared memory as files of this process."""
    from qnnmem.htp.remote.files import with_shared

    def file(tensor: CallTensor, place: MappedBytes) -> CallTensor:
        path = Path(f"/proc/{os.getpid()}/fd/{place.fd}")
        return msgspec.structs.replace(tensor, shared=None, file=path, offset=place.offset)

    return with_shared(request, places, file)


def default_memory_limit() -> int:
    """Return the default address space of a request: three quarters of the machine's memory.

    Other children use the limit of `qnnmem.child`, which is enough for ONNX files of 2 GiB. The
    compiler also accepts larger models, with external weights. A graph at the limit of 3.5 GiB
    takes twice as many bytes in 32-bit floats, and ONNX Runtime, the compiler and the binary each
    hold a copy.
    """
    return child_memory_limit(largest=None)


@contextmanager
def _sink(path: Path | None) -> Iterator[Callable[[bytes], None]]:
    """Yield a function that writes log chunks to a file; without a path, it drops the chunks."""
    if path is None:
        yield lambda _chunk: None
        return
    left = MAX_LOG_FILE
    with path.open("wb") as file:

        def keep(chunk: bytes) -> None:
            nonlocal left
            with suppress(OSError):  # a full disk costs the log, not the result
                file.write(chunk[:left])
            left = max(0, left - len(chunk))

        yield keep


# --- Several workers that take turns: a lost worker loses no result -------------------------------


_MAX_FAILED_STARTS = 2  # start failures in a row after which a worker is dropped
_MAX_LOST = 3  # lost tasks in a row after which a worker is dropped
_MAX_TRIES = 3  # attempts of one task, before the task is blamed


class Closable(Protocol):
    """A worker that can be closed."""

    def close(self) -> None:
        """Release the resources of the worker."""
        ...


S = TypeVar("S", bound=Closable)
T = TypeVar("T")


class TaskModel(Closable, Protocol):
    """A model, and a worker or a cluster that runs tasks on the model."""

    def ask(self, kind: type[T], task: Callable[..., T], *arguments: object) -> T:
        """Return the result of a task; the task gets a worker, the model and the arguments."""
        ...


class LocalModel:
    """A model, and the worker that runs tasks on the model."""

    def __init__(self, path: Path, worker: Worker, progress: Callable[[str], None]) -> None:
        self._path, self._worker, self._progress = path, worker, progress

    def ask(self, _kind: type[T], task: Callable[..., T], *arguments: object) -> T:
        """Return the result of a task; the task can report progress."""
        return task(self._worker, self._path, *arguments, progress=self._progress)

    def close(self) -> None:
        """Stop the worker."""
        self._worker.close()


@dataclass(slots=True)
class _Slot(Generic[S]):
    """A worker, started at the first use and restarted after it was lost."""

    start: Callable[[], S]
    running: S | None = None
    failed_starts: int = 0  # in a row
    lost: set[object] = field(default_factory=set)  # tasks that lost it since the last success

    @property
    def is_sound(self) -> bool:
        """True if the worker is worth another try."""
        return self.failed_starts < _MAX_FAILED_STARTS and len(self.lost) < _MAX_LOST

    def worker(self) -> S:
        if self.running is None:
            self.failed_starts += 1
            self.running = self.start()
            self.failed_starts = 0
        return self.running

    def close(self) -> None:
        worker, self.running = self.running, None
        if worker is not None:
            worker.close()


class Slots(Generic[S]):
    """Workers for tasks from several threads; each runs one task at a time."""

    def __init__(self, starts: Sequence[Callable[[], S]]) -> None:
        self._slots = [_Slot(start) for start in starts]
        self._free = list(self._slots)
        self._sound = len(self._slots)
        self._turn = threading.Condition()
        self._why = WorkerError("no worker is connected")

    @property
    def count(self) -> int:
        """Number of workers that were not dropped."""
        return self._sound

    def use(self, task: Callable[[S], T]) -> T:
        """Return the result of a task on any worker; raise WorkerError if all workers are lost."""
        tries, name = 0, object()
        while True:
            slot = self._take()
            try:
                done = task(slot.worker())
            except WorkerError as exc:
                if slot.running is not None:  # else the task has not started
                    tries += 1
                    slot.lost.add(name)
                with suppress(Exception):
                    slot.close()
                self._give_back(slot, exc)
                if tries >= _MAX_TRIES:
                    raise
            except BaseException:
                self._give_back(slot)
                raise
            else:
                slot.lost.clear()
                self._give_back(slot)
                return done

    def close(self) -> None:
        """Stop all workers, including busy ones."""
        for slot in self._slots:
            slot.close()

    def _take(self) -> _Slot[S]:
        """Return a free worker, preferring workers that were never lost."""
        with self._turn:
            while self._sound and not self._free:
                self._turn.wait()
            if not self._sound:
                raise self._why
            self._free.sort(key=lambda slot: (slot.failed_starts, len(slot.lost)))
            return self._free.pop(0)

    def _give_back(self, slot: _Slot[S], why: WorkerError | None = None) -> None:
        with self._turn:
            if why is not None and not slot.is_sound:
                self._sound -= 1
                self._why = why
            else:
                self._free.append(slot)
            self._turn.notify_all()
