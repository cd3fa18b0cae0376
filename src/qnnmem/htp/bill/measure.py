"""Bills that need the real library: it compiles a model and loads what it made.

One rule for a loader that gives no estimate of the process domain, because it crashed, took too
long or refused the binary for another reason: the compile was paid for, so its bill stays, with
the process domain as the range that follows from the file. The bill has a trap that says so, and
`MeasuredModel.no_estimate` says why. Such a model never counts as one that fits.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

from msgspec.structs import replace as replaced

from qnnmem.deadline import Deadline
from qnnmem.errors import CannotTell, LoadError, OutOfTime, Setting, UsageError
from qnnmem.htp.bill import bill_of
from qnnmem.htp.bill.loading import LOAD_TIME_LIMIT_S, load_binaries
from qnnmem.htp.bill.stored import keep_loads, load_target
from qnnmem.htp.binary.context import HtpContext
from qnnmem.htp.binary.read import read_context
from qnnmem.htp.compile import (
    Compiled,
    CompileFailure,
    CompileOptions,
    Progress,
    compile_model,
    given_or_own,
    no_progress,
)
from qnnmem.htp.compile.model import is_composed
from qnnmem.htp.library import library_or
from qnnmem.htp.log import CompileLog
from qnnmem.htp.worker import Worker
from qnnmem.results.footprint import Bill, BillItem, PreparedContext, Trap
from qnnmem.targets.socs import Soc

LARGEST_WEIGHTS = 5


@dataclass(frozen=True, slots=True)
class MeasuredModel:
    """A model that the library compiled and loaded, and its bill."""

    compiled: Compiled  # with the log, the seconds and the peak of the compile
    bill: Bill
    no_estimate: str = ""  # why the loader's estimate is missing; empty if it is in the bill


def measure(
    path: Path,
    soc: Soc,
    options: CompileOptions | None = None,
    *,
    output: Path | None = None,
    name_weights: bool = False,
    worker: Worker | None = None,
    progress: Progress | None = None,
    deadline: Deadline | None = None,
    try_cures: bool = False,
) -> MeasuredModel | CompileFailure:
    """Compile a model and load the result, so that every number of its bill is measured.

    The binary is kept as `output`, if given. `name_weights` also lists the largest weights, for
    which the model is read once more. `deadline` is for callers that do more within their limit,
    `try_cures` for those that show why a model was refused.
    """
    options = options or CompileOptions()
    ends = deadline or Deadline.after(options.time_limit_s)
    with given_or_own(worker) as used, tempfile.TemporaryDirectory(".qnnmem") as folder:
        binary = output or Path(folder, "model.bin")
        made = compile_model(
            *(path, soc, options),
            output=binary,
            worker=used,
            progress=progress,
            deadline=ends,
            try_cures=try_cures,
        )
        if isinstance(made, CompileFailure):
            return made
        (progress or no_progress)(f"loading what {path.name} became")
        loaded = load_binaries(used, [binary], soc.model_id, deadline=ends)
        if output is not None:
            keep_loads([output], soc.model_id, loaded.log)
    weights = largest_weights(path, options, made.context, ends) if name_weights else ()
    log = replace(made.log, pd_estimates=loaded.log.pd_estimates)
    peak = made.outcome.peak_rss
    bill = bill_of(made.context, soc, log, host_ram=peak, weights=weights, file=str(path))
    bill = replaced(bill, missing_outputs=made.missing_outputs, model_outputs=made.model_outputs)
    bill = _with_trap(bill, loaded.no_estimate)
    return MeasuredModel(made, bill, loaded.no_estimate)


def prepared_context(
    made: Compiled, binary: Path, epcontext: Path | None = None
) -> PreparedContext:
    """What was written for a compiled model."""
    return PreparedContext(
        path=str(binary),
        epcontext=None if epcontext is None else str(epcontext),
        library=made.library,
        seconds=round(made.outcome.seconds, 3),
        on_cpu=made.on_cpu,
        run=None if made.run is None else made.run.check,
        notes=made.notes,
    )


def _with_trap(bill: Bill, no_estimate: str) -> Bill:
    if not no_estimate:
        return bill
    sentence = f"{no_estimate}; the process domain is a range that follows from the file"
    return replaced(bill, traps=(*bill.traps, Trap("not-loaded", sentence)))


def bill_of_model(
    path: Path,
    soc: Soc,
    options: CompileOptions | None = None,
    progress: Progress | None = None,
) -> Bill | CompileFailure:
    """The bill of a model, with its largest weights by name."""
    made = measure(path, soc, options, name_weights=True, progress=progress)
    return made.bill if isinstance(made, MeasuredModel) else made


def largest_weights(
    path: Path, options: CompileOptions, context: HtpContext, ends: Deadline
) -> tuple[BillItem, ...]:
    """The largest constants of a model by name, as its file stores them.

    There are none for a model that the compiler reads and our own loader does not, or not in time.
    """
    from qnnmem.loader import dlc, onnx

    left = max(0.01, ends.left_s)
    try:
        if options.trust or is_composed(path):
            model = dlc.read(path, trusted=options.trust)
        else:
            model = onnx.read(
                path,
                dims=options.dims,
                shapes=options.shapes,
                values=options.values,
                time_limit_s=left,
            )
    except (LoadError, CannotTell):
        return ()
    found = sorted((-model.tensors[name].nbytes, name) for name in model.constants)
    graph = context.graphs[0].name if context.graphs else ""
    # Sizes as in the model file, before the compiler packs the weights.
    return tuple(BillItem(graph, name, "weights", -size) for size, name in found[:LARGEST_WEIGHTS])


def bill_of_loaded(path: Path, soc: Soc | None, time_limit_s: float = LOAD_TIME_LIMIT_S) -> Bill:
    """The bill of a context binary with the loader's own estimate of its process domain.

    Here the estimate is what was asked for, so its absence is an error.
    """
    if path.suffix.lower() == ".onnx":
        rest = " is for the context binary itself, not for a model of it"
        raise UsageError((f"{path}: ", Setting("load"), rest))
    context = read_context(path)
    rest = " the numbers come from the file itself, which works anywhere"
    with Worker(library=library_or(("without ", Setting("load"), rest))) as worker:
        target = load_target(path, context, soc)
        loaded = load_binaries(worker, [path], target, time_limit_s=time_limit_s)
    keep_loads([path], target, loaded.log)
    if loaded.outcome.kind == "timeout":
        cure = ("give more time with ", Setting("time_limit_s"))
        raise OutOfTime(path, f"it was not loaded within {time_limit_s:g} s", cure=cure)
    if loaded.no_estimate:
        raise CannotTell(f"{path}: {loaded.no_estimate}")
    log = loaded.log
    return bill_of(
        context,
        soc,
        CompileLog(log.library_version or context.build_id, pd_estimates=log.pd_estimates),
        file=str(path),
    )
