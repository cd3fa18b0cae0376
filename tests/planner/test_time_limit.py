"""The time limit bounds planning by counted work, so a busy machine gives the same plan.

These lists would take minutes in any step that compares all pairs of buffers.
"""

from __future__ import annotations

import itertools
import math
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from qnnmem.errors import UsageError
from qnnmem.ir import Span
from qnnmem.planner import Buffer, Infeasible, Plan, Problem, plan_problem, verify
from qnnmem.planner import instance as bounds_of
from qnnmem.planner.effort import WORK_PER_SECOND, Effort
from qnnmem.planner.exact import PLACING_SLICE, packing, place_packed
from qnnmem.planner.greedy import orders, place_by_class
from qnnmem.planner.instance import Instance, arrange, load_bound
from qnnmem.planner.problem_plan import find_blockers, plan_within
from qnnmem.planner.verify import _LiveRanges
from qnnmem.units import Align, Bytes, Offset, Step

COUNT = 5_000  # above the size that planner/problem_plan.py treats as small
Rows = list[tuple[int, int, int]]


def clique(n: int, _: random.Random) -> Rows:
    """Return buffers that are all alive at once."""
    return [(0, 1, 1 + k % 97) for k in range(n)]


def nested(n: int, _: random.Random) -> Rows:
    """Return lifetimes that each lie inside the previous one."""
    return [(k, 2 * n - k, 1 + k % 97) for k in range(n)]


def chain(n: int, _: random.Random) -> Rows:
    """Return lifetimes that each overlap the next."""
    return [(k, k + 2, 1 + k % 97) for k in range(n)]


