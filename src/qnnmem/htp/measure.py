"""Bills with the loader's estimate, either cached from an earlier load or measured.

The loader gives no estimate of the process domain if it crashes, takes too long or refuses the
binary for a reason other than memory. The compile was expensive, so the model's bill is returned
anyway, with a range for the process domain that is computed from the file. The bill gets a trap
that states this, and `MeasuredModel.no_estimate` is the reason. Such a model never counts as one
that fits.

The loader's estimate is cached, so that every verb gives the same number later. A cache entry is
found by the head of the file. Only if there is an entry is the whole file read and compared with
the content that was loaded.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace as replaced

from qnnmem.cache import ResultCache, cache_folder
from qnnmem.deadline import Deadline
from qnnmem.errors import CannotTell, LoadError, MissingSoc, OutOfTime, Setting, UsageError
from qnnmem.htp.bill import bill_of, last_estimate
from qnnmem.htp.binary.context import HtpContext
from qnnmem.htp.binary.read import binary_at, read_context
from qnnmem.htp.carriers import is_carrier
from qnnmem.htp.carriers.carrier_bill import (
    CarriedContext,
    binaries_of,
    carried_bill,
    context_of,
    read_carrier,
)
from qnnmem.htp.compile import (
    Compiled,
    CompileFailure,
    CompileOptions,
    Progress,
    compile_model,
    is_composed,
    no_progress,
    worker_or_new,
)
from qnnmem.htp.compile_cache import from_builtins, to_builtins
from qnnmem.htp.library import check_started, library_or
from qnnmem.htp.log import CompileLog, PdEstimate, parse_log
from qnnmem.htp.requests import LoadReply, LoadRequest, RequestOutcome
from qnnmem.htp.worker import Worker
from qnnmem.qnn.codes import code_name
from qnnmem.results.footprint import Bill, BillItem, PreparedContext, Trap
from qnnmem.targets.socs import Soc

LOAD_TIME_LIMIT_S = 600.0  # for all binaries of one request


@dataclass(frozen=True, slots=True)
class Loaded:
    """The result of a load; its log is used even if the library died after a refusal."""

    outcome: RequestOutcome
    log: CompileLog
    codes: tuple[int, ...]  # QNN code of each binary; fewer if the library died

    @property
    def no_estimate(self) -> str:
        """Why the last binary has no process-domain estimate; empty if it has an estimate."""
        last = last_estimate(self.log)
        if last is not None and last.total is not None:
            return ""
        code = self.codes[-1] if self.codes else None
        reason = f"code {code}, {code_name(code)}" if code else "the log has no estimate"
        return f"the binary could not be loaded: {self.outcome.sentence or reason}"


def load_binaries(
    worker: Worker,
    binaries: Sequence[Path],
    model_id: int,
    *,
    time_limit_s: float = LOAD_TIME_LIMIT_S,
    deadline: Deadline | None = None,
    log_file: Path | None = None,
) -> Loaded:
    """Load binaries in order into one process domain, and return the result.

    All admitted binaries stay loaded until the end.
    """
    ends = deadline or Deadline.after(time_limit_s)
    request = LoadRequest([path.absolute() for path in binaries], model_id)
    outcome = worker.ask(request, time_limit_s=ends.left_s, log_file=log_file)
    check_started(outcome)
    if outcome.kind == "timeout":  # the request had only the remaining time
        outcome = replace(outcome, sentence=f"not finished within {ends.limit_s:g} s")
    codes = outcome.reply.codes if isinstance(outcome.reply, LoadReply) else ()
    return Loaded(outcome, parse_log(outcome.log), tuple(codes))


# --- Bills of files, without compiling ------------------------------------------------------------


_KIND = "loaded"


def stored_bill(path: Path, soc: Soc | None = None, context: HtpContext | None = None) -> Bill:
    """Return the bill for a SoC, by default the binary's own SoC, without loading the binary.

    The need in the process domain is the loader's cached estimate if this binary was loaded here,
    else a range. A file with several binaries has one bill for all of them.
    """
    if is_carrier(path):
        with read_carrier(path) as read:
            return carried_bill(read, soc, kept=partial(_cached_part, soc=soc))
    context = read_context(path) if context is None else context
    model_id = context.soc_model if soc is None else soc.model_id
    log = _cached_log(context, model_id, lambda: binary_at(path).digest())
    return bill_of(context, soc, log, file=str(path))


def _cached_part(part: CarriedContext, soc: Soc | None) -> CompileLog | None:
    model_id = part.context.soc_model if soc is None else soc.model_id
    return _cached_log(part.context, model_id, part.payload.piece.digest)


class _CachedLoad(Struct, frozen=True):
    content: str  # digest of the binary
    version: str | None  # version of the library
    estimate: PdEstimate


def cache_loads(binaries: Sequence[Path], model_id: int, log: CompileLog) -> None:
    """Cache the loader's estimates if the log has an estimate for every binary."""
    if len(log.pd_estimates) != len(binaries):
        return
    cache = ResultCache(cache_folder(), _KIND, must_keep=False)
    for path, estimate in zip(binaries, log.pd_estimates, strict=True):
        if estimate.total is None:
            continue
        try:
            key, content = _key(read_context(path), model_id), binary_at(path).digest()
        except LoadError:  # e.g. deleted since
            continue
        cache.put(key, to_builtins(_CachedLoad(content, log.library_version, estimate)))


