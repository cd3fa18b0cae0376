"""Child process that runs jobs: it receives a task and settings, and sends the result.

It imports the modules of most jobs in advance, so that a waiting child answers quickly. It also
caches the models that it has read, for later jobs with other settings.
"""

from __future__ import annotations

import os
import sys
import threading
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from msgspec import field

from qnnmem.child import REPLY_LIMIT, describe_limit, limit_memory, open_replies
from qnnmem.errors import FreeDimensions, LoadError, QnnMemError
from qnnmem.text import sentence
from qnnmem.verbs import progress_words
from qnnmem.wire import WireMessage, read_frame, write_frame

if TYPE_CHECKING:
    from qnnmem.planner import Progress

_AHEAD = (
    *("numpy", "onnx", "msgspec", "qnnmem.loader", "qnnmem.planner", "qnnmem.verbs.plan"),
    *("qnnmem.report.plan", "qnnmem.planner.model_plan", "qnnmem.verbs.answer"),
)


class JobRequest(WireMessage, frozen=True):
    """Request to run a task on a file in a folder, with the equivalent command."""

    task: str
    options: dict[str, Any]
    words: list[str]
    folder: Path
    file: str


class JobProgress(WireMessage, frozen=True):
    """Progress of a job, as a line of text."""

    text: str


class JobReply(WireMessage, frozen=True):
    """Answer at the end of a job; the payload is the job's result."""

    exit_code: int
    error: str = ""
    settings: list[tuple[str, str]] = field(default_factory=list)  # settings that would help
    is_guess: bool = False  # True: the settings were not tried
    is_unreadable: bool = False  # True: no setting would help


class _Listener:
    """Sends the progress of a verb to the parent."""

    def __init__(self, replies: BinaryIO) -> None:
        self._replies, self._doing = replies, ""
        self._alone = threading.Lock()

    def __call__(self, progress: Progress) -> None:
        """Forward a progress report of the planner."""
        self.say(progress_words(progress))

    def say(self, doing: str) -> None:
        """Forward the current step."""
        with self._alone:  # several threads may compile
            if doing != self._doing:
                self._doing = doing
                write_frame(self._replies, JobProgress(doing))

    def note(self, line: str) -> None:
        """Ignore notes; the page does not show them."""


def main() -> int:
    """Run jobs one by one until the parent closes the pipe."""
    from qnnmem.loader import MODEL_CACHE

    limit = int(sys.argv[1])
    limit_memory(limit)
    replies = open_replies()
    MODEL_CACHE.set({})
    for module in _AHEAD:
        if _is_asked():  # import only what this job needs
            break
        with suppress(ImportError):
            import_module(module)
    requests = sys.stdin.buffer
    sys.stdin = Path(os.devnull).open(encoding="utf-8")  # noqa: SIM115  for all jobs
    while (frame := read_frame(requests, JobRequest, REPLY_LIMIT)) is not None:
        request, _ = frame
        os.chdir(request.folder)
        try:
            reply, payload = _done(request, replies)
        except MemoryError:
            reply, payload = JobReply(2, f"the job used up {describe_limit(limit)}"), b""
        os.chdir(os.sep)  # the job's folder will be removed
        write_frame(replies, reply, payload)
    return 0


def _is_asked() -> bool:
    """Return True if a request is waiting; always False on Windows."""
    import select

    if os.name != "posix":  # select works only on sockets there
        return False
    return bool(select.select([0], [], [], 0)[0])


def _refused(exc: QnnMemError, message: str) -> JobReply:
    """Return the reply for an error: settings that help, and whether the file is unreadable."""
    settings = [(setting.name, str(setting.value)) for setting in getattr(exc, "settings", ())]
    is_open = bool(settings) or isinstance(exc, FreeDimensions)
    stage = exc.stage if isinstance(exc, LoadError) else "none"
    is_unreadable = not is_open and stage in ("", "read", "guard")
    is_guess = bool(getattr(exc, "untried", ""))
    return JobReply(exc.exit_code, message, settings, is_guess, is_unreadable)


def _done(request: JobRequest, replies: BinaryIO) -> tuple[JobReply, bytes]:
    from qnnmem.flags import flag
    from qnnmem.options.option import flags_of
    from qnnmem.verbs import VerbCall
    from qnnmem.verbs.answer import answer
    from qnnmem.workbench.tasks import task_of

    task = task_of(request.task)
    flags = frozenset(flags_of(task.options))
    call = VerbCall(_Listener(replies), tuple(request.words), flags)
    try:
        options = task.read(request.options)
        text, code = answer(task.name, request.file, options, call)
    except QnnMemError as exc:
        return _refused(exc, exc.sentence(flag)), b""
    except MemoryError:
        raise
    except Exception as exc:  # the parent reports it
        return JobReply(70, f"internal error, please report it: {sentence(exc)}"), b""
    if len(text) > REPLY_LIMIT:
        return JobReply(2, "the result is too large to be shown"), b""
    return JobReply(code), text.encode("utf-8", "replace")


if __name__ == "__main__":
    sys.exit(main())