def staircase(n: int, _: random.Random) -> Rows:
    """Return lifetimes that each overlap half of the others."""
    return [(k, k + n // 2, 1 + k) for k in range(n)]


def equal(n: int, rng: random.Random) -> Rows:
    """Return buffers of one size with random lifetimes."""
    return [(a := rng.randrange(n), a + 1 + rng.randrange(n), 64) for _ in range(n)]


def holes(n: int, rng: random.Random) -> Rows:
    """Return a list whose early deaths leave holes that no later buffer fits."""
    early: Rows = [(0, 5 if k % 2 else 2 * n, 64) for k in range(n // 2)]
    return early + [(5 + k, 8 + k, 65 + rng.randrange(99)) for k in range(n // 2)]


def anything(n: int, rng: random.Random) -> Rows:
    """Return random lifetimes and sizes."""
    return [
        (a := rng.randrange(n), a + 1 + rng.randrange(n), rng.randrange(1, 9999)) for _ in range(n)
    ]


SHAPES = [clique, nested, chain, staircase, equal, holes, anything]


def problem(
    shape: Callable[[int, random.Random], Rows], n: int, aligns: tuple[int, ...] = (1,)
) -> Problem:
    """Return a problem with the buffers of this shape."""
    rng = random.Random(n)  # noqa: S311 - reproducible, not secret
    return Problem(
        tuple(
            Buffer(str(k), Bytes(size), Span(Step(a), Step(b)), Align(rng.choice(aligns)))
            for k, (a, b, size) in enumerate(shape(n, rng))
        )
    )


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("seconds", [0.0, 0.001])
def test_a_plan_comes_out_of_any_list_at_once(
    shape: Callable[[int, random.Random], Rows], seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without time for one greedy pass, the plan is legal and at most twice the bound."""

    def forbidden(*_: object) -> None:
        raise AssertionError("looked at pairs")

    monkeypatch.setattr("qnnmem.planner.greedy.neighbours", forbidden)
    monkeypatch.setattr("qnnmem.planner.exact.place_packed", forbidden)
    answer = plan_problem(problem(shape, COUNT), seconds)
    assert isinstance(answer, Plan)
    assert verify(answer) is None
    assert answer.peak <= 2 * answer.lower_bound


@pytest.mark.parametrize("aligns", [(1,), (1, 2, 3, 5, 7, 64), (16, 4096)])
@pytest.mark.parametrize("shape", SHAPES)
def test_placing_by_class_is_legal(
    shape: Callable[[int, random.Random], Rows], aligns: tuple[int, ...]
) -> None:
    """Placing by class is legal for every mix of alignments."""
    given = problem(shape, 800, aligns)
    instance = arrange(given)
    offsets = [Offset(0)] * len(given.buffers)
    for i, offset in zip(instance.source, place_by_class(instance), strict=True):
        offsets[i] = Offset(offset * instance.unit)
    assert verify(Plan(given, tuple(offsets), Bytes(0))) is None


def test_a_greedy_pass_stops_where_the_effort_ends() -> None:
    """A greedy pass over a clique stops within one slice after the effort is spent."""
    instance = arrange(problem(clique, COUNT))
    effort = Effort(2 * PLACING_SLICE, math.inf)
    assert place_packed(packing(instance), next(orders(instance)), False, effort) is None
    assert effort.left > -PLACING_SLICE


def test_a_pass_in_slices_is_the_same_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """A greedy pass split into slices gives the same offsets as a whole pass."""
    instance = arrange(problem(anything, 400))
    loops = packing(instance)
    for order in orders(instance):
        for best_fit in (False, True):
            whole = place_packed(loops, order, best_fit, Effort(10**9, math.inf))
            monkeypatch.setattr("qnnmem.planner.exact.PLACING_SLICE", 1000)
            assert place_packed(loops, order, best_fit, Effort(10**9, math.inf)) == whole
            monkeypatch.undo()


@pytest.mark.parametrize("shape", [clique, anything])
def test_what_is_spent_stays_near_what_was_given(
    shape: Callable[[int, random.Random], Rows],
) -> None:
    """Greedy passes and search together overspend the effort by at most two slices."""
    effort = Effort(WORK_PER_SECOND // 10, math.inf)
    answer = plan_within(problem(shape, COUNT), effort)
    assert isinstance(answer, Plan)
    assert effort.left > -2 * PLACING_SLICE


def test_checking_a_plan_moves_few_of_the_live_buffers() -> None:
    """The verifier keeps live buffers in runs of at most 1,000, so each update is cheap."""
    live = _LiveRanges()
    for k in range(COUNT):
        assert live.add(2 * k, 2 * k + 1, k) is None
    assert max(map(len, live.runs)) <= 1000
    assert len(live.runs) <= COUNT // 250
    for k in range(COUNT):
        live.remove(2 * k)
    assert live.runs == [[-1]]


def test_a_collision_is_found_across_runs() -> None:
    """The verifier finds an overlap among 5,000 live buffers and names both buffers."""
    given = problem(clique, 5000)
    places, top = [], 0
    for buffer in given.buffers:
        places.append(Offset(top))
        top += buffer.size
    assert verify(Plan(given, tuple(places), Bytes(0))) is None
    for k in range(1, 5000, 331):
        moved = list(places)
        moved[k] = Offset(places[k] - 1)
        wrong = verify(Plan(given, tuple(moved), Bytes(0)))
        assert wrong == f"'{k}' and '{k - 1}' share bytes"


def test_the_bound_looks_at_each_buffer_a_bounded_number_of_times(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With 500 alignments, the load bound looks at each buffer at most three times."""
    looks = 0
    rounded = bounds_of._rounded_load

    def counted(instance: object, members: list[int], step: int) -> int:
        nonlocal looks
        looks += len(instance)  # type: ignore[arg-type]
        return rounded(instance, members, step)  # type: ignore[arg-type]

    monkeypatch.setattr(bounds_of, "_rounded_load", counted)
    monkeypatch.setattr(bounds_of, "MOST_LOOKS", 10_000)
    load_bound(arrange(problem(chain, 5000, tuple(range(1, 500)))))
    assert looks <= 3 * 5000


def test_the_reason_for_a_no_is_found_in_bounded_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blockers among 3,000 buffers are found in fewer than 100 bounds and clock readings."""
    looks, bounds = itertools.count(), 0
    # The fake clock advances a hundredth of a second per reading.
    clock = SimpleNamespace(monotonic=lambda: next(looks) / 100)
    monkeypatch.setattr("qnnmem.planner.problem_plan.time", clock)
    monkeypatch.setattr("qnnmem.planner.effort.time", clock)

    def counted(instance: Instance) -> int:
        nonlocal bounds
        bounds += 1
        return load_bound(instance)

    monkeypatch.setattr("qnnmem.planner.problem_plan.load_bound", counted)
    buffers = problem(clique, 3000, (1, 2, 3, 5)).buffers
    given = Problem(buffers, Bytes(sum(b.size for b in buffers) // 2))
    assert find_blockers(given, arrange(given), True, 0.0)
    assert bounds < 100
    assert next(looks) < 100


def test_no_capacity_takes_more_than_its_limit() -> None:
    """With no time, a capacity below the load is refused and a large one is met."""
    for shape in (clique, nested, holes):
        buffers = problem(shape, COUNT).buffers
        answer = plan_problem(Problem(buffers, Bytes(1000)), 0.0)
        assert isinstance(answer, Infeasible)
        assert answer.proven
        loose = Problem(buffers, Bytes(sum(b.size for b in buffers)))
        assert isinstance(plan_problem(loose, 0.0), Plan)


@pytest.mark.parametrize("seconds", [math.nan, -1.0, -math.inf])
def test_what_is_no_time_is_refused(seconds: float) -> None:
    """A time limit that is negative or not a number raises UsageError."""
    with pytest.raises(UsageError, match="time limit"):
        plan_problem(problem(chain, 3), seconds)


@pytest.mark.parametrize("seconds", [math.inf, 1e308, 1e-308, 5e-324])
def test_any_number_of_seconds_is_a_limit(seconds: float) -> None:
    """The largest and the smallest positive floats are valid time limits."""
    assert isinstance(plan_problem(problem(chain, 50), seconds), Plan)


# The command line, which prints a line when the search begins.
REPORTING = """
from qnnmem.planner import problem_plan

report = problem_plan._Search._report

def print_search(search, doing):
    report(search, doing)
    if doing.startswith("searching"):
        print(doing, flush=True)

problem_plan._Search._report = print_search
from qnnmem.cli import main
main()
"""


def test_an_interrupt_ends_the_search_soon(tmp_path: Path) -> None:
    """Ctrl-C ends a ten-hour search soon, with exit code 130 and no traceback."""
    rng = random.Random(3)  # noqa: S311 - reproducible, not secret
    rows = [(a := rng.randrange(300), a + 1 + rng.randrange(90)) for _ in range(1500)]
    file = tmp_path / "hard.csv"
    lines = [f"b{k},{a},{b},{rng.randrange(1, 9999)}" for k, (a, b) in enumerate(rows)]
    file.write_text("\n".join(["id,lower,upper,size", *lines, ""]), "utf-8")
    words = [sys.executable, "-c", REPORTING, "plan", str(file), "--time-limit", "36000"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline().startswith(b"searching")
        child.send_signal(signal.SIGINT)
        _, said = child.communicate(timeout=300)
    assert child.returncode == 130
    assert b"Traceback" not in said


# Interrupts the compiled search 500 times at random points.
DISTURBING = """
import random, signal
from qnnmem import Buffer
from qnnmem.planner.effort import Effort
from qnnmem.planner.exact import fit
from qnnmem.planner.instance import arrange
from qnnmem.planner.problem import Problem
from qnnmem.planner.packing import is_compiled

class Stop(BaseException): pass

def stop(number, frame): raise Stop

assert is_compiled()
rng = random.Random(5)
births = [rng.randrange(30) for _ in range(60)]
buffers = [Buffer(str(k), rng.randrange(1, 999), (a, a + 1 + k % 9)) for k, a in enumerate(births)]
instance = arrange(Problem(tuple(buffers)))
signal.signal(signal.SIGALRM, stop)
stopped = 0
while stopped < 500:
    try:
        signal.setitimer(signal.ITIMER_REAL, rng.uniform(1e-6, 2e-3))
        fit(instance, 3000, Effort(10_000, float("inf")))
        signal.setitimer(signal.ITIMER_REAL, 0)
    except Stop:
        stopped += 1
"""


def test_an_interrupt_anywhere_in_the_search_is_survived() -> None:
    """A signal at any point of the compiled search leaves no half-built values behind."""
    done = subprocess.run([sys.executable, "-c", DISTURBING], capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
