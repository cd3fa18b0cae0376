"""One job in a child process, from its task to its answer."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from qnnmem.child import ChildProcess, describe_limit
from qnnmem.text import shorten
from qnnmem.workbench.alone import why_unreadable, without_neighbours
from qnnmem.workbench.job import BenchJob
from qnnmem.workbench.job_child import JobProgress, JobReply, JobRequest
from qnnmem.workbench.job_folder import JobFolder

CHILD = "qnnmem.workbench.job_child"
_LARGEST = 32 << 20  # bytes of a result
_BY_CONTENT = re.compile(r"\b[0-9a-f]{64}\.onnx\b")  # how a fix calls what it cut out
_FOREVER_S = 1e8  # a child that waits has no limit of time; the job has


@dataclass(frozen=True, slots=True)
class JobAnswer:
    """What a child said: a result, or why there is none."""

    exit_code: int
    result: dict[str, Any] | None = None
    error: str = ""
    settings: list[list[str]] = field(default_factory=list)  # with which the same goes further
    is_guess: bool = False  # these were not seen to run
    is_unreadable: bool = False  # and nothing helps
    is_whole: bool = True  # the child lives


class WaitingChildren:
    """Children that wait: one that has imported everything, and the one that knows a file.

    The first starts the next job at once; the second plans the file again without reading it.
    """

    def __init__(self, *, keeps_spare: bool) -> None:
        self._keeps_spare = keeps_spare
        self._lock = threading.Lock()
        self._spare: ChildProcess | None = None
        self._knows: tuple[str, ChildProcess] | None = None
        self._is_closed = False

    def prepare(self) -> None:
        """Have one ready."""
        with self._lock:
            if self._keeps_spare and self._spare is None and not self._is_closed:
                self._spare = ChildProcess(CHILD, _FOREVER_S)

    def take(self, file: str) -> ChildProcess:
        """The one that knows the file, or the one that waits, or a new one."""
        with self._lock:
            if self._knows is not None and self._knows[0] == file:
                _, child = self._knows
                self._knows = None
                return child
            child_or_none, self._spare = self._spare, None
        return child_or_none or ChildProcess(CHILD, _FOREVER_S)

    def give_back(self, file: str, child: ChildProcess) -> None:
        """A child that has read a file; the one that knew another goes."""
        with self._lock:
            if self._is_closed:
                ended: ChildProcess | None = child
            else:
                ended = self._knows[1] if self._knows else None
                self._knows = (file, child)
        if ended is not None:
            end(ended)

    def close(self) -> None:
        """End those that wait."""
        with self._lock:
            self._is_closed = True
            waiting = [self._spare, self._knows[1] if self._knows else None]
            self._spare = self._knows = None
        for child in waiting:
            if child is not None:
                end(child)


def end(child: ChildProcess) -> None:
    """End a child, and remove its folder."""
    child.__exit__(None, None, None)


def ask(
    child: ChildProcess,
    folder: JobFolder,
    job: BenchJob,
    words: list[str],
    tell: Callable[[str], None],
) -> JobAnswer:
    """Let the child do it; tells what it is doing. The child may be given up meanwhile."""
    expired, time_limit_s = threading.Event(), job.task.time_limit_s

    def expire() -> None:
        expired.set()
        child.give_up()

    watchdog = threading.Timer(time_limit_s, expire)
    watchdog.daemon = True
    watchdog.start()
    try:
        child.send(JobRequest(job.task.id, job.options, words, folder.path, folder.name))
        while (frame := child.receive(JobProgress | JobReply, _LARGEST)) is not None:
            reply, payload = frame
            if isinstance(reply, JobReply):
                return _answer(reply, payload, folder)
            doing = _BY_CONTENT.sub("a part", reply.text)
            tell(folder.shown(shorten(doing, 300)))
    finally:
        watchdog.cancel()
    if expired.is_set():
        return JobAnswer(3, error=f"it was ended after its {time_limit_s:,.0f} s", is_whole=False)
    limit = describe_limit(child.memory_limit)
    said = f"its process ended without an answer; it may have needed more than {limit}"
    return JobAnswer(3, error=said, is_whole=False)


def _answer(reply: JobReply, payload: bytes, folder: JobFolder) -> JobAnswer:
    code = reply.exit_code
    if reply.error:
        settings = [list(setting) for setting in reply.settings]
        traits = (reply.is_guess, reply.is_unreadable)
        return JobAnswer(code, None, folder.shown(reply.error), settings, *traits)
    try:
        found = json.loads(folder.shown_json(payload.decode("utf-8", "replace")))
    except (ValueError, RecursionError):
        return JobAnswer(70, error="its result is no JSON; please report it")
    if not isinstance(found, dict):
        return JobAnswer(70, error="its result is no JSON object; please report it")
    if reason := why_unreadable(found):
        return JobAnswer(code, error=reason, is_unreadable=True)
    found, code = without_neighbours(found, code)
    return JobAnswer(code, found)
