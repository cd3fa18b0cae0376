"""Where to cut a sequence of ops: fewest parts that fit, then fewest bytes that cross.

Whether a part fits may take a compiler to say, so it is asked as seldom as possible:

    from each end, take the longest parts that fit, by halving: so few parts are enough
    repeat:
        take the cheapest parts of which none is known not to fit
        ask about each; if all fit, that is the answer
        else find how far a part from the start of the one that does not may reach

What contains a stretch that does not fit is presumed not to fit either. Where inputs and outputs
count that is no law: a cut at a wide place makes a part larger than the two around it. So there may
be a rule beside the judge that needs no asking, and where presuming leaves no way to cut, the
search goes on without it. Every part of an answer was asked about.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum


class PartFit(Enum):
    """Whether a stretch of ops fits as a part."""

    YES = "yes"
    NO = "no"
    NEVER = "never"  # nor does anything that contains it, for sure


Fits = Callable[[int, int], PartFit]  # of the ops first <= op < last
Rows = Callable[[int], Sequence[bool]]  # for a first op: whether it may fit up to each last

_Cost = tuple[int, int]  # parts, bytes that cross


@dataclass(frozen=True, slots=True)
class Cuts:
    """Places of the parts, each a half-open range of ops, and the bytes that cross between."""

    parts: tuple[tuple[int, int], ...]
    crossing_bytes: int
    trials: int  # parts that were asked about
    is_cheapest: bool = True  # False: trials ran out before fewer bytes were ruled out


@dataclass(frozen=True, slots=True)
class Stuck:
    """No way to cut: nothing that ends at `last` fits, not even the ops from `first` on."""

    first: int
    last: int
    trials: int


@dataclass(frozen=True, slots=True)
class Undecided:
    """The trials that were allowed are used up."""

    trials: int


def least_cuts(
    crossing: Sequence[int],
    fits: Fits,
    *,
    places: Sequence[int] | None = None,
    rows: Rows | None = None,
    most_trials: int | None = None,
    is_over: Callable[[], bool] | None = None,
) -> Cuts | Stuck | Undecided:
    """Cut so that every part fits: fewest parts first, then fewest bytes that cross.

    `crossing[at]` are the bytes that cross a cut before op `at`; its first and last entry stand
    for the ends of the sequence. `places` are those where a cut is allowed, by default all. `rows`
    tells without asking what cannot fit: `rows(first)[last]`. No more is asked when it `is_over`.
    """
    last = len(crossing) - 1
    allowed = sorted({0, last, *(range(last) if places is None else places)})
    search = _CutSearch(crossing, fits, allowed, rows, most_trials, is_over)
    try:
        found = search.run()
        if isinstance(found, Stuck) and search.presumed:
            search.presumes = False
            found = search.run()
    except _NoTrialsLeftError:
        return search.fallback() or Undecided(search.trials)
    return found


def narrow_places(crossing: Sequence[int], work: Sequence[int], most: int) -> tuple[int, ...]:
    """At most `most` places for cuts: the narrowest of each of as many stretches of equal work.

    `work[at]` is what op `at` weighs. For searches in which every question is dear.
    """
    total = sum(work) or 1
    best: dict[int, int] = {}
    done = 0
    for at in range(1, len(work)):
        done += work[at - 1]
        stretch = min(most - 1, done * most // total)
        if stretch not in best or crossing[at] < crossing[best[stretch]]:
            best[stretch] = at
    return tuple(sorted(best.values()))


class _NoTrialsLeftError(Exception):
    """As many parts were asked about as are allowed."""


@dataclass(slots=True)
class _CutSearch:
    """What is known while the parts are looked for; starts and ends are numbers of places."""

    crossing: Sequence[int]
    fits: Fits
    places: list[int]
    rows: Rows | None
    most_trials: int | None
    is_over: Callable[[], bool] | None = None
    presumes: bool = True
    presumed: bool = False  # whether anything was ruled out that was not asked about
    answers: dict[tuple[int, int], PartFit] = field(default_factory=dict)
    starts: list[set[int]] = field(default_factory=list)  # that are open, for each end
    longest: list[list[tuple[int, int]]] = field(default_factory=list)  # ways that fit

    @property
    def trials(self) -> int:
        return len(self.answers)

    def run(self) -> Cuts | Stuck:
        self._open()
        if self.presumes and not self._yes(0, len(self.places) - 1):
            for forward in (True, False):
                self._take_longest(forward=forward)
        while True:
            found = self._cheapest()
            if isinstance(found, Stuck):
                return found
            # The longest is the likeliest to fail, and a failure ends the round.
            longest_first = sorted(found, key=lambda part: (self._ops(part), part))
            if all(self._holds(*part) for part in longest_first):
                return self._cuts(found)

    def fallback(self) -> Cuts | None:
        """The cheaper of the two ways with longest parts, where trials ran out."""
        found = [replace(self._cuts(parts), is_cheapest=False) for parts in self.longest]
        return min(found, key=lambda cuts: (len(cuts.parts), cuts.crossing_bytes), default=None)

    def _cuts(self, parts: Sequence[tuple[int, int]]) -> Cuts:
        ranges = tuple((self.places[first], self.places[last]) for first, last in parts)
        return Cuts(ranges, sum(self.crossing[last] for _, last in ranges), self.trials)

    def _open(self) -> None:
        """Open for each end the starts that neither the rule nor an answer excludes."""
        count = len(self.places)
        self.starts = [set() for _ in range(count)]
        for start in range(count - 1):
            row = None if self.rows is None else self.rows(self.places[start])
            for end in range(start + 1, count):
                if row is None or row[self.places[end]]:
                    self.starts[end].add(start)
        for (first, last), answer in self.answers.items():
            self._learn(first, last, answer)

    def _learn(self, first: int, last: int, answer: PartFit) -> None:
        if answer is not PartFit.YES:
            self.starts[last].discard(first)
        if answer is PartFit.NEVER:
            self._exclude_around(first, last)

    def _ops(self, part: tuple[int, int]) -> int:
        return self.places[part[0]] - self.places[part[1]]

    def _yes(self, first: int, last: int) -> bool:
        """Whether an open part fits, asked if it was not."""
        key = (first, last)
        if key not in self.answers:
            if first not in self.starts[last]:
                return False
            if self.most_trials is not None and self.trials >= self.most_trials:
                raise _NoTrialsLeftError
            if self.is_over is not None and self.is_over():
                raise _NoTrialsLeftError
            self.answers[key] = self.fits(self.places[first], self.places[last])
            self._learn(first, last, self.answers[key])
        return self.answers[key] is PartFit.YES

    def _take_longest(self, *, forward: bool) -> None:
        """Go from one end to the other in parts as long as they fit."""
        at, goal = (0, len(self.places) - 1) if forward else (len(self.places) - 1, 0)
        parts = []
        while at != goal:
            to = self._farthest(at, forward=forward)
            if to is None:
                return
            parts.append((at, to) if forward else (to, at))
            at = to
        self.longest.append(parts if forward else parts[::-1])

    def _farthest(self, at: int, *, forward: bool) -> int | None:
        """The other end of the longest part that fits; what is longer is excluded."""
        if forward:
            ways = [end for end in range(at + 1, len(self.places)) if at in self.starts[end]]
        else:
            ways = sorted(self.starts[at], reverse=True)
        low, high = 0, len(ways)  # how many of the shortest fit, how many may
        probe = high
        while low < high:
            to = ways[probe - 1]
            ends = (at, to) if forward else (to, at)
            if self._yes(*ends):
                low = probe
            else:
                high = probe - 1
                self._presume_around(*ends)
            probe = (low + high + 1) // 2
        return ways[low - 1] if low else None

    def _presume_around(self, first: int, last: int) -> None:
        if self.answers.get((first, last)) is not PartFit.NEVER:
            self.presumed = True
        self._exclude_around(first, last)

    def _exclude_around(self, first: int, last: int) -> None:
        for end in range(last, len(self.starts)):
            self.starts[end] = {
                start
                for start in self.starts[end]
                if start > first or self.answers.get((start, end)) is PartFit.YES
            }

    def _holds(self, first: int, last: int) -> bool:
        """Whether a part fits; if not, it and what is presumed after it are excluded."""
        if self._yes(first, last):
            return True
        if self.presumes:
            self._presume_around(first, self._shortest_that_fails(first, last))
        return False

    def _shortest_that_fails(self, first: int, last: int) -> int:
        """The first end at which a part from `first` does not fit.

        It lies just behind what is known to fit in most cases, so steps begin small.
        """
        fitting = (key for key, answer in self.answers.items() if answer is PartFit.YES)
        low = max((b for a, b in fitting if a <= first < b < last), default=first)
        step, high = 1, last
        while high - low > 1:
            probe = min(low + step, (low + high) // 2)
            # What the rule or an answer excludes says nothing about what is around it.
            if first not in self.starts[probe] or self._yes(first, probe):
                low, step = probe, 2 * step
            else:
                high, step = probe, last
        return high

    def _cheapest(self) -> list[tuple[int, int]] | Stuck:
        """The open parts of least cost; of equal costs always the same."""
        best: list[_Cost | None] = [(0, 0)]
        came = [0]
        for end in range(1, len(self.places)):
            cost, start = min(
                ((found, start) for start in self.starts[end] if (found := best[start])),
                default=((0, 0), -1),
            )
            came.append(start)
            crossing = cost[1] + self.crossing[self.places[end]]
            best.append(None if start < 0 else (cost[0] + 1, crossing))
        if best[-1] is None:
            at = max(place for place, cost in enumerate(best) if cost is not None)
            return Stuck(self.places[at], self.places[at + 1], self.trials)
        parts, end = [], len(came) - 1
        while end:
            parts.append((came[end], end))
            end = came[end]
        return parts[::-1]
