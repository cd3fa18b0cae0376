"""What became of a request to the library: done, refused, crashed, out of time or of memory."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from qnnmem.deadline import Deadline
from qnnmem.htp.log import LogLine, host_memory
from qnnmem.htp.requests import (
    Ended,
    LibraryRefusal,
    LibraryRequest,
    OutcomeKind,
    Reply,
    RequestOutcome,
    Tick,
)
from qnnmem.htp.worker.log import LogTap
from qnnmem.wire import Frame, decode

TAIL_LINES = 40


@dataclass(slots=True)
class Watch:
    """The deadline of a request and what was seen of it."""

    deadline: Deadline
    progress: Callable[[Tick], None] | None
    started: float = field(default_factory=time.monotonic)
    pid: int | None = None  # of the process that serves the request
    peak_rss: int | None = None
    expired: bool = False

    @property
    def seconds(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self.started

    def restart(self) -> None:
        """Count the time from now on: what was done so far is not the library's."""
        self.started = time.monotonic()
        self.deadline = Deadline.after(self.deadline.limit_s)

    def look(self) -> None:
        """Note the peak so far and pass it on."""
        if self.pid is not None:
            self.peak_rss = _high_water(self.pid) or self.peak_rss
        if self.progress is not None:
            self.progress(Tick(self.seconds, self.peak_rss, self.pid))


def outcome_of(
    request: LibraryRequest, frame: Frame[Ended] | None, tap: LogTap, watch: Watch
) -> RequestOutcome:
    """The outcome of a request from what the child sent at its end, None if it could not."""
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
    said = (LogLine(reply.sentence),) if isinstance(reply, LibraryRefusal) else ()
    no_memory = host_memory((*unknown.log, *said))
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
    except ValueError:  # the process did not live to say all of it
        return None
    return reply


def _cut_short(unknown: RequestOutcome, tap: LogTap, watch: Watch) -> RequestOutcome:
    """A request that the parent ended, or whose child vanished."""
    if watch.expired:
        sentence = f"not finished within {watch.deadline.limit_s:g} s"
        return replace(unknown, kind="timeout", sentence=sentence)
    if host_memory(unknown.log):
        return replace(unknown, kind="memory", sentence="stopped because memory ran out")
    if tap.stopped:
        return replace(unknown, kind="refused", sentence="stopped at a line of the log")
    return replace(unknown, sentence="the process was ended from outside")


def signal_name(number: int) -> str:
    """A signal as the system calls it."""
    return signal.Signals(number).name if number in set(signal.Signals) else str(number)


def _died(number: int | None, status: int, no_memory: bool) -> str:
    if number is None:
        what = f"the library ended its process with status {status}"
    else:
        what = f"the library's process was ended by {signal_name(number)}"
    return f"{what} because memory ran out" if no_memory else what


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
