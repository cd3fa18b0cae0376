"""The worker's end of the pipe: serves requests until the pipe is closed.

There are three threads: a reader, a sender of heartbeats, and the main thread, which does the work.
When the client disconnects or falls silent, the work stops immediately and its folder is removed.
"""

from __future__ import annotations

import os
import queue
import shutil
import signal
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

import msgspec

from qnnmem.errors import Damaged, NoCompiler, OutputError, QnnMemError
from qnnmem.htp.installed import installed_library
from qnnmem.htp.remote.files import (
    FileStore,
    IncomingFile,
    RequestFolder,
    unpack,
    with_paths,
    write_error,
)
from qnnmem.htp.remote.messages import (
    CLIENT_LINE,
    MAX_REQUEST,
    PROTOCOL,
    WORKER_LINE,
    Ask,
    FilePart,
    FromClient,
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
    parts_of,
)
from qnnmem.htp.requests import RequestOutcome, Tick
from qnnmem.htp.worker import Worker, default_memory_limit
from qnnmem.temporary_folder import remove_abandoned_inside, temporary_folder
from qnnmem.text import sentence
from qnnmem.version import __version__
from qnnmem.wire import WireMessage, decode, read_raw, write_frame

TICK_S = 0.5
_QUEUED = 8  # frames
_LAST_S = 10.0  # grace period for the work to stop after the client is gone


class _ClientGone(Exception):
    """The client closed the pipe or has been silent too long."""


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """Limits of one request of a client."""

    time_limit_s: float
    memory_limit: int  # bytes of address space of one request


def run_server(folder: Path, cache_bytes: int, limits: ServerLimits) -> int:
    """Serve the client on standard input and output, and return the exit code.

    No other code may write to standard output.
    """
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    for name in ("SIGTERM", "SIGHUP", "SIGINT"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), _leave)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN) if hasattr(signal, "SIGPIPE") else None
    store = FileStore(folder, cache_bytes)
    remove_abandoned_inside(folder)
    Server(sys.stdin.buffer, replies, store, limits).serve()
    remove_abandoned_inside(folder)  # folders of workers that were killed in the meantime
    return 0


def _leave(_number: int, _frame: object) -> None:
    raise _ClientGone


