"""Errors of the machine, not of the input: no memory, disk space, files or processes left."""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator

from qnnmem.text import plain_or_quoted
from qnnmem.units import Bytes, format_size

_SHORTAGES = {
    *(errno.EMFILE, errno.ENFILE, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO),
    *(errno.ENOMEM, errno.EAGAIN, errno.EROFS),
}
# Messages of the dynamic linker and of Python's threads, which carry no error number.
_MEMORY = r"(?i)(cannot|unable to) allocate memory|failed to map segment|out of memory"
_FILES = r"(?i)too many open files|cannot open shared object file: error 24"
_THREADS = r"(?i)can't start new thread|resource temporarily unavailable"


def blame(exc: BaseException) -> str:
    """Return what the machine lacks as a sentence; empty for any other error."""
    if isinstance(exc, OSError):
        return _of_system(exc)
    for one in _chain(exc):
        if isinstance(one, MemoryError):
            return _memory()
        if isinstance(one, OSError) and one.errno in _SHORTAGES:
            return _of_system(one)
    if isinstance(exc, ImportError | RuntimeError | SystemError) or _is_foreign(exc):
        return _of_text(str(exc))
    return ""


def _is_foreign(exc: BaseException) -> bool:
    """True for an exception class of a third-party library."""
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
        return f"the system refused something that is needed: {reason}"
    return f"{plain_or_quoted(str(exc.filename), 200)}: {reason}"


def _of_text(text: str) -> str:
    if re.search(_MEMORY, text):
        return _memory()
    if re.search(_FILES, text):
        return _files()
    return _threads() if re.search(_THREADS, text) else ""


def _memory() -> str:
    limit = _limit("RLIMIT_AS")
    allowed = f"; this process may take {format_size(Bytes(limit))} (ulimit -v)" if limit else ""
    return f"not enough memory for this input{allowed}"


def _files() -> str:
    limit = _limit("RLIMIT_NOFILE")
    return f"too many files are open; {limit} are allowed (ulimit -n)"


def _threads() -> str:
    limit = _limit("RLIMIT_NPROC")
    allowed = f"; {limit} are allowed (ulimit -u)" if limit else ""
    return f"no more processes or threads can be started{allowed}"


def _limit(name: str) -> int | None:
    """A limit of this process; None where there is none."""
    try:
        import resource
    except ImportError:  # not on Windows, and not where no more files can be opened
        return None
    soft, _hard = resource.getrlimit(getattr(resource, name))
    return None if soft == resource.RLIM_INFINITY else soft
