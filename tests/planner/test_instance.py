from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from qnnmem.ir import Span
from qnnmem.planner import Buffer, Problem
from qnnmem.planner.instance import arrange
from qnnmem.units import Align, Bytes, Step

buffers = st.lists(
    st.tuples(
        st.integers(0, 40),
        st.integers(0, 6),
        st.integers(1, 5),
        st.sampled_from((1, 2, 3, 4, 6, 8, 64)),
    ),
    max_size=7,
).map(
    lambda rows: tuple(
        Buffer(f"b{k}", Bytes(size), Span(Step(lower), Step(lower + width)), Align(align))
        for k, (size, lower, width, align) in enumerate(rows)
    )
)


@given(buffers, st.randoms(use_true_random=False))
def test_the_order_of_the_input_does_not_matter(given: tuple[Buffer, ...], rng: object) -> None:
    """Every permutation of the input gives the same canonical instance."""
    mixed = list(given)
    rng.shuffle(mixed)  # type: ignore[attr-defined] # hypothesis hands in a random.Random
    one, two = arrange(Problem(given)), arrange(Problem(tuple(mixed)))
    assert [given[i].name for i in one.source] == [mixed[i].name for i in two.source]
    assert (one.unit, one.lo, one.hi, one.size, one.align) == (
        two.unit,
        two.lo,
        two.hi,
        two.size,
        two.align,
    )


@given(buffers)
def test_units_lose_no_bytes(given: tuple[Buffer, ...]) -> None:
    """Units convert back to the exact sizes and alignments; empty buffers are left out."""
    instance = arrange(Problem(given))
    assert sorted(instance.source) == [k for k, b in enumerate(given) if b.size]
    for i, source in enumerate(instance.source):
        assert instance.true_size(i) == given[source].size
        assert instance.align[i] * instance.unit == given[source].align
        assert instance.end_bytes(i, instance.align[i]) == given[source].align + given[source].size


@given(buffers, st.integers(0, 100))
def test_the_highest_offset_is_the_last_legal_one(given: tuple[Buffer, ...], capacity: int) -> None:
    """The highest offset ends within the capacity; the next aligned offset does not."""
    instance = arrange(Problem(given))
    for i, align in enumerate(instance.align):
        highest = instance.highest_offset(i, capacity)
        assert highest % align == 0
        assert instance.end_bytes(i, highest) <= capacity
        assert instance.end_bytes(i, highest + align) > capacity


@given(buffers)
def test_pairs_counts_who_meets_whom(given: tuple[Buffer, ...]) -> None:
    """`pairs` counts the pairs of non-empty buffers whose lifetimes overlap."""
    real = [b for b in given if b.size]
    met = sum(a.live.overlaps(b.live) for a, b in itertools.combinations(real, 2))
    assert arrange(Problem(given)).pairs == met


@given(buffers, st.data())
def test_a_subset_keeps_sizes_and_meetings(given: tuple[Buffer, ...], data: st.DataObject) -> None:
    """A subset keeps the sizes of its buffers and which lifetimes overlap."""
    whole = arrange(Problem(given))
    chosen = [i for i in range(len(whole)) if data.draw(st.booleans())]
    part = whole.subset(chosen)
    assert sorted(part.source) == chosen
    for i, j in itertools.product(range(len(part)), repeat=2):
        a, b = part.source[i], part.source[j]
        assert part.true_size(i) == whole.true_size(a)
        assert (part.lo[i] < part.hi[j] and part.lo[j] < part.hi[i]) == (
            whole.lo[a] < whole.hi[b] and whole.lo[b] < whole.hi[a]
        )
