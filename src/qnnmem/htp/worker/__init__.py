"""The HTP library at arm's length: a child process, and what became of each request to it."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, NamedTuple

from qnnmem.child import read_frame, write_frame
from qnnmem.htp.library import Library, find_library
from qnnmem.htp.log import LogLine, host_memory
from qnnmem.htp.worker.log import LogTap

TIME_LIMIT_S = 600.0
TAIL_LINES = 40
MAX_LOG_FILE = 256 << 20
_END_MARK = b"[qnnmem] end of request"
_MAX_REPLY = 256 << 20
_TICK_S = 0.1
_LEAST_MEMORY = 2 << 30

Kind = Literal["done", "refused", "crashed", "timeout", "memory"]


@dataclass(frozen=True, slots=True)
class RequestOutcome:
    """What became of a request."""

    kind: Kind
    reply: Mapping[str, Any] = field(default_factory=dict)
    sentence: str = ""  # why it is not done
    code: int | None = None  # of QNN, where one was given
    stage: str = ""
    log: tuple[LogLine, ...] = ()  # the lines that matter
    tail: tuple[str, ...] = ()  # the last lines, whatever they say
    exit_status: int | None = None
    signal: int | None = None
    peak_rss: int | None = None  # bytes of the process that served the request
    seconds: float = 0.0
    cpu_seconds: float | None = None  # of that process
    log_bytes: int = 0

    @property
    def is_done(self) -> bool:
        """Whether the request was carried out."""
        return self.kind == "done"


class Tick(NamedTuple):
    """A sign of life of a running request."""

    seconds: float
    peak_rss: int | None  # bytes
    pid: int | None  # of the process that serves the request, once it is known


class Worker:
    """Serves many requests, one after another; whatever a request does, the next one works."""

    def __init__(self, *, warm: bool = False, library: Library | None = None) -> None:
        self.library = find_library() if library is None else library
        self._warm, self._count = warm, 0
        self._lock = threading.Lock()
        self._child: _Child | None = None
        if warm:  # it imports while the caller reads a model
            self._child = _Child(warm)

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the child and whatever it is doing."""
        child, self._child = self._child, None
        if child is not None:
            child.kill()

    @property
    def pid(self) -> int | None:
        """The child, while there is one."""
        return None if self._child is None else self._child.pid

    def ask(
        self,
        verb: str,
        options: Mapping[str, Any],
        *,
        time_limit_s: float = TIME_LIMIT_S,
        memory_limit: int | None = None,
        stop_at: bytes | None = None,
        log_file: Path | None = None,
        progress: Callable[[Tick], None] | None = None,
    ) -> RequestOutcome:
        """Have a request served.

        `memory_limit` is address space in bytes, by default three quarters of the machine. A log
        line with `stop_at` ends the request: it counts as refused. `log_file` gets the whole log.
        """
        with self._lock:
            self._count += 1
            request = {
                "id": self._count,
                "verb": verb,
                "options": {"library": str(self.library.folder), **options},
                "memory_limit": memory_limit or default_memory_limit(),
            }
            if self._child is None or not self._child.is_alive:
                self.close()
                self._child = _Child(self._warm)
            watch = _Watch(time_limit_s, progress)
            with _sink(log_file) as keep:
                self._child.tap.begin(self._count, stop_at, keep)
                ended = self._child.serve(request, watch)
                outcome = _outcome(ended, self._child.tap, watch)
            if not self._child.is_alive:
                self.close()
            return outcome


