"""The client's end of the pipe to a remote worker: its process, requests and their answers."""

from __future__ import annotations

import atexit
import os
import queue
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import msgspec

from qnnmem.child import end, kill_group
from qnnmem.deadline import Deadline
from qnnmem.errors import NoCompiler, OutputError, UsageError, WorkerError, WorkerLost
from qnnmem.htp.installed import Command, Library, show_command
from qnnmem.htp.log import LogLine
from qnnmem.htp.remote.files import Parcel, pack, with_paths
from qnnmem.htp.remote.messages import (
    CLIENT_LINE,
    MAX_FILES,
    MAX_NOISE,
    MAX_REPLY,
    MAX_RESULT,
    PROTOCOL,
    SILENCE_S,
    START_S,
    WORKER_LINE,
    Ask,
    Beat,
    FilePart,
    FromWorker,
    Have,
    Hello,
    Missing,
    PipeEnd,
    RemoteOutcome,
    RemoteProgress,
    ResultFile,
    SendFile,
    Stored,
    WorkerHello,
    WorkerRefusal,
    hello_frame,
)
from qnnmem.htp.requests import (
    AnyRequest,
    RemoteRequest,
    Reply,
    RequestOutcome,
    Tick,
    Watch,
)
from qnnmem.qnn.shared_memory import MappedBytes
from qnnmem.text import printable
from qnnmem.version import __version__
from qnnmem.wire import Frame, WireMessage, decode, ready, write_frame

_TAIL = 8 << 10  # last bytes of the command's standard error that are stored
_SHOWN = 300
_GOODBYE_S = 3.0  # grace period for the worker to exit, which also ends containers and logins
_QUEUED = 16  # frames


