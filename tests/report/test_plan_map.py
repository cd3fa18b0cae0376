from __future__ import annotations

import pytest

from qnnmem.report.plan_picture import FREE, OTHER, draw_map
from qnnmem.results.plan import PlanBuffer


def placed(name: str, size: int, lower: int, upper: int, offset: int) -> PlanBuffer:
    """Return a placed buffer."""
    return PlanBuffer(name, "scratch", size, lower, upper, offset)


def cells(lines: list[str]) -> list[str]:
    """Return the rows of the map, highest address first."""
    return [line.split("│")[1] for line in lines if "│" in line]


def test_time_goes_right_and_address_goes_up() -> None:
    """In the map, time goes right and addresses go up."""
    low, high = placed("low", 4, 0, 2, 0), placed("high", 4, 2, 4, 4)
    rows = cells(draw_map((low, high), 8, {"low": "A", "high": "B"}, height=2))
    assert rows == [f"{FREE * 2}BB", f"AA{FREE * 2}"]


def test_buffers_without_a_letter_are_drawn_alike() -> None:
    """Buffers outside the peak have no letter of their own."""
    assert cells(draw_map((placed("a", 4, 0, 1, 0),), 4, {}, height=1)) == [OTHER]


def test_the_axis_names_first_and_last_step() -> None:
    """The axis names the first and the last step; -1 is before the first op."""
    lines = draw_map((placed("a", 4, -1, 12, 0),), 4, {"a": "A"})
    assert lines[-1].split() == ["step", "-1", "11"]


@pytest.mark.parametrize("steps", [1, 2, 63, 64, 65, 1000, 10**12])
def test_the_map_is_never_wider_than_asked(steps: int) -> None:
    """The map is at most as wide as asked, with one column per step if possible."""
    rows = cells(draw_map((placed("a", 4, 0, steps, 0),), 4, {"a": "A"}, width=64))
    assert {len(row) for row in rows} == {min(steps, 64)}


def test_a_squeezed_column_shows_its_fullest_step() -> None:
    """A compressed column shows its fullest step."""
    long, short = placed("long", 4, 0, 1000, 0), placed("short", 4, 501, 502, 4)
    rows = cells(draw_map((long, short), 8, {"long": "A", "short": "B"}, width=10, height=2))
    assert rows == [f"{FREE * 5}B{FREE * 4}", "A" * 10]


def test_nothing_is_drawn_for_nothing() -> None:
    """Without buffers or bytes there is no map."""
    assert draw_map((), 0, {}) == []
    assert draw_map((placed("a", 0, 0, 1, 0),), 0, {}) == []
