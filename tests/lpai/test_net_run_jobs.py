"""The number and duration of passes over an input list."""

from __future__ import annotations

from itertools import count
from pathlib import Path

import pytest

from qnnmem.lpai.net_run import schedule

LINES = [{"x": Path(str(n))} for n in range(3)]


def numbers(num: int | None = None, duration: float | None = None) -> list[int]:
    """Return the lines that run, with a clock that ticks once per reading."""
    ticks = count()
    clock = lambda: float(next(ticks))  # noqa: E731 - a one-line clock
    found = list(schedule(LINES, num, duration, clock))
    assert [number for number, _ in found] == list(range(len(found)))
    return [int(str(files["x"])) for _, files in found]


@pytest.mark.parametrize(
    ("num", "duration", "expected"),
    [
        (None, None, [0, 1, 2]),
        (2, None, [0, 1]),
        (7, None, [0, 1, 2, 0, 1, 2, 0]),
        (None, 0.0, [0]),
        (None, 5.0, [0, 1, 2, 0, 1]),
        (2, 100.0, [0, 1]),
        (100, 2.0, [0, 1]),
    ],
)
def test_the_list_is_repeated_until_enough(
    num: int | None, duration: float | None, expected: list[int]
) -> None:
    """The list repeats until the number or the time is reached; by default it runs once."""
    assert numbers(num, duration) == expected


def test_an_empty_list_is_never_repeated() -> None:
    """An empty list ends at once."""
    assert list(schedule([], 5, 1.0)) == []
