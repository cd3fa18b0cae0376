"""What a sweep varies, the rows that come of it, and the result made of them."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from math import prod
from pathlib import Path

from qnnmem.errors import LoadError, Setting, UsageError, Words
from qnnmem.flags import with_flags
from qnnmem.htp.compile import CompileOptions, HtpPrecision
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
from qnnmem.text import nearest, quote

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


MAX_ROWS = 10_000
MAX_VALUES = 1 << 20
_NUMBERS = {"vtcm_mb": (1, 64), "opt_level": (1, 3)}
_OPTIONS = {"precision", *_NUMBERS}


def parse_axis(text: str) -> Axis:
    """The axis meant by `batch=1,2,4`, `batch=1..512` or `precision=fp16,int8`."""
    name, _, listed = text.rpartition("=")
    if not name or not listed:
        raise UsageError(f"'{text[:80]}' is not of the form name=1,2,4 or name=1..512")
    if name == "precision":
        return Axis(name, tuple(_precision(word) for word in _words(listed)))
    low, dots, high = listed.partition("..")
    if dots:
        first, last = _number(name, low), _number(name, high)
        if not first <= last < first + MAX_VALUES:
            raise UsageError(f"{name}={listed[:40]} is not a range from small to large")
        return Axis(name, range(first, last + 1))
    return Axis(name, tuple(_number(name, word) for word in _words(listed)))


def check_settings(path: Path, axes: Sequence[Axis]) -> None:
    """Refuse to vary dimensions of a file that has none which are free."""
    for axis in axes:
        if axis.name not in _OPTIONS:
            meant, known = nearest(axis.name, _OPTIONS), ", ".join(sorted(_OPTIONS))
            hint = f"did you mean {meant}?" if meant else f"varied are {known}"
            what = f"is a DLC, without a free dimension {quote(axis.name)}"
            raise LoadError(path, what, cure=hint)


def _words(text: str) -> list[str]:
    return list(dict.fromkeys(word.strip() for word in text.split(",")))


def _precision(word: str) -> str:
    known = [precision.value for precision in HtpPrecision]
    if word not in known:
        raise UsageError(f"'{word[:40]}' is not a precision; there are {', '.join(known)}")
    return word


def _number(name: str, word: str) -> int:
    low, high = _NUMBERS.get(name, (1, 1 << 31))
    if not (word.isascii() and word.isdigit() and len(word) < 12 and low <= int(word) <= high):
        raise UsageError(f"'{word[:40]}' is not a number from {low} to {high} for {name[:40]}")
    return int(word)


def points_of(axes: Sequence[Axis]) -> Iterator[SweepPoint]:
    """Every combination, the last axis fastest."""
    names = [axis.name for axis in axes]
    if len(set(names)) < len(names):
        cure = ("write all its values after one ", Setting("vary"))
        raise UsageError("each name is varied once", cure=cure)
    count = prod(len(axis.values) for axis in axes)
    if count > MAX_ROWS:
        raise UsageError(f"these are {count:,} compiles, more than {MAX_ROWS:,}; vary less")
    for values in itertools.product(*(axis.values for axis in axes)):
        yield dict(zip(names, values, strict=True))


def options_of(point: SweepPoint, base: CompileOptions) -> CompileOptions:
    """Compile options of a point: names that are not options are free dimensions."""
    known: dict[str, object] = {name: point[name] for name in _NUMBERS if name in point}
    if "precision" in point:
        known["precision"] = HtpPrecision(point["precision"])
    dims = {name: int(value) for name, value in point.items() if name not in _OPTIONS}
    return replace(base, dims={**base.dims, **dims}, **known)  # type: ignore[arg-type]  # by name
