"""Settings near one that does not fit, of which the likeliest are really compiled."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Protocol

from msgspec import structs

from qnnmem.deadline import Deadline
from qnnmem.errors import Setting
from qnnmem.htp.compile import CompileOptions, HtpPrecision
from qnnmem.htp.fit.fit import Fit, Suggestion
from qnnmem.provenance import Origin
from qnnmem.results.fit import FitCheck
from qnnmem.targets.socs import Soc, socs
from qnnmem.text import counted

TRIED = 3  # nearby settings that are compiled
_MIB = 1 << 20
_PATIENCE_S = 20.0  # for a nearby setting, beyond twice the time of the first compile


class Judge(Protocol):
    """Compiles for a SoC and says whether the result fits."""

    def __call__(self, soc: Soc, options: CompileOptions, /) -> Fit:
        """The answer for one setting."""
        ...


@dataclass(frozen=True, slots=True)
class Nearby:
    """A setting close to one that does not fit."""

    setting: Setting
    reason: str
    soc: Soc
    options: CompileOptions


def with_suggestions(
    fit: Fit,
    options: CompileOptions,
    judge: Judge,
    tries: int = TRIED,
    deadline: Deadline | None = None,
    *,
    converts: bool = True,
) -> Fit:
    """The same answer with nearby settings, of which the first `tries` are really compiled.

    That ends with the deadline, by default the time limit of the options from now on; what was not
    tried by then is named all the same. `converts` says whether the model can be quantized here.
    """
    if fit.fits is True:
        return fit
    ends = deadline or Deadline.after(options.time_limit_s)
    patience = 2 * (fit.seconds or 0.0) + _PATIENCE_S
    good: list[Suggestion] = []
    bad: list[Suggestion] = []
    found = (near for near in nearby(fit, options) if converts or near.setting.name != "precision")
    left = tries
    for near in found:
        if near.setting.name == "vtcm_mb" and any(
            one.verified and one.setting.name == "vtcm_mb" for one in good
        ):
            continue  # less VTCM than what fits already
        limit = min(ends.left_s, patience)
        left -= 1
        if left < 0 or not limit:
            good.append(Suggestion(near.setting, False, near.reason))
            continue
        answer = judge(near.soc, replace(near.options, time_limit_s=limit))
        if answer.fits:
            good.append(Suggestion(near.setting, True, _spare(answer)))
        elif answer.timed_out:  # which says nothing of it
            late = f"not finished within {limit:.0f} s"
            bad.append(Suggestion(near.setting, False, late, unfinished=True))
        else:
            bad.append(Suggestion(near.setting, False, answer.why))
    return structs.replace(fit, suggestions=tuple(good), tried=tuple(bad))


def _spare(fit: Fit) -> str:
    worst = fit.beside_vtcm
    spare = None if worst is None else worst.spare
    return "compiled and fits" if spare is None else f"compiled, {counted(spare, 'byte')} to spare"


def nearby(fit: Fit, options: CompileOptions) -> Iterator[Nearby]:
    """Settings that may fit, the likeliest first."""
    worst, soc = fit.worst, fit.soc
    pool = None if worst is None or worst.fits is not False else worst.pool
    if fit.fits is None and soc.fp16 is not False:
        return  # not a question of memory: a setting would be a guess
    if pool in ("vtcm", "spill-fill"):
        yield from _more_vtcm(soc, options)
    if pool in ("vtcm", "ram", "pd"):
        yield from _less_vtcm(fit, options)
    if pool is not None:
        yield from _smaller_dims(fit, options)
    if pool in ("compile", "vtcm") and not _is_budget(worst):  # which no SoC changes
        yield from _other_soc(fit, options, pool)
    if options.precision is HtpPrecision.FP16:
        reason = "halves weights and activations"
        if soc.fp16 is False:
            reason = f"{soc.name} does not compute in FP16"
        int8 = replace(options, precision=HtpPrecision.INT8)
        yield Nearby(Setting("precision", int8.precision.value), reason, soc, int8)


def _is_budget(check: FitCheck | None) -> bool:
    return check is not None and check.limit is not None and check.limit.origin is Origin.GIVEN


def _more_vtcm(soc: Soc, options: CompileOptions) -> Iterator[Nearby]:
    largest = soc.vtcm_mb
    if largest and options.vtcm_mb is not None and options.vtcm_mb < largest:
        reason = f"{soc.name} has {largest} MiB of VTCM"
        more = replace(options, vtcm_mb=largest)
        yield Nearby(Setting("vtcm_mb", str(largest)), reason, soc, more)


def _less_vtcm(fit: Fit, options: CompileOptions) -> Iterator[Nearby]:
    """What a limit leaves of VTCM, which RAM and process domain hold, too, and half of that."""
    soc, worst = fit.soc, fit.worst
    has = options.vtcm_mb or soc.vtcm_mb
    if has is None or worst is None or worst.spare is None or worst.limit is None:
        return
    left = worst.limit.value // _MIB if worst.pool == "vtcm" else has + worst.spare // _MIB
    if left < 1 and worst.pool == "pd":
        return  # all of it would not be enough
    sizes = {left, left // 2} if left >= 1 else {has // 2, has // 4}
    for size in sorted((size for size in sizes if 1 <= size < has), reverse=True):
        less = replace(options, vtcm_mb=size)
        yield Nearby(Setting("vtcm_mb", str(size)), "the graph then takes less VTCM", soc, less)


def _smaller_dims(fit: Fit, options: CompileOptions) -> Iterator[Nearby]:
    """For each free dimension: what the linear rule gives, and half."""
    worst = fit.worst
    for name, size in options.dims.items():
        if size < 2 or worst is None:
            continue
        guesses = [size // 2]
        if worst.need and worst.limit:
            guesses.append(size * worst.limit.value // max(1, worst.need.low.value))
        for smaller in sorted({g for g in guesses if 0 < g < size}, reverse=True):
            dims = {**options.dims, name: smaller}
            reason = "inputs, outputs and activations shrink with it"
            setting = Setting("dims", f"{name}={smaller}")
            yield Nearby(setting, reason, fit.soc, replace(options, dims=dims))


def _other_soc(fit: Fit, options: CompileOptions, pool: str) -> Iterator[Nearby]:
    """The SoC of the nearest arch that has enough."""
    worst = fit.worst
    need = worst.need.low.value if worst and worst.need else None
    found = [soc for soc in socs() if soc.has_htp and _has_more(soc, fit.soc, pool, need)]
    if options.precision is HtpPrecision.FP16:
        found = [soc for soc in found if soc.fp16]
    arch = fit.soc.arch or 0

    def far(soc: Soc) -> tuple[bool, int, str]:
        """Phones first, as most people have those."""
        return not soc.name.startswith("SM"), abs((soc.arch or 0) - arch), soc.name

    best = min(found, key=far, default=None)
    if best is not None:
        title = {"compile": "a larger compile limit", "vtcm": "more VTCM"}[pool]
        vtcm = None if pool == "vtcm" else options.vtcm_mb
        setting = Setting("soc", best.name)
        yield Nearby(setting, f"it has {title}", best, replace(options, vtcm_mb=vtcm))


def _has_more(soc: Soc, than: Soc, pool: str, need: int | None) -> bool:
    sizes = [s.compile_limit if pool == "compile" else s.vtcm_bytes for s in (soc, than)]
    mine, other = sizes
    if mine is None or other is None or mine.value <= other.value:
        return False
    return need is None or mine.value >= need
