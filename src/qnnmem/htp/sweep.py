"""Compile one model many times, for a table of settings or for the largest value that fits."""

from __future__ import annotations

import itertools
import threading
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from enum import Enum
from math import prod
from pathlib import Path
from typing import NamedTuple, Protocol

from msgspec import structs

from qnnmem.cache import ResultCache
from qnnmem.errors import (
    FreeDimensions,
    LoadError,
    OutOfTime,
    OutputError,
    QnnMemError,
    Setting,
    UsageError,
    Words,
    WorkerError,
    chain_words,
)
from qnnmem.flags import with_flags
from qnnmem.htp.compile import (
    CompileFailure,
    CompileOptions,
    HtpPrecision,
    Progress,
    check_options,
    no_progress,
)
from qnnmem.htp.compile_cache import from_builtins, key_of, to_builtins
from qnnmem.htp.fit import Fit, fit_failure, fit_measured
from qnnmem.htp.measure import MeasuredModel, measure
from qnnmem.htp.worker import Slots, TaskModel, Worker
from qnnmem.provenance import Sourced
from qnnmem.results.footprint import Bill
from qnnmem.results.sweep import (
    CompileNumbers,
    LargestValue,
    SearchEnd,
    SettingValue,
    SweepResult,
    SweepState,
    SweptSetting,
)
from qnnmem.targets.socs import Soc, find_soc
from qnnmem.text import counted, quote, suggestion

SweepPoint = Mapping[str, SettingValue]  # one value for each varied name


@dataclass(frozen=True, slots=True)
class Axis:
    """A varied setting: `precision`, `vtcm_mb`, `opt_level`, or a free dimension by its name."""

    name: str
    values: Sequence[SettingValue]  # a range is not expanded


class SweepOutcome(CompileNumbers, frozen=True):
    """Outcome of one compile; `reason` has `Setting` objects in place of option names."""

    state: SweepState
    reason: Words = ""
    timed_out: bool = False  # failed at its time limit

    @property
    def is_final(self) -> bool:
        """True if another run would give the same result, unlike after a crash or timeout."""
        return self.state != "failed"


class Question(Enum):
    """A condition; the sweep looks for the largest value of a setting that meets it."""

    FITS = "fits"
    COMPILES = "compiles"

    def is_met(self, result: SweepOutcome) -> bool:
        """Return True if a compile meets the condition."""
        return result.state == "fits" if self is Question.FITS else result.is_compiled


@dataclass(frozen=True, slots=True)
class SweepRow:
    """A row of a sweep's table: a point and its outcome."""

    point: SweepPoint
    result: SweepOutcome
    from_cache: bool = False


class Largest(SearchEnd, frozen=True):
    """The largest value of a setting that meets a condition; `point` has the other settings."""

    name: str
    point: SweepPoint
    next_reason: Words = ""


def show(point: SweepPoint) -> str:
    """Return a point as text."""
    return ", ".join(f"{name}={value}" for name, value in point.items()) or "unchanged"


def cached_outcome(values: Mapping[str, object] | None) -> SweepOutcome | None:
    """Return a cached outcome; None if it is invalid or another run might have another outcome."""
    outcome = from_builtins(SweepOutcome, values)
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
    """Return the result of a sweep from its rows and largest values."""
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


def _largest_value(largest: Largest) -> LargestValue:
    end = {name: getattr(largest, name) for name in SearchEnd.__struct_fields__}
    return LargestValue(largest.name, dict(largest.point), with_flags(largest.next_reason), **end)


MAX_ROWS = 10_000
MAX_VALUES = 1 << 20
_NUMBERS = {"vtcm_mb": (1, 64), "opt_level": (1, 3)}
_OPTIONS = {"precision", *_NUMBERS}


def parse_axis(text: str) -> Axis:
    """Return an axis from text such as `batch=1,2,4`, `batch=1..512` or `precision=fp16,int8`."""
    name, _, listed = text.rpartition("=")
    if not name or not listed:
        raise UsageError(f"'{text[:80]}' is not of the form name=1,2,4 or name=1..512")
    if name == "precision":
        return Axis(name, tuple(_precision(word) for word in _words(listed)))
    low, dots, high = listed.partition("..")
    if dots:
        first, last = _number(name, low), _number(name, high)
        if not first <= last < first + MAX_VALUES:
            raise UsageError(
                f"{name}={listed[:40]} is not a range from small to large, or has too many values"
            )
        return Axis(name, range(first, last + 1))
    return Axis(name, tuple(_number(name, word) for word in _words(listed)))


