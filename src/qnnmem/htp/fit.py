"""Verdicts on whether a context or refused compile fits the limits of a SoC, in bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, NamedTuple

from msgspec import Struct, structs

from qnnmem.deadline import Deadline
from qnnmem.errors import (
    CannotTell,
    LoadError,
    NotCompiled,
    Setting,
    UsageError,
    Words,
)
from qnnmem.flags import flag, with_flags
from qnnmem.htp.bill import UNJUDGED, logged, wrong_architecture
from qnnmem.htp.carriers.carrier_bill import context_of
from qnnmem.htp.compile import CompileFailure, CompileOptions, HtpPrecision, Progress, is_composed
from qnnmem.htp.compile.compiled import needs_int8
from qnnmem.htp.library import has_library
from qnnmem.htp.log import Cause
from qnnmem.htp.measure import (
    LOAD_TIME_LIMIT_S,
    MeasuredModel,
    bill_of_loaded,
    measure,
    missing_soc,
    stored_bill,
)
from qnnmem.htp.worker import Worker
from qnnmem.ir import Tensor
from qnnmem.provenance import Origin, Sourced
from qnnmem.results.fit import (
    FitCheck,
    FitFacts,
    FitResult,
    FitSuggestion,
    SocFit,
    answer_name,
    worst_answer,
)
from qnnmem.results.footprint import Bill, BillItem, SizeRange
from qnnmem.targets.socs import Soc, find_soc, pd_budget, soc_by_id, socs
from qnnmem.text import counted

# Titles of the pools that have a limit.
TITLES = {
    "compile": "compile limit",
    "pd": "process domain",
    "vtcm": "VTCM",
    "ram": "RAM budget",
    "weights": "weights budget",
    "io": "IO budget",
    "spill-fill": "spill/fill budget",
    "host-ram": "host RAM budget",
}
POOLS = tuple(TITLES)


class Suggestion(Struct, frozen=True):
    """A setting suggested in place of a refused one, and the result of a compile with it."""

    setting: Setting
    reason: Words
    state: Literal["fits", "failed", "unfinished", "untried"] = "untried"

    @property
    def verified(self) -> bool:
        """True if the setting was compiled and fits."""
        return self.state == "fits"


class Fit(FitFacts, frozen=True):
    """The verdict for one SoC; `fits` is None if undecided."""

    soc: Soc
    fits: bool | None
    why: Words = ""  # empty if it fits
    nearby: tuple[Suggestion, ...] = ()
    seconds: float | None = None  # duration of the compile
    evidence: tuple[str, ...] = ()  # the decisive line and the lines after it

    @property
    def suggestions(self) -> tuple[Suggestion, ...]:
        """Settings that fit or were not tried."""
        return tuple(near for near in self.nearby if near.state in ("fits", "untried"))

    @property
    def tried(self) -> tuple[Suggestion, ...]:
        """Settings that were tried and did not fit, or whose compile did not finish in time."""
        return tuple(
            suggestion for suggestion in self.nearby if suggestion.state in ("failed", "unfinished")
        )


def fit_result(fits: Sequence[Fit], file: str) -> FitResult:
    """Return the verdicts for a file on each SoC, ready to be shown and written."""
    whole = worst_answer(fit.fits for fit in fits)
    return FitResult(file=file, answer=answer_name(whole), socs=tuple(map(_soc_fit, fits)))


def _soc_fit(fit: Fit) -> SocFit:
    facts = {name: getattr(fit, name) for name in FitFacts.__struct_fields__}
    return SocFit(
        soc=fit.soc.name,
        answer=answer_name(fit.fits),
        why=with_flags(fit.why),
        suggestions=tuple(map(_fit_suggestion, fit.suggestions)),
        tried=tuple(map(_fit_suggestion, fit.tried)),
        **facts,
    )


def _fit_suggestion(suggestion: Suggestion) -> FitSuggestion:
    reason, is_late = with_flags(suggestion.reason), suggestion.state == "unfinished"
    return FitSuggestion(flag(suggestion.setting), suggestion.verified, reason, is_late)


# --- A bill, or a refusal of the compiler, against the limits -------------------------------------


_LIMIT_OF = {
    Cause.GRAPH_LIMIT: "compile",
    Cause.OP_OVER_VTCM: "vtcm",
    Cause.PD_FULL: "pd",
}


def check_pools(names: Iterable[str]) -> None:
    """Raise UsageError for a name that is not a pool."""
    for name in names:
        if name not in POOLS:
            raise UsageError(
                f"'{name[:40]}' is not a pool of HTP; choose one of {', '.join(POOLS)}"
            )


def limits(
    soc: Soc | None, budgets: Mapping[str, Sourced], compile_limit: Sourced | None = None
) -> dict[str, Sourced | None]:
    """Return the limits by pool; limits that the user set replace those of the SoC."""
    return {
        "compile": compile_limit or (soc.compile_limit if soc else None),
        "pd": pd_budget(),
        "vtcm": soc.vtcm_bytes if soc else None,
        **budgets,
    }


def exact_range(part: Sourced | None) -> SizeRange | None:
    """Return a known size as a range with two equal ends; None for an unknown size."""
    return None if part is None else SizeRange(part, part)


def fit_bill(bill: Bill, soc: Soc, budgets: Mapping[str, Sourced] | None = None) -> Fit:
    """Return the verdict for a context binary on a SoC.

    A binary made for this SoC has passed the compiler's limit. That proves more than the estimate
    in the bill.
    """
    checks = checks_of(bill, soc, budgets)
    fits = worst_answer(check.fits for check in checks)
    why = why_not(checks, fits)
    # An older Hexagon cannot run this program, and a compile for it gives a different program.
    if wrong_arch := wrong_architecture(bill.dsp_arch, soc):
        fits, why = False if fits is False else None, wrong_arch
    # The bill covers only one part of the model; the other parts may not run on HTP.
    if bill.missing_outputs and fits is not False:
        fits, why = None, bill.missing_sentence
    # Some traps mean that a part could not be judged, so the whole is not reported as fitting.
    silent = next((trap for trap in bill.traps if trap.id in UNJUDGED), None)
    if silent is not None and fits is not False:
        fits, why = None, silent.sentence
    return Fit(
        soc=soc,
        fits=fits,
        checks=checks,
        why=why,
        wrong_arch=bool(wrong_arch),
        largest=_largest(bill),
        parts={name: size for name, size in bill.named_parts if size is not None},
        total=bill.total,
    )


def checks_of(
    bill: Bill, soc: Soc | None, budgets: Mapping[str, Sourced] | None = None
) -> tuple[FitCheck, ...]:
    """Return a bill's check for each limit.

    If no SoC is given, only limits that all SoCs share are checked.
    """
    return tuple(_checks(bill, soc, budgets or {}))


def _checks(bill: Bill, soc: Soc | None, budgets: Mapping[str, Sourced]) -> Iterator[FitCheck]:
    needs: dict[str, SizeRange | None] = {
        "compile": exact_range(bill.compile_estimate),
        "pd": bill.process_domain,
        "vtcm": bill.vtcm_range,
        "ram": bill.total_range,
        "weights": exact_range(bill.all_weights),
        "io": exact_range(bill.io),
        "spill-fill": exact_range(bill.spill_fill),
        "host-ram": exact_range(bill.host_ram),
    }
    own = bill.soc is not None and soc is not None and find_soc(bill.soc).model_id == soc.model_id
    for pool, limit in limits(soc, budgets, bill.compile_limit if own else None).items():
        made_for_it = soc is not None and bill.made_for_soc_model == soc.model_id
        passed = pool == "compile" and made_for_it
        yield FitCheck.of(pool, needs[pool], limit, accepted=passed and pool not in budgets)


def why_not(checks: tuple[FitCheck, ...], fits: bool | None) -> Words:
    """Return a sentence about the deciding check; empty if all limits hold."""
    for check in checks:
        if fits is False and check.fits is False and check.need and check.limit:
            missing = check.need.low.value - check.limit.value
            return f"{TITLES[check.pool]}: {counted(missing, 'byte')} over the limit"
    for check in checks:
        if fits is None and check.fits is None:
            return _unknown(check)
    return ""


def _unknown(check: FitCheck) -> Words:
    title = TITLES[check.pool]
    if check.need is None:
        return f"{title}: the need is unknown"
    if check.limit is None:
        return f"{title}: the limit is unknown"
    low, high = check.need.low.value, check.need.high.value
    need = f"the need is {low:,} to {counted(high, 'byte')}, the limit is {check.limit.value:,}"
    where = "" if has_library() else ", on Linux x86-64"
    return f"{title}: {need}; ", Setting("load"), f" gets the exact size from the library{where}"


def _largest(bill: Bill) -> tuple[BillItem, ...]:
    """Return the five largest items of a bill: tensors, or whole parts such as all weights."""
    parts = tuple(
        BillItem("", f"all {name}", "part", size.value)
        for name, size in (
            ("weights", bill.weights),
            ("spill/fill", bill.spill_fill),
            ("DDR tensors", bill.ddr_tensors),
        )
        if size is not None and size.value
    )
    items = (*bill.largest_io, *bill.largest_weights, *parts)
    return tuple(sorted(items, key=lambda item: (-item.bytes, item.name))[:5])


def fit_failure(
    failure: CompileFailure,
    budgets: Mapping[str, Sourced] | None = None,
    largest: tuple[BillItem, ...] = (),
) -> Fit:
    """Return the verdict for a model that the library refused to compile."""
    refusal = failure.refusal
    pool = None if refusal is None else _LIMIT_OF.get(refusal.cause)
    is_size = pool is not None and failure.outcome.kind == "refused"
    checks = tuple(_refused_checks(failure, budgets or {}, pool if is_size else None))
    return Fit(
        soc=failure.soc,
        fits=False if is_size else None,
        checks=checks,
        why=failure.why,
        code=failure.code,
        operator=refusal.operator if refusal is not None and pool == "vtcm" else "",
        largest=largest,
        seconds=failure.outcome.seconds,
        timed_out=failure.outcome.kind == "timeout",
        line=failure.line,
        evidence=failure.evidence if failure.line else (),
        needs_int8=needs_int8(failure),
    )


def _refused_checks(
    failure: CompileFailure, budgets: Mapping[str, Sourced], pool: str | None
) -> Iterator[FitCheck]:
    refusal, log = failure.refusal, failure.log
    for name, limit in limits(failure.soc, budgets).items():
        if refusal is None or name != pool:
            yield FitCheck.of(name, None, limit)
            continue
        if name == "vtcm":
            limit = logged(log.vtcm_size, log) or limit
        elif refusal.limit is not None:
            limit = logged(refusal.limit, log)
        need = exact_range(logged(refusal.need, log))
        yield FitCheck.of(name, need, limit, refused=True)


# --- A file: a model is compiled and loaded, a context binary is read -----------------------------


_NAMED = 5  # tensors of a model that has no bill


def judge_model(
    path: Path,
    soc: Soc,
    options: CompileOptions,
    budgets: Mapping[str, Sourced],
    *,
    worker: Worker,
) -> Fit:
    """Return the verdict for a model, after compiling it and loading the binary."""
    measured = measure(path, soc, options, worker=worker)
    return fit_compile(measured, path, options, budgets)


def fit_compile(
    measured: MeasuredModel | CompileFailure,
    path: Path,
    options: CompileOptions,
    budgets: Mapping[str, Sourced],
) -> Fit:
    """Return the verdict for a compiled model or a failed compile."""
    if isinstance(measured, CompileFailure):
        return fit_failure(measured, budgets, model_io(path, options))
    return fit_measured(measured, budgets)


def fit_measured(measured: MeasuredModel, budgets: Mapping[str, Sourced] | None = None) -> Fit:
    """Return the verdict for a compiled model; without the loader's estimate, it is never yes."""
    fit = fit_bill(measured.bill, measured.compiled.soc, budgets)
    fit = structs.replace(fit, seconds=measured.compiled.outcome.seconds)
    if not measured.no_estimate or fit.fits is False:
        return fit
    return structs.replace(fit, fits=None, why=measured.no_estimate)


