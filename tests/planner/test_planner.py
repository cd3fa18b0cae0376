from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from patience import patient
from seeds import few

from qnnmem.ir import Span
from qnnmem.planner import Buffer, Infeasible, Plan, Problem, Progress, plan, plan_problem, verify
from qnnmem.planner.instance import arrange, load_bound
from qnnmem.units import Align, Bytes, Step


def buf(name: str, size: int, lower: int, upper: int, align: int = 1) -> Buffer:
    """Make a buffer of plain integers."""
    return Buffer(name, Bytes(size), Span(Step(lower), Step(upper)), Align(align))


def solve(*buffers: Buffer, seconds: float | None = None, seed: int = 0) -> Plan:
    """Return the plan without a capacity; by default there is enough time for a proof."""
    limit = patient(10) if seconds is None else seconds
    answer = plan_problem(Problem(buffers), limit, seed=seed)
    assert isinstance(answer, Plan)
    return answer


def ask(capacity: int, *buffers: Buffer) -> Plan | Infeasible:
    """Return the answer for this capacity."""
    return plan_problem(Problem(buffers, Bytes(capacity)))


def crowd(seed: int, count: int) -> tuple[Buffer, ...]:
    """Return random buffers with mixed alignments, too many to pack well by luck."""
    rng = random.Random(seed)  # noqa: S311 - reproducible, not secret
    rows = []
    for k in range(count):
        lower = rng.randint(0, count // 2)
        width, align = rng.choice((1, 2, 4, 12)), rng.choice((1, 4, 64))
        rows.append(buf(f"b{k}", rng.randint(1, 900), lower, lower + width, align))
    return tuple(rows)


rows = st.lists(
    st.tuples(
        st.integers(0, 200),
        st.integers(-1, 12),
        st.integers(1, 8),
        st.sampled_from((1, 2, 4, 6, 64)),
    ),
    max_size=14,
)
problems = rows.map(
    lambda drawn: tuple(
        buf(f"b{k}", size, lower, lower + width, align)
        for k, (size, lower, width, align) in enumerate(drawn)
    )
)


def test_no_buffers_need_no_bytes() -> None:
    """A problem without buffers has an empty, optimal plan of 0 bytes."""
    answer = solve()
    assert (answer.peak, answer.lower_bound, answer.optimal) == (0, 0, True)


def test_one_buffer_starts_at_zero() -> None:
    """A single buffer needs exactly its size, not the size rounded up to its alignment."""
    answer = solve(buf("a", 5, 3, 9, align=64))
    assert (answer.offsets, answer.peak, answer.optimal) == ((0,), 5, True)


def test_empty_buffers_cost_nothing() -> None:
    """Buffers of zero bytes get a legal offset and do not raise the peak."""
    answer = solve(buf("e", 0, 0, 9, align=64), buf("a", 5, 0, 9), buf("f", 0, 0, 9))
    assert (answer.peak, answer.optimal) == (5, True)


def test_only_empty_buffers_need_no_bytes() -> None:
    """A problem with only empty buffers is optimal at 0 bytes."""
    answer = solve(buf("e", 0, 0, 9), buf("f", 0, 0, 9, align=8))
    assert (answer.peak, answer.optimal) == (0, True)


def test_identical_buffers_are_stacked() -> None:
    """Buffers that differ only in name are stacked in the order of their names."""
    answer = solve(*(buf(name, 6, 0, 2, align=4) for name in "dbca"))
    assert answer.offset_of == {"a": 0, "b": 8, "c": 16, "d": 24}
    assert (answer.peak, answer.optimal) == (30, True)


def test_touching_lives_share() -> None:
    """Buffers whose lifetimes only touch share bytes, so the chain needs the largest size."""
    assert solve(buf("a", 4, 0, 3), buf("b", 7, 3, 6), buf("c", 5, 6, 7)).peak == 7


def test_a_gap_forced_by_alignment_is_proven() -> None:
    """Two 65-byte buffers with 64-byte alignment need 193 bytes, proven, though 130 are alive."""
    answer = solve(buf("a", 65, 0, 1, align=64), buf("b", 65, 0, 1, align=64))
    assert (answer.peak, answer.optimal) == (193, True)


def test_an_optimum_above_the_load_is_proven() -> None:
    """If no plan reaches the load bound, the finished search raises the bound to the peak."""
    found = 0
    for seed in range(40):
        buffers = crowd(seed, 7)
        answer = solve(*buffers)
        if answer.peak > load_bound(arrange(Problem(buffers))):
            found += 1
            assert answer.optimal
    assert found > 3


def test_a_capacity_exactly_met_fits() -> None:
    """A capacity equal to the optimum fits; one byte less does not."""
    buffers = (buf("a", 4, 0, 2), buf("b", 3, 1, 3))
    assert isinstance(ask(7, *buffers), Plan)
    assert isinstance(ask(6, *buffers), Infeasible)


def test_a_capacity_of_nothing_holds_nothing() -> None:
    """A capacity of zero fits empty buffers and refuses a single byte."""
    assert isinstance(ask(0), Plan)
    assert isinstance(ask(0, buf("e", 0, 0, 1)), Plan)
    answer = ask(0, buf("a", 1, 0, 1))
    assert isinstance(answer, Infeasible)
    assert answer.blockers == ("a",)


def test_the_blockers_of_an_overfull_step_are_named_largest_first() -> None:
    """The blockers are the two largest buffers of the fullest step, largest first."""
    answer = ask(10, buf("s", 1, 0, 9), buf("m", 5, 2, 3), buf("l", 6, 2, 4), buf("far", 9, 5, 6))
    assert isinstance(answer, Infeasible)
    assert (answer.blockers, answer.proven, answer.lower_bound) == (("l", "m"), True, 12)


def test_the_fewest_blockers_are_found_in_a_less_full_step() -> None:
    """Two large buffers in a less full step are named instead of many small ones."""
    many = [buf(f"s{k}", 2, 0, 9) for k in range(100)]
    answer = ask(100, *many, buf("A", 51, 9, 10), buf("B", 51, 9, 10))
    assert isinstance(answer, Infeasible)
    assert answer.blockers == ("A", "B")


def test_the_fewest_blockers_are_found_among_many_steps() -> None:
    """Many fuller steps of small buffers do not hide a step that two large ones overfill."""
    many = [buf(f"s{k}", 2, 0, 200) for k in range(100)]
    turns = [buf(f"t{k}", 1, k, k + 1) for k in range(200)]
    answer = ask(100, *many, *turns, buf("A", 51, 300, 301), buf("B", 51, 300, 301))
    assert isinstance(answer, Infeasible)
    assert answer.blockers == ("A", "B")


def test_a_refusal_carries_the_lowest_plan_found() -> None:
    """A refusal includes the lowest plan found, even though it exceeds the capacity."""
    answer = ask(10, buf("a", 8, 0, 2), buf("b", 8, 1, 3))
    assert isinstance(answer, Infeasible)
    assert (answer.best.peak, verify(answer.best)) == (16, None)


@pytest.mark.parametrize("count", [10, 60, 400])
def test_without_time_there_is_still_a_verified_plan(count: int) -> None:
    """A time limit of zero gives a legal plan and a valid bound."""
    answer = solve(*crowd(count, count), seconds=0.0)
    assert verify(answer) is None
    assert answer.lower_bound <= answer.peak


@pytest.mark.parametrize(
    "seconds",
    [
        1e9,
        float("inf"),
    ],
)
def test_a_boundless_time_limit_is_accepted(seconds: float) -> None:
    """A time limit of 1e9 seconds or infinity is accepted."""
    assert solve(buf("a", 3, 0, 1), seconds=seconds).optimal


@pytest.mark.parametrize("seed", [0, 1, 7])
def test_the_same_seed_gives_the_same_plan(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same seed gives the same plan, since work and not the clock ends the search."""
    monkeypatch.setattr("time.monotonic", lambda: 0.0)
    first, second = (solve(*crowd(3, 60), seconds=0.2, seed=seed) for _ in range(2))
    assert (first.offsets, first.lower_bound) == (second.offsets, second.lower_bound)


def test_a_plan_says_when_the_clock_cut_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the clock ends the search, the plan is legal and reports `cut_by_clock`."""
    ticks = itertools.count()
    monkeypatch.setattr("time.monotonic", lambda: float(next(ticks)))
    answer = solve(*crowd(3, 60), seconds=3.0)
    assert answer.cut_by_clock
    assert verify(answer) is None


def test_progress_never_gets_worse() -> None:
    """Reported progress never worsens: the peak only falls, the bound only rises."""
    seen: list[Progress] = []
    plan_problem(Problem(crowd(5, 40)), 0.5, watch=seen.append)
    assert seen
    for before, after in itertools.pairwise(seen):
        assert before.peak >= after.peak >= after.lower_bound >= before.lower_bound


def test_plan_accepts_a_problem() -> None:
    """`qnnmem.plan` of a Problem equals the planner's own answer."""
    problem = Problem((buf("a", 4, 0, 2), buf("b", 3, 1, 3)))
    assert plan(problem) == plan_problem(problem)


def test_huge_sizes_do_not_wrap() -> None:
    """Sizes near 2**57 are packed without overflow or a false answer."""
    big = 1 << 56
    small = [buf(f"s{k}", 1, 0, 4) for k in range(200)]
    steps = [buf("a", big, 0, 2), buf("b", big, 1, 3), buf("c", big, 2, 4)]
    ends = [buf("d", 2 * big + 1, 0, 1), buf("e", 2 * big + 2, 3, 4)]
    answer = solve(*small, *steps, *ends, seconds=0.5)
    assert verify(answer) is None
    assert answer.lower_bound <= answer.peak


@settings(max_examples=few(100))
@given(problems)
def test_plans_are_legal_and_not_below_their_bound(buffers: tuple[Buffer, ...]) -> None:
    """Every plan verifies, its starts are aligned, and its peak is at least its bound."""
    answer = solve(*buffers, seconds=0.5)
    assert verify(answer) is None
    assert answer.lower_bound <= answer.peak
    assert all(o % b.align == 0 for o, b in zip(answer.offsets, buffers, strict=True))


@settings(max_examples=few(50))
@given(problems, st.randoms(use_true_random=False))
def test_the_order_of_the_buffers_does_not_matter(
    buffers: tuple[Buffer, ...], rng: random.Random
) -> None:
    """Every permutation of the buffers gives each name the same offset."""
    mixed = list(buffers)
    rng.shuffle(mixed)
    one, two = solve(*buffers), solve(*mixed)
    assert one.offset_of == two.offset_of
    assert one.lower_bound == two.lower_bound


@settings(max_examples=few(40))
@given(problems, st.sampled_from((2, 3, 64)))
def test_scaling_everything_scales_the_optimum(buffers: tuple[Buffer, ...], factor: int) -> None:
    """Multiplying all sizes and alignments by a factor multiplies the optimum by that factor."""
    larger = [
        Buffer(b.name, Bytes(b.size * factor), b.live, Align(b.align * factor)) for b in buffers
    ]
    one, two = solve(*buffers, seconds=1.0), solve(*larger, seconds=1.0)
    assert two.lower_bound <= factor * one.peak
    assert factor * one.lower_bound <= two.peak
    if one.optimal and two.optimal:
        assert two.peak == factor * one.peak


@settings(max_examples=few(40))
@given(problems)
def test_time_backwards_has_the_same_optimum(buffers: tuple[Buffer, ...]) -> None:
    """Reversing time does not change the least peak of a problem."""
    mirrored = [
        Buffer(b.name, b.size, Span(Step(-b.live.upper), Step(-b.live.lower)), b.align)
        for b in buffers
    ]
    one, two = solve(*buffers, seconds=1.0), solve(*mirrored, seconds=1.0)
    assert max(one.lower_bound, two.lower_bound) <= min(one.peak, two.peak)


@settings(max_examples=few(40))
@given(problems, st.data())
def test_fewer_buffers_never_need_more(buffers: tuple[Buffer, ...], data: st.DataObject) -> None:
    """Leaving out buffers cannot raise the optimum."""
    kept = [b for b in buffers if data.draw(st.booleans())]
    assert solve(*kept, seconds=1.0).lower_bound <= solve(*buffers, seconds=1.0).peak


STAIRS = (
    ((33, 0, 2, 24), (19, 2, 3, 16), (27, 1, 3, 16), (20, 1, 2, 16), (8, 0, 2, 4), (7, 0, 1, 16)),
    ((28, 2, 3, 4), (37, 1, 3, 16), (37, 2, 3, 24), (9, 0, 3, 24), (36, 0, 1, 24), (39, 1, 3, 4)),
    ((24, 1, 2, 16), (6, 0, 2, 24), (8, 1, 2, 24), (29, 1, 3, 4), (30, 0, 2, 24), (3, 2, 3, 24)),
)


def test_proofs_do_not_starve_the_search_for_a_lower_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """While proofs raise the bound step by step, the search still lowers the peak."""
    monkeypatch.setattr("time.monotonic", lambda: 0.0)
    buffers = [buf(f"b{k}", *row) for k, row in enumerate(itertools.chain(*STAIRS))]
    assert solve(*buffers, seconds=1.0).peak <= 299