def check_settings(path: Path, axes: Sequence[Axis]) -> None:
    """Raise LoadError if an axis varies a dimension of a DLC, whose dimensions are all fixed."""
    for axis in axes:
        if axis.name not in _OPTIONS:
            problem = f"has no free dimension {quote(axis.name)}, because it is a DLC"
            raise LoadError(path, problem, cure=suggestion(axis.name, sorted(_OPTIONS)))


def _words(text: str) -> list[str]:
    return list(dict.fromkeys(word.strip() for word in text.split(",")))


def _precision(word: str) -> str:
    known = [precision.value for precision in HtpPrecision]
    if word not in known:
        raise UsageError(f"'{word[:40]}' is not a precision; choose one of {', '.join(known)}")
    return word


def _number(name: str, word: str) -> int:
    low, high = _NUMBERS.get(name, (1, 1 << 31))
    if not (word.isascii() and word.isdigit() and len(word) < 12 and low <= int(word) <= high):
        raise UsageError(f"'{word[:40]}' is not a number from {low} to {high} for {name[:40]}")
    return int(word)


def points_of(axes: Sequence[Axis]) -> Iterator[SweepPoint]:
    """Yield every combination of the axes' values as a point; the last axis varies fastest."""
    names = [axis.name for axis in axes]
    if len(set(names)) < len(names):
        cure = ("write all values of the setting in one ", Setting("vary"))
        raise UsageError("each setting can be varied only once", cure=cure)
    count = prod(len(axis.values) for axis in axes)
    if count > MAX_ROWS:
        raise UsageError(f"{count:,} compiles are over the limit of {MAX_ROWS:,}; vary less")
    for values in itertools.product(*(axis.values for axis in axes)):
        yield dict(zip(names, values, strict=True))


def options_of(point: SweepPoint, base: CompileOptions) -> CompileOptions:
    """Return the compile options of a point; unknown names are taken as free dimensions."""
    known: dict[str, object] = {name: point[name] for name in _NUMBERS if name in point}
    if "precision" in point:
        known["precision"] = HtpPrecision(point["precision"])
    dims = {name: int(value) for name, value in point.items() if name not in _OPTIONS}
    return replace(base, dims={**base.dims, **dims}, **known)  # type: ignore[arg-type]  # by name


# --- The largest value that meets a condition, in few compiles: predicted, then confirmed --------


_SMALL = (0, 1, 3)  # indexes of the first compiles, which determine a line
_CONFIRMED = 4  # most predicted compiles before the search falls back to bisection


class SearchPlace(NamedTuple):
    """Result of the search for the last value that meets a condition."""

    place: int  # index of the last value that meets the condition, -1 for none
    predicted: int | None  # index of the first prediction
    halved: bool  # bisection was needed
    is_open: bool = False  # the search ended at a compile that timed out


def last_that_meets(
    values: Sequence[SettingValue],
    compiled: Callable[[int], SweepOutcome],
    meets: Callable[[SweepOutcome], bool],
    limits: Mapping[str, int],
) -> SearchPlace:
    """Return the last value that meets a condition; all earlier values are assumed to meet it."""
    known: dict[int, SweepOutcome] = {}
    good, bad = -1, len(values)
    first: int | None = None
    halved, left = False, _CONFIRMED
    while bad - good > 1:
        guess = None if good < _SMALL[-1] < bad else predicted(values, known, good, bad, limits)
        if guess is None or not left:
            index = _halfway(good, bad, len(values))
            halved = halved or good >= _SMALL[-1]
        else:
            first = guess if first is None else first
            index, left = min(max(guess, good + 1), bad - 1), left - 1
        known[index] = compiled(index)
        if known[index].timed_out:  # undecided, and bisection would take as long again
            return SearchPlace(good, first, halved, is_open=True)
        good, bad = (index, bad) if meets(known[index]) else (good, index)
    return SearchPlace(good, first, halved)


def _halfway(good: int, bad: int, count: int) -> int:
    """Return the next index to try, by doubling until a value is too large, then by bisection."""
    return min(2 * good + 1 if good >= 0 else 0, count - 1) if bad == count else (good + bad) // 2


def predicted(
    values: Sequence[SettingValue],
    known: Mapping[int, SweepOutcome],
    good: int,
    bad: int,
    limits: Mapping[str, int],
) -> int | None:
    """Return the index of the last value that fits according to a straight line, or None.

    Inputs and outputs grow in proportion to a dimension, and weights do not grow. None means that
    no line can be drawn.
    """
    places = []
    for pool, limit in limits.items():
        needs = {place: need for place, result in known.items() if (need := _need(result, pool))}
        near = sorted(needs, key=lambda place: min(abs(place - good), abs(place - bad)))[:2]
        if len(near) < 2 or not all(isinstance(values[place], int) for place in near):
            continue
        low, high = sorted(near)
        run = int(values[high]) - int(values[low])
        rise = needs[high] - needs[low]
        if rise <= 0:
            places.append(len(values) - 1)  # the need in this pool does not grow
            continue
        value = int(values[low]) + (limit - needs[low]) * run // rise
        places.append(bisect_right(values, value) - 1)
    return min(places, default=None)


