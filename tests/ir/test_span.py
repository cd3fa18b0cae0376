from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qnnmem.errors import UsageError
from qnnmem.ir import Span
from qnnmem.units import Step


def span(lower: int, upper: int) -> Span:
    """Return a span from plain integers."""
    return Span(Step(lower), Step(upper))


spans = st.tuples(st.integers(-9, 9), st.integers(1, 9)).map(lambda p: span(p[0], p[0] + p[1]))


@pytest.mark.parametrize(("lower", "upper"), [(3, 3), (4, 3), (0, -1)])
def test_a_span_holds_at_least_one_step(lower: int, upper: int) -> None:
    """An empty or reversed span raises UsageError."""
    with pytest.raises(UsageError, match="empty span"):
        span(lower, upper)


@given(spans, spans)
def test_overlap_means_a_common_step(a: Span, b: Span) -> None:
    """Two spans overlap exactly when some step lies in both, in either order of asking."""
    common = set(range(a.lower, a.upper)) & set(range(b.lower, b.upper))
    assert a.overlaps(b) == b.overlaps(a) == bool(common)


@given(spans, st.integers(-20, 20))
def test_covers_agrees_with_the_half_open_range(a: Span, step: int) -> None:
    """A span covers its lower end but not its upper end."""
    assert a.covers(step) == (step in range(a.lower, a.upper))


@given(spans)
def test_length_counts_the_steps(a: Span) -> None:
    """The length of a span is its number of steps."""
    assert len(a) == len(range(a.lower, a.upper))


def test_touching_spans_do_not_overlap() -> None:
    """A span that ends where another begins does not overlap it."""
    assert not span(0, 3).overlaps(span(3, 6))


@given(spans, spans)
def test_spans_sort_by_start_then_end(a: Span, b: Span) -> None:
    """Spans sort by lower end, then by upper end."""
    assert (a < b) == ((a.lower, a.upper) < (b.lower, b.upper))
