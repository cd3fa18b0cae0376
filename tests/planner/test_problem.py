from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qnnmem.errors import UsageError
from qnnmem.ir import Span
from qnnmem.planner import Buffer, Plan, Problem, find_peak
from qnnmem.units import MAX_BYTES, Align, Bytes, Offset, Step


def buf(name: str, size: int, lower: int, upper: int, align: int = 1) -> Buffer:
    """Make a buffer of plain integers."""
    return Buffer(name, Bytes(size), Span(Step(lower), Step(upper)), Align(align))


@pytest.mark.parametrize(
    ("buffers", "capacity"),
    [
        ((buf("a", 1, 0, 1), buf("a", 2, 1, 2)), None),
        ((buf("a", -1, 0, 1),), None),
        ((buf("a", 1, 0, 1, align=0),), None),
        ((buf("a", 1, 0, 1, align=-4),), None),
        ((buf("a", MAX_BYTES, 0, 1), buf("b", 1, 5, 6)), None),
        ((buf("a", 1, 0, 1, align=MAX_BYTES),), None),
        ((), -1),
        ((), MAX_BYTES + 1),
    ],
)
def test_impossible_problems_are_refused(buffers: tuple[Buffer, ...], capacity: int | None) -> None:
    """Duplicate names, negative numbers and sums that could overflow raise UsageError."""
    with pytest.raises(UsageError):
        Problem(buffers, None if capacity is None else Bytes(capacity))


def test_the_largest_sum_is_accepted() -> None:
    """A problem of exactly the largest supported size is accepted."""
    assert Problem((buf("a", MAX_BYTES - 1, 0, 1),)).buffers


def test_the_peak_is_the_highest_end_and_not_the_load() -> None:
    """The peak is the highest end of any buffer, gaps below it included."""
    problem = Problem((buf("a", 4, 0, 1), buf("b", 2, 0, 1)))
    plan = Plan(problem, (Offset(10), Offset(0)), Bytes(6))
    assert plan.peak == 14
    assert not plan.optimal


def test_offsets_are_found_by_name() -> None:
    """`offset_of` maps each name to its own offset."""
    problem = Problem((buf("b", 4, 0, 1), buf("a", 2, 0, 1)))
    assert Plan(problem, (Offset(2), Offset(0)), Bytes(6)).offset_of == {"b": 2, "a": 0}


def test_the_fullest_step_is_explained_largest_first() -> None:
    """The peak names its step and the live buffers, by size and then by name."""
    peak = find_peak([buf("b", 3, 0, 2), buf("c", 9, 1, 3), buf("a", 3, 1, 2), buf("d", 1, 2, 9)])
    assert peak is not None
    assert (peak.step, peak.size, [b.name for b in peak.live]) == (1, 15, ["c", "a", "b"])


def test_nothing_has_no_peak() -> None:
    """Without buffers there is no peak."""
    assert find_peak([]) is None


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(-2, 6), st.integers(1, 5)), min_size=1))
def test_the_peak_is_the_first_fullest_step(rows: list[tuple[int, int, int]]) -> None:
    """The peak is the first step with the most live bytes."""
    buffers = [buf(str(k), s, a, a + w) for k, (s, a, w) in enumerate(rows)]
    peak = find_peak(buffers)
    assert peak is not None
    first = min(b.live.lower for b in buffers)
    loads = {t: sum(b.size for b in buffers if b.live.covers(t)) for t in range(first, 12)}
    assert peak.size == max(loads.values())
    assert peak.step == min(t for t, load in loads.items() if load == peak.size)