def default_memory_limit() -> int:
    """Three quarters of the machine's memory."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return max(_LEAST_MEMORY, physical // 4 * 3)


@contextmanager
def _sink(path: Path | None) -> Iterator[Callable[[bytes], None]]:
    """Where the whole log goes: a file or nowhere."""
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


@dataclass(slots=True)
class _Watch:
    """Limits of a request and what was seen of it."""

    time_limit_s: float
    progress: Callable[[Tick], None] | None
    started: float = field(default_factory=time.monotonic)
    pid: int | None = None  # of the process that serves the request
    peak_rss: int | None = None
    expired: bool = False

    def look(self) -> None:
        """Note the peak so far and tell whoever wants to know."""
        if self.pid is not None:
            self.peak_rss = _high_water(self.pid) or self.peak_rss
        if self.progress is not None:
            self.progress(Tick(time.monotonic() - self.started, self.peak_rss, self.pid))


class _Unbuffered:
    """The reading end of a pipe.

    A buffer would hide a second frame from poll, and a raw file gives less than it is asked for.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def fileno(self) -> int:
        """For poll."""
        return self._descriptor

    def read(self, count: int) -> bytes:
        """So many bytes; fewer only at the end."""
        parts = []
        while count > 0 and (part := os.read(self._descriptor, min(count, 1 << 20))):
            parts.append(part)
            count -= len(part)
        return b"".join(parts)

    def close(self) -> None:
        """Close it once."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class _Child:
    """The child process with its three pipes: requests, replies, log."""

    def __init__(self, warm: bool) -> None:
        replies, replies_end = os.pipe()
        log, log_end = os.pipe()
        lifeline_end, self._lifeline = os.pipe()
        words = (str(replies_end), str(lifeline_end), "warm" if warm else "cold")
        try:
            self._process = subprocess.Popen(  # noqa: S603  our own module, no shell
                [sys.executable, "-P", "-m", "qnnmem.htp.native.child", *words],
                stdin=subprocess.PIPE,
                stdout=log_end,
                stderr=log_end,
                pass_fds=(replies_end, lifeline_end),
                env=_environment(),
                start_new_session=True,
            )
        finally:
            for descriptor in (replies_end, log_end, lifeline_end):
                os.close(descriptor)
        self._replies = _Unbuffered(replies)
        self.tap = LogTap(log, _END_MARK)

    @property
    def pid(self) -> int:
        """Its process id, which is also that of its group."""
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        """Whether it can take a request."""
        return self._process.poll() is None

    def serve(self, request: dict[str, Any], watch: _Watch) -> dict[str, Any] | None:
        """What the child says at the end of a request; None if it did not live to say it."""
        stdin = self._process.stdin
        try:
            write_frame(stdin, request)  # type: ignore[arg-type]  # IO[bytes] of Popen
            while self._wait(watch):
                frame = read_frame(self._replies, _MAX_REPLY)  # type: ignore[arg-type]  # has read
                if frame is None:
                    break
                if frame[0]["event"] == "ended":
                    self.tap.wait_for_end(5.0)
                    return frame[0]
                watch.pid = frame[0]["pid"]
        except (OSError, ValueError):
            pass  # it died while we talked
        except BaseException:  # of the caller's own progress, or Ctrl-C: nobody waits any more
            self.kill()
            raise
        watch.look()
        self.kill()
        return None

    def _wait(self, watch: _Watch) -> bool:
        """Until the child says something; False when the request has to end."""
        poll = select.poll()
        poll.register(self._replies, select.POLLIN)
        while True:
            left = watch.started + watch.time_limit_s - time.monotonic()
            if left <= 0:
                watch.expired = True
                return False
            if poll.poll(1000 * min(left, _TICK_S)):
                return True
            if self.tap.stopped or not self.is_alive:
                return False
            watch.look()

    def kill(self) -> None:
        """End the whole group and collect what is left of it."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self.tap.close()
        for stream in (self._process.stdin, self._replies):
            with suppress(OSError):  # unsent bytes to a dead child
                if stream is not None:
                    stream.close()
        if self._lifeline >= 0:
            os.close(self._lifeline)
            self._lifeline = -1


def _environment() -> dict[str, str]:
    """Ours, with our modules, and without threads that would only cost address space."""
    paths = os.pathsep.join(filter(None, sys.path))
    return {**os.environ, "PYTHONPATH": paths, "OPENBLAS_NUM_THREADS": "1", "NO_COLOR": "1"}


def _outcome(ended: dict[str, Any] | None, tap: LogTap, watch: _Watch) -> RequestOutcome:
    common: dict[str, Any] = {
        "log": tap.lines(),
        "tail": tap.tail(TAIL_LINES),
        "seconds": time.monotonic() - watch.started,
        "log_bytes": tap.bytes_read,
        "peak_rss": watch.peak_rss,
    }
    if ended is None:
        return _cut_short(tap, watch, common)
    common |= {"peak_rss": ended["peak_rss"], "cpu_seconds": ended["cpu_seconds"]}
    status, reply = ended["status"], ended["reply"]
    number = -status if status < 0 else None
    common |= {"exit_status": status, "signal": number}
    said = () if reply is None else (LogLine(str(reply.get("refused", ""))),)
    no_memory = host_memory((*common["log"], *said))
    if reply is None:
        kind: Kind = "memory" if no_memory else "crashed"
        return RequestOutcome(kind, sentence=_died(number, status, no_memory), **common)
    if "done" in reply:
        return RequestOutcome("done", reply["done"], **common)
    kind = "memory" if no_memory or reply.get("memory") else "refused"
    why = {"sentence": reply["refused"], "code": reply["code"], "stage": reply["stage"]}
    return RequestOutcome(kind, **why, **common)


def _cut_short(tap: LogTap, watch: _Watch, common: dict[str, Any]) -> RequestOutcome:
    """A request that the parent ended, or whose child vanished."""
    if watch.expired:
        sentence = f"not finished within {watch.time_limit_s:g} s"
        return RequestOutcome("timeout", sentence=sentence, **common)
    if host_memory(common["log"]):
        return RequestOutcome("memory", sentence="stopped for want of memory", **common)
    if tap.stopped:
        return RequestOutcome("refused", sentence="stopped as the log asked for it", **common)
    return RequestOutcome("crashed", sentence="the process was ended from outside", **common)


def _died(number: int | None, status: int, no_memory: bool) -> str:
    if number is None:
        what = f"the library ended its process with status {status}"
    else:
        name = signal.Signals(number).name if number in set(signal.Signals) else str(number)
        what = f"the library's process was ended by {name}"
    return f"{what} for want of memory" if no_memory else what


def _high_water(pid: int) -> int | None:
    """Peak resident bytes of a process so far."""
    try:
        text = Path(f"/proc/{pid}/status").read_text("ascii", "replace")
    except OSError:
        return None
    for line in text.splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) << 10
    return None
