"""Environment errors: which exceptions come from the machine's limits, and their messages."""

from __future__ import annotations

import errno
import resource
import sys

import pytest

from qnnmem.cli.outcome import blame

FILES = "too many files are open; 99 are allowed (ulimit -n)"
THREADS = "no more processes or threads can be started; 99 are allowed (ulimit -u)"
MEMORY = "not enough memory for this input; this process is limited to 99 B (ulimit -v)"


@pytest.fixture(autouse=True)
def limits(monkeypatch: pytest.MonkeyPatch) -> dict[int, int]:
    """Set every process limit to 99; a test may change the returned limits."""
    found = dict.fromkeys((resource.RLIMIT_AS, resource.RLIMIT_NOFILE, resource.RLIMIT_NPROC), 99)
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (found[kind], 10**6))
    return found


def because(error: BaseException, cause: BaseException, hidden: bool = False) -> BaseException:
    """Return the error with a cause, or with only a context if `hidden`."""
    error.__context__ = cause
    error.__cause__ = None if hidden else cause
    return error


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OSError(errno.EMFILE, "x"), FILES),
        (OSError(errno.ENFILE, "x", "name"), FILES),
        (OSError(errno.ENOMEM, "x", "name"), MEMORY),
        (OSError(errno.EAGAIN, "x"), THREADS),
        (OSError(errno.EAGAIN, "try again", "a\nb"), "'a\\nb': try again"),
        (
            OSError(errno.ENOSPC, "disk full"),
            "the operating system refused a request: disk full",
        ),
        (OSError("odd"), "the operating system refused a request: odd"),
        (OSError(), "the operating system refused a request: OSError"),
        (PermissionError(13, "no", "file"), "file: no"),
        (MemoryError(), MEMORY),
        (because(RuntimeError("x"), MemoryError()), MEMORY),
        (because(ValueError("x"), MemoryError(), hidden=True), MEMORY),
        (because(ValueError("x"), because(KeyError(), OSError(errno.EMFILE, "x"))), FILES),
        (because(KeyError("x"), OSError(errno.ENOSPC, "full", "f")), "f: full"),
        (because(KeyError("x"), OSError(errno.EIO, "broken", "f")), "f: broken"),
        (because(KeyError("x"), OSError(errno.EROFS, "read-only", "f")), "f: read-only"),
        (because(KeyError("x"), OSError(errno.EACCES, "no", "f")), ""),
        (ImportError("libx.so: failed to map segment from shared object"), MEMORY),
        (RuntimeError("Out of memory"), MEMORY),
        (type("error", (Exception,), {"__module__": "lib"})("Unable to allocate memory."), MEMORY),
        (type("Ours", (Exception,), {"__module__": "qnnmem.x"})("Out of memory"), ""),
        (ValueError("Out of memory"), ""),
        (SystemError("Cannot allocate memory"), MEMORY),
        (ImportError("x.so: cannot open shared object file: Error 24"), FILES),
        (RuntimeError("Too many open files"), FILES),
        (RuntimeError("can't start new thread"), THREADS),
        (RuntimeError("Resource temporarily unavailable"), THREADS),
        (RuntimeError("a bug"), ""),
        (ValueError("out of memory"), ""),
        (KeyError("x"), ""),
    ],
)
def test_a_fault_of_the_machine_is_told_from_ours(error: BaseException, said: str) -> None:
    """A machine fault becomes one sentence with the exceeded limit; other errors become none."""
    assert blame(error) == said


def test_errors_that_go_round_in_a_circle_end() -> None:
    """A cycle in the chain of exception contexts does not loop forever."""
    one, other = ValueError(), KeyError()
    one.__context__, other.__context__ = other, one
    assert blame(one) == ""


def test_without_limits_none_is_named(
    limits: dict[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message names no limit if the limit is infinite or the `resource` module is missing."""
    limits.update(dict.fromkeys(limits, resource.RLIM_INFINITY))
    plain = ["not enough memory for this input", "no more processes or threads can be started"]
    errors = (MemoryError(), OSError(errno.EAGAIN, "x"))
    assert [blame(error) for error in errors] == plain
    monkeypatch.setitem(sys.modules, "resource", None)
    assert [blame(error) for error in errors] == plain
