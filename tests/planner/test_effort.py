from __future__ import annotations

import pytest

from qnnmem.planner.effort import WORK_PER_SECOND, Effort


def test_work_is_nominal_work_of_the_seconds() -> None:
    """A limit in seconds converts to the same amount of work on every machine."""
    assert Effort.of_seconds(0.5).left == WORK_PER_SECOND // 2


def test_no_seconds_are_no_work() -> None:
    """Zero seconds end the search at once, and the clock is not the reason."""
    effort = Effort.of_seconds(0.0)
    assert effort.over
    assert not effort.cut_by_clock


def test_spending_everything_ends_the_search_without_the_clock() -> None:
    """The search ends when its work is spent, which does not depend on the clock."""
    effort = Effort(10, float("inf"))
    effort.spend(9)
    assert not effort.over
    effort.spend(1)
    assert effort.over
    assert not effort.cut_by_clock


def test_a_slow_machine_is_stopped_by_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """After the deadline no work is left, and the effort reports that the clock ended it."""
    monkeypatch.setattr("time.monotonic", lambda: 5.0)
    effort = Effort(10, 4.0)
    assert effort.over
    assert effort.cut_by_clock
    assert effort.left == 0


def test_excused_time_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Excused time, such as loading, moves the deadline by the same amount."""
    monkeypatch.setattr("time.monotonic", lambda: 5.0)
    effort = Effort(10, 4.0)
    effort.excuse(2.0)
    assert not effort.over
