"""Requests to a worker on another machine: files go there and come back through a pipe."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, get_args

from qnnmem.errors import OutputError, WorkerError, WorkerLost
from qnnmem.htp.far import wire
from qnnmem.htp.far.command import show_command
from qnnmem.htp.far.connection import Connection, connect
from qnnmem.htp.far.parcel import Parcel, pack
from qnnmem.htp.installed import Library
from qnnmem.htp.log import LogLine
from qnnmem.htp.worker.outcome import OutcomeKind, RequestOutcome, Tick, Watch
from qnnmem.text import printable

_KINDS = get_args(OutcomeKind)
_MAX_FILE = 1 << 36  # bytes of a result
_MAX_LOG = 256 << 20  # bytes
_MAX_RESULTS = 64  # files of one answer
_LATE_S = 60.0  # beyond the limit, for files on their way
# Where replies name files, which can only be those that came with them.
_FILES = {
    "compile": ("binaries", "epcontext"),
    "compose": ("binaries",),
    "quantize": ("model",),
}
_MAX_TIME_S = 1e9
_PAUSE_S = 0.2  # between two signs of life while files are sent

Keep = Callable[[bytes], None]


class FarLibrary:
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
        """Address space that a request may take at most at the far end, in bytes."""
        return self.connect().hello.memory_limit

    def close(self) -> None:
        """End the connection, and with it what the far end is doing."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def ask(
        self,
        verb: str,
        options: Mapping[str, Any],
        watch: Watch,
        memory_limit: int | None,
        stop_at: bytes | None,
        keep: Keep | None,
    ) -> RequestOutcome:
        """Have a request served; `keep` gets the whole log where the caller wants it."""
        parcel = pack(verb, options)
        try:
            connection, missing = self._offer(parcel)
            self._send_files(connection, parcel, missing, watch)
            connection.send(
                {
                    "op": "ask",
                    "verb": verb,
                    "options": parcel.options,
                    "time_limit_s": min(watch.time_limit_s, connection.hello.time_limit_s),
                    "memory_limit": memory_limit,
                    "stop_at": None if stop_at is None else stop_at.decode(),
                    "log": keep is not None,
                }
            )
            folder = Path(options["output"]).parent if "output" in options else None
            return _Answer(connection, verb, parcel, folder, watch, keep).gather()
        except WorkerLost:
            self.close()
            raise
        except WorkerError:  # it refused, and is ready for the next request
            raise
        except BaseException:  # of the caller's own progress, or Ctrl-C: the answer is not wanted
            self.close()
            raise

    def _offer(self, parcel: Parcel) -> tuple[Connection, list[str]]:
        """A connection that answers, and which files the far end does not have."""
        files = [[one.digest, one.size] for one in parcel.files.values()]
        if len(files) > wire.MAX_FILES:
            raise OutputError(f"a request takes at most {wire.MAX_FILES:,} files to a worker")
        for is_new in (self._connection is None, True):
            connection = self.connect()
            try:
                connection.send({"op": "have", "files": files})
                missing = _expect(connection, "missing").get("files")
            except WorkerLost:
                self.close()
                if is_new:
                    raise
                continue  # it went while nobody asked anything of it
            if not isinstance(missing, list) or not set(map(str, missing)) <= parcel.files.keys():
                raise connection.nonsense()
            if len(set(missing)) < len(missing):
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
        total, done = sum(parcel.files[digest].size for digest in missing), 0
        told = 0.0
        for digest in missing:
            file = parcel.files[digest]
            head = {"op": "file", "sha256": digest, "size": file.size, "keep": file.keep}
            connection.send(head)
            for part in file.parts():
                if connection.has_answer():  # refused, before all of it is sent
                    break
                connection.send({"op": "part"}, part)
                done += len(part)
                if watch.progress is not None and time.monotonic() - told > _PAUSE_S:
                    told = time.monotonic()
                    watch.progress(Tick(told - watch.started, None, None, (done, total)))
            _expect(connection, "stored")
        watch.started = time.monotonic()  # the limit is for the library


def _expect(connection: Connection, event: str) -> dict[str, Any]:
    """The answer of a kind; WorkerError where the far end refuses."""
    header = connection.receive()[0]
    if header.get("event") == "error":
        why = printable(str(header.get("sentence"))[:1000])
        raise WorkerError(f"the HTP worker {show_command(connection.command)} refuses: {why}")
    if header.get("event") != event:
        raise connection.nonsense()
    return header


