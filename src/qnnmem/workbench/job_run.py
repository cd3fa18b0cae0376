"""Run one job in a child process, from the request to the result."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from msgspec import to_builtins
from msgspec.structs import replace

from qnnmem.child import ChildProcess, describe_limit
from qnnmem.results.lint import LintResult, Severity, lint_result
from qnnmem.results.read import read_as
from qnnmem.results.schema import schema_name
from qnnmem.text import shorten
from qnnmem.workbench.job_child import JobProgress, JobReply, JobRequest
from qnnmem.workbench.job_folder import JobFolder

CHILD = "qnnmem.workbench.job_child"
_LARGEST = 32 << 20  # bytes of a result
_BY_CONTENT = re.compile(r"\b[0-9a-f]{64}\.onnx\b")  # file names that `fix` derives from content
_CURE = "drop the other file on the page, too; it is checked separately"
_MISSING = "missing-file"
_FOREVER_S = 1e8  # an idle child has no time limit; the job has one


class JobAnswer(NamedTuple):
    """Answer of a child: how the job ended, and its result if any."""

    reply: JobReply
    result: dict[str, Any] | None = None
    is_whole: bool = True  # True: the child is still alive


class WaitingChildren:
    """Idle children: one that has done its imports, and one that has also read a file.

    The first starts the next job quickly; the second can plan its file again without reading it.
    """

    def __init__(self, *, keeps_spare: bool) -> None:
        self._keeps_spare = keeps_spare
        self._lock = threading.Lock()
        self._spare: ChildProcess | None = None
        self._knows: tuple[str, ChildProcess] | None = None
        self._is_closed = False

    def prepare(self) -> None:
        """Start a child that does its imports before its first job."""
        with self._lock:
            if self._keeps_spare and self._spare is None and not self._is_closed:
                self._spare = ChildProcess(CHILD, _FOREVER_S)

    def take(self, file: str) -> ChildProcess:
        """Return the child that has read the file, else an idle child, else a new child."""
        with self._lock:
            if self._knows is not None and self._knows[0] == file:
                _, child = self._knows
                self._knows = None
                return child
            child_or_none, self._spare = self._spare, None
        return child_or_none or ChildProcess(CHILD, _FOREVER_S)

    def give_back(self, file: str, child: ChildProcess) -> None:
        """Keep a child that has read a file, and end the child that was kept before."""
        with self._lock:
            if self._is_closed:
                ended: ChildProcess | None = child
            else:
                ended = self._knows[1] if self._knows else None
                self._knows = (file, child)
        if ended is not None:
            end(ended)

    def close(self) -> None:
        """End all idle children."""
        with self._lock:
            self._is_closed = True
            waiting = [self._spare, self._knows[1] if self._knows else None]
            self._spare = self._knows = None
        for child in waiting:
            if child is not None:
                end(child)


def end(child: ChildProcess) -> None:
    """End a child and remove its folder."""
    child.__exit__(None, None, None)


def ask(
    child: ChildProcess,
    folder: JobFolder,
    request: JobRequest,
    time_limit_s: float,
    tell: Callable[[str], None],
) -> JobAnswer:
    """Run a job in the child; `tell` receives the job's progress.

    Another thread can end the child.
    """
    expired = threading.Event()

    def expire() -> None:
        expired.set()
        child.give_up()

    watchdog = threading.Timer(time_limit_s, expire)
    watchdog.daemon = True
    watchdog.start()
    try:
        child.send(request)
        while (frame := child.receive(JobProgress | JobReply, _LARGEST)) is not None:
            reply, payload = frame
            if isinstance(reply, JobReply):
                return _answer(reply, payload, folder)
            doing = _BY_CONTENT.sub("a part", reply.text)
            tell(folder.shown(shorten(doing, 300)))
    finally:
        watchdog.cancel()
    why = f"the job was stopped after {time_limit_s:,.0f} s"
    if not expired.is_set():
        limit = describe_limit(child.memory_limit)
        why = f"the job's process ended without an answer; it might have needed more than {limit}"
    return JobAnswer(JobReply(3, why), is_whole=False)


def _answer(reply: JobReply, payload: bytes, folder: JobFolder) -> JobAnswer:
    if reply.error:
        return JobAnswer(replace(reply, error=folder.shown(reply.error)))
    try:
        result = json.loads(folder.shown_json(payload.decode("utf-8", "replace")))
    except (ValueError, RecursionError):
        return JobAnswer(JobReply(70, "the job's result is not JSON; please report this"))
    if not isinstance(result, dict):
        return JobAnswer(JobReply(70, "the job's result is not a JSON object; please report this"))
    if reason := _why_unreadable(result):
        return JobAnswer(JobReply(reply.exit_code, reason, is_unreadable=True))
    result, code = _without_neighbours(result, reply.exit_code)
    return JobAnswer(JobReply(code), result)


def _without_neighbours(result: dict[str, Any], exit_code: int) -> tuple[dict[str, Any], int]:
    """Return result and exit code without errors about companion files that were not uploaded.

    The workbench stores every file separately, so the file that a config file names is missing.
    That is not an error in the config file: the user can upload the other file, too.
    """
    if result.get("schema") != schema_name(LintResult):
        return result, exit_code
    report = read_as(result, "lint", LintResult)
    if not any(finding.check == _MISSING for finding in report.findings):
        return result, exit_code
    findings = tuple(
        replace(finding, severity=Severity.NOTE, cure=_CURE)
        if finding.check == _MISSING
        else finding
        for finding in report.findings
    )
    better = lint_result(report.files, findings, strict=report.strict)
    return to_builtins(better), 0 if better.passes else exit_code


def _why_unreadable(result: Mapping[str, Any]) -> str:
    """Return why no file could be checked; empty if a file was checked."""
    if result.get("schema") != schema_name(LintResult) or result["findings"]:
        return ""
    report = read_as(result, "lint", LintResult)
    reasons = [f"{file.path}: {file.unreadable}" for file in report.unreadable]
    return reasons[0] if reasons and len(reasons) == len(report.files) else ""
