from __future__ import annotations

import math
import random

import pytest

from qnnmem.ir import Span
from qnnmem.planner import Buffer, Plan, Problem, greedy, plan_problem, verify
from qnnmem.planner.effort import Effort
from qnnmem.planner.exact import packing, place_packed
from qnnmem.planner.instance import Instance, arrange
from qnnmem.units import Align, Bytes, Offset, Step


def random_problem(seed: int, count: int = 40) -> Problem:
    """Return random buffers with mixed alignments, odd sizes, and short and long lifetimes."""
    rng = random.Random(seed)  # noqa: S311 - reproducible, not secret
    buffers = []
    for k in range(count):
        lower = rng.randint(0, 30)
        live = Span(Step(lower), Step(lower + rng.choice((1, 2, 3, 15))))
        align = Align(rng.choice((1, 2, 4, 6) if seed % 2 else (64,)))
        buffers.append(Buffer(f"b{k}", Bytes(rng.randint(1, 300)), live, align))
    return Problem(tuple(buffers))


def as_plan(problem: Problem, instance: Instance, offsets: list[int]) -> Plan:
    """Return a plan with these offsets, given in units, and a bound of zero."""
    placed = [Offset(0)] * len(problem.buffers)
    for i, offset in zip(instance.source, offsets, strict=True):
        placed[i] = Offset(offset * instance.unit)
    return Plan(problem, tuple(placed), Bytes(0))


def portfolio(problem: Problem) -> list[Plan]:
    """Return every plan of the greedy portfolio, with a target of zero."""
    instance = arrange(problem)
    near = greedy.neighbours(instance)
    return [
        as_plan(problem, instance, offsets)
        for offsets in greedy.portfolio(
            instance, lambda order, best: greedy.place(instance, near, order, best), 0
        )
    ]


@pytest.mark.parametrize("seed", range(10))
def test_every_greedy_plan_is_legal(seed: int) -> None:
    """Every plan of the greedy portfolio is legal: all orders, first fit, best fit and repaired."""
    assert [verify(plan) for plan in portfolio(random_problem(seed))].count(None) >= 12
    assert all(verify(plan) is None for plan in portfolio(random_problem(seed)))


@pytest.mark.parametrize("seed", range(10))
def test_the_planner_is_never_worse_than_its_own_portfolio(seed: int) -> None:
    """With 0.3 seconds the planner's peak is at most that of the best greedy plan."""
    problem = random_problem(seed)
    best = min(plan.peak for plan in portfolio(problem))
    answer = plan_problem(problem, 0.3)
    assert isinstance(answer, Plan)
    assert answer.peak <= best


@pytest.mark.parametrize("seed", range(10))
def test_compiled_and_plain_placement_agree(seed: int) -> None:
    """Compiled code and plain Python place the same order at the same offsets."""
    instance = arrange(random_problem(seed, 120))
    near, loops = greedy.neighbours(instance), packing(instance)
    for order in greedy.orders(instance):
        for best_fit in (False, True):
            plain = greedy.place(instance, near, order, best_fit)
            assert place_packed(loops, order, best_fit, Effort(10**9, math.inf)) == plain


def test_first_fit_takes_the_lowest_gap_and_best_fit_the_tightest() -> None:
    """With gaps of 6 and 2 bytes, first fit takes the lower gap and best fit the tighter one."""
    rows = (("low", 6, 0, 1), ("a", 1, 0, 2), ("mid", 2, 0, 1), ("b", 1, 0, 2), ("new", 2, 1, 2))
    buffers = tuple(Buffer(n, Bytes(s), Span(Step(f), Step(t))) for n, s, f, t in rows)
    instance = arrange(Problem(buffers))
    order = [instance.source.index(k) for k in range(5)]
    near = greedy.neighbours(instance)
    new = order[4]
    assert greedy.place(instance, near, order, False)[new] == 0
    assert greedy.place(instance, near, order, True)[new] == 7


@pytest.mark.parametrize("seed", range(5))
def test_the_highest_load_is_that_of_the_fullest_section(seed: int) -> None:
    """A buffer's highest load is the largest load among the sections that it covers."""
    instance = arrange(random_problem(seed))
    expected = [max(instance.load[lo:hi]) for lo, hi in zip(instance.lo, instance.hi, strict=True)]
    assert greedy.highest_load(instance) == expected


@pytest.mark.parametrize("seed", range(5))
def test_every_order_is_a_permutation(seed: int) -> None:
    """Every greedy order contains each buffer exactly once."""
    instance = arrange(random_problem(seed))
    assert all(sorted(o) == list(range(len(instance))) for o in greedy.orders(instance))


@pytest.mark.parametrize("looks", [0, 1, 300, 10**9])
@pytest.mark.parametrize("seed", range(6))
def test_placing_by_birth_is_legal_however_little_it_may_look(seed: int, looks: int) -> None:
    """Placing by birth stays legal with few lookups: it stacks the remaining buffers on top."""
    problem = random_problem(seed, 120)
    instance = arrange(problem)
    for best_fit in (False, True):
        offsets = greedy.place_by_birth(instance, best_fit, looks)
        assert verify(as_plan(problem, instance, offsets)) is None


def test_placing_by_birth_is_placing_in_the_order_of_births() -> None:
    """With enough lookups, placing by birth equals greedy placement in the order of births."""
    for seed in range(6):
        instance = arrange(random_problem(seed, 120))
        order, near = list(range(len(instance))), greedy.neighbours(instance)
        for best_fit in (False, True):
            plain = greedy.place(instance, near, order, best_fit)
            assert greedy.place_by_birth(instance, best_fit, 10**9) == plain
