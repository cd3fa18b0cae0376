"""The outcome of a run: exit code, sentence and pending output."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from qnnmem.cli import outcome as module
from qnnmem.errors import UsageError


@pytest.fixture
def ended(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str]]:
    """Return a function that gives the exit code and the sentence of a run."""

    def ended(
        run: Callable[[], int], unwritten: OSError | None = None, interrupted: bool = False
    ) -> tuple[int, str]:
        monkeypatch.setattr(module, "run", run)
        monkeypatch.setattr(module, "finish_output", lambda: unwritten)
        code = module.outcome(lambda: interrupted)
        return code, capsys.readouterr().err

    return ended


def raising(error: BaseException) -> Callable[[], int]:
    """Return a run that raises this error."""

    def run() -> int:
        raise error

    return run


FULL = (2, "qnnmem: standard output cannot be written: full\n")


@pytest.mark.parametrize("code", [0, 1, 2, 3])
def test_the_code_of_a_run_is_that_of_the_program(
    code: int, ended: Callable[..., tuple[int, str]]
) -> None:
    """The exit code is that of the run, or 2 if its output was lost."""
    assert ended(lambda: code) == (code, "")
    assert ended(lambda: code, OSError(28, "full")) == FULL
    assert ended(lambda: code, OSError("full")) == FULL


@pytest.mark.parametrize(
    ("error", "wanted"),
    [
        (UsageError("bad"), (2, "qnnmem: bad\n")),
        (PermissionError(13, "no", "f"), (2, "qnnmem: f: no\n")),
        (KeyError("x"), (70, "qnnmem: internal error, please report it: KeyError: 'x'\n")),
    ],
)
def test_an_error_is_a_sentence(
    error: Exception, wanted: tuple[int, str], ended: Callable[..., tuple[int, str]]
) -> None:
    """User, machine and internal errors each become one sentence with their exit code."""
    assert ended(raising(error)) == wanted


def test_what_an_interrupt_made_of_libraries_goes_on(ended: Callable[..., tuple[int, str]]) -> None:
    """After an interrupt, a library's error is raised again, so that the caller can report it."""
    with pytest.raises(RuntimeError):
        ended(raising(RuntimeError("x")), interrupted=True)


def test_a_failure_still_prints_what_was_said(
    ended: Callable[..., tuple[int, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pending standard output is flushed before the error is printed."""
    done: list[str] = []
    ended(lambda: 0)
    monkeypatch.setattr(module, "finish_output", lambda: done.append("flushed"))
    monkeypatch.setattr(module, "run", raising(UsageError("bad")))
    assert module.outcome(lambda: False) == 2
    assert done == ["flushed"]


def test_no_threads_are_started_for_nothing(
    ended: Callable[..., tuple[int, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """OPENBLAS_NUM_THREADS is 1 by default: OpenBLAS raises SIGINT if threads cannot start."""
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "")
    monkeypatch.delenv("OPENBLAS_NUM_THREADS")
    assert ended(lambda: int(os.environ["OPENBLAS_NUM_THREADS"])) == (1, "")
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "3")  # the user's setting wins
    assert ended(lambda: int(os.environ["OPENBLAS_NUM_THREADS"])) == (3, "")


def test_a_reader_that_is_gone_is_no_error(
    ended: Callable[..., tuple[int, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broken pipe ends with code 0, and the remaining output is discarded."""
    done: list[str] = []
    monkeypatch.setattr(module, "discard_output", lambda: done.append("discarded"))
    assert ended(raising(BrokenPipeError(32, "pipe"))) == (0, "")
    assert done == ["discarded"]


def test_what_fails_while_printing_is_the_output(
    ended: Callable[..., tuple[int, str]],
) -> None:
    """An OSError while click prints is an output error; the same error elsewhere is not."""

    def printing(error: str) -> Callable[[], int]:
        def run() -> int:
            exec(f"raise {error}", {"__name__": "click.utils"})  # noqa: S102
            return 0

        return run

    assert ended(printing("OSError(28, 'full')")) == FULL
    elsewhere = (2, "qnnmem: the operating system refused a request: full\n")
    assert ended(raising(OSError(28, "full"))) == elsewhere
    assert ended(printing("KeyError('x')"))[0] == 70


@pytest.mark.parametrize(
    ("asked", "shown"), [("1", True), ("0", False), ("", False), (None, False)]
)
def test_a_traceback_only_for_those_who_ask(
    asked: str | None,
    shown: bool,
    ended: Callable[..., tuple[int, str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """QNNMEM_TRACEBACK=1 prints a traceback before the sentence; other values do not."""
    monkeypatch.delenv("QNNMEM_TRACEBACK", raising=False)
    if asked is not None:
        monkeypatch.setenv("QNNMEM_TRACEBACK", asked)
    code, said = ended(raising(UsageError("bad")))
    assert (code, said.startswith("Traceback")) == (2, shown)
    assert said.endswith("qnnmem: bad\n")
