"""The end of a run: its exit code, and one sentence about an error."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import TypeGuard

import click

from qnnmem.cli.environment_errors import blame
from qnnmem.cli.stderr import note, say
from qnnmem.cli.streams import discard_output, finish_output
from qnnmem.cli.verbs import run
from qnnmem.errors import QnnMemError

BUG = 70  # EX_SOFTWARE of sysexits: a fault of qnnmem, not of its input
_ENVIRONMENT = 2


def outcome(is_interrupted: Callable[[], bool]) -> int:
    """Run the command line; return its exit code."""
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
    sentence, code = _sentence(exc)
    say(sentence, code)
    for line in getattr(exc, "__notes__", ()):
        note(line)
    settings = getattr(exc, "settings", ())
    if settings and not getattr(exc, "untried", ""):  # a guess is no command to paste
        from qnnmem.cli.recorded_args import retry_command

        note(f"try: {retry_command(sys.argv[1:], settings)}")
    if wants_json(sys.argv[1:]):
        _print_json(sentence, code)
    return code


def _sentence(exc: Exception) -> tuple[str, int]:
    """Return what went wrong, and the exit code."""
    if isinstance(exc, QnnMemError):
        from qnnmem.flags import flag

        return exc.sentence(flag), exc.exit_code
    if isinstance(exc, click.ClickException):
        from qnnmem.cli.usage import sentence

        return sentence(exc), exc.exit_code
    if around := blame(exc):
        return around, _ENVIRONMENT
    # The last resort: say it in one sentence, whatever it was.
    return f"internal error, please report it: {type(exc).__name__}: {exc}", BUG


def wants_json(words: Sequence[str]) -> bool:
    """Return whether JSON is asked for; read from the raw arguments, which may be the mistake."""
    options = words[: words.index("--")] if "--" in words else words
    forms = [word.removeprefix("--format=") for word in options if word.startswith("--format=")]
    forms += [word for before, word in pairwise(options) if before == "--format"]
    forms += ["json"] if "--json" in options else []
    return set(forms) == {"json"}


def _print_json(sentence: str, code: int) -> None:
    """Print the error as JSON, for a program that parses the output."""
    from qnnmem.results.result import ErrorResult
    from qnnmem.results.schema import encode

    with suppress(OSError, ValueError):
        sys.stdout.write(encode(ErrorResult(error=sentence, exit_code=code)))
    finish_output()


def _is_printing(exc: Exception) -> TypeGuard[OSError]:
    """Return whether click failed to print, for example the help."""
    trace = exc.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    where = "" if trace is None else trace.tb_frame.f_globals.get("__name__")
    return isinstance(exc, OSError) and where == "click.utils"


def _say_output(exc: OSError) -> int:
    return say(f"standard output cannot be written: {exc.strerror or exc}", _ENVIRONMENT)


def _trace() -> None:
    """Print a traceback if the environment asks for one."""
    if os.environ.get("QNNMEM_TRACEBACK", "0") not in ("", "0"):
        import traceback

        traceback.print_exc()
