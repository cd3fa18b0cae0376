"""Fit of a model: it is compiled and loaded by the real library, and so are nearby settings."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from qnnmem.htp.bill import bill_of
from qnnmem.htp.bill.value import Item
from qnnmem.htp.compile import CompileFailure, CompileOptions, Precision, compile_model
from qnnmem.htp.fit import Fit, Suggestion, fit_bill, fit_failure
from qnnmem.htp.log import parse_log
from qnnmem.htp.worker import Worker
from qnnmem.provenance import Origin, Sourced
from qnnmem.targets.socs import Soc, socs

LOAD_TIME_LIMIT_S = 300.0
TRIED = 3  # nearby settings that are compiled
_PATIENCE_S = 20.0  # for a nearby setting, beyond twice the time of the first compile

Say = Callable[[str], None]


class Judge(Protocol):
    """Compiles for a SoC and says whether the result fits."""

    def __call__(self, soc: Soc, options: CompileOptions, /) -> Fit:
        """The answer for one setting."""
        ...


def judge_model(
    path: Path,
    soc: Soc,
    options: CompileOptions,
    budgets: Mapping[str, int],
    *,
    worker: Worker,
    say: Say | None = None,
) -> Fit:
    """Compile a model, load the binary, and compare with every limit."""
    with tempfile.TemporaryDirectory(".qnnmem") as folder:
        binary = Path(folder, "model.bin")
        made = compile_model(path, soc, options, output=binary, worker=worker, progress=say)
        if isinstance(made, CompileFailure):
            return fit_failure(made, budgets, model_io(path, options))
        request = {"binaries": [str(binary)], "soc": soc.model_id}
        # The library may crash after it refused the first context; its log says all the same.
        loaded = parse_log(worker.ask("load", request, time_limit_s=LOAD_TIME_LIMIT_S).log)
        log = replace(made.log, pd_estimates=loaded.pd_estimates)
        bill = bill_of(made.context, soc, log, host_ram=made.outcome.peak_rss)
        return replace(fit_bill(bill, soc, budgets), seconds=made.outcome.seconds)


def model_io(path: Path, options: CompileOptions) -> tuple[Item, ...]:
    """The largest inputs, outputs and weights of a model that has no bill; at most five."""
    from qnnmem.load.onnx import read_guarded

    graph = read_guarded(path).proto.graph
    weights = {tensor.name for tensor in graph.initializer}
    found = [
        *(_value(item, "input", options) for item in graph.input if item.name not in weights),
        *(_value(item, "output", options) for item in graph.output),
        *(_item(t.name, "weights", tuple(t.dims), t.data_type) for t in graph.initializer),
    ]
    known = [item for item in found if item is not None and item.size.value]
    return tuple(sorted(known, key=lambda item: (-item.size.value, item.name))[:5])


def _value(item: object, kind: str, options: CompileOptions) -> Item | None:
    tensor = item.type.tensor_type  # type: ignore[attr-defined]  # ValueInfoProto
    name = str(item.name)  # type: ignore[attr-defined]  # as above
    free = options.dims
    sizes = [size.dim_value or free.get(size.dim_param, 0) for size in tensor.shape.dim]
    shape = options.shapes.get(name, tuple(sizes))
    return _item(name, kind, shape, tensor.elem_type)


_WIDTH = {1: 4, 2: 1, 3: 1, 4: 2, 5: 2, 6: 4, 7: 8, 9: 1, 10: 2, 11: 8, 12: 4, 13: 8, 16: 2}


def _item(name: str, kind: str, shape: tuple[int, ...], element: int) -> Item | None:
    from math import prod

    if element not in _WIDTH:
        return None
    size = prod(shape) * _WIDTH[element]
    return Item("", name, kind, Sourced(size, Origin.COMPUTED, "elements times element size"))


# --- Nearby settings -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Nearby:
    """A setting close to one that does not fit."""

    text: str
    reason: str
    soc: Soc
    options: CompileOptions


def with_suggestions(fit: Fit, options: CompileOptions, judge: Judge, tries: int = TRIED) -> Fit:
    """The same answer with nearby settings, of which the first `tries` are really compiled."""
    if fit.fits is True:
        return fit
    patience = 2 * (fit.seconds or 0.0) + _PATIENCE_S
    limit = min(options.time_limit_s, patience)
    good: list[Suggestion] = []
    bad: list[Suggestion] = []
    for number, near in enumerate(nearby(fit, options)):
        if number >= tries:
            good.append(Suggestion(near.text, False, near.reason))
            continue
        answer = judge(near.soc, replace(near.options, time_limit_s=limit))
        if answer.fits:
            good.append(Suggestion(near.text, True, _spare(answer)))
        else:
            bad.append(Suggestion(near.text, False, answer.why))
    return replace(fit, suggestions=tuple(good), tried=tuple(bad))


def _spare(fit: Fit) -> str:
    worst = fit.worst
    spare = None if worst is None else worst.spare
    return "compiled and fits" if spare is None else f"compiled, {spare:,} bytes to spare"


def nearby(fit: Fit, options: CompileOptions) -> Iterator[Nearby]:
    """Settings that may fit, the likeliest first."""
    worst, soc = fit.worst, fit.soc
    pool = None if worst is None or worst.fits is not False else worst.pool
    if fit.fits is None and soc.fp16 is not False:
        return  # not a question of memory: a setting would be a guess
    if pool == "vtcm":
        yield from _more_vtcm(soc, options)
    if pool is not None:
        yield from _smaller_dims(fit, options)
    if pool in ("compile", "vtcm"):
        yield from _other_soc(fit, options, pool)
    if options.precision is Precision.FP16:
        reason = "halves weights and activations"
        if soc.fp16 is False:
            reason = f"{soc.name} does not compute in FP16"
        int8 = replace(options, precision=Precision.INT8)
        yield Nearby("--precision int8", reason, soc, int8)


def _more_vtcm(soc: Soc, options: CompileOptions) -> Iterator[Nearby]:
    largest = None if soc.vtcm_mb is None else soc.vtcm_mb.value
    if largest and options.vtcm_mb is not None and options.vtcm_mb < largest:
        text = f"--vtcm-mb {largest}"
        reason = f"{soc.name} has {largest} MiB of VTCM"
        yield Nearby(text, reason, soc, replace(options, vtcm_mb=largest))


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
            yield Nearby(f"--dim {name}={smaller}", reason, fit.soc, replace(options, dims=dims))


def _other_soc(fit: Fit, options: CompileOptions, pool: str) -> Iterator[Nearby]:
    """The SoC of the nearest arch that has enough."""
    worst = fit.worst
    need = worst.need.low.value if worst and worst.need else None
    found = [soc for soc in socs() if soc.has_htp and _has_more(soc, fit.soc, pool, need)]
    if options.precision is Precision.FP16:
        found = [soc for soc in found if soc.fp16]
    arch = fit.soc.arch or 0

    def far(soc: Soc) -> tuple[bool, int, str]:
        """Phones first: they are the ones that people have."""
        return not soc.name.startswith("SM"), abs((soc.arch or 0) - arch), soc.name

    best = min(found, key=far, default=None)
    if best is not None:
        title = {"compile": "a larger compile limit", "vtcm": "more VTCM"}[pool]
        vtcm = None if pool == "vtcm" else options.vtcm_mb
        yield Nearby(f"--soc {best.name}", f"it has {title}", best, replace(options, vtcm_mb=vtcm))


def _has_more(soc: Soc, than: Soc, pool: str, need: int | None) -> bool:
    sizes = [s.compile_limit if pool == "compile" else s.vtcm_bytes for s in (soc, than)]
    mine, other = sizes
    if mine is None or other is None or mine.value <= other.value:
        return False
    return need is None or mine.value >= need


# --- Many SoCs -----------------------------------------------------------------------------------


def fit_all(targets: tuple[Soc, ...], judge: Callable[[Soc], Fit]) -> tuple[Fit, ...]:
    """An answer for each SoC; those alike in arch, VTCM, limit and FP16 share one compile."""
    done: dict[object, Fit] = {}
    answers = []
    for soc in targets:
        alike = (soc.arch, soc.vtcm_bytes and soc.vtcm_bytes.value, soc.fp16, _limit(soc))
        if alike in done:
            first = done[alike]
            answers.append(replace(first, soc=soc, same_as=first.soc.name))
        else:
            done[alike] = judge(soc)
            answers.append(done[alike])
    return tuple(answers)


def _limit(soc: Soc) -> int | None:
    return None if soc.compile_limit is None else soc.compile_limit.value
