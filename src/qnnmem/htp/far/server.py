"""The far end of a pipe to a worker: what `qnnmem htp-worker` does until the pipe is closed.

Three threads: one reads what the client sends, one sends beats, and the main one does the work.
When the client is gone, closed or silent, the work ends at once and its folder is removed.
"""

from __future__ import annotations

import os
import queue
import shutil
import signal
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

from qnnmem.child import Frame, read_frame, write_frame
from qnnmem.errors import Damaged, NoCompiler, OutputError, QnnMemError
from qnnmem.htp.far import wire
from qnnmem.htp.far.request import RequestFolder, read_request
from qnnmem.htp.far.store import FileStore, IncomingFile, full_or
from qnnmem.htp.installed import Library, installed_library
from qnnmem.htp.worker import RequestOutcome, Tick, Worker, default_memory_limit
from qnnmem.temporary_folder import remove_abandoned_inside, temporary_folder
from qnnmem.text import sentence
from qnnmem.version import __version__

TICK_S = 0.5
_QUEUED = 8  # frames
_LAST_S = 10.0  # for the work to end by itself when the client is gone


class _ClientGone(Exception):
    """The client closed the pipe, or is not heard any more."""


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """What a client may take at most."""

    time_limit_s: float
    memory_limit: int  # bytes of address space of one request


def run_server(folder: Path, cache_bytes: int, limits: ServerLimits) -> int:
    """Serve the client at standard input and output; nothing else may write there."""
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    for name in ("SIGTERM", "SIGHUP", "SIGINT"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), _leave)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN) if hasattr(signal, "SIGPIPE") else None
    store = FileStore(folder, cache_bytes)
    remove_abandoned_inside(folder)
    Server(sys.stdin.buffer, replies, store, limits).serve()
    remove_abandoned_inside(folder)  # of workers that were killed in the meantime
    return 0


def _leave(_number: int, _frame: object) -> None:
    raise _ClientGone


