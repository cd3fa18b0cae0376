"""Requests to a worker on another machine: files go there and come back through a pipe."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from qnnmem.deadline import Deadline
from qnnmem.errors import OutputError, UsageError, WorkerError, WorkerLost
from qnnmem.htp.installed import Library
from qnnmem.htp.log import LogLine
from qnnmem.htp.remote.command import show_command
from qnnmem.htp.remote.connection import Connection, connect
from qnnmem.htp.remote.messages import (
    MAX_FILES,
    MAX_RESULT,
    Ask,
    FilePart,
    Have,
    Missing,
    RemoteOutcome,
    RemoteProgress,
    ResultFile,
    SendFile,
    Stored,
    WorkerRefusal,
)
from qnnmem.htp.remote.parcel import Parcel, SharedPlace, pack
from qnnmem.htp.requests import (
    AnyRequest,
    CompileReply,
    ComposeRequest,
    ListenReply,
    QuantizeReply,
    RemoteRequest,
    Reply,
    RequestOutcome,
    Tick,
)
from qnnmem.htp.worker.outcome import Watch
from qnnmem.text import printable
from qnnmem.wire import WireMessage

R = TypeVar("R", bound=WireMessage)
_MAX_LOG = 256 << 20  # bytes
_MAX_RESULTS = 64  # files of one answer
_LATE_S = 60.0  # beyond the limit, for files on their way
_PAUSE_S = 0.2  # between two signs of life while files are sent

Keep = Callable[[bytes], None]


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """What ends a request beside its deadline."""

    memory: int | None
    stop_at: bytes | None


class RemoteLibrary:
    """Asks through a connection, and makes a new one when that is lost."""

    def __init__(self, library: Library) -> None:
        self._library = library
        self._connection: Connection | None = None

    @property
    def pid(self) -> int | None:
        """The process of the command, while there is one."""
        return None if self._connection is None else self._connection.pid

    @property
    def memory_limit(self) -> int:
        """Address space that a request may take at most on that machine, in bytes."""
        return self.connect().hello.memory_limit

    def close(self) -> None:
        """End the connection, and with it what the worker is doing."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def ask(
        self,
        request: AnyRequest,
        places: Sequence[SharedPlace],
        watch: Watch,
        limits: RequestLimits,
        keep: Keep | None,
    ) -> RequestOutcome:
        """Have a request served; `keep` gets the whole log where the caller wants it."""
        if not isinstance(request, RemoteRequest):
            raise UsageError("the library is on another machine, which does not serve this")
        parcel = pack(request, places)
        try:
            connection, missing = self._offer(parcel)
            self._send_files(connection, parcel, missing, watch)
            connection.send(
                Ask(
                    parcel.request,
                    min(watch.deadline.limit_s, connection.hello.time_limit_s),
                    limits.memory,
                    None if limits.stop_at is None else limits.stop_at.decode(),
                    keep is not None,
                )
            )
            return _Answer(connection, request, parcel, watch, keep).gather()
        except WorkerLost:
            self.close()
            raise
        except WorkerError:  # it refused, and is ready for the next request
            raise
        except BaseException:  # of the caller's own progress, or Ctrl-C: the answer is not wanted
            self.close()
            raise

    def _offer(self, parcel: Parcel) -> tuple[Connection, list[str]]:
        """A connection that answers, and which files the worker does not have."""
        files = [file.name for file in parcel.files.values()]
        if len(files) > MAX_FILES:
            raise OutputError(f"a request takes at most {MAX_FILES:,} files to a worker")
        for is_new in (self._connection is None, True):
            connection = self.connect()
            try:
                connection.send(Have(files))
                missing = _expect(connection, Missing).files
            except WorkerLost:
                self.close()
                if is_new:
                    raise
                continue  # it went while nobody asked anything of it
            if len(set(missing)) < len(missing) or not set(missing) <= parcel.files.keys():
                raise connection.nonsense()
            return connection, missing
        raise AssertionError  # the second is new

    def connect(self) -> Connection:
        """The connection, made anew where it is lost."""
        if self._connection is not None and not self._connection.is_alive:
            self.close()
        if self._connection is None:
            self._connection = connect(self._library.command)
        return self._connection

    def _send_files(
        self, connection: Connection, parcel: Parcel, missing: list[str], watch: Watch
    ) -> None:
        total, done = sum(parcel.files[digest].name.size for digest in missing), 0
        told = 0.0
        for digest in missing:
            file = parcel.files[digest]
            connection.send(SendFile(file.name, file.keep))
            for part in file.parts():
                if connection.has_answer():  # refused, before all of it is sent
                    break
                connection.send(FilePart(), part)
                done += len(part)
                if watch.progress is not None and time.monotonic() - told > _PAUSE_S:
                    told = time.monotonic()
                    watch.progress(Tick(watch.seconds, None, None, (done, total)))
            _expect(connection, Stored)
        watch.restart()  # the limit is for the library


