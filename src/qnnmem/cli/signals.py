"""Unwind the work after Ctrl-C, SIGTERM or SIGHUP, so that no file and no process remains.

Only the command line does this; a program that uses the package handles signals itself.
"""

from __future__ import annotations

import atexit
import os
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from collections.abc import Callable
    from types import FrameType
    from typing import Any
else:
    # `_signal` is built in and already loaded. Ctrl-C would not be handled during an import of
    # `signal`.
    import _signal as signal

_BY_SIGNAL = 128  # shells add this to the signal that ended a program
_AGAIN_S = 0.01
_LONGEST_WAIT_S = 2.0
_UNWINDING_S = 1.0
_IMPORTING = "<frozen importlib._bootstrap>"
# These modules create and remove temporary files; an interruption would leave some behind.
_TIDY = frozenset(("tempfile", "shutil", "qnnmem.atomic_file"))


class Terminated(BaseException):
    """Raised when a signal asks the program to end; `except Exception` does not catch it."""


class _Watch:
    """The state of signal handling: which signal was received, and when."""

    def __init__(self) -> None:
        self.number = 0
        self.is_over = False  # True: the work is done, raise nothing more
        self.came = self.raised = float("-inf")

    def handle(self, number: int, frame: FrameType | None) -> None:
        """Raise an exception if the interrupted code allows it, otherwise try again soon."""
        if self.is_over:
            return
        now = time.monotonic()
        if number != signal.SIGALRM:
            if now - self.raised < _UNWINDING_S:
                return  # the clean-up has started and must not be interrupted
            self.number, self.came = number, now
        if _must_not_be_torn(frame) and now - self.came < _LONGEST_WAIT_S:
            signal.setitimer(signal.ITIMER_REAL, _AGAIN_S)
            return
        self.raised = now
        raise KeyboardInterrupt if self.number == signal.SIGINT else Terminated

    def end_by_signal(self) -> None:
        """Kill this process with the received signal, so that its parent sees it; ignore SIGINT."""
        if self.number and self.number != signal.SIGINT:
            os.kill(os.getpid(), self.number)

    def lost(self, unraisable: Any) -> None:
        """Try a signal again if Python could not raise its exception; print other exceptions."""
        if isinstance(unraisable.exc_value, KeyboardInterrupt | Terminated):
            signal.setitimer(signal.ITIMER_REAL, _AGAIN_S)
        else:
            sys.__unraisablehook__(unraisable)


def unwinding(work: Callable[[Callable[[], bool]], int]) -> int:
    """Run `work`; return its exit code, or 128 plus the number of a received signal.

    `work` gets a function that returns True once a signal has arrived. At exit, any signal except
    SIGINT ends the process.
    """
    if os.name != "posix":
        return work(lambda: False)
    watch = _Watch()
    # Registered first, so it runs last at exit: temporary folders are removed before the signal
    # ends the process.
    atexit.register(watch.end_by_signal)
    taken = _take(watch)
    try:
        try:
            code = work(lambda: watch.number != 0)
            watch.number = 0
        finally:
            watch.is_over = True  # a delayed check may come right now
    except KeyboardInterrupt:
        watch.number = signal.SIGINT
    except Terminated:
        pass
    except Exception:  # a third-party library converted the signal to its own exception
        if not watch.number:
            raise
    # The work is done and nothing needs a clean-up, so signals may now end the process.
    signal.setitimer(signal.ITIMER_REAL, 0)
    for number in taken:
        signal.signal(number, signal.SIG_IGN if number == signal.SIGINT else signal.SIG_DFL)
    if watch.number == signal.SIGINT:
        from qnnmem.cli.streams import say

        say("interrupted", 0)
    return _BY_SIGNAL + watch.number if watch.number else code


def _take(watch: _Watch) -> list[int]:
    """Install handlers for the signals that are not ignored; return these signals.

    `nohup`, for example, ignores SIGHUP.
    """
    wanted = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    taken: list[int] = [number for number in wanted if signal.getsignal(number) != signal.SIG_IGN]
    sys.unraisablehook = watch.lost
    for number in (signal.SIGALRM, *taken):
        signal.signal(number, watch.handle)
    return taken


def _must_not_be_torn(frame: FrameType | None) -> bool:
    """Return True during an import or a clean-up, which must not be interrupted.

    An extension module that is interrupted during its initialisation may stay half initialised, and
    the process crashes later.
    """
    noting = _Watch.lost.__code__  # an exception raised there would be lost again
    while frame is not None:
        code, module = frame.f_code, frame.f_globals.get("__name__")
        if code is noting or code.co_filename == _IMPORTING or module in _TIDY:
            return True
        frame = frame.f_back
    return False
