"""Start a user's program with a shared object of ours in it, wait for its end, kill its tree."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

from qnnmem.errors import UsageError
from qnnmem.programs.shims import sanitizer_of
from qnnmem.results.programs import ClientResult, WatchResult
from qnnmem.text import quote

_GRACE_S = 2.0  # after an interrupt, which the terminal has sent to the program, too


def start(
    program: str,
    command: Sequence[str],
    preload: Path,
    *,
    environment: Mapping[str, str] | None = None,
    to_stderr: bool = False,
    output: IO[bytes] | None = None,
) -> subprocess.Popen[bytes]:
    """Start a program with an object preloaded.

    `to_stderr` keeps standard output free for our own result; `output` takes everything that the
    program prints, and the program reads nothing then.
    """
    objects = (sanitizer_of(Path(program)), str(preload), os.environ.get("LD_PRELOAD", ""))
    own = {"LD_PRELOAD": ":".join(filter(None, objects))}
    to = output if output is not None else sys.__stderr__ if to_stderr else None
    try:
        return subprocess.Popen(  # noqa: S603  # the user's own program, as asked
            list(command),
            executable=program,
            env={**os.environ, **(environment or {}), **own},
            stdin=None if output is None else subprocess.DEVNULL,
            stdout=to,
            stderr=output,
        )
    except OSError as exc:
        raise UsageError(
            f"the program {quote(command[0])} cannot be run ({exc.strerror or exc})"
        ) from exc


def wait(
    child: subprocess.Popen[bytes],
    limit_s: float | None,
    time_left: Callable[[], float] | None = None,
    look_s: float = math.inf,
) -> tuple[int, bool]:
    """Return the exit code, negative for a signal, and whether the program was killed for time.

    `time_left` gives another limit, which is asked for every `look_s` seconds.
    """
    end = math.inf if limit_s is None else time.monotonic() + limit_s
    while True:
        left = min(end - time.monotonic(), math.inf if time_left is None else time_left())
        if left <= 0:
            return kill_tree(child), True
        pause = min(left, look_s)
        try:
            return child.wait(None if math.isinf(pause) else pause), False
        except subprocess.TimeoutExpired:
            pass  # look again
        except KeyboardInterrupt:
            end = min(end, time.monotonic() + _GRACE_S)


def kill_tree(child: subprocess.Popen[bytes]) -> int:
    """Kill a program and all it has started; return its exit code.

    The program that was meant may run behind a script or a debugger.
    """
    _kill(child.pid)
    return child.wait()


def _kill(pid: int) -> None:
    with suppress(OSError):
        os.kill(pid, signal.SIGSTOP)  # or it starts more in the meantime
    for child in _children(pid):
        _kill(child)
    with suppress(OSError):
        os.kill(pid, signal.SIGKILL)


def _children(pid: int) -> list[int]:
    """Processes that any thread of a process has started."""
    found: list[int] = []
    with suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            with suppress(OSError):
                found.extend(map(int, (task / "children").read_text("ascii").split()))
    return found


def exit_status(code: int) -> int:
    """A return code of Python as a shell has it: 128 plus the signal that ended the program."""
    return code if code >= 0 else 128 - code


def signal_name(code: int) -> str:
    """The signal of a negative return code; empty for a program that ended by itself."""
    if code >= 0:
        return ""
    try:
        return signal.Signals(-code).name
    except ValueError:  # of the real-time signals only the first and the last have names
        return f"SIGRTMIN+{-code - signal.SIGRTMIN}"


def end_words(result: ClientResult | WatchResult) -> str:
    """How a program ended, for a verdict."""
    if result.timed_out:
        return "it did not end in time"
    return f"ended by {result.ended_by}" if result.ended_by else f"exit code {result.exit_code}"
