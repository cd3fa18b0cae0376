"""The largest value that meets a question, in few compiles: predicted, then confirmed."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from qnnmem.htp.sweep.rows import SweepOutcome
from qnnmem.results.sweep import SettingValue

_SMALL = (0, 1, 3)  # places of the first compiles; with them a line is known
_CONFIRMED = 4  # compiles that may follow predictions before the search halves the gap


class SearchPlace(NamedTuple):
    """Where the search ended."""

    place: int  # of the last value that meets the question, -1 for none
    predicted: int | None  # place of the first prediction
    halved: bool  # the prediction did not lead there
    is_open: bool = False  # the search ended at a compile that was not finished in time


def last_that_meets(
    values: Sequence[SettingValue],
    compiled: Callable[[int], SweepOutcome],
    meets: Callable[[SweepOutcome], bool],
    limits: Mapping[str, int],
) -> SearchPlace:
    """The last value that meets a question, if all smaller ones do."""
    known: dict[int, SweepOutcome] = {}
    good, bad = -1, len(values)
    first: int | None = None
    halved, left = False, _CONFIRMED
    while bad - good > 1:
        guess = None if good < _SMALL[-1] < bad else predicted(values, known, good, bad, limits)
        if guess is None or not left:
            at = _halfway(good, bad, len(values))
            halved = halved or good >= _SMALL[-1]
        else:
            first = guess if first is None else first
            at, left = min(max(guess, good + 1), bad - 1), left - 1
        known[at] = compiled(at)
        if known[at].timed_out:  # neither yes nor no, and halving would wait as long again
            return SearchPlace(good, first, halved, is_open=True)
        good, bad = (at, bad) if meets(known[at]) else (good, at)
    return SearchPlace(good, first, halved)


def _halfway(good: int, bad: int, count: int) -> int:
    """By doubling until one value is too large, then by halving the gap."""
    return min(2 * good + 1 if good >= 0 else 0, count - 1) if bad == count else (good + bad) // 2


def predicted(
    values: Sequence[SettingValue],
    known: Mapping[int, SweepOutcome],
    good: int,
    bad: int,
    limits: Mapping[str, int],
) -> int | None:
    """Place of the last value whose needs are within the limits by a straight line; None: no line.

    Inputs and outputs grow in proportion to a dimension, and weights do not grow at all.
    """
    found = []
    for pool, limit in limits.items():
        needs = {at: need for at, result in known.items() if (need := _need(result, pool))}
        near = sorted(needs, key=lambda at: min(abs(at - good), abs(at - bad)))[:2]
        if len(near) < 2 or not all(isinstance(values[at], int) for at in near):
            continue
        low, high = sorted(near)
        run = int(values[high]) - int(values[low])
        rise = needs[high] - needs[low]
        if rise <= 0:
            found.append(len(values) - 1)  # this pool does not grow
            continue
        most = int(values[low]) + (limit - needs[low]) * run // rise
        found.append(bisect_right(values, most) - 1)
    return min(found, default=None)


def _need(result: SweepOutcome, pool: str) -> int | None:
    return result.compile_need if pool == "compile" else result.pd_need
