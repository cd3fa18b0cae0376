"""Fit of a file: a model is compiled and loaded, a context binary is read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from qnnmem.errors import CannotTell, LoadError, NotCompiled
from qnnmem.htp.bill.loading import LOAD_TIME_LIMIT_S
from qnnmem.htp.bill.measure import MeasuredModel, bill_of_loaded, measure
from qnnmem.htp.bill.stored import no_soc_named, stored_bill
from qnnmem.htp.binary.read import read_context
from qnnmem.htp.compile import CompileFailure, CompileOptions, Progress
from qnnmem.htp.compile.model import is_composed
from qnnmem.htp.fit.check_bill import fit_bill, fit_failure
from qnnmem.htp.fit.fit import Fit
from qnnmem.htp.worker import Worker
from qnnmem.ir import Tensor
from qnnmem.provenance import Sourced
from qnnmem.results.footprint import BillItem
from qnnmem.targets.socs import Soc, soc_by_id

_NAMED = 5  # tensors of a model that has no bill


def judge_model(
    path: Path,
    soc: Soc,
    options: CompileOptions,
    budgets: Mapping[str, Sourced],
    *,
    worker: Worker,
    progress: Progress | None = None,
) -> Fit:
    """Compile a model, load the binary, and compare with every limit."""
    made = measure(path, soc, options, worker=worker, progress=progress)
    return fit_made(made, path, options, budgets)


def fit_made(
    made: MeasuredModel | CompileFailure,
    path: Path,
    options: CompileOptions,
    budgets: Mapping[str, Sourced],
) -> Fit:
    """The answer for what became of a model."""
    if isinstance(made, CompileFailure):
        return fit_failure(made, budgets, model_io(path, options))
    return fit_measured(made, budgets)


def fit_measured(made: MeasuredModel, budgets: Mapping[str, Sourced] | None = None) -> Fit:
    """The answer for a model that was compiled; never yes where the loader gave no estimate."""
    fit = fit_bill(made.bill, made.compiled.soc, budgets)
    fit = replace(fit, seconds=made.compiled.outcome.seconds)
    if not made.no_estimate or fit.fits is False:
        return fit
    return replace(fit, fits=None, why=made.no_estimate)


def model_io(path: Path, options: CompileOptions) -> tuple[BillItem, ...]:
    """The largest inputs, outputs and weights of a model that has no bill."""
    if is_composed(path):
        return _composed_io(path)
    from qnnmem.loader.onnx import read_guarded

    graph = read_guarded(path).proto.graph
    weights = {tensor.name for tensor in graph.initializer}
    found = [
        *(_value(item, "input", options) for item in graph.input if item.name not in weights),
        *(_value(item, "output", options) for item in graph.output),
        *(_item(t.name, "weights", tuple(t.dims), t.data_type) for t in graph.initializer),
    ]
    known = [item for item in found if item is not None and item.bytes]
    return tuple(sorted(known, key=lambda item: (-item.bytes, item.name))[:_NAMED])


def _composed_io(path: Path) -> tuple[BillItem, ...]:
    from qnnmem.loader.dlc import read

    try:
        model = read(path)
    except (LoadError, CannotTell):
        return ()
    sides = (("input", model.inputs), ("output", model.outputs), ("weights", model.constants))
    found = [
        BillItem("", name, kind, model.tensors[name].nbytes)
        for kind, names in sides
        for name in names
    ]
    return tuple(sorted(found, key=lambda item: (-item.bytes, item.name))[:_NAMED])


def _value(item: Any, kind: str, options: CompileOptions) -> BillItem | None:
    tensor = item.type.tensor_type  # of a ValueInfoProto
    free = options.dims
    sizes = [size.dim_value or free.get(size.dim_param, 0) for size in tensor.shape.dim]
    shape = options.shapes.get(item.name, tuple(sizes))
    return _item(item.name, kind, shape, tensor.elem_type)


def _item(name: str, kind: str, shape: tuple[int, ...], element: int) -> BillItem | None:
    from qnnmem.loader.onnx.tensor import DTYPES

    if element not in DTYPES:
        return None
    size = Tensor(name, DTYPES[element], shape).nbytes
    return BillItem("", name, kind, size)


def fit_stored(
    path: Path,
    targets: tuple[Soc, ...],
    budgets: Mapping[str, Sourced],
    *,
    load: bool = False,
    time_limit_s: float = LOAD_TIME_LIMIT_S,
) -> tuple[Fit, ...] | None:
    """The answers for a context binary; None for a model that has to be compiled first.

    With `load` the real library says its exact estimate. Without targets the SoC counts that the
    binary was made for.
    """
    try:
        context = read_context(path)
    except NotCompiled:
        return None
    made_for = None if context.soc_model is None else soc_by_id(context.soc_model)
    if not targets and made_for is None:
        raise no_soc_named(path)
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
    """An answer for each SoC; those alike in arch, VTCM, limit and FP16 share one compile.

    `spread` has all compiles done, in their order: one after another, or several at a time.
    """
    first: dict[object, Soc] = {}
    for soc in targets:
        first.setdefault(_alike(soc), soc)
    done = dict(zip(first, spread(judge, list(first.values())), strict=True))
    answers = []
    for soc in targets:
        found = done[_alike(soc)]
        same = found.soc == soc
        answers.append(found if same else replace(found, soc=soc, same_as=found.soc.name))
    return tuple(answers)


def _alike(soc: Soc) -> object:
    return (soc.arch, soc.vtcm_bytes and soc.vtcm_bytes.value, soc.fp16, _limit(soc))


def _limit(soc: Soc) -> int | None:
    return None if soc.compile_limit is None else soc.compile_limit.value