class Connection(PipeEnd):
    """A connection to a worker that a command started; closing it ends the worker.

    Every failure raises WorkerLost, whose message ends with the command's last output.
    """

    def __init__(
        self, command: Command, start_s: float = START_S, silence_s: float = SILENCE_S
    ) -> None:
        super().__init__(_QUEUED, silence_s)
        self.command, self._greeted = command, False
        self._noise = self._errors = b""
        self._why = ""  # closed, or invalid data was received
        self._process = _start(command)
        loops = (self._read, self._read_errors, self._watch)
        self._threads = [threading.Thread(target=loop, daemon=True) for loop in loops]
        try:
            for thread in self._threads:
                thread.start()
            self.hello = self._greet(start_s)
        except BaseException as exc:
            self.close(0.2)
            if isinstance(exc, RuntimeError):  # no thread could be started
                raise UsageError(
                    f"the threads that watch a worker cannot be started ({exc})"
                ) from exc
            raise

    @property
    def pid(self) -> int:
        """Process id of the command."""
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        """True if the worker can take a request."""
        reads = self._threads[0].is_alive()
        return reads and not self._over.is_set() and self._process.poll() is None

    def send(self, message: WireMessage, payload: bytes | memoryview = b"") -> None:
        """Send one frame."""
        try:
            with self._writing:
                write_frame(self._process.stdin, message, payload)  # type: ignore[arg-type]  # IO[bytes] of Popen
        except (OSError, ValueError):
            raise self.lost() from None

    def receive(self, deadline: Deadline | None = None) -> Frame[Any]:
        """Return the next frame that is not a heartbeat; raise an error at the deadline."""
        try:
            while True:
                frame = self._frames.get(timeout=None if deadline is None else deadline.left_s)
                if frame is None:
                    self._frames.put(None)
                    raise self.lost()
                message = decode(frame[0], FromWorker)
                if not isinstance(message, Beat):
                    return message, frame[1]
        except queue.Empty:
            self._why = self._why or "exceeded the time limit"
            kill_group(self._process)
            raise self.lost() from None
        except ValueError:
            raise self.invalid_answer() from None

    def has_answer(self) -> bool:
        """Return True if a frame waits to be received."""
        return not self._frames.empty()

    def lost(self, what: str = "") -> WorkerLost:
        """Return the error for a lost worker, with the reason."""
        if not (what or self._why):
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_GOODBYE_S)
            what = _ended(self._process.poll())
        return WorkerLost(self._sentence(self._why or what))

    def invalid_answer(self) -> WorkerLost:
        """Close the connection and return the error for an invalid answer."""
        self._why = self._why or "sent an unreadable message"
        kill_group(self._process)
        return self.lost()

    def close(self, wait_s: float = _GOODBYE_S) -> None:
        """Stop the worker: close the pipe, wait, then kill the process."""
        self._over.set()
        if self._writing.acquire(timeout=0.5):
            with suppress(OSError, ValueError):
                if self._process.stdin is not None:
                    self._process.stdin.close()
            self._writing.release()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(wait_s)
        kill_group(self._process)
        self._process.wait()
        self._join()

    def _join(self) -> None:
        """Wait briefly for the threads to end; a program that keeps a pipe open can delay them."""
        until = time.monotonic() + _GOODBYE_S
        living = [thread for thread in self._threads if thread.ident is not None]
        while living and time.monotonic() < until:
            with suppress(queue.Empty):
                self._frames.get_nowait()  # the reader may be waiting for space in the queue
            living[0].join(0.02)
            living = [thread for thread in living if thread.is_alive()]
        if not living:
            end(self._process)
            if self._process.stderr is not None:
                self._process.stderr.close()
        with suppress(queue.Full):
            self._frames.put_nowait(None)

    def _greet(self, start_s: float) -> WorkerHello:
        stdin = self._process.stdin
        with suppress(OSError):  # a failure is reported when the answer is read
            stdin.write(CLIENT_LINE + hello_frame(Hello(PROTOCOL, __version__)))  # type: ignore[union-attr]  # it is a pipe
            stdin.flush()  # type: ignore[union-attr]  # as above
        try:
            frame = self._frames.get(timeout=start_s)
        except queue.Empty:
            raise WorkerLost(self._sentence(f"did not answer within {start_s:g} s")) from None
        if frame is None:
            raise self.lost()
        hello = self._hello(frame[0])
        if hello.missing:
            problem = (
                f"{show_command(self.command)} has no library: {printable(hello.missing[:500])}"
            )
            raise NoCompiler(f"the HTP worker {problem}")
        beats = threading.Thread(target=self._send_beats, daemon=True)
        beats.start()
        self._threads.append(beats)
        self._greeted = True
        return hello

    def _hello(self, text: bytes) -> WorkerHello:
        """Return the worker's hello; raise WorkerError if its version differs."""
        try:
            versions = msgspec.json.decode(text, type=ready(Hello))
            if other := versions.difference():
                problem = f"{other}: install the same version of qnnmem on both machines"
                raise WorkerError(f"the HTP worker {show_command(self.command)} {problem}")
            hello = msgspec.json.decode(text, type=ready(WorkerHello))
        except (ValueError, RecursionError):
            raise self.invalid_answer() from None
        if not hello.missing and hello.library is None:
            raise self.invalid_answer()
        return hello

    @property
    def library(self) -> Library:
        """The library of the worker."""
        if self.hello.library is None:
            raise AssertionError("this worker has no library, which `connect` should have refused")
        package, runtime, folder = self.hello.library
        return Library(package, runtime, Path(folder), self.command)

    def _sentence(self, what: str) -> str:
        self._threads[1].join(0.5)
        words = f"the HTP worker {show_command(self.command)} {what}"
        last = _last_line(self._errors) or _last_line(self._noise)
        return f"{words}; last line of its output: {last}" if last else words

    def _read(self) -> None:
        """Read frames from the pipe until it ends."""
        stream: BinaryIO = self._process.stdout  # type: ignore[assignment]  # it is a pipe
        try:
            if self._find_greeting(stream):
                for _ in self._queue_frames(stream, MAX_REPLY):
                    pass
        except (OSError, ValueError):
            self._why = self._why or "sent an unreadable message"
        finally:
            if self._why:
                kill_group(self._process)
            self._frames.put(None)

    def _find_greeting(self, stream: BinaryIO) -> bool:
        """Skip the output of a login; return False if the program is not a worker."""
        room = MAX_NOISE
        while room > 0 and (line := stream.readline(room)):
            room -= len(line)
            if line.strip() == WORKER_LINE.strip():
                self._heard = time.monotonic()
                if line.endswith(b"\r\n"):
                    self._why = (
                        "is reached through a terminal, which changes bytes (use ssh without -t)"
                    )
                return not self._why
            if line.strip() == CLIENT_LINE.strip():
                self._why = "echoes its input, so it is not a worker"
                return False
            self._noise = (self._noise + line)[-_TAIL:]
            self._heard = time.monotonic()
        if room <= 0:
            self._why = "sent no greeting, so it is not a worker"
        return False

    def _read_errors(self) -> None:
        """Store the last output of the command on standard error."""
        descriptor = self._process.stderr.fileno()  # type: ignore[union-attr]  # it is a pipe
        with suppress(OSError):
            while chunk := os.read(descriptor, _TAIL):
                self._errors = (self._errors + chunk)[-_TAIL:]

    def _send_beats(self) -> None:
        with suppress(WorkerLost):
            self._beat(self.send)

    def _watch(self) -> None:
        """Kill a worker after a long silence, because a network can fail without notice."""
        if self._falls_silent():
            self._why = self._why or f"was silent for {self._silence_s:g} s"
            kill_group(self._process)

    def _is_silent(self) -> bool:
        return self._greeted and super()._is_silent()  # the start has its own limit