class _Answer:
    """What comes back for one request; none of it is trusted to be well-formed."""

    def __init__(
        self,
        connection: Connection,
        verb: str,
        parcel: Parcel,
        folder: Path | None,
        watch: Watch,
        keep: Keep | None,
    ) -> None:
        self._connection, self._parcel, self._folder = connection, parcel, folder
        self._verb, self._watch, self._keep = verb, watch, keep
        self._until = watch.started + watch.time_limit_s + _LATE_S
        self._made: dict[int, str] = {}
        self._log: list[bytes] = []
        self._room = {"log": _MAX_LOG, "results": _MAX_FILE}

    def gather(self) -> RequestOutcome:
        """All frames of an answer, up to its outcome."""
        while True:
            header = self._connection.receive(self._until)[0]
            event = header.get("event")
            if event == "tick":
                self._tick(header)
            elif event == "file":
                self._file(header)
            elif event == "outcome":
                return self._outcome(header)
            elif event == "error":
                why = printable(str(header.get("sentence"))[:1000])
                name = show_command(self._connection.command)
                raise WorkerError(f"the HTP worker {name} refuses: {why}")
            else:
                raise self._connection.nonsense()

    def _tick(self, header: Mapping[str, Any]) -> None:
        peak = header.get("peak_rss")
        self._watch.peak_rss = peak if wire.is_count(peak) else None
        if self._watch.progress is not None:
            seconds = time.monotonic() - self._watch.started
            self._watch.progress(Tick(seconds, self._watch.peak_rss, None))

    def _file(self, header: Mapping[str, Any]) -> None:
        given, is_log = header.get("size"), header.get("log") is True
        size = int(given or 0) if wire.is_count(given, _MAX_FILE) else _MAX_FILE + 1
        kind = "log" if is_log else "results"
        self._room[kind] -= size
        if self._room[kind] < 0 or len(self._made) >= _MAX_RESULTS:
            raise self._connection.nonsense()
        if is_log:
            self._parts(size, self._log.append)
        elif "shared" in header:
            self._fill(header["shared"], size)
        else:
            self._write(header, size)

    def _parts(self, left: int, take: Callable[[bytes], object]) -> None:
        while left > 0:
            header, part = self._connection.receive(self._until)
            left -= len(part)
            if header.get("event") != "part" or not part or left < 0:
                raise self._connection.nonsense()
            take(part)

    def _fill(self, number: object, size: int) -> None:
        """Write what the library left in shared memory to where it is shared."""
        if type(number) is not int or not 0 <= number < len(self._parcel.shared):
            raise self._connection.nonsense()
        view = self._parcel.shared[number].view.cast("B")
        if size != len(view):
            raise self._connection.nonsense()
        parts: list[bytes] = []
        self._parts(size, parts.append)
        view[:] = b"".join(parts)

    def _write(self, header: Mapping[str, Any], size: int) -> None:
        """Put a result beside the one that was asked for, by a name that belongs to it."""
        name, wanted = header.get("name"), self._parcel.options.get("output")
        stem = Path(str(wanted)).stem
        index = header.get("index")
        plain = isinstance(name, str) and name.isprintable() and name == Path(name).name
        plain = plain and "\\" not in str(name) and type(index) is int
        if (
            self._folder is None
            or not plain
            or not str(name).startswith(stem)
            or len(str(name)) > 200
        ):
            raise self._connection.nonsense()
        target = self._folder / str(name)
        try:
            with target.open("wb") as stream:
                self._parts(size, stream.write)
        except OSError as exc:
            raise OutputError(
                f"{target} cannot be written ({(exc.strerror or str(exc)).lower()})"
            ) from exc
        self._made[int(index or 0)] = str(target)

    def _outcome(self, header: Mapping[str, Any]) -> RequestOutcome:
        try:
            return self._checked(header)
        except (KeyError, TypeError, ValueError, OverflowError, AttributeError, RecursionError):
            raise self._connection.nonsense() from None

    def _checked(self, header: Mapping[str, Any]) -> RequestOutcome:
        if header["kind"] not in _KINDS:
            raise ValueError("no such outcome")
        names = self._names(header["work"])
        self._pass_on_log(names)
        reply = self._with_paths(header["reply"])
        if not isinstance(reply, dict):
            raise TypeError("no reply")
        self._check_files(reply, done=header["kind"] == "done")
        optional = ("code", "exit_status", "signal", "peak_rss")
        return RequestOutcome(
            header["kind"],
            reply,
            sentence=_renamed(str(header["sentence"]), names),
            stage=str(header["stage"]),
            log=tuple(LogLine(_renamed(str(t), names), str(lv)) for t, lv in header["log"]),
            tail=tuple(_renamed(str(line), names) for line in header["tail"]),
            seconds=_time(header["seconds"]),
            cpu_seconds=None if header["cpu_seconds"] is None else _time(header["cpu_seconds"]),
            log_bytes=_count(header["log_bytes"]),
            **{name: None if header[name] is None else _whole(header[name]) for name in optional},
        )

    def _check_files(self, reply: dict[str, Any], *, done: bool) -> None:
        """Refuse a reply that names a file of this machine: only those that came are meant."""
        came = set(self._made.values())
        for key in _FILES.get(self._verb, ()):
            if key not in reply and not done:
                continue
            named = reply[key]
            if (key == "binaries") is not isinstance(named, list):
                raise TypeError("a list of binaries, or one file")
            # Without a binary there need be no model of it.
            if not came.issuperset(named if isinstance(named, list) else [named]) and (
                named is not None or reply.get("binaries")
            ):
                raise ValueError("a file that did not come")
        if done:
            check_reply(self._verb, reply)

    def _names(self, work: Mapping[str, str]) -> list[tuple[str, str]]:
        """What folders of the far end are called here."""
        out = str(work["out"])
        if not out or not work["root"]:
            raise ValueError("folders without names")
        here = out if self._folder is None else str(self._folder)
        return [(out, here), (f"{work['root']}/", "")]

    def _pass_on_log(self, names: list[tuple[str, str]]) -> None:
        if self._keep is None:
            return
        text = b"".join(self._log)
        for there, here in names:
            text = text.replace(there.encode(), here.encode())
        self._keep(text)

    def _with_paths(self, value: Any) -> Any:
        """A reply in which every number of a file is its path here."""
        if isinstance(value, dict):
            if set(value) == {"file"}:
                return self._made[value["file"]]
            return {key: self._with_paths(one) for key, one in value.items()}
        return [self._with_paths(one) for one in value] if isinstance(value, list) else value