def model_io(path: Path, options: CompileOptions) -> tuple[BillItem, ...]:
    """Return the largest inputs, outputs and weights of a model that has no bill."""
    items = _composed_items(path) if is_composed(path) else _onnx_items(path, options)
    known = [item for item in items if item.bytes]
    return tuple(sorted(known, key=lambda item: (-item.bytes, item.name))[:_NAMED])


def _composed_items(path: Path) -> Iterator[BillItem]:
    from qnnmem.loader.dlc import read

    try:
        model = read(path)
    except (LoadError, CannotTell):
        return
    sides = (("input", model.inputs), ("output", model.outputs), ("weights", model.constants))
    for kind, names in sides:
        yield from (BillItem("", name, kind, model.tensors[name].nbytes) for name in names)


def _onnx_items(path: Path, options: CompileOptions) -> Iterator[BillItem]:
    from qnnmem.loader.onnx import read_guarded

    graph = read_guarded(path).proto.graph
    weights = {tensor.name for tensor in graph.initializer}
    inputs = [info for info in graph.input if info.name not in weights]
    for kind, side in (("input", inputs), ("output", graph.output)):
        for info in side:
            tensor = info.type.tensor_type
            stated = tensor.shape.dim
            sizes = [size.dim_value or options.dims.get(size.dim_param, 0) for size in stated]
            shape = options.shapes.get(info.name, tuple(sizes))
            yield from _item(info.name, kind, shape, tensor.elem_type)
    for constant in graph.initializer:
        yield from _item(constant.name, "weights", tuple(constant.dims), constant.data_type)