def _start(command: Command) -> subprocess.Popen[bytes]:
    """Start a command in its own session, safe from Ctrl-C and password prompts."""
    pipe = subprocess.PIPE
    try:
        return subprocess.Popen(  # noqa: S603  the user's own command, no shell
            command, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True
        )
    except (OSError, ValueError) as exc:
        reason = (getattr(exc, "strerror", None) or str(exc)).lower()
        problem = f"the HTP worker {show_command(command)} cannot be started ({reason})"
        raise WorkerLost(problem) from exc


def _ended(status: int | None) -> str:
    if status is None:
        return "closed the connection"
    return f"was ended by signal {-status}" if status < 0 else f"ended with status {status}"


def _last_line(text: bytes) -> str:
    lines = [line.strip() for line in text.decode("utf-8", "replace").splitlines()]
    shown = [printable(line) for line in lines if line]
    return shown[-1][:_SHOWN] if shown else ""


_PARKED: dict[Command, Connection] = {}


def connect(command: Command) -> Connection:
    """Return a connection to a worker: a parked connection or a new one."""
    parked = _PARKED.pop(command, None)
    if parked is not None:
        if parked.is_alive:
            return parked
        parked.close()
    return Connection(command)


def park(connection: Connection) -> None:
    """Keep a connection open for the next request, at most until this process exits."""
    if not _PARKED:
        atexit.register(close_parked)
    before = _PARKED.pop(connection.command, None)
    if before is not None:
        before.close()
    _PARKED[connection.command] = connection


def close_parked() -> None:
    """Close all parked connections."""
    while _PARKED:
        _PARKED.popitem()[1].close()


# --- Requests: files are sent and received through the pipe ---------------------------------------


R = TypeVar("R", bound=WireMessage)
_MAX_LOG = 256 << 20  # bytes
_MAX_RESULTS = 64  # result files of one request
_LATE_S = 60.0  # added to the limit, for transferring files
_PAUSE_S = 0.2  # between two progress calls while files are sent

Keep = Callable[[bytes], None]


