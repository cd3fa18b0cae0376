"""The search is compiled once on a machine; whoever waits for that is told at once."""

from __future__ import annotations

import threading

import pytest

from qnnmem.cli.progress import ProgressBar
from qnnmem.ir.span import Span
from qnnmem.plan import Buffer, Problem, Progress, planner, warm
from qnnmem.plan.effort import Effort
from qnnmem.plan.planner import COMPILING, plan_problem
from qnnmem.units import Bytes, Step

# Greedy placement misses the bound of these.
HARD = tuple(
    Buffer(str(i), Bytes(2 + i), Span(Step(lower), Step(upper)))
    for i, (lower, upper) in enumerate(((0, 2), (1, 3), (2, 4), (0, 4)))
)


def test_a_long_compilation_is_announced_while_it_lasts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not only afterwards."""
    told = threading.Event()
    seen: list[Progress] = []

    def watch(progress: Progress) -> None:
        seen.append(progress)
        if progress.is_pause:
            told.set()

    monkeypatch.setattr(planner, "SOON_S", 0.01)
    monkeypatch.setattr(warm, "warm_up", lambda: not told.wait(60))
    made = planner._Search(Problem(HARD), Effort.of_seconds(1), 0, watch)
    made._load_compiled()
    assert [one.doing for one in seen if one.is_pause] == [COMPILING]


def test_what_is_compiled_already_is_not_announced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Most runs say nothing."""
    seen: list[Progress] = []
    monkeypatch.setattr(warm, "warm_up", lambda: False)
    plan_problem(Problem(HARD), watch=seen.append)
    assert not any(one.is_pause for one in seen)


def test_a_pause_is_said_where_there_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """A log shows it too; what goes on every second is for terminals."""
    with ProgressBar("planning") as bar:
        bar(Progress("placing greedily", Bytes(2), Bytes(1)))
        assert capsys.readouterr().err == ""
        bar(Progress(COMPILING, Bytes(2), Bytes(1), is_pause=True))
    assert capsys.readouterr().err == f"note: {COMPILING}\n"
