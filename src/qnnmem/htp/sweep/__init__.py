"""Many real compiles of one model: a table over settings, or the largest value that fits."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, fields
from typing import Protocol

from qnnmem.errors import OutputError, UsageError
from qnnmem.htp.compile import CompileOptions, HtpPrecision
from qnnmem.htp.fit import Fit
from qnnmem.htp.sweep.cache import ResultCache, key_of

MAX_ROWS = 10_000
MAX_VALUES = 1 << 20
_NUMBERS = {"vtcm_mb": (1, 64), "opt_level": (1, 3)}

Value = int | str
Setting = Mapping[str, Value]
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Axis:
    """What is varied: `precision`, `vtcm_mb`, `opt_level`, or a free dimension by its name."""

    name: str
    values: Sequence[Value]  # a range, for the search of the largest, is not written out


@dataclass(frozen=True, slots=True)
class Result:
    """What became of one compile; numbers are bytes, None is not known."""

    state: str  # fits, over (does not fit), refused (no question of memory) or failed
    reason: str = ""
    code: int | None = None  # of QNN
    compile_need: int | None = None
    pd_need: int | None = None
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

    @property
    def is_final(self) -> bool:
        """Whether another run would say the same: a crash or a time limit may not come again."""
        return self.state != "failed"


@dataclass(frozen=True, slots=True)
class SweepRow:
    """One line of the table."""

    setting: Setting
    result: Result
    from_cache: bool = False


@dataclass(frozen=True, slots=True)
class Largest:
    """The largest value of a name that fits, for one setting of everything else."""

    name: str
    setting: Setting
    value: Value | None  # None: not even the smallest
    next_value: Value | None  # the smallest that was seen not to fit
    next_reason: str = ""


class Bench(Protocol):
    """Compiles settings one after another; each thread has its own."""

    def run(self, setting: Setting) -> Result:
        """Compile a setting; whatever happens to the library, a result comes back."""
        ...

    def close(self) -> None:
        """Give back what the bench holds."""
        ...


# --- What is asked for ---------------------------------------------------------------------------


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
            raise UsageError(f"{name}={listed[:40]} is no range from small to large")
        return Axis(name, range(first, last + 1))
    return Axis(name, tuple(_number(name, word) for word in _words(listed)))


def _words(text: str) -> list[str]:
    return list(dict.fromkeys(word.strip() for word in text.split(",")))


def _precision(word: str) -> str:
    known = [precision.value for precision in HtpPrecision]
    if word not in known:
        raise UsageError(f"'{word[:40]}' is no precision; there are {', '.join(known)}")
    return word


def _number(name: str, word: str) -> int:
    low, high = _NUMBERS.get(name, (1, 1 << 31))
    if not (word.isascii() and word.isdigit() and len(word) < 12 and low <= int(word) <= high):
        raise UsageError(f"'{word[:40]}' is not a number from {low} to {high} for {name[:40]}")
    return int(word)


def settings_of(axes: Sequence[Axis]) -> Iterator[Setting]:
    """Every combination, the last axis fastest."""
    names = [axis.name for axis in axes]
    if len(set(names)) < len(names):
        raise UsageError("each name is varied once; write all its values after one --vary")
    count = 1
    for axis in axes:
        count *= len(axis.values)
    if count > MAX_ROWS:
        raise UsageError(f"these are {count:,} compiles, more than {MAX_ROWS:,}; vary less")
    for values in itertools.product(*(axis.values for axis in axes)):
        yield dict(zip(names, values, strict=True))


def options_of(setting: Setting, base: CompileOptions) -> CompileOptions:
    """Compile options of a setting: names that are no option are free dimensions."""
    from dataclasses import replace

    known: dict[str, object] = {
        name: setting[name] for name in ("vtcm_mb", "opt_level") if name in setting
    }
    if "precision" in setting:
        known["precision"] = HtpPrecision(setting["precision"])
    options = {"precision", "vtcm_mb", "opt_level"}
    dims = {name: int(value) for name, value in setting.items() if name not in options}
    return replace(base, dims={**base.dims, **dims}, **known)  # type: ignore[arg-type]  # by name


def fixed_of(base: CompileOptions) -> Setting:
    """What is not varied and changes results, in words."""
    return {
        "precision": base.precision.value,
        "vtcm_mb": base.vtcm_mb or 0,
        "opt_level": base.opt_level or 0,
        **{f"dim {name}": size for name, size in sorted(base.dims.items())},
        **{f"shape {name}": str(list(shape)) for name, shape in sorted(base.shapes.items())},
        "samples": base.samples,
        "seed": base.seed,
    }


def result_of(fit: Fit) -> Result:
    """What a sweep keeps of an answer for one SoC."""
    needs = {check.pool: check.need.high.value for check in fit.checks if check.need is not None}
    state = {True: "fits", False: "over", None: "refused"}[fit.fits]
    return Result(
        state=state,
        reason=fit.why,
        code=fit.code,
        compile_need=needs.get("compile"),
        pd_need=needs.get("pd"),
        vtcm=needs.get("vtcm"),
        seconds=fit.seconds or 0.0,
    )


# --- Running -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Identity:
    """What results depend on besides the setting."""

    digest: str  # of the model
    soc: int
    library: str
    fixed: Setting  # settings that are not varied

    def key(self, setting: Setting) -> str:
        """Name of a result in the cache."""
        return key_of(self.digest, self.soc, {**self.fixed, **setting}, self.library)


class Sweep:
    """Runs settings on benches; finished results are on disk before the next one starts."""

    def __init__(
        self,
        bench: Callable[[], Bench],
        cache: ResultCache,
        identity: Identity,
        *,
        jobs: int = 1,
        say: Say | None = None,
    ) -> None:
        self._make, self._cache, self._identity = bench, cache, identity
        self._jobs, self._say = jobs, say or (lambda _text: None)
        self._local, self._lock = threading.local(), threading.Lock()
        self._benches: list[Bench] = []
        self._done = 0

    def __enter__(self) -> Sweep:
        return self

    def __exit__(self, *_error: object) -> None:
        for bench in self._benches:
            bench.close()

    def table(self, settings: Sequence[Setting]) -> tuple[SweepRow, ...]:
        """One row for each setting, in their order."""
        total = len(settings)
        if self._jobs == 1:
            return tuple(self._row(setting, total) for setting in settings)
        with ThreadPoolExecutor(self._jobs) as pool:
            jobs = [pool.submit(self._row, setting, total) for setting in settings]
            try:
                return tuple(job.result() for job in jobs)
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                for bench in self._benches:
                    bench.close()  # ends compiles that nobody waits for
                raise

    def largest(self, axis: Axis, rest: Setting) -> tuple[Largest, tuple[SweepRow, ...]]:
        """The largest value that fits if all smaller ones do, and every row that was compiled."""
        values = sorted(axis.values) if not isinstance(axis.values, range) else axis.values
        rows: dict[int, SweepRow] = {}

        def fits(at: int) -> bool:
            if at not in rows:
                rows[at] = self._row({**rest, axis.name: values[at]}, None)
            return rows[at].result.state == "fits"

        found = _last_that_fits(len(values), fits)
        over = min((at for at in rows if at > found), default=None)
        answer = Largest(
            name=axis.name,
            setting=rest,
            value=values[found] if found >= 0 else None,
            next_value=None if over is None else values[over],
            next_reason="" if over is None else rows[over].result.reason,
        )
        return answer, tuple(rows[at] for at in sorted(rows))

    def _row(self, setting: Setting, total: int | None) -> SweepRow:
        key = self._identity.key(setting)
        kept = _result_from(self._cache.get(key))
        if kept is None:
            self._tell(setting, total)
            result = self._run(setting)
            if result.is_final:
                self._cache.put(key, asdict(result))
        with self._lock:
            self._done += 1
        return SweepRow(setting, kept or result, kept is not None)

    def _run(self, setting: Setting) -> Result:
        """A bench that breaks costs its own row only."""
        try:
            return self._bench().run(setting)
        except (UsageError, OutputError):
            raise
        except OSError as exc:
            return Result("failed", f"the compile could not be started: {exc}")

    def _bench(self) -> Bench:
        bench: Bench | None = getattr(self._local, "bench", None)
        if bench is None:
            bench = self._local.bench = self._make()
            with self._lock:
                self._benches.append(bench)
        return bench

    def _tell(self, setting: Setting, total: int | None) -> None:
        of = "" if total is None else f" of {total}"
        self._say(f"{self._done + 1}{of}: {show(setting)}")


def _last_that_fits(count: int, fits: Callable[[int], bool]) -> int:
    """Place of the last value that fits, -1 for none: by doubling, then by halving the gap."""
    good, bad = -1, count
    while good < count - 1:
        probe = min(2 * good + 1 if good >= 0 else 0, count - 1)
        if not fits(probe):
            bad = probe
            break
        good = probe
    while bad - good > 1 and good < count - 1:
        middle = (good + bad) // 2
        if fits(middle):
            good = middle
        else:
            bad = middle
    return good


def _result_from(values: dict[str, object] | None) -> Result | None:
    """A kept result; None when a file holds something else."""
    if values is None or set(values) != {field.name for field in fields(Result)}:
        return None
    texts = values["state"], values["reason"]
    numbers = [value for name, value in values.items() if name not in ("state", "reason")]
    if not all(isinstance(text, str) for text in texts):
        return None
    if not all(isinstance(value, int | float | None) for value in numbers):
        return None
    return Result(**values)  # type: ignore[arg-type]  # names and types were checked


def show(setting: Setting) -> str:
    """A setting in words."""
    return ", ".join(f"{name}={value}" for name, value in setting.items()) or "as it is"
