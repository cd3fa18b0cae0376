"""Turn the end of a run into an exit code and one sentence about an error."""

from __future__ import annotations

import errno
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import TypeGuard

import click

from qnnmem.cli.streams import discard_output, finish_output, note, say
from qnnmem.cli.verbs import run
from qnnmem.errors import QnnMemError
from qnnmem.text import plain_or_quoted
from qnnmem.units import Bytes, format_size

BUG = 70  # EX_SOFTWARE of sysexits: a bug in qnnmem
_ENVIRONMENT = 2
_SHORTAGES = {
    *(errno.EMFILE, errno.ENFILE, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO),
    *(errno.ENOMEM, errno.EAGAIN, errno.EROFS),
}
# The dynamic linker and Python's threads report these shortages without an error number, so their
# messages are searched.
_MEMORY = r"(?i)(cannot|unable to) allocate memory|failed to map segment|out of memory"
_FILES = r"(?i)too many open files|cannot open shared object file: error 24"
_THREADS = r"(?i)can't start new thread|resource temporarily unavailable"


def outcome(is_interrupted: Callable[[], bool]) -> int:
    """Run the command line; return its exit code."""
    # OpenBLAS, which numpy loads, would start threads that are not needed, and sends SIGINT if it
    # cannot start them.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    try:
        code = run()
    except (BrokenPipeError, SystemExit):  # click converts BrokenPipeError to SystemExit
        discard_output()  # the reader closed the pipe
        return 0
    except Exception as exc:
        if is_interrupted():  # a third-party library converted the signal to its own exception
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
    if settings and not getattr(exc, "untried", ""):  # do not suggest a command based on a guess
        from qnnmem.cli.recorded_args import retry_command

        note(f"try: {retry_command(sys.argv[1:], settings)}")
    if wants_json(sys.argv[1:]):
        _print_json(sentence, code)
    return code


def _sentence(exc: Exception) -> tuple[str, int]:
    """Return one sentence about the error, and the exit code."""
    if isinstance(exc, QnnMemError):
        from qnnmem.flags import flag

        return exc.sentence(flag), exc.exit_code
    if isinstance(exc, click.ClickException):
        from qnnmem.cli.usage import sentence

        return sentence(exc), exc.exit_code
    if around := blame(exc):
        return around, _ENVIRONMENT
    # Any other exception is a bug in qnnmem, but the user still gets one sentence.
    return f"internal error, please report it: {type(exc).__name__}: {exc}", BUG


def wants_json(words: Sequence[str]) -> bool:
    """Return True if the raw arguments ask for JSON; parsing them may have failed."""
    options = words[: words.index("--")] if "--" in words else words
    forms = [word.removeprefix("--format=") for word in options if word.startswith("--format=")]
    forms += [word for before, word in pairwise(options) if before == "--format"]
    forms += ["json"] if "--json" in options else []
    return set(forms) == {"json"}


def _print_json(sentence: str, code: int) -> None:
    """Print the error as JSON, for programs that parse the output."""
    from qnnmem.results.result import ErrorResult
    from qnnmem.results.schema import encode

    with suppress(OSError, ValueError):
        sys.stdout.write(encode(ErrorResult(error=sentence, exit_code=code)))
    finish_output()


def _is_printing(exc: Exception) -> TypeGuard[OSError]:
    """Return True if click could not write its own output, such as the help."""
    trace = exc.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    where = "" if trace is None else trace.tb_frame.f_globals.get("__name__")
    return isinstance(exc, OSError) and where == "click.utils"


def _say_output(exc: OSError) -> int:
    return say(f"standard output cannot be written: {exc.strerror or exc}", _ENVIRONMENT)


def _trace() -> None:
    """Print a traceback if the environment requests it."""
    if os.environ.get("QNNMEM_TRACEBACK", "0") not in ("", "0"):
        import traceback

        traceback.print_exc()


def blame(exc: BaseException) -> str:
    """Return a sentence about a failed system call or missing resource; empty for other errors."""
    if isinstance(exc, OSError):
        return _of_system(exc)
    for cause in _chain(exc):
        if isinstance(cause, MemoryError):
            return _memory()
        if isinstance(cause, OSError) and cause.errno in _SHORTAGES:
            return _of_system(cause)
    if isinstance(exc, ImportError | RuntimeError | SystemError) or _is_foreign(exc):
        return _of_text(str(exc))
    return ""


def _is_foreign(exc: BaseException) -> bool:
    """Return True for an exception class of a third-party library."""
    return type(exc).__module__.partition(".")[0] not in ("builtins", "qnnmem")


def _chain(exc: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while exc is not None and id(exc) not in seen:
        seen.add(id(exc))
        yield exc
        exc = exc.__cause__ or exc.__context__


def _of_system(exc: OSError) -> str:
    if exc.errno in (errno.EMFILE, errno.ENFILE):
        return _files()
    if exc.errno == errno.ENOMEM:
        return _memory()
    if exc.errno == errno.EAGAIN and exc.filename is None:
        return _threads()
    reason = exc.strerror or str(exc) or type(exc).__name__
    if exc.filename is None:
        return f"the operating system refused a request: {reason}"
    return f"{plain_or_quoted(str(exc.filename), 200)}: {reason}"


def _of_text(text: str) -> str:
    if re.search(_MEMORY, text):
        return _memory()
    if re.search(_FILES, text):
        return _files()
    return _threads() if re.search(_THREADS, text) else ""


def _memory() -> str:
    limit = _limit("RLIMIT_AS")
    allowed = (
        f"; this process is limited to {format_size(Bytes(limit))} (ulimit -v)" if limit else ""
    )
    return f"not enough memory for this input{allowed}"


def _files() -> str:
    limit = _limit("RLIMIT_NOFILE")
    return f"too many files are open; {limit} are allowed (ulimit -n)"


def _threads() -> str:
    limit = _limit("RLIMIT_NPROC")
    allowed = f"; {limit} are allowed (ulimit -u)" if limit else ""
    return f"no more processes or threads can be started{allowed}"


def _limit(name: str) -> int | None:
    """Return a resource limit of this process; None if it is unlimited."""
    try:
        import resource
    except ImportError:  # Windows, or no file descriptor left
        return None
    soft, _hard = resource.getrlimit(getattr(resource, name))
    return None if soft == resource.RLIM_INFINITY else soft