def check_reply(verb: str, reply: Mapping[str, Any]) -> None:
    """Refuse what a caller of a verb could not read, by ValueError, TypeError or KeyError."""
    if verb == "compose" and reply["epcontext"] is not None:
        raise TypeError("a model of ONNX Runtime, which took no part")
    if verb == "listen" and not isinstance(reply["graphs"], list):
        raise TypeError("no graphs")
    if verb in ("compile", "compose", "listen"):
        if not wire.is_count(reply["on_htp"]) or not isinstance(reply["on_cpu"], list):
            raise TypeError("no assignment of nodes")
        if not all(_is_pair(one) for one in reply["on_cpu"]):
            raise TypeError("no node")
    elif verb == "load":
        if not all(_is_code(one["code"]) for one in reply["binaries"]):
            raise TypeError("no code")
    elif verb == "calls" and not (reply["codes"] and all(map(_is_code, reply["codes"]))):
        raise TypeError("no code")


def _time(value: object) -> float:
    if type(value) not in (int, float) or not 0 <= value < _MAX_TIME_S:  # type: ignore[operator]
        raise ValueError("no time")
    return float(value)  # type: ignore[arg-type]  # as above


def _count(value: object) -> int:
    if not wire.is_count(value):
        raise ValueError("no number of bytes")
    return int(value)  # type: ignore[call-overload, no-any-return]  # as above


def _whole(value: object) -> int:
    if not _is_code(value):
        raise ValueError("no whole number")
    return int(value)  # type: ignore[call-overload, no-any-return]  # as above


def _is_pair(value: object) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(isinstance(v, str) for v in value)


def _is_code(value: object) -> bool:
    return type(value) is int and abs(value) < 1 << 63


def _renamed(text: str, names: list[tuple[str, str]]) -> str:
    for there, here in names:
        text = text.replace(there, here)
    return text