def _item(name: str, kind: str, shape: tuple[int, ...], element: int) -> Iterator[BillItem]:
    """Yield a tensor with its size; nothing if its element type is unknown."""
    from qnnmem.loader.onnx.tensor import DTYPES

    if element in DTYPES:
        yield BillItem("", name, kind, Tensor(name, DTYPES[element], shape).nbytes)


def fit_stored(
    path: Path,
    targets: tuple[Soc, ...],
    budgets: Mapping[str, Sourced],
    *,
    load: bool = False,
    time_limit_s: float = LOAD_TIME_LIMIT_S,
) -> tuple[Fit, ...] | None:
    """Return the verdicts for a context binary; None for a model that must be compiled first.

    If `load` is true, the real library loads the binary and estimates its need. If there are no
    targets, the verdict is for the binary's own SoC.
    """
    try:
        context = context_of(path)
    except NotCompiled:
        return None
    made_for = None if context.soc_model is None else soc_by_id(context.soc_model)
    if not targets and made_for is None:
        raise missing_soc(path)
    chosen = targets or ((made_for,) if made_for else ())
    return tuple(
        fit_bill(
            bill_of_loaded(path, soc, time_limit_s) if load else stored_bill(path, soc, context),
            soc,
            budgets,
        )
        for soc in chosen
    )


