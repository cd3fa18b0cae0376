"""Log lines of a run: which are shown, and with what text."""

from __future__ import annotations

import re

import pytest

from qnnmem.contract.rules import finding
from qnnmem.errors import QnnError
from qnnmem.lpai.net_run.log import CODE, LEVELS, ApiTimes, Console
from qnnmem.qnn.codes import qnn_error
from qnnmem.qnn.enums import LogLevel


def console(level: str) -> tuple[Console, list[str], list[str]]:
    """Return a console whose two streams are lists."""
    out: list[str] = []
    err: list[str] = []
    return Console(LEVELS[level], out.append, err.append), out, err


@pytest.mark.parametrize(
    ("level", "shown"),
    [("error", 1), ("warn", 2), ("info", 3), ("verbose", 4), ("debug", 5)],
)
def test_a_level_shows_itself_and_what_is_worse(level: str, shown: int) -> None:
    """Each log level shows its own lines and the more severe ones."""
    made, out, _ = console(level)
    for one in LogLevel:
        made.log(one, "text")
    assert len(out) == shown
    words = ["ERROR", "WARNING", "INFO", "VERBOSE", "DEBUG"]
    for line, word in zip(out, words, strict=False):
        assert re.fullmatch(rf"[0-9]+\.[0-9]ms \[{word}\] text", line)


def test_an_error_of_the_backend_is_logged_with_its_code_only() -> None:
    """The log has an error's code, and stderr explains the reason once."""
    made, out, err = console("error")
    error = qnn_error(6000, finding("R3", "scratch is misaligned", cure="align it"))
    made.backend_log(LogLevel.ERROR, str(error))
    made.backend_log(LogLevel.ERROR, "Invalid memory type")
    made.explain(error.finding)
    assert out[0].endswith("[ERROR] QNN_GRAPH_ERROR_INVALID_ARGUMENT (6000)")
    assert out[1].endswith("[ERROR] Invalid memory type")
    assert err == ["[R3] scratch is misaligned; align it"]


def test_a_failure_is_logged_in_the_words_of_the_tool() -> None:
    """A failure is logged in the vendor tool's words with its code and is raised again."""
    made, out, _ = console("error")
    with pytest.raises(QnnError), made.failing_with(f"failed with error = {CODE}", "Bad"):
        raise qnn_error(6022, finding("R2", "nothing was passed to QNN"))
    assert [line.split("] ")[1] for line in out] == ["failed with error = 6022", "Bad"]


@pytest.mark.parametrize(("level", "lists_calls"), [("basic", False), ("detailed", True)])
def test_times_are_summed_by_function(level: str, lists_calls: bool) -> None:
    """The time report has a row per function; the detailed level adds every call."""
    times = ApiTimes(level)
    for name in ("A", "B", "A"):
        with times.timed(name):
            pass
    lines = times.report("qnnmem 1").splitlines()
    assert [line.split()[:2] for line in lines[2:4]] == [["A", "2"], ["B", "1"]]
    assert [line.split()[0] for line in lines[6:]] == (["A", "B", "A"] if lists_calls else [])