class Server:
    """One client, served until it leaves."""

    def __init__(
        self, requests: BinaryIO, replies: BinaryIO, store: FileStore, limits: ServerLimits
    ) -> None:
        self._requests, self._replies = requests, replies
        self._store, self._limits = store, limits
        self._frames: queue.Queue[Frame | None] = queue.Queue(_QUEUED)
        self._writing, self._gone = threading.Lock(), threading.Event()
        self._left = threading.Event()  # nothing is under way any more
        self._heard, self._waits, self._busy = time.monotonic(), False, False
        self._incoming: IncomingFile | None = None
        self._keeps = True  # the file that comes in is for later requests, too
        self._ticked = 0.0

    def serve(self) -> None:
        """Greet, then answer until the client is gone."""
        with temporary_folder(self._store.folder) as work, suppress(_ClientGone):
            held = Path(work, "held")
            held.mkdir()
            self._replies.write(wire.WORKER_LINE)
            if not self._greet():
                return
            loops = (self._read, self._beat, lambda: self._watch(Path(work)))
            for loop in loops:
                threading.Thread(target=loop, daemon=True).start()
            with Worker(warm=True, library=installed_library()) as worker:
                while (frame := self._frames.get()) is not None:
                    self._answer(frame, RequestFolder(Path(work, "request"), held), worker)
        self._gone.set()
        self._left.set()

    def _greet(self) -> bool:
        """Say who is here; False where nothing can be served."""
        hello: dict[str, Any] = {"hello": wire.PROTOCOL, "qnnmem": __version__}
        try:
            found: Library | None = installed_library()
        except NoCompiler as exc:
            found, hello["missing"] = None, str(exc)
        if found is not None:
            words = (found.package_version, found.onnxruntime_version, found.folder)
            hello |= {"library": [str(word) for word in words], **asdict(self._limits)}
        self._send(hello)
        # A client of another version reads the hello and leaves.
        line = self._requests.readline(len(wire.CLIENT_LINE)) and self._requests.readline(
            len(wire.CLIENT_LINE)
        )
        theirs = None
        with suppress(ValueError, RecursionError):  # no client of ours
            theirs = read_frame(self._requests, wire.MAX_REQUEST) if line else None
        known = theirs is not None and theirs[0].get("hello") == wire.PROTOCOL
        return found is not None and known

    def _send(self, header: Mapping[str, Any], payload: bytes = b"") -> None:
        if self._gone.is_set():
            raise _ClientGone
        try:
            with self._writing:
                write_frame(self._replies, dict(header), payload)
        except (OSError, ValueError):
            raise _ClientGone from None

    def _read(self) -> None:
        """Take what the client sends; its end, or a request during another, ends everything."""
        try:
            while (frame := read_frame(self._requests, wire.MAX_REQUEST)) is not None:
                self._heard = time.monotonic()
                if frame[0].get("op") == "beat":
                    continue
                if self._busy:
                    break
                self._waits = True
                self._frames.put(frame)
                self._waits, self._heard = False, time.monotonic()
        except (OSError, ValueError, RecursionError):
            pass
        self._gone.set()
        self._frames.put(None)

    def _beat(self) -> None:
        with suppress(_ClientGone):
            while not self._gone.wait(wire.BEAT_S):
                self._send({"event": "beat"})

    def _watch(self, work: Path) -> None:
        """End everything when the client is not heard any more, by force where that is needed."""
        while not self._gone.wait(1.0):
            if self._is_silent() and not self._gone.wait(2.0) and self._is_silent():
                self._gone.set()
        with suppress(queue.Full):
            self._frames.put_nowait(None)
        if not self._left.wait(_LAST_S):
            shutil.rmtree(work, ignore_errors=True)
            os._exit(1)  # the lifeline of its child ends with this process

    def _is_silent(self) -> bool:
        return not self._waits and time.monotonic() - self._heard > wire.SILENCE_S

    def _answer(self, frame: Frame, folder: RequestFolder, worker: Worker) -> None:
        header, payload = frame
        op = header.get("op")
        try:
            if op == "have":
                self._say_missing(header, folder.held)
            elif op == "file":
                self._begin(header, folder.held)
            elif op == "part":
                self._take(payload)
            elif op == "ask":
                self._ask(header, folder, worker)
            else:
                raise Damaged("is none")
        except _ClientGone:
            raise
        except OutputError as exc:
            self._fail(str(exc))
        except (QnnMemError, OSError, MemoryError) as exc:
            why = full_or(exc) if isinstance(exc, OSError) else exc
            self._fail(f"the request {why}" if isinstance(exc, Damaged) else sentence(why))

    def _fail(self, why: str) -> None:
        self._drop()
        self._busy = False
        self._send({"event": "error", "sentence": why[:1000]})

    def _drop(self) -> None:
        incoming, self._incoming = self._incoming, None
        if incoming is not None:
            incoming.drop()

    def _say_missing(self, header: Mapping[str, Any], held: Path) -> None:
        files = header.get("files")
        if not isinstance(files, list) or len(files) > wire.MAX_FILES:
            raise Damaged("has no list of files")
        missing = []
        for one in files:
            digest, size = _named(one)
            if not self._store.hold(digest, size, held):
                missing.append(digest)
        self._send({"event": "missing", "files": missing})

    def _begin(self, header: Mapping[str, Any], held: Path) -> None:
        digest, size = _named([header.get("sha256"), header.get("size")])
        self._drop()
        self._store.make_room(size)
        self._keeps = header.get("keep") is not False
        self._incoming = IncomingFile(digest, size, held)
        self._take(b"")

    def _take(self, part: bytes) -> None:
        if self._incoming is None:
            return  # of a file that was refused
        self._incoming.take(part)
        if self._incoming.is_whole:
            made = self._incoming.finish()
            self._incoming = None
            if self._keeps:
                self._store.keep(made)
            self._send({"event": "stored"})

    def _ask(self, header: Mapping[str, Any], folder: RequestFolder, worker: Worker) -> None:
        """Serve one request; its folder is gone before its outcome is sent."""
        self._drop()
        self._busy = True
        try:
            folder.make()
            options = read_request(header.get("verb"), header.get("options"), folder)
            log = folder.root / "log.txt" if header.get("log") is True else None
            stop_at = header.get("stop_at")
            outcome = worker.ask(
                str(header["verb"]),
                options,
                time_limit_s=min(_number(header, "time_limit_s"), self._limits.time_limit_s),
                memory_limit=self._memory(header),
                stop_at=stop_at.encode("utf-8", "replace") if isinstance(stop_at, str) else None,
                log_file=log,
                progress=self._tick,
            )
            said = self._deliver(outcome, folder, log)
        finally:
            folder.remove()
        self._busy = False
        self._send(said)

    def _memory(self, header: Mapping[str, Any]) -> int:
        if header.get("memory_limit") is None:
            return self._limits.memory_limit
        return int(min(_number(header, "memory_limit"), self._limits.memory_limit))

    def _tick(self, tick: Tick) -> None:
        """Pass a sign of life on; whoever is not wanted any more stops here."""
        if self._gone.is_set():
            raise _ClientGone
        if time.monotonic() - self._ticked >= TICK_S:
            self._ticked = time.monotonic()
            self._send({"event": "tick", "seconds": tick.seconds, "peak_rss": tick.peak_rss})

    def _deliver(
        self, outcome: RequestOutcome, folder: RequestFolder, log: Path | None
    ) -> dict[str, Any]:
        """Send the files of an outcome; gives what remains to be said."""
        made: list[Path] = []
        reply = _with_numbers(outcome.reply, folder.out, made)
        for number, path in enumerate(made):
            self._send_file(path, {"index": number, "name": path.name})
        for path in sorted((folder.root / "shared").iterdir()):
            self._send_file(path, {"shared": int(path.name)})
        if log is not None and log.is_file():
            self._send_file(log, {"log": True})
        rest = asdict(outcome)
        rest["log"] = [[line.text, line.level] for line in outcome.log]
        work = {"out": str(folder.out), "root": str(folder.root)}
        return {"event": "outcome", **rest, "reply": reply, "work": work}

    def _send_file(self, path: Path, name: Mapping[str, Any]) -> None:
        left = path.stat().st_size
        self._send({"event": "file", "size": left, **name})
        for part in wire.parts_of(path):
            self._send({"event": "part"}, part)


def _named(value: object) -> tuple[str, int]:
    if isinstance(value, list) and len(value) == 2:
        digest, size = value
        if wire.is_digest(digest) and wire.is_count(size):
            return digest, size
    raise Damaged("names a file by something else than its content")


def _number(header: Mapping[str, Any], name: str) -> float:
    value = header.get(name)
    if type(value) not in (int, float) or not 0 < value < 1 << 62:  # type: ignore[operator]
        raise Damaged(f"has no {name}")
    return value  # type: ignore[return-value]


def _with_numbers(value: Any, out: Path, made: list[Path]) -> Any:
    """A reply in which every path of a result is its number in `made`."""
    if isinstance(value, Mapping):
        return {key: _with_numbers(one, out, made) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_with_numbers(one, out, made) for one in value]
    if isinstance(value, str) and value.startswith(f"{out}{os.sep}") and Path(value).is_file():
        made.append(Path(value))
        return {"file": len(made) - 1}
    return value


def server_limits(time_limit_s: float, memory_limit: int | None) -> ServerLimits:
    """Limits of a server: those given, never more than the machine has."""
    most = default_memory_limit()
    return ServerLimits(time_limit_s, most if memory_limit is None else min(memory_limit, most))