def _cached_log(
    context: HtpContext, model_id: int | None, digest: Callable[[], str]
) -> CompileLog | None:
    """Return a log with the cached loader estimate for exactly this binary; None if not cached."""
    if model_id is None:
        return None
    cache = ResultCache(cache_folder(), _KIND, must_keep=False)
    kept = from_builtins(_CachedLoad, cache.get(_key(context, model_id)))
    if kept is None or kept.content != digest():
        return None
    return CompileLog(kept.version, pd_estimates=(kept.estimate,))


def _key(context: HtpContext, model_id: int) -> str:
    return hashlib.sha256(repr((context, model_id)).encode()).hexdigest()


def compile_target(path: Path, soc: Soc | None) -> Soc:
    """Return the SoC to compile a model for; raise MissingSoc if none is given."""
    if soc is None:
        raise MissingSoc(path)
    return soc


def load_target(path: Path, context: HtpContext, soc: Soc | None) -> int:
    """Return the id of the SoC to load a binary for: the given SoC, else the binary's own."""
    model_id = context.soc_model if soc is None else soc.model_id
    if model_id is None:
        raise missing_soc(path)
    return model_id


def missing_soc(path: Path) -> CannotTell:
    """Return the error for a file that does not state exactly one SoC, if the caller names none."""
    problem = (
        "has binaries for several SoCs, or for unknown ones"
        if is_carrier(path)
        else ("does not state a SoC")
    )
    return CannotTell((f"{path} {problem}; choose a SoC, e.g. ", *MissingSoc.settings))


# --- Bills of models ------------------------------------------------------------------------------


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
    """Compile a model and load the result; return its bill, in which every number is measured.

    The binary is written to `output`, if given. `name_weights` also lists the largest weights, for
    which the model is read once more. `deadline` is for callers that do other work within the same
    limit, `try_cures` for callers that report why a model was refused.
    """
    options = options or CompileOptions()
    ends = deadline or Deadline.after(options.time_limit_s)
    with worker_or_new(worker) as used, tempfile.TemporaryDirectory(".qnnmem") as folder:
        binary = output or Path(folder, "model.bin")
        compiled = compile_model(
            *(path, soc, options),
            output=binary,
            worker=used,
            progress=progress,
            deadline=ends,
            try_cures=try_cures,
        )
        if isinstance(compiled, CompileFailure):
            return compiled
        (progress or no_progress)(f"loading the compiled {path.name}")
        loaded = load_binaries(used, [binary], soc.model_id, deadline=ends)
        if output is not None:
            cache_loads([output], soc.model_id, loaded.log)
    weights = largest_weights(path, options, compiled.context, ends) if name_weights else ()
    log = replaced(compiled.log, pd_estimates=loaded.log.pd_estimates)
    peak = compiled.outcome.peak_rss
    bill = bill_of(compiled.context, soc, log, host_ram=peak, weights=weights, file=str(path))
    bill = replaced(
        bill, missing_outputs=compiled.missing_outputs, model_outputs=compiled.model_outputs
    )
    bill = _with_trap(bill, loaded.no_estimate)
    return MeasuredModel(compiled, bill, loaded.no_estimate)


