"""What a comparison holds: pools before and after, tensors, verdicts, and whether it is worse."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from qnnmem.gate.subject import ComparedAnswer


@dataclass(frozen=True, slots=True)
class Tolerance:
    """How much a pool may grow: so many bytes or that part of it, whichever is more."""

    size: int = 0
    fraction: float = 0.0

    def allows(self, before: int, after: int) -> bool:
        """Whether the growth is within it."""
        return after - before <= max(self.size, before * self.fraction)


NO_GROWTH = Tolerance()


@dataclass(frozen=True, slots=True)
class WhatCounts:
    """What makes a result worse: growth of these pools beyond the tolerance."""

    tolerance: Tolerance = NO_GROWTH
    pools: tuple[str, ...] = ()  # all where none is named


@dataclass(frozen=True, slots=True)
class PoolChange:
    """A pool before and after; None where a side does not say."""

    pool: str
    before: int | None
    after: int | None
    is_worse: bool = False
    bound: str = ""  # before or after: the side that is only a bound, where the other is exact
    unlike: tuple[str, ...] = ()  # what each side counts, where that is not the same

    @property
    def is_comparable(self) -> bool:
        """Whether both numbers are of one kind."""
        return not self.bound and not self.unlike

    @property
    def delta(self) -> int | None:
        """Bytes more, negative for less; None where both cannot be compared."""
        known = self.before is not None and self.after is not None and self.is_comparable
        return self.after - self.before if known else None  # type: ignore[operator]

    @property
    def fraction(self) -> float | None:
        """The same as part of what it was."""
        return self.delta / self.before if self.delta is not None and self.before else None


@dataclass(frozen=True, slots=True)
class TensorChange:
    """A tensor that is new, gone, larger, smaller or elsewhere; None where it is not."""

    name: str
    before: int | None
    after: int | None
    pool_before: str = ""
    pool_after: str = ""

    @property
    def delta(self) -> int:
        """Bytes more; negative for less."""
        return (self.after or 0) - (self.before or 0)

    @property
    def change(self) -> str:
        """What became of it: appeared, vanished, grew, shrank or moved."""
        if self.before is None:
            return "appeared"
        if self.after is None:
            return "vanished"
        if self.delta:
            return "grew" if self.delta > 0 else "shrank"
        return "moved"


@dataclass(frozen=True, slots=True)
class VerdictChange:
    """A question that is answered otherwise than before."""

    question: str
    before: ComparedAnswer
    after: ComparedAnswer

    @property
    def is_worse(self) -> bool:
        """Whether the new answer is the worse one."""
        return self.after.rank > self.before.rank

    @property
    def is_better(self) -> bool:
        """Whether the new answer is the better one."""
        return self.after.rank < self.before.rank


@dataclass(frozen=True, slots=True)
class SettingChange:
    """A setting or a tool that differs, so that the numbers may differ for that reason."""

    name: str
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class LimitChange:
    """A budget that is another one than before; None where there is none."""

    name: str
    before: int | None
    after: int | None


@dataclass(frozen=True, slots=True)
class ComparedSubject:
    """A file, on one SoC where there are several, before and after."""

    before: str  # names
    after: str
    pools: tuple[PoolChange, ...]
    tensors: tuple[TensorChange, ...]  # the largest change first
    verdicts: tuple[VerdictChange, ...]
    settings: tuple[SettingChange, ...]
    limits: tuple[LimitChange, ...] = ()

    @property
    def is_worse(self) -> bool:
        """Whether a pool grew too far or a verdict turned to the worse."""
        pools = any(one.is_worse for one in self.pools)
        return pools or any(one.is_worse for one in self.verdicts)

    @property
    def is_changed(self) -> bool:
        """Whether anything but settings differs."""
        pools = any(one.delta or not one.is_comparable for one in self.pools)
        return pools or bool(self.tensors or self.verdicts or self.limits)


@dataclass(frozen=True, slots=True)
class ResultComparison:
    """Two results of one kind against each other."""

    kind: str
    subjects: tuple[ComparedSubject, ...]
    appeared: tuple[str, ...] = ()  # names that only the second has
    vanished: tuple[str, ...] = ()  # names that only the first has
    failing: tuple[str, ...] = ()  # of those that appeared, the ones that do not fit

    @property
    def is_worse(self) -> bool:
        """Whether anything is."""
        return bool(self.failing) or any(one.is_worse for one in self.subjects)

    @property
    def is_changed(self) -> bool:
        """Whether anything differs."""
        return bool(self.appeared or self.vanished) or any(one.is_changed for one in self.subjects)

    @property
    def reasons(self) -> tuple[PoolChange | VerdictChange, ...]:
        """All that makes it worse."""
        return tuple(self._reasons())

    def _reasons(self) -> Iterator[PoolChange | VerdictChange]:
        for subject in self.subjects:
            yield from (one for one in subject.verdicts if one.is_worse)
            yield from (one for one in subject.pools if one.is_worse)
