"""The child process that loads the library, with its pipes for requests, replies and log."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from typing import Any

from qnnmem.child import (
    ChildFolder,
    child_environment,
    end,
    read_frame,
    start,
    write_frame,
)
from qnnmem.errors import UsageError
from qnnmem.htp.protocol import END_MARK, MAX_FRAME
from qnnmem.htp.worker.log import LogTap
from qnnmem.htp.worker.outcome import Watch

_TICK_S = 0.1


class LibraryProcess:
    """The child process; it serves one request after another until it is killed."""

    def __init__(self, warm: bool) -> None:
        (replies, replies_end), (log, log_end), (lifeline_end, self._lifeline) = _pipes(3)
        words = (str(replies_end), str(lifeline_end), "warm" if warm else "cold")
        try:
            self._folder = ChildFolder()
            self._process = start(
                [sys.executable, "-P", "-m", "qnnmem.htp.native.child", *words],
                self._folder,
                child_environment(self._folder.files, {"NO_COLOR": "1"}),
                stdin=subprocess.PIPE,
                stdout=log_end,
                stderr=log_end,
                pass_fds=(replies_end, lifeline_end),
            )
        except BaseException:
            for descriptor in (replies, log, self._lifeline):
                os.close(descriptor)
            raise
        finally:
            for descriptor in (replies_end, log_end, lifeline_end):
                os.close(descriptor)
        self._replies = _Unbuffered(replies)
        self.tap = LogTap(log, END_MARK.encode())

    @property
    def pid(self) -> int:
        """Its process id, which is also that of its group."""
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        """Whether it can take a request."""
        return self._process.poll() is None

    def serve(self, request: dict[str, Any], watch: Watch) -> dict[str, Any] | None:
        """What the child says at the end of a request; None if it did not live to say it."""
        stdin = self._process.stdin
        try:
            write_frame(stdin, request)  # type: ignore[arg-type]  # IO[bytes] of Popen
            while self._wait(watch):
                frame = read_frame(self._replies, MAX_FRAME)  # type: ignore[arg-type]  # has read
                if frame is None:
                    break
                if frame[0]["event"] == "ended":
                    self.tap.wait_for_end(5.0)
                    return frame[0]
                watch.pid = frame[0]["pid"]
        except (OSError, ValueError):
            pass  # it died during the conversation
        except BaseException:  # of the caller's own progress, or Ctrl-C: the answer is not wanted
            self.kill()
            raise
        watch.look()
        self.kill()
        return None

    def _wait(self, watch: Watch) -> bool:
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
        # First the lifeline: it ends the process of a request even where its parent is gone.
        if self._lifeline >= 0:
            os.close(self._lifeline)
            self._lifeline = -1
        end(self._process)
        self.tap.close()
        self._replies.close()
        self._folder.remove()


def _pipes(count: int) -> list[tuple[int, int]]:
    """So many pipes, or none."""
    made: list[tuple[int, int]] = []
    try:
        while len(made) < count:
            made.append(os.pipe())
    except OSError as exc:
        for descriptor in (end for pipe in made for end in pipe):
            os.close(descriptor)
        raise UsageError(f"no child process can be started ({exc.strerror})") from exc
    return made


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
        """`count` bytes; fewer only at the end."""
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