def prepared_context(
    compiled: Compiled, binary: Path, epcontext: Path | None = None, pte: Path | None = None
) -> PreparedContext:
    """Return a description of the files written for a compiled model."""
    return PreparedContext(
        path=str(binary),
        epcontext=None if epcontext is None else str(epcontext),
        pte=None if pte is None else str(pte),
        library=compiled.library,
        seconds=round(compiled.outcome.seconds, 3),
        on_cpu=compiled.on_cpu,
        run=compiled.run,
        notes=compiled.notes,
    )


def _with_trap(bill: Bill, no_estimate: str) -> Bill:
    if not no_estimate:
        return bill
    sentence = f"{no_estimate}; the size in the process domain is a range computed from the file"
    return replaced(bill, traps=(*bill.traps, Trap("not-loaded", sentence)))


def bill_of_model(
    path: Path,
    soc: Soc,
    options: CompileOptions | None = None,
    progress: Progress | None = None,
) -> Bill | CompileFailure:
    """Return the bill of a model, with its largest weights by name."""
    result = measure(path, soc, options, name_weights=True, progress=progress)
    return result.bill if isinstance(result, MeasuredModel) else result


def largest_weights(
    path: Path, options: CompileOptions, context: HtpContext, ends: Deadline
) -> tuple[BillItem, ...]:
    """Return the names and file sizes of a model's largest constants.

    The list is empty if only the compiler can read the model, or if qnnmem's loader is too slow.
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
    constants = sorted((-model.tensors[name].nbytes, name) for name in model.constants)
    graph = context.graphs[0].name if context.graphs else ""
    # Sizes in the model file, before the compiler packs the weights.
    return tuple(
        BillItem(graph, name, "weights", -size) for size, name in constants[:LARGEST_WEIGHTS]
    )


def bill_of_loaded(path: Path, soc: Soc | None, time_limit_s: float = LOAD_TIME_LIMIT_S) -> Bill:
    """Return the bill of a context binary with the loader's own estimate of its process domain.

    A missing estimate is an error here, because the caller asked for it.
    """
    if path.suffix.lower() == ".onnx":
        rest = " needs the context binary itself, not a model that contains it"
        raise UsageError((f"{path}: ", Setting("load"), rest))
    context = context_of(path)
    rest = " reads the numbers from the file itself, on any machine"
    library = library_or(("without ", Setting("load"), rest))
    with Worker(library=library) as worker, binaries_of(path) as files:
        target = load_target(path, context, soc)
        loaded = load_binaries(worker, files, target, time_limit_s=time_limit_s)
        cache_loads(files, target, loaded.log)
    if loaded.outcome.kind == "timeout":
        cure = ("allow more time with ", Setting("time_limit_s"))
        raise OutOfTime(path, f"the binary was not loaded within {time_limit_s:g} s", cure=cure)
    if loaded.no_estimate:
        raise CannotTell(f"{path}: {loaded.no_estimate}")
    log = loaded.log
    if is_carrier(path):
        with read_carrier(path) as read:
            version = log.library_version or context.build_id
            logs = [CompileLog(version, pd_estimates=(estimate,)) for estimate in log.pd_estimates]
            if len(logs) != len(files):
                raise CannotTell(f"{path}: the library did not load all contexts of the file")
            return carried_bill(read, soc, logs)
    return bill_of(
        context,
        soc,
        CompileLog(log.library_version or context.build_id, pd_estimates=log.pd_estimates),
        file=str(path),
    )