def fit_all(
    targets: tuple[Soc, ...],
    judge: Callable[[Soc], Fit],
    spread: Callable[[Callable[[Soc], Fit], list[Soc]], Iterable[Fit]] = map,
) -> tuple[Fit, ...]:
    """Return a verdict for each SoC; SoCs that are alike for the compiler share a compile.

    SoCs are alike if architecture, VTCM, compile limit and FP16 support are equal. `spread` calls
    `judge` for one SoC of each kind, one at a time or in parallel, and returns results in order.
    """
    first: dict[object, Soc] = {}
    for soc in targets:
        first.setdefault(_alike(soc), soc)
    done = dict(zip(first, spread(judge, list(first.values())), strict=True))
    answers = []
    for soc in targets:
        judged = done[_alike(soc)]
        same = judged.soc == soc
        answers.append(
            judged if same else structs.replace(judged, soc=soc, same_as=judged.soc.name)
        )
    return tuple(answers)


def _alike(soc: Soc) -> object:
    return (soc.arch, soc.vtcm_bytes and soc.vtcm_bytes.value, soc.fp16, _limit(soc))


def _limit(soc: Soc) -> int | None:
    return None if soc.compile_limit is None else soc.compile_limit.value


# --- Settings close to a refused setting; the likeliest are compiled ------------------------------


TRIED = 3  # nearby settings that are compiled
_MIB = 1 << 20
_PATIENCE_S = 20.0  # for a nearby setting, beyond twice the time of the first compile


# Compiles the model for a SoC with some options and returns the verdict.
Judge = Callable[[Soc, CompileOptions], Fit]


@dataclass(frozen=True, slots=True)
class Nearby:
    """A setting to try in place of a refused one, and the compile options with this setting."""

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
    """Return the verdict with suggested settings; the first `tries` of them are compiled.

    Compiling ends at `deadline`, by default when the time limit in `options` has passed. Settings
    not tried by then are still listed. `converts` states whether the model can be quantized on this
    machine.
    """
    if fit.fits is True:
        return fit
    ends = deadline or Deadline.after(options.time_limit_s)
    patience = 2 * (fit.seconds or 0.0) + _PATIENCE_S
    done: list[Suggestion] = []
    candidates = (
        near for near in nearby(fit, options) if converts or near.setting.name != "precision"
    )
    left = tries
    for near in candidates:
        if near.setting.name == "vtcm_mb" and any(
            suggestion.verified and suggestion.setting.name == "vtcm_mb" for suggestion in done
        ):
            continue  # less VTCM than a setting that already fits
        limit = min(ends.left_s, patience)
        left -= 1
        if left < 0 or not limit:
            done.append(Suggestion(near.setting, near.reason))
            continue
        answer = judge(near.soc, replace(near.options, time_limit_s=limit))
        if answer.fits:
            done.append(Suggestion(near.setting, _spare(answer), "fits"))
        elif answer.timed_out:  # a timeout proves nothing about the setting
            late = f"not finished within {limit:.0f} s"
            done.append(Suggestion(near.setting, late, "unfinished"))
        else:
            done.append(Suggestion(near.setting, answer.why, "failed"))
    return structs.replace(fit, nearby=tuple(done))