class Server(PipeEnd):
    """Serves one client until it disconnects."""

    def __init__(
        self, requests: BinaryIO, replies: BinaryIO, store: FileStore, limits: ServerLimits
    ) -> None:
        super().__init__(_QUEUED)
        self._requests, self._replies = requests, replies
        self._store, self._limits = store, limits
        self._left, self._busy = threading.Event(), False  # set when the connection is over
        self._incoming: IncomingFile | None = None
        self._keeps = True  # whether the incoming file is stored for later requests
        self._ticked = 0.0

    def serve(self) -> None:
        """Send the greeting, then serve requests until the client is gone."""
        with temporary_folder(self._store.folder) as work, suppress(_ClientGone):
            held = Path(work, "held")
            held.mkdir()
            self._replies.write(WORKER_LINE)
            if not self._greet():
                return
            loops = (self._read, self._send_beats, lambda: self._watch(Path(work)))
            for loop in loops:
                threading.Thread(target=loop, daemon=True).start()
            with Worker(warm=True, library=installed_library()) as worker:
                while (frame := self._frames.get()) is not None:
                    self._answer(frame, RequestFolder(Path(work, "request"), held), worker)
        self._over.set()
        self._left.set()

    def _greet(self) -> bool:
        """Send the greeting; return False if no request can be served."""
        hello = WorkerHello(PROTOCOL, __version__)
        try:
            library = installed_library()
        except NoCompiler as exc:
            hello = WorkerHello(PROTOCOL, __version__, missing=str(exc))
        else:
            words = (library.package_version, library.onnxruntime_version, str(library.folder))
            limits = self._limits.time_limit_s, self._limits.memory_limit
            hello = WorkerHello(PROTOCOL, __version__, words, "", *limits)
        try:
            self._replies.write(hello_frame(hello))
            self._replies.flush()
        except (OSError, ValueError):
            raise _ClientGone from None
        # A client of another version reads the hello and leaves.
        line = self._requests.readline(len(CLIENT_LINE)) and self._requests.readline(
            len(CLIENT_LINE)
        )
        theirs = None
        with suppress(ValueError, RecursionError):  # not a qnnmem client
            frame = read_raw(self._requests, MAX_REQUEST) if line else None
            theirs = None if frame is None else msgspec.json.decode(frame[0], type=Hello)
        return not hello.missing and theirs is not None and theirs.hello == PROTOCOL

    def _send(self, message: WireMessage, payload: bytes = b"") -> None:
        if self._over.is_set():
            raise _ClientGone
        try:
            with self._writing:
                write_frame(self._replies, message, payload)
        except (OSError, ValueError):
            raise _ClientGone from None

    def _read(self) -> None:
        """Queue client messages; a second request or the end of the pipe closes the connection."""
        try:
            for _ in self._queue_frames(self._requests, MAX_REQUEST):
                if self._busy:
                    break
        except (OSError, ValueError):
            pass
        self._over.set()
        self._frames.put(None)

    def _send_beats(self) -> None:
        with suppress(_ClientGone):
            self._beat(self._send)

    def _watch(self, work: Path) -> None:
        """Close the connection of a silent client; end this process if the work does not stop."""
        if self._falls_silent():
            self._over.set()
        with suppress(queue.Full):
            self._frames.put_nowait(None)
        if not self._left.wait(_LAST_S):
            shutil.rmtree(work, ignore_errors=True)
            os._exit(1)  # the child ends with this process

    def _answer(self, frame: tuple[bytes, bytes], folder: RequestFolder, worker: Worker) -> None:
        try:
            match decode(frame[0], FromClient):
                case Have() as have:
                    self._say_missing(have, folder.held)
                case SendFile() as file:
                    self._begin(file, folder.held)
                case FilePart():
                    self._take(frame[1])
                case Ask() as ask:
                    self._ask(ask, folder, worker)
        except _ClientGone:
            raise
        except OutputError as exc:
            self._fail(str(exc))
        except Damaged as exc:
            self._fail(f"the request {exc}")
        except ValueError as exc:  # an invalid message
            self._fail(f"the request is not valid: {sentence(exc)}")
        except (QnnMemError, OSError, MemoryError) as exc:
            self._fail(sentence(write_error(exc) if isinstance(exc, OSError) else exc))

    def _fail(self, why: str) -> None:
        self._drop()
        self._busy = False
        self._send(WorkerRefusal(why[:1000]))

    def _drop(self) -> None:
        incoming, self._incoming = self._incoming, None
        if incoming is not None:
            incoming.drop()

    def _say_missing(self, have: Have, held: Path) -> None:
        missing = [
            file.sha256 for file in have.files if not self._store.hold(file.sha256, file.size, held)
        ]
        self._send(Missing(missing))

    def _begin(self, message: SendFile, held: Path) -> None:
        file = message.file
        self._drop()
        self._store.make_room(file.size)
        self._keeps = message.keep
        self._incoming = IncomingFile(file.sha256, file.size, held)
        self._take(b"")

    def _take(self, part: bytes) -> None:
        if self._incoming is None:
            return  # part of a refused file
        self._incoming.take(part)
        if self._incoming.is_whole:
            file = self._incoming.finish()
            self._incoming = None
            if self._keeps:
                self._store.keep(file)
            self._send(Stored())

    def _ask(self, ask: Ask, folder: RequestFolder, worker: Worker) -> None:
        """Serve one request; its folder is removed before its outcome is sent."""
        self._drop()
        self._busy = True
        largest = self._limits.memory_limit
        try:
            folder.make()
            log = folder.root / "log.txt" if ask.log else None
            outcome = worker.ask(
                unpack(ask.request, folder),
                time_limit_s=min(ask.time_limit_s, self._limits.time_limit_s),
                memory_limit=largest
                if ask.memory_limit is None
                else min(ask.memory_limit, largest),
                stop_at=None if ask.stop_at is None else ask.stop_at.encode(),
                log_file=log,
                progress=self._tick,
            )
            delivered = self._deliver(outcome, folder, log)
        finally:
            folder.remove()
        self._busy = False
        self._send(delivered)

    def _tick(self, tick: Tick) -> None:
        """Report progress to the client; stop the work if the client is gone."""
        if self._over.is_set():
            raise _ClientGone
        if time.monotonic() - self._ticked >= TICK_S:
            self._ticked = time.monotonic()
            self._send(RemoteProgress(tick.peak_rss))

    def _deliver(
        self, outcome: RequestOutcome, folder: RequestFolder, log: Path | None
    ) -> RemoteOutcome:
        """Send the files of an outcome; return the outcome with file names in place of paths."""
        files: list[Path] = []

        def named(path: Path) -> Path:
            files.append(path)
            return Path(path.name)

        reply = None if outcome.reply is None else with_paths(outcome.reply, named)
        for path in dict.fromkeys(files):
            self._send_file(path, name=path.name)
        for path in sorted(folder.shared.iterdir()):
            self._send_file(path, shared=int(path.name))
        if log is not None and log.is_file():
            self._send_file(log)
        return RemoteOutcome(replace(outcome, reply=reply), str(folder.out), str(folder.root))

    def _send_file(self, path: Path, name: str | None = None, shared: int | None = None) -> None:
        self._send(ResultFile(path.stat().st_size, name, shared))
        for part in parts_of(path):
            self._send(FilePart(), part)


def server_limits(time_limit_s: float, memory_limit: int | None) -> ServerLimits:
    """Return the limits of a server: the given limits, capped by the machine's memory."""
    largest = default_memory_limit()
    return ServerLimits(
        time_limit_s, largest if memory_limit is None else min(memory_limit, largest)
    )
