"""Ctrl-C, SIGTERM and SIGHUP unwind the work, so that no file and no process is left.

Only the command line does this; a program that uses the package has its own way with signals.
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
    # What is behind `signal`, and already there: while that is imported, Ctrl-C is not yet ours.
    import _signal as signal

_BY_SIGNAL = 128  # what shells add to the number of the signal that ended a program
_AGAIN_S = 0.01
_LONGEST_WAIT_S = 2.0
_UNWINDING_S = 1.0
_IMPORTING = "<frozen importlib._bootstrap>"
# They make temporary names and take them away; interrupted, they would leave some behind.
_TIDY = frozenset(("tempfile", "shutil", "qnnmem.atomic_file"))


class Terminated(BaseException):
    """A signal asks the program to end; not an Exception, so that nothing takes it for its own."""


class _Watch:
    """The signal that arrived, and when."""

    def __init__(self) -> None:
        self.number = 0
        self.is_over = False  # the work; from here on nothing is raised
        self.came = self.raised = float("-inf")

    def handle(self, number: int, frame: FrameType | None) -> None:
        """Raise if that is safe here; otherwise try again soon."""
        if self.is_over:
            return
        now = time.monotonic()
        if number != signal.SIGALRM:
            if now - self.raised < _UNWINDING_S:
                return  # it is on its way out, and must not be disturbed in cleaning up
            self.number, self.came = number, now
        if _must_not_be_torn(frame) and now - self.came < _LONGEST_WAIT_S:
            signal.setitimer(signal.ITIMER_REAL, _AGAIN_S)
            return
        self.raised = now
        raise KeyboardInterrupt if self.number == signal.SIGINT else Terminated

    def end_by_signal(self) -> None:
        """Die by the signal at exit, so that the parent process sees it."""
        if self.number and self.number != signal.SIGINT:
            os.kill(os.getpid(), self.number)

    def lost(self, unraisable: Any) -> None:
        """Handle an exception that Python cannot raise, as in a destructor."""
        if isinstance(unraisable.exc_value, KeyboardInterrupt | Terminated):
            signal.setitimer(signal.ITIMER_REAL, _AGAIN_S)
        else:
            sys.__unraisablehook__(unraisable)


def unwinding(work: Callable[[Callable[[], bool]], int]) -> int:
    """Do the work; return its exit code. The signal that ended the work ends the process at exit.

    The work gets a question to ask: whether a signal has come.
    """
    if os.name != "posix":
        return work(lambda: False)
    watch = _Watch()
    # Registered before the work registers anything, so it runs after all of that at exit: temporary
    # folders that something still holds are gone when the signal ends the process.
    atexit.register(watch.end_by_signal)
    taken = _take(watch)
    try:
        try:
            code = work(lambda: watch.number != 0)
            watch.number = 0
        finally:
            watch.is_over = True  # the look that was put off may come right now
    except KeyboardInterrupt:
        watch.number = signal.SIGINT
    except Terminated:
        pass
    except Exception:  # what libraries of others made of the signal
        if not watch.number:
            raise
    # The answer is given: all that is left is the end of the interpreter.
    signal.setitimer(signal.ITIMER_REAL, 0)
    for number in taken:
        signal.signal(number, signal.SIG_IGN if number == signal.SIGINT else signal.SIG_DFL)
    if watch.number == signal.SIGINT:
        from qnnmem.cli.streams import say

        say("interrupted", 0)
    return _BY_SIGNAL + watch.number if watch.number else code


def _take(watch: _Watch) -> list[int]:
    """Handle the signals that are not ignored; `nohup` and background jobs ignore some."""
    wanted = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    taken: list[int] = [number for number in wanted if signal.getsignal(number) != signal.SIG_IGN]
    sys.unraisablehook = watch.lost
    for number in (signal.SIGALRM, *taken):
        signal.signal(number, watch.handle)
    return taken


def _must_not_be_torn(frame: FrameType | None) -> bool:
    """Return whether an import or a clean-up is under way.

    An extension module that is interrupted while it sets itself up may be half there for the rest
    of the process, which then crashes.
    """
    noting = _Watch.lost.__code__  # raised there, it would be lost again
    while frame is not None:
        code, module = frame.f_code, frame.f_globals.get("__name__")
        if code is noting or code.co_filename == _IMPORTING or module in _TIDY:
            return True
        frame = frame.f_back
    return False