def _spare(fit: Fit) -> str:
    worst = fit.beside_vtcm
    spare = None if worst is None else worst.spare
    return "compiled and fits" if spare is None else f"compiled, {counted(spare, 'byte')} to spare"


def nearby(fit: Fit, options: CompileOptions) -> Iterator[Nearby]:
    """Yield settings that are near the refused setting and might fit, the likeliest first."""
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
    if pool in ("compile", "vtcm") and not _is_budget(worst):  # another SoC keeps the budget
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
    """Yield settings with less VTCM: the size that the limit leaves, then half of that size.

    The limits of RAM and of the process domain include VTCM. If the limit leaves less than 1 MiB,
    the sizes are a half and a quarter of the present size; for the process domain, there are none.
    """
    soc, worst = fit.soc, fit.worst
    has = options.vtcm_mb or soc.vtcm_mb
    if has is None or worst is None or worst.spare is None or worst.limit is None:
        return
    left = worst.limit.value // _MIB if worst.pool == "vtcm" else has + worst.spare // _MIB
    if left < 1 and worst.pool == "pd":
        return  # less VTCM would not be enough
    sizes = {left, left // 2} if left >= 1 else {has // 2, has // 4}
    for size in sorted((size for size in sizes if 1 <= size < has), reverse=True):
        less = replace(options, vtcm_mb=size)
        yield Nearby(Setting("vtcm_mb", str(size)), "the graph uses less VTCM", soc, less)


def _smaller_dims(fit: Fit, options: CompileOptions) -> Iterator[Nearby]:
    """Yield settings with a smaller free dimension: half the size, and the size that should fit."""
    worst = fit.worst
    for name, size in options.dims.items():
        if size < 2 or worst is None:
            continue
        guesses = [size // 2]
        if worst.need and worst.limit:
            guesses.append(size * worst.limit.value // max(1, worst.need.low.value))
        for smaller in sorted({g for g in guesses if 0 < g < size}, reverse=True):
            dims = {**options.dims, name: smaller}
            reason = "inputs, outputs and activations shrink with the dimension"
            setting = Setting("dims", f"{name}={smaller}")
            yield Nearby(setting, reason, fit.soc, replace(options, dims=dims))


def _other_soc(fit: Fit, options: CompileOptions, pool: str) -> Iterator[Nearby]:
    """Yield at most one SoC with enough memory, preferably of a phone with a similar Hexagon."""
    worst = fit.worst
    need = worst.need.low.value if worst and worst.need else None
    larger = [soc for soc in socs() if soc.has_htp and _has_more(soc, fit.soc, pool, need)]
    if options.precision is HtpPrecision.FP16:
        larger = [soc for soc in larger if soc.fp16]
    arch = fit.soc.arch or 0

    def distance(soc: Soc) -> tuple[bool, int, str]:
        """Sort key: phones first, because they are most common, then the nearest architecture."""
        return not soc.name.startswith("SM"), abs((soc.arch or 0) - arch), soc.name

    best = min(larger, key=distance, default=None)
    if best is not None:
        title = {"compile": "a larger compile limit", "vtcm": "more VTCM"}[pool]
        vtcm = None if pool == "vtcm" else options.vtcm_mb
        setting = Setting("soc", best.name)
        yield Nearby(setting, f"the SoC has {title}", best, replace(options, vtcm_mb=vtcm))


def _has_more(soc: Soc, than: Soc, pool: str, need: int | None) -> bool:
    sizes = [s.compile_limit if pool == "compile" else s.vtcm_bytes for s in (soc, than)]
    size, other = sizes
    if size is None or other is None or size.value <= other.value:
        return False
    return need is None or size.value >= need


# --- A verdict as a task for a worker -------------------------------------------------------------


class JudgedModel(NamedTuple):
    """A verdict, and whether another run would give the same verdict."""

    fit: Fit
    is_final: bool


def is_final(measured: MeasuredModel | CompileFailure) -> bool:
    """Return True if another run would give the same result, unlike after a crash or timeout."""
    if isinstance(measured, CompileFailure):
        return measured.outcome.kind == "refused"
    return not measured.no_estimate


def judge_task(
    worker: Worker,
    model: Path,
    soc: str,
    options: CompileOptions,
    budgets: Mapping[str, Sourced],
    *,
    progress: Progress | None = None,
) -> JudgedModel:
    """Return the verdict for a model after a compile and load, here or on a worker of a cluster."""
    measured = measure(
        *(model, find_soc(soc), options), worker=worker, progress=progress, try_cures=True
    )
    return JudgedModel(fit_compile(measured, model, options, budgets), is_final(measured))
