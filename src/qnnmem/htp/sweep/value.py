"""What a sweep varies, and the rows that come of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from qnnmem.errors import Words

Value = int | str
SweepPoint = Mapping[str, Value]  # one value for each name that is varied


@dataclass(frozen=True, slots=True)
class Axis:
    """What is varied: `precision`, `vtcm_mb`, `opt_level`, or a free dimension by its name."""

    name: str
    values: Sequence[Value]  # a range, for the search of the largest, is not written out


@dataclass(frozen=True, slots=True)
class SweepOutcome:
    """What became of one compile; numbers are bytes, None is not known."""

    state: str  # fits, over (does not fit), refused (no question of memory) or failed
    reason: Words = ""
    code: int | None = None  # of QNN
    compile_need: int | None = None
    pd_need: int | None = None
    pd_low: int | None = None  # less than pd_need where that is only a bound
    vtcm: int | None = None
    ram: int | None = None
    weights: int | None = None
    io: int | None = None
    spill_fill: int | None = None
    ddr_read: int | None = None
    ddr_written: int | None = None
    host_ram: int | None = None
    file_bytes: int | None = None
    seconds: float = 0.0
    timed_out: bool = False  # failed because its time was over

    @property
    def is_final(self) -> bool:
        """Whether another run would say the same: a crash or a time limit may not come again."""
        return self.state != "failed"

    @property
    def is_compiled(self) -> bool:
        """Whether there is a binary, whatever became of it."""
        return self.file_bytes is not None


class Question(Enum):
    """What the largest value is asked for."""

    FITS = "fits"
    COMPILES = "compiles"

    def is_met(self, result: SweepOutcome) -> bool:
        """Whether a compile answers yes."""
        return result.state == "fits" if self is Question.FITS else result.is_compiled


@dataclass(frozen=True, slots=True)
class SweepRow:
    """One line of the table."""

    point: SweepPoint
    result: SweepOutcome
    from_cache: bool = False


@dataclass(frozen=True, slots=True)
class Largest:
    """The largest value of a name that will do, all other names having the values of `point`."""

    name: str
    point: SweepPoint
    value: Value | None  # None: not even the smallest
    next_value: Value | None  # the smallest that was seen not to do
    next_reason: Words = ""
    until: Question = Question.FITS
    predicted: Value | None = None  # from the first rows, by a straight line
    halved: bool = False  # found by halving the gap: the prediction was wrong, or there was none
    is_open: bool = False  # the compile of the next value was not finished in time


def show(point: SweepPoint) -> str:
    """A point as text."""
    return ", ".join(f"{name}={value}" for name, value in point.items()) or "as it is"
