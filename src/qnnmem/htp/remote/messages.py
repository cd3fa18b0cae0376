"""The protocol of the pipe to a remote worker: greeting, messages, limits, heartbeats.

Each end starts with a greeting line, which separates the protocol from the output of a login. Then
each end sends a `Hello` with its versions. Every version of the protocol writes this message as
JSON, so that any two ends can read it. After that both ends send frames of `qnnmem.wire`, and a
heartbeat every few seconds. An end that receives nothing for a minute treats the other end as gone,
whatever the network reports.

    client                                worker
    Have   names of all files             Missing  files that the worker lacks
    SendFile, then parts                  Stored
    Ask    request and limits             RemoteProgress*, then (ResultFile, then parts)*,
                                          then RemoteOutcome
                                          WorkerRefusal: one sentence, the request is over
"""

from __future__ import annotations

import hashlib
import queue
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, BinaryIO

import msgspec
from msgspec import Meta, Struct

from qnnmem.htp.requests import RemoteRequest, RequestOutcome
from qnnmem.text import quote
from qnnmem.version import __version__
from qnnmem.wire import (
    LENGTHS,
    ByteCount,
    Digest,
    Readable,
    WireMessage,
    encode,
    read_raw,
)

PROTOCOL = 2
CLIENT_LINE = b"\nqnnmem-htp-client\n"
WORKER_LINE = b"\nqnnmem-htp-worker\n"
MAX_NOISE = 64 << 10  # bytes before the greeting: output of a login
PART = 1 << 20  # bytes of a file in one frame
MAX_REQUEST = 16 << 20  # bytes of a frame to the worker
MAX_REPLY = 64 << 20  # bytes of a frame from the worker: a log has at most 16 MiB
MAX_FILES = 20_000  # files of one request
MAX_RESULT = 1 << 36  # bytes of a result
BEAT_S = 5.0
SILENCE_S = 60.0
START_S = 120.0  # an emulated machine is slow

Limit = Annotated[float, Meta(gt=0, lt=1 << 40)]  # seconds
Memory = Annotated[int, Meta(gt=0, le=1 << 50)]  # bytes


class Hello(Struct, frozen=True):
    """The versions of one end of the pipe."""

    hello: int
    qnnmem: Annotated[str, Meta(max_length=100)]

    def difference(self) -> str:
        """Return which version of the other end differs from this end's; empty if none does."""
        ours, theirs = (version.split(".")[:2] for version in (__version__, self.qnnmem))
        if ours != theirs:
            return f"has qnnmem {quote(self.qnnmem[:20])}, but this side has {__version__}"
        if self.hello != PROTOCOL:
            return f"uses protocol {self.hello}, but this side uses {PROTOCOL}"
        return ""


Word = Annotated[str, Meta(max_length=1000)]


class WorkerHello(Hello, frozen=True):
    """A worker's library and limits, or the reason why it has no library."""

    library: tuple[Word, Word, Word] | None = None  # versions of its packages, and its folder
    missing: str = ""
    time_limit_s: Limit = 1.0  # of one request, at most
    memory_limit: Memory = 1  # bytes of address space of one request, at most


def hello_frame(hello: Hello) -> bytes:
    """Return the encoded bytes of a hello."""
    text = msgspec.json.encode(hello)
    return LENGTHS.pack(len(text), 0) + text


class Beat(WireMessage, frozen=True):
    """A heartbeat."""


class FileName(Struct, frozen=True):
    """The SHA-256 and the size of a file."""

    sha256: Digest
    size: ByteCount


class Have(WireMessage, frozen=True):
    """The files of the next request."""

    files: Annotated[list[FileName], Meta(max_length=MAX_FILES)]


class Missing(WireMessage, frozen=True):
    """Files that the client must send."""

    files: Annotated[list[Digest], Meta(max_length=MAX_FILES)]


class SendFile(WireMessage, frozen=True):
    """Announces a file that follows in parts; `keep` is false if only the next request needs it."""

    file: FileName
    keep: bool = True


