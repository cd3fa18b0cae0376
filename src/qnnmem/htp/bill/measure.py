"""Bills that need the real library: it compiles a model, or loads a context binary."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from qnnmem.errors import CannotTell, UsageError
from qnnmem.htp.bill import Bill, bill_of
from qnnmem.htp.bill.value import Item
from qnnmem.htp.binary.context import HtpContext
from qnnmem.htp.binary.read import read_context
from qnnmem.htp.compile import CompileFailure, CompileOptions, compile_model
from qnnmem.htp.log import CompileLog, parse_log
from qnnmem.htp.worker import Worker
from qnnmem.provenance import Origin, Sourced
from qnnmem.targets.socs import Soc

LOAD_TIME_LIMIT_S = 300.0
LARGEST_WEIGHTS = 5

Say = Callable[[str], None]


def bill_of_model(
    path: Path, soc: Soc, options: CompileOptions | None = None, say: Say | None = None
) -> Bill | CompileFailure:
    """Compile a model and load the result, so that every number of its bill is measured."""
    with Worker(warm=True) as worker, tempfile.TemporaryDirectory(".qnnmem") as folder:
        binary = Path(folder, "model.bin")
        made = compile_model(path, soc, options, output=binary, worker=worker, progress=say)
        if isinstance(made, CompileFailure):
            return made
        loaded = _load(worker, binary, soc.model_id)
        log = replace(made.log, pd_estimates=loaded.pd_estimates)
        weights = largest_weights(path, options or CompileOptions(), made.context)
        return bill_of(made.context, soc, log, host_ram=made.outcome.peak_rss, weights=weights)


def largest_weights(path: Path, options: CompileOptions, context: HtpContext) -> tuple[Item, ...]:
    """The largest constants of a model by name, as its file stores them."""
    from qnnmem.load import load

    model = load(path, dims=options.dims, shapes=options.shapes)
    found = sorted((-model.tensors[name].nbytes, name) for name in model.constants)
    graph = context.graphs[0].name if context.graphs else ""
    source = "in the model file, before the compiler packs it"
    return tuple(
        Item(graph, name, "weights", Sourced(-size, Origin.COMPUTED, source))
        for size, name in found[:LARGEST_WEIGHTS]
    )


def bill_of_loaded(path: Path, soc: Soc | None) -> Bill:
    """The bill of a context binary with the loader's own estimate of its process domain."""
    if path.suffix.lower() == ".onnx":
        raise UsageError(f"{path}: --load is for the context binary itself, not for a model of it")
    context = read_context(path)
    model_id = _model_id(path, context, soc)
    with Worker() as worker:
        loaded = _load(worker, path, model_id)
    if not loaded.pd_estimates:
        raise CannotTell(f"{path}: the library did not say what it reserves for this binary")
    return bill_of(
        context,
        soc,
        CompileLog(loaded.library_version or context.build_id, pd_estimates=loaded.pd_estimates),
    )


def _model_id(path: Path, context: HtpContext, soc: Soc | None) -> int:
    found = context.soc_model if soc is None else soc.model_id
    if found is None:
        raise CannotTell(f"{path} names no SoC; say which one is meant, e.g. --soc SM8650")
    return found


def _load(worker: Worker, binary: Path, model_id: int) -> CompileLog:
    """What the library says when it loads a binary, whether or not it admits it."""
    request = {"binaries": [str(binary.absolute())], "soc": model_id}
    outcome = worker.ask("load", request, time_limit_s=LOAD_TIME_LIMIT_S)
    return parse_log(outcome.log)
