"""What became of a run: its exit code, and one sentence where it did not end well."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import TypeGuard

from qnnmem.cli.say import note, say
from qnnmem.cli.streams import discard_output, finish_output
from qnnmem.cli.surroundings import blame
from qnnmem.cli.verbs import run
from qnnmem.errors import QnnMemError

BUG = 70  # EX_SOFTWARE of sysexits: a fault of qnnmem, not of its input
_ENVIRONMENT = 2


def outcome(is_interrupted: Callable[[], bool]) -> int:
    """Runs the command line; gives its exit code."""
    # numpy's OpenBLAS starts threads that we do not need, and sends SIGINT where it cannot.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    try:
        code = run()
    except (BrokenPipeError, SystemExit):  # the latter is what click makes of it
        discard_output()  # the reader has seen enough
        return 0
    except Exception as exc:
        if is_interrupted():  # and this is what libraries of others made of it
            raise
        _trace()
        finish_output()
        return _say_output(exc) if _is_printing(exc) else _say(exc)
    unwritten = finish_output()
    return code if unwritten is None else _say_output(unwritten)


def _say(exc: Exception) -> int:
    if isinstance(exc, QnnMemError):
        from qnnmem.report.flags import flag

        code = say(exc.sentence(flag), exc.exit_code)
        for line in getattr(exc, "__notes__", ()):
            note(line)
        settings = getattr(exc, "settings", ())
        if settings and not getattr(exc, "untried", ""):  # a guess is no command to paste
            from qnnmem.cli.retry import retry_command

            note(f"try: {retry_command(sys.argv[1:], settings)}")
        return code
    if around := blame(exc):
        return say(around, _ENVIRONMENT)
    # The last resort: say it in one sentence, whatever it was.
    return say(f"internal error, please report it: {type(exc).__name__}: {exc}", BUG)


def _is_printing(exc: Exception) -> TypeGuard[OSError]:
    """Whether click was about to print, the help for example."""
    trace = exc.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    where = "" if trace is None else trace.tb_frame.f_globals.get("__name__")
    return isinstance(exc, OSError) and where == "click.utils"


def _say_output(exc: OSError) -> int:
    return say(f"standard output cannot be written: {exc.strerror or exc}", _ENVIRONMENT)


def _trace() -> None:
    """Shows where an error comes from, for those who look for its reason in our code."""
    if os.environ.get("QNNMEM_TRACEBACK", "0") not in ("", "0"):
        import traceback

        traceback.print_exc()
