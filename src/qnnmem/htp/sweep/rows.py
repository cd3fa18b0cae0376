"""What a sweep varies, the rows that come of it, and the result made of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from qnnmem.errors import Words
from qnnmem.flags import with_flags
from qnnmem.htp.kept import from_kept
from qnnmem.results.sweep import (
    CompileNumbers,
    LargestValue,
    SearchEnd,
    SettingValue,
    SweepResult,
    SweepState,
    SweptSetting,
)

SweepPoint = Mapping[str, SettingValue]  # one value for each name that is varied


@dataclass(frozen=True, slots=True)
class Axis:
    """What is varied: `precision`, `vtcm_mb`, `opt_level`, or a free dimension by its name."""

    name: str
    values: Sequence[SettingValue]  # a range, for the search of the largest, is not written out


class SweepOutcome(CompileNumbers, frozen=True):
    """What became of one compile; its reason still names settings as data."""

    state: SweepState
    reason: Words = ""
    timed_out: bool = False  # failed because its time was over

    @property
    def is_final(self) -> bool:
        """Whether another run would say the same: a crash or a time limit may not come again."""
        return self.state != "failed"


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


class Largest(SearchEnd, frozen=True):
    """The largest value of a name that will do, all other names having the values of `point`."""

    name: str
    point: SweepPoint
    next_reason: Words = ""


def show(point: SweepPoint) -> str:
    """A point as text."""
    return ", ".join(f"{name}={value}" for name, value in point.items()) or "as it is"


def kept_outcome(values: Mapping[str, object] | None) -> SweepOutcome | None:
    """A kept outcome; None when a file holds something else. Failed compiles are not kept."""
    outcome = from_kept(SweepOutcome, values)
    return outcome if outcome is not None and outcome.is_final else None


def sweep_result(
    rows: Iterable[SweepRow],
    largest: Iterable[Largest],
    *,
    file: str,
    soc: str,
    library: str,
    interrupted: bool = False,
) -> SweepResult:
    """The rows and answers of a sweep, as they are written."""
    return SweepResult(
        file=file,
        soc=soc,
        library=library,
        rows=tuple(map(_swept_setting, rows)),
        largest=tuple(map(_largest_value, largest)),
        interrupted=interrupted,
    )


def _swept_setting(row: SweepRow) -> SweptSetting:
    numbers = {name: getattr(row.result, name) for name in CompileNumbers.__struct_fields__}
    reason = with_flags(row.result.reason)
    return SweptSetting(dict(row.point), row.result.state, row.from_cache, reason, **numbers)


def _largest_value(found: Largest) -> LargestValue:
    end = {name: getattr(found, name) for name in SearchEnd.__struct_fields__}
    return LargestValue(found.name, dict(found.point), with_flags(found.next_reason), **end)
