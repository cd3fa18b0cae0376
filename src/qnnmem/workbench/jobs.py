"""Jobs: a bounded queue, two workers, and for each job a child with time and memory limits.

A job is `done` only after its result is in the history, so an announced result is never lost.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from qnnmem.child import ChildProcess
from qnnmem.errors import QnnMemError, UsageError
from qnnmem.report.shell import file_word, option_and_value, shell_line
from qnnmem.results.read import schema_in
from qnnmem.text import sentence
from qnnmem.version import __version__
from qnnmem.workbench.history import History, KeptFile, KeptResult
from qnnmem.workbench.job_child import JobReply, JobRequest
from qnnmem.workbench.job_folder import JobFolder, MadeFiles
from qnnmem.workbench.job_run import JobAnswer, WaitingChildren, ask, end
from qnnmem.workbench.limits import MAX_QUEUE, WORKERS
from qnnmem.workbench.show import exit_code_of, is_of_program, summary_of
from qnnmem.workbench.tasks import Task, checked_task
from qnnmem.workbench.uploads import Uploads

_REMEMBERED = 20  # finished jobs
_COUNTED = re.compile(r"\b([0-9]{1,6}) of ([0-9]{1,6})\b")
_NO_REPLY = JobReply(0)
JobState = Literal["queued", "running", "done", "failed", "cancelled"]


@dataclass(slots=True)
class BenchJob:
    """A task for a file, and its state, which changes only under the lock of the queue."""

    id: str
    file: KeptFile
    task: Task
    options: dict[str, Any]
    key: str
    state: JobState = "queued"
    doing: str = "waiting"
    fraction: float | None = None
    started: float = 0.0
    seconds: float = 0.0
    reply: JobReply = _NO_REPLY
    is_first: bool = False  # first task after the upload
    is_gone: bool = False  # its file was removed because it could not be used
    result: int | None = None
    child: ChildProcess | None = None

    def values(self) -> dict[str, Any]:
        """Return the JSON object that the page receives."""
        running = time.time() - self.started if self.state == "running" else self.seconds
        reply = self.reply
        return {
            **{"id": self.id, "file": self.file.id, "name": self.file.name, "task": self.task.name},
            **{"title": self.task.title, "state": self.state, "doing": self.doing},
            **{"fraction": self.fraction, "error": reply.error, "exit_code": reply.exit_code},
            **{"settings": reply.settings, "result": self.result, "options": self.options},
            **{"is_guess": reply.is_guess, "is_gone": self.is_gone},
            "seconds": round(running, 3),
        }

    @property
    def words(self) -> list[str]:
        """Return the equivalent command without its file."""
        return self.task.typed(self.options)

    @property
    def has_ended(self) -> bool:
        """Return True once the job has ended."""
        return self.state not in ("queued", "running")


def key_of(file: KeptFile, task: str, options: Mapping[str, Any]) -> str:
    """Return the cache key of a request: content, name, task, options, version."""
    parts = [file.digest, file.name, task, dict(options), __version__]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


class Busy(QnnMemError):
    """Too many jobs are waiting."""


class JobQueue:
    """Runs jobs in a bounded queue and reports their state."""

    def __init__(
        self,
        work: Path,
        uploads: Uploads,
        history: History,
        outputs: MadeFiles,
        *,
        keeps_spare: bool = True,
    ) -> None:
        self._work, self._uploads, self._history, self._made = work, uploads, history, outputs
        self._changed = threading.Condition()
        self._jobs: dict[str, BenchJob] = {}
        self._waiting: list[BenchJob] = []
        self._listeners: set[Callable[[], None]] = set()
        self._children = WaitingChildren(keeps_spare=keeps_spare)
        self._is_closed = False
        self._threads = [
            threading.Thread(target=self._serve, name=f"worker-{number}", daemon=True)
            for number in range(WORKERS)
        ]
        for thread in self._threads:
            thread.start()

    def prepare(self) -> None:
        """Start a child before the first job, so that the job does not wait for it."""
        self._children.prepare()

    def submit(
        self,
        file: str,
        wanted: object,
        options: Mapping[str, Any],
        *,
        again: bool = False,
        is_first: bool = False,
        instead_of: str | None = None,
    ) -> BenchJob:
        """Queue a job, or answer it from the history unless `again`; cancel the job `instead_of`.

        `is_first` marks the first job after an upload: if this job cannot read the file, the file
        is removed.
        """
        if instead_of is not None:
            self.cancel(instead_of)
        held = self._uploads.hold(file)
        try:
            task = checked_task(held.kind, held.name, wanted)
            task.read(options)  # refuses a wrong setting before the job waits
            key = key_of(held, task.id, options)
            job = BenchJob(secrets.token_hex(8), held, task, dict(options), key)
            job.is_first = is_first
            known = None if again else self._history.found(key)
            if known is None:
                self._queue(job)
                return job
        except BaseException:
            self._uploads.let_go(file)
            raise
        self._uploads.let_go(file)
        with self._changed:
            job.state, job.result, job.reply = "done", known.id, JobReply(known.exit_code)
            self._remember(job)
        return job

    def _queue(self, job: BenchJob) -> None:
        with self._changed:
            if self._is_closed:
                raise Busy("the workbench is shutting down")
            if len(self._waiting) >= MAX_QUEUE:
                raise Busy(f"{MAX_QUEUE} jobs are already waiting; cancel a job or wait")
            self._remember(job)
            self._waiting.append(job)
            self._changed.notify()
        self._notify()

    def _remember(self, job: BenchJob) -> None:
        self._jobs[job.id] = job
        ended = [kept.id for kept in self._jobs.values() if kept.has_ended]
        for old in ended[:-_REMEMBERED]:
            del self._jobs[old]

    def job(self, number: str) -> BenchJob | None:
        """Return the job with this id; None for an unknown id."""
        with self._changed:
            return self._jobs.get(number)

    def jobs(self) -> list[dict[str, Any]]:
        """Return the state of all jobs, oldest first."""
        with self._changed:
            return [job.values() for job in self._jobs.values()]

    def cancel(self, number: str) -> bool:
        """Cancel a job; return True if it was running or waiting."""
        with self._changed:
            job = self._jobs.get(number)
            if job is None or job.has_ended:
                return False
            was, job.state = job.state, "cancelled"
            job.doing = "cancelled"
            child = job.child
            if was == "queued":
                self._waiting.remove(job)
        if was == "queued":
            self._uploads.let_go(job.file.id)
        elif child is not None:
            child.give_up()
        self._notify()
        return True

    def listen(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call `listener` from any thread when a job changes; return a function to unsubscribe."""
        with self._changed:
            self._listeners.add(listener)

        def stop() -> None:
            with self._changed:
                self._listeners.discard(listener)

        return stop

    def _notify(self) -> None:
        with self._changed:
            listeners = tuple(self._listeners)
        for listener in listeners:
            listener()

    def close(self) -> None:
        """Cancel all jobs and wait for their children to end."""
        with self._changed:
            self._is_closed = True
            open_jobs = [job.id for job in self._jobs.values() if not job.has_ended]
            self._changed.notify_all()
        for number in open_jobs:
            self.cancel(number)
        for thread in self._threads:
            thread.join()
        self._children.close()

    def _serve(self) -> None:
        """Run jobs in a loop, on a worker thread."""
        while True:
            with self._changed:
                while not self._waiting and not self._is_closed:
                    self._changed.wait()
                if not self._waiting:
                    return
                job = self._waiting.pop(0)
                job.state, job.doing, job.started = "running", "starting", time.time()
            self._notify()
            try:
                self._do(job)
            except QnnMemError as exc:
                why = str(exc).replace(str(self._work), "the folder of the workbench")
                self._end(job, "failed", JobReply(exc.exit_code, why))
            except Exception as exc:  # a worker thread must survive its job
                self._end(job, "failed", JobReply(70, f"internal error: {sentence(exc)}"))
            finally:
                self._uploads.let_go(job.file.id)
                self._notify()

    def _do(self, job: BenchJob) -> None:
        source = self._uploads.path(job.file.id)
        with closing(JobFolder(self._work, job.file, source)) as folder:
            answer = self._ask(job, folder)
            with self._changed:
                if job.state != "running":
                    return
            if answer.result is None:
                self._end(job, "failed", answer.reply)
                return
            kept = self._keep(job, answer.result, answer.reply.exit_code, folder)
        with self._changed:
            job.result = kept.id
        self._end(job, "done", answer.reply)

    def _ask(self, job: BenchJob, folder: JobFolder) -> JobAnswer:
        """Run a job in a child; keep the child if the next job might use the same file."""
        child = self._children.take(job.file.id)
        is_kept = False
        try:
            with self._changed:
                job.child = child
                is_wanted = job.state == "running"
            self._children.prepare()
            if not is_wanted:
                return JobAnswer(JobReply(3))
            words = [*job.words, *job.task.before_file, folder.name]
            request = JobRequest(job.task.id, job.options, words, folder.path, folder.name)
            limit = job.task.time_limit_s
            answer = ask(child, folder, request, limit, lambda doing: self._say(job, doing))
            with self._changed:
                job.child = None
                is_kept = job.state == "running" and answer.is_whole and job.task.name == "plan"
            return answer
        finally:
            if is_kept:
                self._children.give_back(job.file.id, child)
            else:
                end(child)

    def _keep(
        self, job: BenchJob, result: dict[str, Any], exit_code: int, folder: JobFolder
    ) -> KeptResult:
        outputs = self._made.keep(job.key, folder) if job.task.makes_files else ()
        words = ["qnnmem", *job.words, *job.task.before_file, file_word(job.file.name)]
        command = shell_line(part for word in words for part in option_and_value(word))
        seconds = time.time() - job.started
        code = exit_code_of(result) if is_of_program(result) else exit_code
        new = KeptResult(
            *(0, job.file.id, job.file.name, job.task.name, job.options, command),
            *(schema_in(result) or "", summary_of(result), code, seconds, 0.0, outputs),
        )
        return self._history.add(job.key, new, result)

    def _say(self, job: BenchJob, doing: str) -> None:
        counted = _COUNTED.search(doing)
        with self._changed:
            job.doing = doing
            if counted and (of := int(counted[2])):
                job.fraction = min(1.0, max(0.0, (int(counted[1]) - 1) / of))
        self._notify()

    def _end(self, job: BenchJob, state: JobState, reply: JobReply) -> None:
        is_gone = job.is_first and reply.is_unreadable and self._uploads.drop(job.file.id)
        with self._changed:
            if job.has_ended:  # it was cancelled
                return
            job.state, job.doing, job.reply, job.is_gone = state, state, reply, is_gone
            job.seconds = time.time() - job.started


def checked_options(values: object) -> dict[str, Any]:
    """Return the checked settings of a request."""
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise UsageError("the settings are not an object")
    return {name: value for name, value in values.items() if value not in (None, "", [], False)}
