"""Cut positions: optimal by brute force, with few trials."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations, pairwise
from random import Random

import pytest

from qnnmem.fix.parts.partition import (
    Cuts,
    Fits,
    PartFit,
    Stuck,
    Undecided,
    least_cuts,
    narrow_places,
)


def by_brute_force(crossing: Sequence[int], fits: Fits) -> tuple[int, int] | None:
    """Return the fewest parts and then the fewest bytes, by trying all cuts."""
    last = len(crossing) - 1
    for count in range(last):
        ways = [
            sum(crossing[at] for at in cuts)
            for cuts in combinations(range(1, last), count)
            if all(fits(*part) is PartFit.YES for part in pairwise((0, *cuts, last)))
        ]
        if ways:
            return count + 1, min(ways)
    return None


@pytest.mark.parametrize("seed", range(60))
def test_least_cuts_are_least(seed: int) -> None:
    """If longer ranges never fit better, the cuts are the fewest and then the cheapest."""
    random = Random(seed)  # noqa: S311  a seed is wanted
    ops = random.randrange(1, 11)
    weights = [random.randrange(1, 10) for _ in range(ops)]
    crossing = [0, *(random.randrange(1, 50) for _ in range(ops - 1)), 0]
    limit = random.randrange(8, 25)

    def fits(first: int, last: int) -> PartFit:
        return PartFit.YES if sum(weights[first:last]) <= limit else PartFit.NEVER

    found = least_cuts(crossing, fits)
    expected = by_brute_force(crossing, fits)
    if expected is None:
        assert isinstance(found, Stuck)
    else:
        assert isinstance(found, Cuts)
        assert (len(found.parts), found.crossing_bytes) == expected


@pytest.mark.parametrize("seed", range(60))
def test_wide_places_do_not_hide_a_way(seed: int) -> None:
    """If inputs and outputs count, a cut is found whenever one exists, and each part fits."""
    random = Random(seed)  # noqa: S311  a seed is wanted
    ops = random.randrange(2, 10)
    weights = [random.randrange(1, 6) for _ in range(ops)]
    crossing = [0, *(random.choice((1, 2, 30)) for _ in range(ops - 1)), 0]
    limit = random.randrange(10, 40)

    def fits(first: int, last: int) -> PartFit:
        need = sum(weights[first:last]) + crossing[first] + crossing[last]
        return PartFit.YES if need <= limit else PartFit.NO

    def rows(first: int) -> list[bool]:
        return [last > first and fits(first, last) is PartFit.YES for last in range(ops + 1)]

    expected = by_brute_force(crossing, fits)
    found = least_cuts(crossing, fits)
    ruled = least_cuts(crossing, fits, rows=rows)
    if expected is None:
        assert isinstance(found, Stuck)
        assert isinstance(ruled, Stuck)
        return
    assert isinstance(found, Cuts)
    assert all(fits(*part) is PartFit.YES for part in found.parts)
    assert isinstance(ruled, Cuts)
    assert (len(ruled.parts), ruled.crossing_bytes) == expected


def test_few_questions_are_asked() -> None:
    """A partition of 400 ops into ten parts takes fewer than 300 trials."""
    asked = []

    def fits(first: int, last: int) -> PartFit:
        asked.append((first, last))
        return PartFit.YES if last - first <= 40 else PartFit.NEVER

    found = least_cuts([0, *(7,) * 399, 0], fits)
    assert isinstance(found, Cuts)
    assert (len(found.parts), found.crossing_bytes) == (10, 63)
    assert len(asked) == found.trials == len(set(asked)) < 300


def test_the_number_of_questions_is_bounded() -> None:
    """When the trials run out, the answer is undecided."""
    found = least_cuts([0, 1, 1, 1, 0], lambda *_ends: PartFit.NO, most_trials=3)
    assert found == Undecided(3)


def test_parts_that_fit_are_kept_when_trials_run_out() -> None:
    """When the trials run out, the parts found so far are returned as possibly not the cheapest."""
    random = Random(3)  # noqa: S311  a seed is wanted
    crossing = [0, *(random.randrange(1, 99) for _ in range(199)), 0]

    def fits(first: int, last: int) -> PartFit:
        return PartFit.YES if last - first <= 30 else PartFit.NO

    hurried = least_cuts(crossing, fits, most_trials=90)
    patient = least_cuts(crossing, fits)
    assert isinstance(hurried, Cuts)
    assert isinstance(patient, Cuts)
    assert (hurried.is_cheapest, patient.is_cheapest) == (False, True)
    assert len(hurried.parts) == len(patient.parts) == 7
    assert patient.crossing_bytes <= hurried.crossing_bytes
    assert all(last - first <= 30 for first, last in hurried.parts)


def test_a_line_that_fits_is_not_cut() -> None:
    """A model that fits takes one trial and is not cut."""
    assert least_cuts([0, 1, 1, 0], lambda *_ends: PartFit.YES) == Cuts(((0, 3),), 0, 1)


def test_an_op_that_never_fits_is_named() -> None:
    """If no part can pass an op, the answer names the position of the op."""

    def fits(first: int, last: int) -> PartFit:
        return PartFit.NEVER if first <= 2 < last else PartFit.YES

    found = least_cuts([0, 1, 1, 1, 0], fits)
    assert isinstance(found, Stuck)
    assert (found.first, found.last) == (2, 3)


def test_cuts_are_made_at_allowed_places_only() -> None:
    """Cuts are made only at allowed places, even if another place is narrower."""

    def fits(first: int, last: int) -> PartFit:
        return PartFit.YES if last - first <= 4 else PartFit.NO

    found = least_cuts([0, 9, 9, 1, 5, 9, 0], fits, places=(2, 4))
    assert isinstance(found, Cuts)
    assert found.parts == ((0, 4), (4, 6))


def test_narrow_places_are_spread_over_the_work() -> None:
    """Each range of equal work contributes its narrowest place."""
    crossing = [0, 5, 1, 5, 5, 2, 5, 0]
    assert narrow_places(crossing, [1] * 7, 2) == (2, 5)
    assert narrow_places([0, 3, 0], [0, 0], 4) == (1,)