def _expect(connection: Connection, kind: type[R]) -> R:
    """The answer of a kind; WorkerError where the worker refuses."""
    message, _ = connection.receive()
    if isinstance(message, WorkerRefusal):
        raise _refusal(connection, message)
    if not isinstance(message, kind):
        raise connection.nonsense()
    return message


def _refusal(connection: Connection, message: WorkerRefusal) -> WorkerError:
    why = printable(message.sentence[:1000])
    return WorkerError(f"the HTP worker {show_command(connection.command)} refuses: {why}")


class _Answer:
    """What comes back for one request; none of it is trusted."""

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
        """All frames of an answer, up to its outcome."""
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
                    raise self._connection.nonsense()

    def _file(self, file: ResultFile) -> None:
        is_log = file.name is None and file.shared is None
        kind = "log" if is_log else "results"
        self._room[kind] -= file.size
        if self._room[kind] < 0 or len(self._made) >= _MAX_RESULTS:
            raise self._connection.nonsense()
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
                raise self._connection.nonsense()
            take(part)

    def _fill(self, number: int, size: int) -> None:
        """Write what the library left in shared memory to where it is shared."""
        if number >= len(self._parcel.shared):
            raise self._connection.nonsense()
        view = self._parcel.shared[number].view.cast("B")
        if size != len(view):
            raise self._connection.nonsense()
        parts: list[bytes] = []
        self._parts(size, parts.append)
        view[:] = b"".join(parts)

    def _write(self, name: str, size: int) -> None:
        """Put a result beside the one that was asked for, by a name that belongs to it."""
        output = self._parcel.output
        plain = name.isprintable() and name == Path(name).name and "\\" not in name
        if output is None or not plain or not name.startswith(output.stem):
            raise self._connection.nonsense()
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
        """An outcome of the right kind, with paths and names of this machine."""
        found = message.outcome
        output = self._parcel.output
        here = message.out if output is None else str(output.parent)
        names = {message.out: here, f"{message.root}/": ""}
        self._pass_on_log(names)
        reply = None if found.reply is None else self._here(found.reply)
        if found.is_done and not isinstance(reply, self._request.reply):
            raise self._connection.nonsense()
        return replace(
            found,
            reply=reply,
            sentence=_renamed(found.sentence, names),
            log=tuple(LogLine(_renamed(line.text, names), line.level) for line in found.log),
            tail=tuple(_renamed(line, names) for line in found.tail),
        )

    def _here(self, reply: Reply) -> Reply:
        """A reply whose files are those that came; no other file of this machine is meant."""
        try:
            return with_paths(reply, lambda path: self._made[str(path)], self._request)
        except (KeyError, ValueError):
            raise self._connection.nonsense() from None

    def _pass_on_log(self, names: Mapping[str, str]) -> None:
        if self._keep is None:
            return
        text = b"".join(self._log)
        for there, here in names.items():
            text = text.replace(there.encode(), here.encode())
        self._keep(text)


def with_paths(
    reply: Reply, change: Callable[[Path], Path], request: AnyRequest | None = None
) -> Reply:
    """A reply with other paths; ValueError if it cannot be one to the request."""
    from msgspec.structs import replace as changed

    if isinstance(reply, CompileReply):
        binaries = [change(path) for path in reply.binaries]
        epcontext = None if reply.epcontext is None else change(reply.epcontext)
        # Without a binary there need be no model of it; a composed graph never has one.
        if (epcontext is None) is not isinstance(request, ComposeRequest) and binaries and request:
            raise ValueError("a binary without its model")
        return changed(reply, binaries=binaries, epcontext=epcontext)
    if isinstance(reply, QuantizeReply):
        return changed(reply, model=change(reply.model))
    if isinstance(reply, ListenReply) and reply.data is not None:
        return changed(reply, data=change(reply.data))
    return reply


def _renamed(text: str, names: Mapping[str, str]) -> str:
    for there, here in names.items():
        text = text.replace(there, here)
    return text
