"""Bounds, search, planner and blockers, compared with every way of stacking a few buffers.

Pushing all buffers of a packing down, lowest first, gives a packing that stacks them in some order.
So the best over all orders is the optimum, alignments included.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

import pytest
from seeds import few, seeds

from qnnmem.ir import Span
from qnnmem.planner import Buffer, Infeasible, Plan, Problem, exact, plan_problem, verify
from qnnmem.planner.effort import Effort
from qnnmem.planner.exact import Answer, fit
from qnnmem.planner.instance import arrange, load_bound, next_peak
from qnnmem.planner.problem_plan import plan_within
from qnnmem.units import Align, Bytes, Offset, Step

ALIGNMENTS = ((1,), (8,), (1, 2), (2, 3), (4, 6), (1, 2, 4), (1, 3, 4, 8), (4, 16, 24), (1, 5, 7))


def optimum(buffers: Sequence[Buffer]) -> int:
    """Return the least peak over all orders of stacking."""
    meets = [[a.live.overlaps(b.live) for b in buffers] for a in buffers]
    best = sum(b.size + b.align for b in buffers)

    def stack(left: frozenset[int], ends: tuple[tuple[int, int], ...], peak: int) -> None:
        nonlocal best
        if peak >= best:
            return
        if not left:
            best = peak
        for i in left:
            top = max((end for j, end in ends if meets[i][j]), default=0)
            end = -(-top // buffers[i].align) * buffers[i].align + buffers[i].size
            stack(left - {i}, (*ends, (i, end)), max(peak, end))

    stack(frozenset(range(len(buffers))), (), 0)
    return best


def random_buffers(rng: random.Random, most: int = 6) -> tuple[Buffer, ...]:
    """Return random buffers that crowd a few steps: odd sizes, sometimes 0, mixed alignments."""
    steps, aligns = rng.randint(2, 8), rng.choice(ALIGNMENTS)
    largest, longest = rng.choice((3, 6, 12, 40)), rng.choice((2, 4, 8))
    buffers = []
    for k in range(rng.randint(1, most)):
        lower = rng.randrange(steps)
        upper = rng.randint(lower + 1, min(steps, lower + longest))
        size = 0 if rng.random() < 0.03 else rng.randint(1, largest)
        live = Span(Step(lower), Step(upper))
        buffers.append(Buffer(f"b{k}", Bytes(size), live, Align(rng.choice(aligns))))
    return tuple(buffers)


def cases(seed: int, count: int) -> Iterator[tuple[random.Random, tuple[Buffer, ...]]]:
    """Yield seeded cases, each with its own random generator for further choices."""
    for number in range(few(count)):
        rng = random.Random(f"{seed}/{number}")  # noqa: S311 - reproducible, not secret
        yield rng, random_buffers(rng)


def unlimited() -> Effort:
    """Return more effort than any tiny case can use."""
    return Effort(10**12, float("inf"))


def check_fit(buffers: tuple[Buffer, ...], capacity: int, least: int, seed: int) -> None:
    """Check that the search answers correctly for one capacity and that its offsets are legal."""
    problem = Problem(buffers)
    instance = arrange(problem)
    answer, found = fit(instance, capacity, unlimited(), seed)
    assert answer is (Answer.FITS if capacity >= least else Answer.NO), (buffers, capacity)
    if found is not None:
        offsets = [Offset(0)] * len(buffers)
        for i, offset in zip(instance.source, found, strict=True):
            offsets[i] = Offset(offset * instance.unit)
        plan = Plan(problem, tuple(offsets), Bytes(0))
        assert verify(plan) is None
        assert plan.peak <= capacity


@pytest.mark.parametrize("seed", seeds(2))
def test_the_search_says_no_exactly_when_nothing_fits(seed: int) -> None:
    """At capacities around the optimum, the search answers correctly and its offsets are legal."""
    for rng, buffers in cases(seed, 200):
        least = optimum(buffers)
        near = {max(0, least - 1), least, least + 1, max(0, least - rng.randint(2, 9))}
        for capacity in near | {load_bound(arrange(Problem(buffers)))}:
            check_fit(buffers, capacity, least, rng.randrange(3))


def test_the_search_is_right_where_the_load_is_no_guide() -> None:
    """The search proves the optimum to the byte even where it lies above the load bound."""
    hard = 0
    for _, buffers in cases(77, 600):
        least = optimum(buffers)
        if load_bound(arrange(Problem(buffers))) < least:
            hard += 1
            check_fit(buffers, least - 1, least, 0)
            check_fit(buffers, least, least, 0)
    assert hard > few(40)


def test_the_load_bound_never_passes_the_optimum() -> None:
    """The load bound is at least the bytes alive at any step and at most the optimum."""
    for _, buffers in cases(1, 1000):
        bound = load_bound(arrange(Problem(buffers)))
        load = max(sum(b.size for b in buffers if b.live.covers(step)) for step in range(8))
        assert load <= bound <= optimum(buffers)


def test_the_load_bound_is_met_by_a_single_section() -> None:
    """With one alignment and all buffers alive at once, the load bound equals the optimum."""
    for rng, buffers in cases(2, 300):
        align = Align(rng.choice((1, 4, 6, 64)))
        together = [Buffer(b.name, b.size, Span(Step(0), Step(1)), align) for b in buffers]
        assert load_bound(arrange(Problem(tuple(together)))) == optimum(together)


def test_the_next_peak_is_the_least_end_above_a_capacity() -> None:
    """The next peak is the lowest end above the capacity of any buffer at any legal offset."""
    for rng, buffers in cases(3, 500):
        real = [b for b in buffers if b.size]
        capacity = rng.randint(0, 60)
        ends = {o + b.size for b in real for o in range(0, capacity + b.align + 1, b.align)}
        expected = min((end for end in ends if end > capacity), default=capacity + 1)
        assert next_peak(arrange(Problem(buffers)), capacity) == expected


def test_the_next_peak_after_a_proof_is_still_a_bound() -> None:
    """No peak between an impossible capacity and the next peak is possible."""
    for rng, buffers in cases(4, 500):
        least = optimum(buffers)
        if least:
            capacity = rng.randrange(least)
            assert capacity < next_peak(arrange(Problem(buffers)), capacity) <= least


def test_the_planner_finds_and_proves_the_optimum() -> None:
    """With enough effort the planner reaches the optimum, proves it, and returns a legal plan."""
    for rng, buffers in cases(5, 400):
        plan = plan_problem(Problem(buffers), seed=rng.randrange(3))
        assert isinstance(plan, Plan)
        assert verify(plan) is None
        assert (plan.peak, plan.optimal) == (optimum(buffers), True), buffers


def test_a_hurried_planner_claims_nothing_false() -> None:
    """Without time the bound stays at or below the optimum, and only optimal plans claim to be."""
    for _, buffers in cases(6, 400):
        plan, least = plan_problem(Problem(buffers), 0.0), optimum(buffers)
        assert isinstance(plan, Plan)
        assert verify(plan) is None
        assert plan.lower_bound <= least <= plan.peak
        assert plan.optimal == (plan.peak == plan.lower_bound)


def test_capacities_are_answered_as_brute_force_does() -> None:
    """The planner returns a plan exactly when one exists; otherwise it proves that none does."""
    for rng, buffers in cases(7, 250):
        least = optimum(buffers)
        for capacity in {least, max(0, least - 1), least + rng.randint(0, 5)}:
            answer = plan_problem(Problem(buffers, Bytes(capacity)))
            assert isinstance(answer, Plan if capacity >= least else Infeasible)
            if isinstance(answer, Infeasible):
                assert answer.proven
                assert capacity < answer.lower_bound <= least <= answer.best.peak
                assert verify(answer.best) is None
            else:
                assert answer.peak <= capacity


def test_blockers_cannot_fit_together() -> None:
    """The named blockers alone exceed the capacity in every packing."""
    for rng, buffers in cases(8, 300):
        capacity = max(0, optimum(buffers) - rng.randint(1, 6))
        answer = plan_problem(Problem(buffers, Bytes(capacity)))
        if isinstance(answer, Infeasible):
            named = [b for b in buffers if b.name in answer.blockers]
            assert len(named) == len(answer.blockers)
            assert optimum(named) > capacity


def test_every_blocker_found_by_search_is_needed() -> None:
    """Blockers that only a search finds fit once any one of them is left out."""
    seen = 0
    for _, buffers in cases(9, 400):
        least = optimum(buffers)
        answer = plan_problem(Problem(buffers, Bytes(max(0, least - 1))))
        if isinstance(answer, Infeasible) and load_bound(arrange(Problem(buffers))) < least:
            seen += 1
            named = [b for b in buffers if b.name in answer.blockers]
            for left_out in named:
                assert optimum([b for b in named if b is not left_out]) < least
    assert seen > 15


def smallest_overfull(buffers: Sequence[Buffer], capacity: int) -> int:
    """Return the fewest buffers of one step that cannot fit together; all share one alignment."""
    fewest = len(buffers)
    for step in range(8):
        alive = sorted((b for b in buffers if b.live.covers(step)), key=lambda b: -b.size)
        for count in range(1, len(alive) + 1):
            if optimum(alive[:count]) > capacity:
                fewest = min(fewest, count)
                break
    return fewest


def test_blockers_of_an_overfull_step_are_the_fewest() -> None:
    """With one alignment, no smaller set of buffers of any one step exceeds the capacity."""
    for rng, drawn in cases(10, 400):
        align = Align(rng.choice((1, 4, 64)))
        buffers = tuple(Buffer(b.name, b.size, b.live, align) for b in drawn)
        bound = load_bound(arrange(Problem(buffers)))
        if bound > 0:
            capacity = rng.randrange(bound)
            answer = plan_problem(Problem(buffers, Bytes(capacity)))
            assert isinstance(answer, Infeasible)
            assert len(answer.blockers) == smallest_overfull(buffers, capacity)


def test_every_blocker_is_needed_with_mixed_alignments() -> None:
    """With mixed alignments, the other blockers fit once any one of them is left out."""
    for rng, buffers in cases(11, 400):
        capacity = max(0, optimum(buffers) - rng.randint(1, 4))
        answer = plan_problem(Problem(buffers, Bytes(capacity)))
        if isinstance(answer, Infeasible):
            named = [b for b in buffers if b.name in answer.blockers]
            for left_out in named:
                assert optimum([b for b in named if b is not left_out]) <= capacity


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the search run in plain Python."""
    monkeypatch.setattr(exact, "is_compiled", lambda: False)


@pytest.mark.usefixtures("plain")
def test_plain_python_proves_what_compiled_code_proves() -> None:
    """Without compiled code, small problems still get their least peak, with proof."""
    for _, buffers in cases(5, 200):
        plan = plan_problem(Problem(buffers), 10.0)
        assert isinstance(plan, Plan)
        assert plan.lower_bound == optimum(buffers) == plan.peak
        assert verify(plan) is None
        assert not plan.search_missing


@pytest.mark.usefixtures("plain")
def test_plain_python_without_time_answers_nothing_wrongly() -> None:
    """With almost no effort, a yes comes with a plan and a proven no is true."""
    for rng, buffers in cases(6, 200):
        least = optimum(buffers)
        capacity = Bytes(max(0, least + rng.randint(-2, 1)))
        answer = plan_within(Problem(buffers, capacity), Effort(1, float("inf")))
        if isinstance(answer, Plan):
            assert verify(answer) is None
            assert least <= answer.peak <= capacity
        elif answer.proven:
            assert capacity < answer.lower_bound <= least
