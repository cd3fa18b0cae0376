"""The client's end of the pipe to a remote worker: the process of a command, its hello, its end."""

from __future__ import annotations

import atexit
import os
import queue
import subprocess
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from qnnmem.child import end, kill_group
from qnnmem.deadline import Deadline
from qnnmem.errors import NoCompiler, UsageError, WorkerError, WorkerLost
from qnnmem.htp.installed import Library
from qnnmem.htp.remote.command import Command, show_command
from qnnmem.htp.remote.messages import (
    BEAT_S,
    CLIENT_LINE,
    MAX_NOISE,
    MAX_REPLY,
    PROTOCOL,
    SILENCE_S,
    START_S,
    WORKER_LINE,
    Beat,
    FromWorker,
    Hello,
    WorkerHello,
    hello_frame,
)
from qnnmem.struct_types import ready
from qnnmem.text import printable
from qnnmem.version import __version__
from qnnmem.wire import Frame, WireMessage, decode, encode, read_raw, write_frame

_BEAT = encode(Beat())
_TAIL = 8 << 10  # bytes of what a command says on standard error
_SHOWN = 300
_GOODBYE_S = 3.0  # for the worker to leave by itself, which ends containers and logins, too
_QUEUED = 16  # frames


class Connection:
    """A worker that a command started, spoken to in frames; it ends when this is closed.

    Whatever goes wrong with it is a WorkerLost, whose sentence ends with what the command said.
    """

    def __init__(
        self, command: Command, start_s: float = START_S, silence_s: float = SILENCE_S
    ) -> None:
        self.command, self._silence_s = command, silence_s
        self._writing, self._closing = threading.Lock(), threading.Event()
        self._frames: queue.Queue[tuple[bytes, bytes] | None] = queue.Queue(_QUEUED)
        self._heard, self._waits, self._greeted = time.monotonic(), False, False
        self._noise = self._said = b""
        self._why = ""  # it was ended, or cannot be understood
        self._process = _start(command)
        loops = (self._read, self._read_errors, self._watch)
        self._threads = [threading.Thread(target=loop, daemon=True) for loop in loops]
        try:
            for thread in self._threads:
                thread.start()
            self.hello = self._greet(start_s)
        except BaseException as exc:
            self.close(0.2)
            if isinstance(exc, RuntimeError):  # no thread to be had
                raise UsageError(f"no worker can be watched ({exc})") from exc
            raise

    @property
    def pid(self) -> int:
        """The process of the command."""
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        """Whether it can take a request."""
        reads = self._threads[0].is_alive()
        return reads and not self._closing.is_set() and self._process.poll() is None

    def send(self, message: WireMessage, payload: bytes | memoryview = b"") -> None:
        """Send one frame."""
        try:
            with self._writing:
                write_frame(self._process.stdin, message, payload)  # type: ignore[arg-type]  # IO[bytes] of Popen
        except (OSError, ValueError):
            raise self.lost() from None

    def receive(self, deadline: Deadline | None = None) -> Frame[Any]:
        """The next frame that is not a beat, at the deadline at the latest."""
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
            self._why = self._why or "does not keep the time limit"
            kill_group(self._process)
            raise self.lost() from None
        except ValueError:
            raise self.nonsense() from None

    def has_answer(self) -> bool:
        """Whether a frame waits to be received."""
        return not self._frames.empty()

    def lost(self, what: str = "") -> WorkerLost:
        """What became of the worker, in one sentence."""
        if not (what or self._why):
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_GOODBYE_S)
            what = _ended(self._process.poll())
        return WorkerLost(self._sentence(self._why or what))

    def nonsense(self) -> WorkerLost:
        """The error for an answer that cannot be understood; the connection is of no more use."""
        self._why = self._why or "sends what cannot be understood"
        kill_group(self._process)
        return self.lost()

    def close(self, wait_s: float = _GOODBYE_S) -> None:
        """End it: first by closing the pipe, then by force."""
        self._closing.set()
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
        """Wait for the threads; a program that outlives its group may hold a pipe for ever."""
        until = time.monotonic() + _GOODBYE_S
        living = [thread for thread in self._threads if thread.ident is not None]
        while living and time.monotonic() < until:
            with suppress(queue.Empty):
                self._frames.get_nowait()  # the reader may wait for room
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
        with suppress(OSError):  # what became of it shows when the answer is read
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
            what = f"{show_command(self.command)} has no library: {printable(hello.missing[:500])}"
            raise NoCompiler(f"the HTP worker {what}")
        beats = threading.Thread(target=self._beat, daemon=True)
        beats.start()
        self._threads.append(beats)
        self._greeted = True
        return hello

    def _hello(self, text: bytes) -> WorkerHello:
        """The worker's hello; WorkerError where it is of another version."""
        try:
            versions = msgspec.json.decode(text, type=ready(Hello))
            if other := versions.difference():
                what = f"{other}: install the same qnnmem on both ends"
                raise WorkerError(f"the HTP worker {show_command(self.command)} {what}")
            hello = msgspec.json.decode(text, type=ready(WorkerHello))
        except (ValueError, RecursionError):
            raise self.nonsense() from None
        if not hello.missing and hello.library is None:
            raise self.nonsense()
        return hello

    @property
    def library(self) -> Library:
        """The library that the worker has."""
        if self.hello.library is None:
            raise AssertionError("a worker without a library is not connected")
        package, runtime, folder = self.hello.library
        return Library(package, runtime, Path(folder), self.command)

    def _sentence(self, what: str) -> str:
        self._threads[1].join(0.5)
        words = f"the HTP worker {show_command(self.command)} {what}"
        said = _last_line(self._said) or _last_line(self._noise)
        return f"{words}; it said: {said}" if said else words

    def _read(self) -> None:
        """Take frames from the pipe until it ends."""
        stream: BinaryIO = self._process.stdout  # type: ignore[assignment]  # it is a pipe
        try:
            if self._find_greeting(stream):
                while (frame := read_raw(stream, MAX_REPLY)) is not None:
                    self._heard = time.monotonic()
                    if frame[0] != _BEAT:
                        self._waits = True
                        self._frames.put(frame)
                        self._waits, self._heard = False, time.monotonic()
        except (OSError, ValueError):
            self._why = self._why or "sends what cannot be understood"
        finally:
            if self._why:
                kill_group(self._process)
            self._frames.put(None)

    def _find_greeting(self, stream: BinaryIO) -> bool:
        """Skip what a login prints; False for a program that is no worker."""
        room = MAX_NOISE
        while room > 0 and (line := stream.readline(room)):
            room -= len(line)
            if line.strip() == WORKER_LINE.strip():
                self._heard = time.monotonic()
                if line.endswith(b"\r\n"):
                    self._why = (
                        "is reached through a terminal, which changes bytes (ssh without -t)"
                    )
                return not self._why
            if line.strip() == CLIENT_LINE.strip():
                self._why = "gives back what it is sent: it is no worker"
                return False
            self._noise = (self._noise + line)[-_TAIL:]
            self._heard = time.monotonic()
        if room <= 0:
            self._why = "is no worker"
        return False

    def _read_errors(self) -> None:
        """Keep the end of what the command says on standard error."""
        descriptor = self._process.stderr.fileno()  # type: ignore[union-attr]  # it is a pipe
        with suppress(OSError):
            while chunk := os.read(descriptor, _TAIL):
                self._said = (self._said + chunk)[-_TAIL:]

    def _beat(self) -> None:
        """Let the worker know that somebody is here."""
        with suppress(WorkerLost):
            while not self._closing.wait(BEAT_S):
                self.send(Beat())

    def _watch(self) -> None:
        """End a worker that is not heard any more: a network may be cut without a word."""
        pause = min(1.0, self._silence_s / 4)
        while not self._closing.wait(pause):
            # Twice, because after a pause of this machine the beats are still being read.
            if self._is_silent() and not self._closing.wait(2 * pause) and self._is_silent():
                self._why = self._why or f"was silent for {self._silence_s:g} s"
                kill_group(self._process)
                return

    def _is_silent(self) -> bool:
        if self._waits or not self._greeted:  # the start has a limit of its own
            return False
        return time.monotonic() - self._heard > self._silence_s