def _need(result: SweepOutcome, pool: str) -> int | None:
    return result.compile_need if pool == "compile" else result.pd_need


# --- The sweep ------------------------------------------------------------------------------------


class PointCompiler(Protocol):
    """Compiles the points of a sweep one after another."""

    def run(self, point: SweepPoint) -> SweepOutcome:
        """Compile a point; return an outcome even if the library crashes."""
        ...

    def close(self) -> None:
        """Release the resources of the compiler."""
        ...


@dataclass(frozen=True, slots=True)
class Identity:
    """Model, SoC, library and fixed settings of a sweep, which are in the key of every result."""

    digest: str  # digest of the model
    soc: int
    library: str
    fixed: SweepPoint  # settings that are not varied

    def key(self, point: SweepPoint) -> str:
        """Return the cache key of a result."""
        return key_of(self.digest, self.soc, {**self.fixed, **point}, self.library)


class Sweep:
    """Compiles points and saves each result before the next compile starts.

    `jobs` is the number of parallel copies of each compiler. Several compilers, one for each
    worker, are given as a list.
    """

    def __init__(
        self,
        compilers: Callable[[], PointCompiler] | Sequence[Callable[[], PointCompiler]],
        cache: ResultCache,
        identity: Identity,
        *,
        jobs: int = 1,
        progress: Progress | None = None,
    ) -> None:
        makers = [compilers] if callable(compilers) else list(compilers)
        self._slots: Slots[PointCompiler] = Slots([make for make in makers for _ in range(jobs)])
        self._cache, self._identity = cache, identity
        self._progress = progress or no_progress
        self._lock = threading.Lock()
        self.rows: list[SweepRow] = []  # finished rows, in the order of completion

    def __enter__(self) -> Sweep:
        return self

    def __exit__(self, *_error: object) -> None:
        self._slots.close()

    def table(self, points: Sequence[SweepPoint]) -> tuple[SweepRow, ...]:
        """Return one row for each point, in the order of the points."""
        total = len(points)
        if self._slots.count == 1:
            return tuple(self._row(point, total) for point in points)
        with ThreadPoolExecutor(self._slots.count) as pool:
            jobs = [pool.submit(self._row, point, total) for point in points]
            try:
                return tuple(job.result() for job in jobs)
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                self._slots.close()  # stops compiles whose rows are no longer needed
                raise

    def largest(
        self,
        axis: Axis,
        rest: SweepPoint,
        until: Question = Question.FITS,
        limits: Mapping[str, int] | None = None,
    ) -> tuple[Largest, tuple[SweepRow, ...]]:
        """Return the largest value that meets a condition, and the rows of all compiles.

        All smaller values are assumed to meet the condition too. With `limits` of pools, in bytes,
        the value is predicted from the first rows.
        """
        values = sorted(axis.values) if not isinstance(axis.values, range) else axis.values
        rows: dict[int, SweepRow] = {}

        def compiled(index: int) -> SweepOutcome:
            rows[index] = self._row({**rest, axis.name: values[index]}, None)
            return rows[index].result

        search = last_that_meets(values, compiled, until.is_met, limits or {})
        place = search.place
        over = min((index for index in rows if index > place), default=None)
        answer = Largest(
            name=axis.name,
            point=rest,
            value=values[place] if place >= 0 else None,
            next_value=None if over is None else values[over],
            next_reason="" if over is None else rows[over].result.reason,
            until=until.value,
            predicted=None if search.predicted is None else values[search.predicted],
            halved=search.halved,
            is_open=search.is_open,
        )
        return answer, tuple(rows[index] for index in sorted(rows))

    def _row(self, point: SweepPoint, total: int | None) -> SweepRow:
        key = self._identity.key(point)
        kept = cached_outcome(self._cache.get(key))
        if kept is None:
            of = "" if total is None else f" of {total}"
            self._progress(f"{len(self.rows) + 1}{of}: {show(point)}")
            result = self._compile(point)
            if result.is_final:
                self._cache.put(key, to_builtins(result))
        row = SweepRow(point, kept or result, kept is not None)
        with self._lock:
            self.rows.append(row)
        return row

    def _compile(self, point: SweepPoint) -> SweepOutcome:
        """Return a point's outcome; raise WorkerError if no compiler is left."""
        try:
            return self._slots.use(lambda compiler: compiler.run(point))
        except (UsageError, OutputError):
            raise
        except WorkerError as exc:
            if self._slots.count:
                return SweepOutcome("failed", str(exc))
            more = (
                f"; stored: {counted(len(self.rows), 'finished row')}; run the same command again "
                "to continue"
            )
            raise WorkerError(f"{exc}{more}") from exc
        except OSError as exc:
            return SweepOutcome("failed", f"the compile could not be started: {exc}")