class FilePart(WireMessage, frozen=True):
    """The next bytes of a file, as payload."""


class Stored(WireMessage, frozen=True):
    """Confirms that a file is stored."""


class Ask(WireMessage, frozen=True):
    """A request with its limits; `log` asks for the whole log."""

    request: RemoteRequest
    time_limit_s: Limit
    memory_limit: Memory | None = None
    stop_at: str | None = None
    log: bool = False


class RemoteProgress(WireMessage, frozen=True):
    """Progress of a running request."""

    peak_rss: ByteCount | None = None


class ResultFile(WireMessage, frozen=True):
    """Announces a result that follows in parts: a file, numbered shared memory, or the log."""

    size: Annotated[int, Meta(ge=0, le=MAX_RESULT)]
    name: Annotated[str, Meta(min_length=1, max_length=200)] | None = None
    shared: Annotated[int, Meta(ge=0, lt=MAX_FILES)] | None = None


class RemoteOutcome(WireMessage, frozen=True):
    """The outcome of a request; its texts can contain the worker's paths `out` and `root`."""

    outcome: RequestOutcome
    out: Annotated[str, Meta(min_length=1)]  # folder of results
    root: Annotated[str, Meta(min_length=1)]  # folder of the request


class WorkerRefusal(WireMessage, frozen=True):
    """The reason why a request is not served."""

    sentence: Annotated[str, Meta(max_length=2000)]


FromClient = Beat | Have | SendFile | FilePart | Ask
FromWorker = (
    Beat | Missing | Stored | RemoteProgress | ResultFile | FilePart | RemoteOutcome | WorkerRefusal
)


_BEAT = encode(Beat())


class PipeEnd:
    """One end of the pipe: received frames, heartbeats, and detection of a dead other end."""

    def __init__(self, queued: int, silence_s: float = SILENCE_S) -> None:
        self._frames: queue.Queue[tuple[bytes, bytes] | None] = queue.Queue(queued)
        self._writing, self._over = threading.Lock(), threading.Event()
        self._silence_s, self._heard = silence_s, time.monotonic()
        self._waits = False  # True while the reader waits for space in the queue

    def _queue_frames(self, stream: Readable, limit: int) -> Iterator[None]:
        """Queue incoming frames until the pipe ends; yield before each frame except heartbeats."""
        while (frame := read_raw(stream, limit)) is not None:
            self._heard = time.monotonic()
            if frame[0] != _BEAT:
                yield
                self._waits = True
                self._frames.put(frame)
                self._waits, self._heard = False, time.monotonic()

    def _beat(self, send: Callable[[WireMessage], None]) -> None:
        """Send heartbeats until this end is closed."""
        while not self._over.wait(BEAT_S):
            send(Beat())

    def _falls_silent(self) -> bool:
        """Return True once the other end is silent for too long; False if this end closes."""
        pause = min(1.0, self._silence_s / 4)
        while not self._over.wait(pause):
            # Checked twice: after a pause of this machine, heartbeats may still be unread.
            if self._is_silent() and not self._over.wait(2 * pause) and self._is_silent():
                return True
        return False

    def _is_silent(self) -> bool:
        return not self._waits and time.monotonic() - self._heard > self._silence_s


def digest_of(stream: BinaryIO) -> tuple[str, int]:
    """Return SHA-256 and size of the remaining bytes of a stream."""
    total, size = hashlib.sha256(), 0
    while chunk := stream.read(PART):
        total.update(chunk)
        size += len(chunk)
    return total.hexdigest(), size


def parts_of(path: Path) -> Iterator[bytes]:
    """Yield the bytes of a file in chunks that fit into a frame."""
    with path.open("rb") as stream:
        while chunk := stream.read(PART):
            yield chunk


def is_digest(value: str) -> bool:
    """Return True if a name is a lower-case SHA-256 in hex."""
    return len(value) == 64 and set(value) <= set("0123456789abcdef")
