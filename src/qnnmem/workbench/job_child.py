"""A child process that does jobs: a task and its settings in, the result out.

It imports what most jobs need before it is asked, so that one that waits answers at once, and
remembers the models that it has read, so that one with another setting does too.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from qnnmem.child import (
    REPLY_LIMIT,
    describe_limit,
    limit_memory,
    open_replies,
    read_frame,
    write_frame,
)
from qnnmem.errors import FreeDimensions, LoadError, QnnMemError
from qnnmem.text import sentence
from qnnmem.units import format_size

if TYPE_CHECKING:
    from qnnmem.planner import Progress

_AHEAD = (
    *("numpy", "onnx", "msgspec", "qnnmem.loader", "qnnmem.planner", "qnnmem.verbs.plan"),
    *("qnnmem.report.plan", "qnnmem.planner.from_options", "qnnmem.workbench.job_verbs"),
)


class _Listener:
    """Sends what a verb is doing to the parent."""

    def __init__(self, replies: BinaryIO) -> None:
        self._replies, self._doing = replies, ""
        self._alone = threading.Lock()

    def __call__(self, progress: Progress) -> None:
        """Take a progress report of the planner."""
        best = f"best {format_size(progress.peak)}, at least {format_size(progress.lower_bound)}"
        self.say(f"{progress.doing}; {best}")

    def say(self, doing: str) -> None:
        """Take what is under way."""
        with self._alone:  # several threads may compile
            if doing != self._doing:
                self._doing = doing
                write_frame(self._replies, {"doing": doing})

    def note(self, line: str) -> None:
        """Drop a remark: the page has no place for it."""


def main() -> int:
    """Do one job after the other until the parent closes the pipe."""
    from qnnmem.loader.model_cache import MODEL_CACHE

    limit = int(sys.argv[1])
    limit_memory(limit)
    replies = open_replies()
    MODEL_CACHE.set({})
    for module in _AHEAD:
        if _is_asked():  # then only what it needs
            break
        with suppress(ImportError):
            import_module(module)
    requests = sys.stdin.buffer
    sys.stdin = Path(os.devnull).open(encoding="utf-8")  # noqa: SIM115  for all jobs
    while (frame := read_frame(requests, REPLY_LIMIT)) is not None:
        request, _ = frame
        os.chdir(request["folder"])
        try:
            header, payload = _done(request, replies)
        except MemoryError:
            header, payload = _refused(f"{describe_limit(limit)} are used up"), b""
        os.chdir(os.sep)  # the folder of the job is about to go
        write_frame(replies, header, payload)
    return 0


def _is_asked() -> bool:
    """Whether a request is there already."""
    import select

    if os.name != "posix":  # where only sockets can be asked
        return False
    return bool(select.select([0], [], [], 0)[0])


def _refused(said: str, code: int = 2) -> dict[str, Any]:
    return {"error": said, "exit_code": code}


def _what_helps(exc: QnnMemError) -> dict[str, Any]:
    """Settings with which the same goes further, and whether nothing does: the file is no good."""
    settings = [[one.name, one.value] for one in getattr(exc, "settings", ())]
    is_open = bool(settings) or isinstance(exc, FreeDimensions)
    stage = exc.stage if isinstance(exc, LoadError) else "none"
    is_guess = bool(getattr(exc, "untried", ""))
    return {
        "settings": settings,
        "is_guess": is_guess,
        "is_unreadable": not is_open and stage in ("", "read", "guard"),
    }


def _done(request: Mapping[str, Any], replies: BinaryIO) -> tuple[dict[str, Any], bytes]:
    from qnnmem.flags import flag
    from qnnmem.options.option import flags_of
    from qnnmem.verbs.listener import VerbCall
    from qnnmem.workbench.job_verbs import run_verb
    from qnnmem.workbench.tasks import task_of

    task = task_of(request["task"])
    flags = frozenset(flags_of(task.options))
    call = VerbCall(_Listener(replies), tuple(request["words"]), flags)
    try:
        options = task.read(request["options"])
        text, code = run_verb(task.name, request["file"], options, call)
    except QnnMemError as exc:
        said = exc.sentence(flag)
        return {**_refused(said, exc.exit_code), **_what_helps(exc)}, b""
    except MemoryError:
        raise
    except Exception as exc:  # the parent reports it
        return _refused(f"internal error, please report it: {sentence(exc)}", 70), b""
    if len(text) > REPLY_LIMIT:
        return _refused("the result is too large to be shown"), b""
    return {"exit_code": code}, text.encode("utf-8", "replace")


if __name__ == "__main__":
    sys.exit(main())
