"""Fit of a model: it is compiled and loaded by the real library."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from qnnmem.errors import CannotTell, LoadError
from qnnmem.htp.bill.measure import MeasuredModel, measure
from qnnmem.htp.bill.value import Item
from qnnmem.htp.compile import CompileFailure, CompileOptions, Progress
from qnnmem.htp.compile.model import is_composed
from qnnmem.htp.fit.of_bill import fit_bill
from qnnmem.htp.fit.of_failure import fit_failure
from qnnmem.htp.fit.value import Fit
from qnnmem.htp.worker import Worker
from qnnmem.ir import Tensor
from qnnmem.provenance import Origin, Sourced
from qnnmem.targets.socs import Soc

_NAMED = 5  # tensors of a model that has no bill
_SOURCE = "elements times element size"


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


def model_io(path: Path, options: CompileOptions) -> tuple[Item, ...]:
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
    known = [item for item in found if item is not None and item.size.value]
    return tuple(sorted(known, key=lambda item: (-item.size.value, item.name))[:_NAMED])


def _composed_io(path: Path) -> tuple[Item, ...]:
    from qnnmem.loader.dlc import read

    try:
        model = read(path)
    except (LoadError, CannotTell):
        return ()
    sides = (("input", model.inputs), ("output", model.outputs), ("weights", model.constants))
    found = [
        Item("", name, kind, Sourced(model.tensors[name].nbytes, Origin.COMPUTED, _SOURCE))
        for kind, names in sides
        for name in names
    ]
    return tuple(sorted(found, key=lambda item: (-item.size.value, item.name))[:_NAMED])


def _value(item: Any, kind: str, options: CompileOptions) -> Item | None:
    tensor = item.type.tensor_type  # of a ValueInfoProto
    free = options.dims
    sizes = [size.dim_value or free.get(size.dim_param, 0) for size in tensor.shape.dim]
    shape = options.shapes.get(item.name, tuple(sizes))
    return _item(item.name, kind, shape, tensor.elem_type)


def _item(name: str, kind: str, shape: tuple[int, ...], element: int) -> Item | None:
    from qnnmem.loader.onnx.tensor import DTYPES

    if element not in DTYPES:
        return None
    size = Tensor(name, DTYPES[element], shape).nbytes
    return Item("", name, kind, Sourced(size, Origin.COMPUTED, _SOURCE))
