"""What became of a request to the library: done, refused, crashed, out of time or of memory."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from qnnmem.htp.log import LogLine, host_memory
from qnnmem.htp.worker.log import LogTap

TAIL_LINES = 40

OutcomeKind = Literal["done", "refused", "crashed", "timeout", "memory"]


@dataclass(frozen=True, slots=True)
class RequestOutcome:
    """What became of a request."""

    kind: OutcomeKind
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
    sent: tuple[int, int] | None = None  # bytes of files that went to a worker elsewhere, and all


@dataclass(slots=True)
class Watch:
    """The time limit of a request and what was seen of it."""

    time_limit_s: float
    progress: Callable[[Tick], None] | None
    started: float = field(default_factory=time.monotonic)
    pid: int | None = None  # of the process that serves the request
    peak_rss: int | None = None
    expired: bool = False

    def look(self) -> None:
        """Note the peak so far and pass it on."""
        if self.pid is not None:
            self.peak_rss = _high_water(self.pid) or self.peak_rss
        if self.progress is not None:
            self.progress(Tick(time.monotonic() - self.started, self.peak_rss, self.pid))


def outcome_of(ended: dict[str, Any] | None, tap: LogTap, watch: Watch) -> RequestOutcome:
    """The outcome of a request from what the child said at its end, None if it could not."""
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
        kind: OutcomeKind = "memory" if no_memory else "crashed"
        return RequestOutcome(kind, sentence=_died(number, status, no_memory), **common)
    if "done" in reply:
        return RequestOutcome("done", reply["done"], **common)
    kind = "memory" if no_memory or reply.get("memory") else "refused"
    why = {"sentence": reply["refused"], "code": reply["code"], "stage": reply["stage"]}
    return RequestOutcome(kind, **why, **common)


def _cut_short(tap: LogTap, watch: Watch, common: dict[str, Any]) -> RequestOutcome:
    """A request that the parent ended, or whose child vanished."""
    if watch.expired:
        sentence = f"not finished within {watch.time_limit_s:g} s"
        return RequestOutcome("timeout", sentence=sentence, **common)
    if host_memory(common["log"]):
        return RequestOutcome("memory", sentence="stopped because memory ran out", **common)
    if tap.stopped:
        return RequestOutcome("refused", sentence="stopped at a line of the log", **common)
    return RequestOutcome("crashed", sentence="the process was ended from outside", **common)


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
