from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from qnnmem.ir import Span
from qnnmem.planner.instance import cut_sections
from qnnmem.units import Step

spans = st.lists(
    st.tuples(st.integers(-5, 12), st.integers(1, 8)).map(
        lambda p: Span(Step(p[0]), Step(p[0] + p[1]))
    ),
    max_size=12,
)


@given(spans)
def test_two_buffers_share_a_section_exactly_when_they_share_a_step(lives: list[Span]) -> None:
    """Two buffers share a section exactly when their lifetimes share a step."""
    cut = cut_sections([live.lower for live in lives], [live.upper for live in lives])
    for i, a in enumerate(lives):
        assert 0 <= cut.lo[i] < cut.hi[i] <= cut.count
        for j, b in enumerate(lives):
            assert (cut.lo[i] < cut.hi[j] and cut.lo[j] < cut.hi[i]) == a.overlaps(b)


@given(spans)
def test_every_fullest_set_of_a_step_is_a_section(lives: list[Span]) -> None:
    """Each section is the live set of some step, and each step's live set is in a section."""
    cut = cut_sections([live.lower for live in lives], [live.upper for live in lives])
    everyone = range(len(lives))
    sections = [
        {i for i in everyone if cut.lo[i] <= section < cut.hi[i]} for section in range(cut.count)
    ]
    steps = [{i for i in everyone if lives[i].covers(step)} for step in range(-5, 21)]
    assert all(members in steps for members in sections)
    assert all(any(members <= section for section in sections) for members in steps if members)


@given(spans)
def test_there_are_never_more_sections_than_buffers(lives: list[Span]) -> None:
    """There are at most as many sections as buffers, since each section begins with a birth."""
    cut = cut_sections([live.lower for live in lives], [live.upper for live in lives])
    assert cut.count <= len(lives)
    assert set(range(cut.count)) <= set(cut.lo)


def test_touching_lives_are_in_different_sections() -> None:
    """A buffer that dies at a step shares no section with a buffer born at that step."""
    cut = cut_sections([0, 3], [3, 6])
    assert (cut.lo, cut.hi, cut.count) == ([0, 1], [1, 2], 2)