class RemoteLibrary:
    """Sends requests through a connection; reconnects if it is lost."""

    def __init__(self, library: Library) -> None:
        self._library = library
        self._connection: Connection | None = None

    @property
    def pid(self) -> int | None:
        """Process id of the command while it runs."""
        return None if self._connection is None else self._connection.pid

    @property
    def memory_limit(self) -> int:
        """The largest address space of a request on the worker's machine, in bytes."""
        return self.connect().hello.memory_limit

    def close(self) -> None:
        """Close the connection, which also stops the worker's current request."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def ask(
        self,
        request: AnyRequest,
        places: Sequence[MappedBytes],
        watch: Watch,
        memory_limit: int | None,
        stop_at: bytes | None,
        keep: Keep | None,
    ) -> RequestOutcome:
        """Return the outcome of a request on the worker; `keep` receives the whole log."""
        if not isinstance(request, RemoteRequest):
            raise UsageError(
                "a library on another machine does not support this request; use a library "
                "on this machine"
            )
        parcel = pack(request, places)
        try:
            connection, missing = self._offer(parcel)
            self._send_files(connection, parcel, missing, watch)
            connection.send(
                Ask(
                    parcel.request,
                    min(watch.deadline.limit_s, connection.hello.time_limit_s),
                    memory_limit,
                    None if stop_at is None else stop_at.decode(),
                    keep is not None,
                )
            )
            return _Answer(connection, request, parcel, watch, keep).gather()
        except WorkerLost:
            self.close()
            raise
        except WorkerError:  # the worker refused and is ready for the next request
            raise
        except BaseException:  # from the caller's progress, or Ctrl-C: the answer is not needed
            self.close()
            raise

    def _offer(self, parcel: Parcel) -> tuple[Connection, list[str]]:
        """Return a responding connection, and the files that the worker lacks."""
        files = [file.name for file in parcel.files.values()]
        if len(files) > MAX_FILES:
            raise OutputError(f"a request can send at most {MAX_FILES:,} files to a worker")
        for is_new in (self._connection is None, True):
            connection = self.connect()
            try:
                connection.send(Have(files))
                missing = _expect(connection, Missing).files
            except WorkerLost:
                self.close()
                if is_new:
                    raise
                continue  # the worker was lost between requests
            if len(set(missing)) < len(missing) or not set(missing) <= parcel.files.keys():
                raise connection.invalid_answer()
            return connection, missing
        raise AssertionError  # the second connection is new

    def connect(self) -> Connection:
        """Return the connection, after reconnecting if it was lost."""
        if self._connection is not None and not self._connection.is_alive:
            self.close()
        if self._connection is None:
            self._connection = connect(self._library.command)
        return self._connection

    def _send_files(
        self, connection: Connection, parcel: Parcel, missing: list[str], watch: Watch
    ) -> None:
        total, done = sum(parcel.files[digest].name.size for digest in missing), 0
        reported = 0.0
        for digest in missing:
            file = parcel.files[digest]
            connection.send(SendFile(file.name, file.keep))
            for part in file.parts():
                if connection.has_answer():  # the worker may refuse a file before all of it is sent
                    break
                connection.send(FilePart(), part)
                done += len(part)
                if watch.progress is not None and time.monotonic() - reported > _PAUSE_S:
                    reported = time.monotonic()
                    watch.progress(Tick(watch.seconds, None, None, (done, total)))
            _expect(connection, Stored)
        watch.restart()  # the limit is for the library


def _expect(connection: Connection, kind: type[R]) -> R:
    """Return the next message of this type; raise WorkerError if the worker refuses."""
    message, _ = connection.receive()
    if isinstance(message, WorkerRefusal):
        raise _refusal(connection, message)
    if not isinstance(message, kind):
        raise connection.invalid_answer()
    return message


def _refusal(connection: Connection, message: WorkerRefusal) -> WorkerError:
    why = printable(message.sentence[:1000])
    return WorkerError(
        f"the HTP worker {show_command(connection.command)} refused the request: {why}"
    )


class _Answer:
    """Reader of the answer to one request; the answer is not trusted."""

    def __init__(
        self,
        connection: Connection,
        request: AnyRequest,
        parcel: Parcel,
        watch: Watch,
        keep: Keep | None,
    ) -> None:
        self._connection, self._request, self._parcel = connection, request, parcel
        self._watch, self._keep = watch, keep
        self._deadline = Deadline.after(watch.deadline.limit_s, _LATE_S)
        self._made: dict[str, Path] = {}
        self._log: list[bytes] = []
        self._room = {"log": _MAX_LOG, "results": MAX_RESULT}

    def gather(self) -> RequestOutcome:
        """Return the outcome of a request from all frames of its answer."""
        while True:
            match self._connection.receive(self._deadline)[0]:
                case RemoteProgress() as progress:
                    self._watch.peak_rss = progress.peak_rss
                    self._watch.look()
                case ResultFile() as file:
                    self._file(file)
                case RemoteOutcome() as outcome:
                    return self._checked(outcome)
                case WorkerRefusal() as refused:
                    raise _refusal(self._connection, refused)
                case _:
                    raise self._connection.invalid_answer()

    def _file(self, file: ResultFile) -> None:
        is_log = file.name is None and file.shared is None
        kind = "log" if is_log else "results"
        self._room[kind] -= file.size
        if self._room[kind] < 0 or len(self._made) >= _MAX_RESULTS:
            raise self._connection.invalid_answer()
        if is_log:
            self._parts(file.size, self._log.append)
        elif file.shared is not None:
            self._fill(file.shared, file.size)
        else:
            self._write(file.name or "", file.size)

    def _parts(self, left: int, take: Callable[[bytes], object]) -> None:
        while left > 0:
            message, part = self._connection.receive(self._deadline)
            left -= len(part)
            if not isinstance(message, FilePart) or not part or left < 0:
                raise self._connection.invalid_answer()
            take(part)

    def _fill(self, number: int, size: int) -> None:
        """Copy received data into the caller's shared memory."""
        if number >= len(self._parcel.shared):
            raise self._connection.invalid_answer()
        view = self._parcel.shared[number].view.cast("B")
        if size != len(view):
            raise self._connection.invalid_answer()
        parts: list[bytes] = []
        self._parts(size, parts.append)
        view[:] = b"".join(parts)

    def _write(self, name: str, size: int) -> None:
        """Write a result file, whose name must start with the output's stem, next to the output."""
        output = self._parcel.output
        plain = name.isprintable() and name == Path(name).name and "\\" not in name
        if output is None or not plain or not name.startswith(output.stem):
            raise self._connection.invalid_answer()
        target = output.parent / name
        try:
            with target.open("wb") as stream:
                self._parts(size, stream.write)
        except OSError as exc:
            raise OutputError(
                f"{target} cannot be written ({(exc.strerror or str(exc)).lower()})"
            ) from exc
        self._made[name] = target

    def _checked(self, message: RemoteOutcome) -> RequestOutcome:
        """Return the outcome with local paths and names; its reply must have the expected type."""
        outcome = message.outcome
        output = self._parcel.output
        here = message.out if output is None else str(output.parent)
        names = {message.out: here, f"{message.root}/": ""}
        self._pass_on_log(names)
        reply = None if outcome.reply is None else self._here(outcome.reply)
        if outcome.is_done and not isinstance(reply, self._request.reply):
            raise self._connection.invalid_answer()
        return replace(
            outcome,
            reply=reply,
            sentence=_renamed(outcome.sentence, names),
            log=tuple(LogLine(_renamed(line.text, names), line.level) for line in outcome.log),
            tail=tuple(_renamed(line, names) for line in outcome.tail),
        )

    def _here(self, reply: Reply) -> Reply:
        """Return the reply with the paths of the received files.

        Reject a reply that names any other file.
        """
        try:
            return with_paths(reply, lambda path: self._made[str(path)], self._request)
        except (KeyError, ValueError):
            raise self._connection.invalid_answer() from None

    def _pass_on_log(self, names: Mapping[str, str]) -> None:
        if self._keep is None:
            return
        text = b"".join(self._log)
        for there, here in names.items():
            text = text.replace(there.encode(), here.encode())
        self._keep(text)


def _renamed(text: str, names: Mapping[str, str]) -> str:
    for there, here in names.items():
        text = text.replace(there, here)
    return text