def _start(command: Command) -> subprocess.Popen[bytes]:
    """Start a command in a session of its own: Ctrl-C is ours, and nobody asks for passwords."""
    pipe = subprocess.PIPE
    try:
        return subprocess.Popen(  # noqa: S603  the user's own command, no shell
            command, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True
        )
    except (OSError, ValueError) as exc:
        reason = (getattr(exc, "strerror", None) or str(exc)).lower()
        what = f"the HTP worker {show_command(command)} cannot be started ({reason})"
        raise WorkerLost(what) from exc


def _ended(status: int | None) -> str:
    if status is None:
        return "closed the connection"
    return f"was ended by signal {-status}" if status < 0 else f"ended with status {status}"


def _last_line(text: bytes) -> str:
    lines = [line.strip() for line in text.decode("utf-8", "replace").splitlines()]
    found = [printable(line) for line in lines if line]
    return found[-1][:_SHOWN] if found else ""


_PARKED: dict[Command, Connection] = {}


def connect(command: Command) -> Connection:
    """A connection to a worker: one that was parked, or a new one."""
    parked = _PARKED.pop(command, None)
    if parked is not None:
        if parked.is_alive:
            return parked
        parked.close()
    return Connection(command)


def park(connection: Connection) -> None:
    """Keep a connection for the next who asks for its command, at most until this process ends."""
    if not _PARKED:
        atexit.register(close_parked)
    before = _PARKED.pop(connection.command, None)
    if before is not None:
        before.close()
    _PARKED[connection.command] = connection


def close_parked() -> None:
    """End the connections that nobody asked for."""
    while _PARKED:
        _PARKED.popitem()[1].close()
