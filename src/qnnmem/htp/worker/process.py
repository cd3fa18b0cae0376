"""The child process that loads the library, with one more pipe for its log."""

from __future__ import annotations

import os
import select
import threading
from typing import Any

from qnnmem.child import ChildProcess
from qnnmem.deadline import Deadline
from qnnmem.errors import UsageError
from qnnmem.htp.requests import END_MARK, MAX_FRAME, Ended, Served, Started
from qnnmem.htp.worker.log import LogTap
from qnnmem.htp.worker.outcome import Watch
from qnnmem.wire import Frame, read_frame, write_frame

_TICK_S = 0.1
_PROGRAM = "qnnmem.htp.native.child"


class LibraryProcess(ChildProcess):
    """The child process; it serves one request after another until it is killed."""

    def __init__(self, warm: bool) -> None:
        try:
            log, log_end = os.pipe()
        except OSError as exc:
            raise UsageError(f"no child process can be started ({exc.strerror})") from exc
        words = ("warm",) if warm else ()
        try:
            super().__init__(
                _PROGRAM, threading.TIMEOUT_MAX, {"NO_COLOR": "1"}, words=words, errors=log_end
            )
        except BaseException as exc:
            os.close(log)
            if isinstance(exc, OSError):  # no more files
                raise UsageError(f"no child process can be started ({exc.strerror})") from exc
            raise
        finally:
            os.close(log_end)
        self.deadline = Deadline.after(None)  # each request has its own
        # Without a buffer, which would hide a second frame from poll.
        self._replies: Any = self._process.stdout.raw  # type: ignore[union-attr]  # a buffered pipe
        self.tap = LogTap(log, END_MARK.encode())

    @property
    def pid(self) -> int:
        """Its process id, which is also that of its group."""
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        """Whether it can take a request."""
        return self._process.poll() is None

    def serve(self, served: Served, watch: Watch) -> Frame[Ended] | None:
        """What the child sends at the end of a request; None if it did not live to send it."""
        try:
            write_frame(self._process.stdin, served)  # type: ignore[arg-type]  # IO[bytes] of Popen
            while self._wait(watch):
                frame: Frame[Any] | None = read_frame(self._replies, Started | Ended, MAX_FRAME)
                if frame is None:
                    break
                if isinstance(frame[0], Ended):
                    self.tap.wait_for_end(5.0)
                    return frame
                watch.pid = frame[0].pid
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
            left = watch.deadline.left_s
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
        self._end()
        self.tap.close()