# --- A point as a task for a worker ---------------------------------------------------------------


_STATES: Mapping[bool | None, SweepState] = {True: "fits", False: "over", None: "refused"}
_BROKEN = ("crashed", "timeout", "memory")


class TaskCompiler:
    """Compiles and loads each point as a task; a crash or a hang of the library is an outcome."""

    def __init__(self, model: TaskModel, soc: Soc, base: CompileOptions) -> None:
        self._model, self._soc, self._base = model, soc, base

    def run(self, point: SweepPoint) -> SweepOutcome:
        """Return the outcome of a point after a compile and load."""
        arguments = (self._soc.name, self._base, dict(point))
        return self._model.ask(SweepOutcome, compile_task, *arguments)

    def close(self) -> None:
        """Close the model, which stops a local worker."""
        self._model.close()


def compile_task(
    worker: Worker,
    model: Path,
    soc: str,
    base: CompileOptions,
    point: SweepPoint,
    *,
    progress: Progress | None = None,
) -> SweepOutcome:
    """Return the outcome of a point after a compile and load, here or on a worker of a cluster."""
    target, options = find_soc(soc), options_of(point, base)
    try:
        check_options(target, options)
    except UsageError as exc:  # e.g. more VTCM than the SoC has; the other rows continue
        return SweepOutcome("refused", _error_words(exc))
    try:
        measured = measure(
            *(model, target, options), worker=worker, progress=progress, try_cures=True
        )
    except FreeDimensions:
        raise
    except OutOfTime as exc:  # another run may finish in time
        return SweepOutcome("failed", _error_words(exc), timed_out=True)
    except LoadError as exc:  # e.g. a size that the model cannot have
        return SweepOutcome("refused", _error_words(exc))
    return _failed(measured) if isinstance(measured, CompileFailure) else _compiled(measured)


def _error_words(exc: QnnMemError) -> Words:
    """Return the text of an error, with `Setting` objects in place of option names."""
    where = f"{exc.where}: " if exc.where else ""
    return chain_words(where, exc.what, "; " if exc.cure else "", exc.cure)


def _failed(failure: CompileFailure) -> SweepOutcome:
    outcome = failure.outcome
    if outcome.kind in _BROKEN:
        peak = outcome.peak_rss
        late = outcome.kind == "timeout"
        return SweepOutcome(
            "failed", failure.why, host_ram=peak, seconds=outcome.seconds, timed_out=late
        )
    result = result_of(fit_failure(failure))
    return structs.replace(result, host_ram=outcome.peak_rss, seconds=outcome.seconds)


def _compiled(measured: MeasuredModel) -> SweepOutcome:
    """Return the outcome of a compiled binary; "failed" if a needed estimate is missing."""
    fit = fit_measured(measured)
    result = _with_bill(result_of(fit), measured.bill)
    if measured.no_estimate and fit.fits is None:
        return structs.replace(result, state="failed")
    return result


def result_of(fit: Fit) -> SweepOutcome:
    """Return the verdict for one SoC as the outcome of a compile."""
    ranges = {check.pool: check.need for check in fit.checks if check.need is not None}
    needs = {pool: need.high.value for pool, need in ranges.items()}
    return SweepOutcome(
        state=_STATES[fit.fits],
        reason=fit.why,
        code=fit.code,
        compile_need=needs.get("compile"),
        pd_need=needs.get("pd"),
        pd_low=ranges["pd"].low.value if "pd" in ranges else None,
        vtcm=needs.get("vtcm"),
        seconds=fit.seconds or 0.0,
    )


def _with_bill(result: SweepOutcome, bill: Bill) -> SweepOutcome:
    return structs.replace(
        result,
        ram=_bytes(bill.total),
        weights=_bytes(bill.all_weights),
        io=_bytes(bill.io),
        spill_fill=_bytes(bill.spill_fill),
        ddr_read=_bytes(bill.ddr_read_per_inference),
        ddr_written=_bytes(bill.ddr_written_per_inference),
        host_ram=_bytes(bill.host_ram),
        file_bytes=bill.file_bytes,
    )


def _bytes(part: Sourced | None) -> int | None:
    return None if part is None else part.value
