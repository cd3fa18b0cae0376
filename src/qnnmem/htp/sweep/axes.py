"""What is varied: axes as text, every combination of their values, and the compile of each."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import prod
from pathlib import Path

from qnnmem.errors import LoadError, Setting, UsageError
from qnnmem.htp.compile import CompileOptions, HtpPrecision
from qnnmem.htp.sweep.rows import Axis, SweepPoint
from qnnmem.text import nearest, quote

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
