"""The log of a child, read while it is written: what matters is kept, the rest is counted."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from qnnmem.htp.log import KEYWORDS, LogLine, read_line

MAX_KEPT = 16 << 20  # bytes; a compile has some kilobytes, a broken one may repeat itself
MAX_LINE = 1 << 20  # one line may list all nodes of a model
_CHUNK = 1 << 20
_TAIL = 32 << 10
# A compiler writes its log in tiny pieces. Waking for each would take a core away from it.
_PAUSE_S = 0.004


def _forget(_chunk: bytes) -> None:
    """Drop bytes that were not asked for."""


@dataclass(slots=True)
class _Record:
    """What was read for one request."""

    end: bytes = b""
    stop_at: bytes | None = None
    pass_on: Callable[[bytes], None] = _forget
    stopped: threading.Event = field(default_factory=threading.Event)
    ended: threading.Event = field(default_factory=threading.Event)
    partial: bytes = b""  # a line whose end has not come yet
    tail: bytes = b""
    kept: list[bytes] = field(default_factory=list)
    room: int = field(default_factory=lambda: MAX_KEPT)
    size: int = 0

    def take(self, chunk: bytes) -> None:
        """Reads some more bytes."""
        self.size += len(chunk)
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
    """Reads a pipe to its end in a thread of its own, so that the writer never waits for us."""

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
        """Start a request: forget what came before it.

        A line that holds one of the keywords and `stop_at` sets `stopped`. All bytes are passed on
        as they come.
        """
        with self._lock:
            self._now = _Record(self._mark + b" %d\n" % request, stop_at, pass_on)
            if self._closed:
                self._now.ended.set()

    @property
    def stopped(self) -> bool:
        """Whether a line asked for the end of the request."""
        return self._now.stopped.is_set()

    def wait_for_end(self, timeout_s: float) -> None:
        """Until all of a request's lines are here, or the pipe is closed."""
        self._now.ended.wait(timeout_s)

    def lines(self) -> tuple[LogLine, ...]:
        """The lines that matter, in order."""
        with self._lock:
            kept = [line for line in self._now.kept if self._mark not in line]
        return tuple(read_line(line) for line in kept)

    def tail(self, count: int) -> tuple[str, ...]:
        """The last lines, whatever they say."""
        with self._lock:
            lines = (self._now.tail + self._now.partial).split(b"\n")
        wanted = [line for line in lines if line.strip() and self._mark not in line][-count:]
        return tuple(read_line(line).text for line in wanted)

    @property
    def bytes_read(self) -> int:
        """Size of the whole log of the request."""
        return self._now.size

    def close(self) -> None:
        """Wait until the pipe is at its end; its writers must be gone."""
        self._thread.join(timeout=5)

    def _run(self) -> None:
        try:
            while chunk := os.read(self._descriptor, _CHUNK):
                with self._lock:
                    self._now.take(chunk)
                if len(chunk) < _CHUNK // 2:
                    time.sleep(_PAUSE_S)
        except OSError:
            pass  # the rest of the log is lost, not the request
        finally:
            os.close(self._descriptor)
            with self._lock:
                self._closed = True
                self._now.ended.set()


def _widen(descriptor: int) -> None:
    """Let the pipe hold as much as we read at once, where the system can do that."""
    import fcntl

    with suppress(AttributeError, OSError):
        fcntl.fcntl(descriptor, fcntl.F_SETPIPE_SZ, _CHUNK)


def _matching(text: bytes) -> list[bytes]:
    """Lines that hold a keyword; searching whole blocks is far cheaper than line by line."""
    starts = set()
    for word in KEYWORDS:
        at = text.find(word)
        while at >= 0:
            starts.add(text.rfind(b"\n", 0, at) + 1)
            at = text.find(word, text.find(b"\n", at))
    return [text[start : text.find(b"\n", start)] for start in sorted(starts)]
