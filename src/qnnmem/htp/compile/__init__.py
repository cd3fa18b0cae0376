"""Compile an ONNX model or a DLC into a real HTP context binary, or report why that fails."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, NamedTuple

from qnnmem.atomic_file import put_in_place
from qnnmem.deadline import Deadline
from qnnmem.errors import LoadError, OutOfTime, Setting, UsageError, Words, chain_words
from qnnmem.htp.binary.context import HtpContext
from qnnmem.htp.compile.compiled import (
    Compiled,
    CompileFailure,
    CompileOptions,
    HtpPrecision,
    Progress,
    can_leave_rest,
    failure_sentence,
    missing_in_epcontext,
    no_progress,
    not_compared,
    run_partition,
)
from qnnmem.htp.compile.refused import (
    UNSUPPORTED,
    Described,
    RefusedNode,
    decisive_line,
    described,
    has_no_builder,
    judged_nodes,
    named,
    refused_nodes,
    unknown_nodes,
    with_origins,
)
from qnnmem.htp.library import check_started
from qnnmem.htp.log import CompileLog, parse_log
from qnnmem.htp.requests import (
    OWN_MARK,
    CompileReply,
    CompileRequest,
    ComposeRequest,
    HtpSettings,
    QuantizeRequest,
    RequestOutcome,
    Tick,
)
from qnnmem.htp.worker import Worker
from qnnmem.results.footprint import MissingOutput, PartitionCheck
from qnnmem.targets.socs import Soc
from qnnmem.units import format_size

__all__ = [
    "CompileFailure",
    "CompileOptions",
    "Compiled",
    "HtpPrecision",
    "Progress",
    "RefusedNode",
    "check_options",
    "compile_model",
    "no_progress",
    "quantize_request",
    "worker_or_new",
]

_LEAST_S = 0.01  # zero would mean no limit


class ModelSource(NamedTuple):
    """A model file for the child process, and the folder of its external data."""

    model: Path
    folder: Path
    is_fixed: bool = False  # every shape is known


def fixed_source(
    path: Path, options: CompileOptions, scratch: Path, deadline: Deadline | None = None
) -> ModelSource:
    """Write the model with every shape fixed, and return the new file."""
    from qnnmem.loader.onnx import executable

    ends = deadline or Deadline.after(options.time_limit_s)
    try:
        model = executable(
            path,
            dims=options.dims,
            shapes=options.shapes,
            values=options.values,
            time_limit_s=max(_LEAST_S, ends.left_s),
        )
    except OutOfTime as exc:
        raise reading_took_too_long(exc, ends) from exc
    target = scratch / "fixed.onnx"
    target.write_bytes(model.SerializeToString(deterministic=True))
    return ModelSource(target, path.absolute().parent, is_fixed=True)


def reading_took_too_long(exc: OutOfTime, ends: Deadline) -> OutOfTime:
    """Return the error about a slow shape search, with the time limit that the user gave."""
    reason = f"the shapes were not found within {ends.limit_s:g} s"
    cure = ("allow more time with ", Setting("time_limit_s"), ", or set more shapes")
    return OutOfTime(exc.path, reason, cure=cure)


def is_composed(path: Path) -> bool:
    """Return True if a file already holds QNN graphs, which are compiled without changes."""
    from qnnmem.loader.file_kind import kind_of_file

    return kind_of_file(path).name == "dlc"


def check_composed(path: Path, options: CompileOptions) -> None:
    """Raise UsageError for options that only apply to an ONNX model."""
    asked = (
        *(("dims", options.dims), ("shapes", options.shapes), ("values", options.values)),
        *(("calibration", options.calibration), ("partition", options.partition)),
    )
    kind = "a model library" if options.trust else "a DLC"
    for name, value in asked:
        if value:
            raise UsageError((f"{path} is {kind}; ", Setting(name), " is for ONNX models"))
    if options.precision is not HtpPrecision.FP16:
        problem = f"{path} is {kind}, which is compiled unchanged; "
        word = Setting("precision", options.precision.value)
        raise UsageError((problem, word, " is for ONNX models"))


def model_source(
    path: Path, options: CompileOptions, scratch: Path, deadline: Deadline | None = None
) -> ModelSource:
    """Return the model to compile: the file itself if all input shapes are fixed, else a copy.

    Fixing the shapes of a copy takes a trial run in ONNX Runtime.
    """
    if options.dims or options.shapes or options.values or not _is_static(path):
        return fixed_source(path, options, scratch, deadline)
    return ModelSource(path, path.absolute().parent)


def _is_static(path: Path) -> bool:
    from qnnmem.loader.onnx import read_guarded

    model = read_guarded(path).proto
    constants = {item.name for item in model.graph.initializer}
    inputs = [item for item in model.graph.input if item.name not in constants]
    # Sequences and maps have no shape to fix; the library reports the node that rejects them.
    tensors = [item.type.tensor_type for item in inputs if item.type.HasField("tensor_type")]
    return not model.functions and all(
        tensor.HasField("shape") and all(size.dim_value > 0 for size in tensor.shape.dim)
        for tensor in tensors
    )


_COMPOSING, _COMPOSED = f"{OWN_MARK} composing", f"{OWN_MARK} composed"


def check_read(path: Path, outcome: RequestOutcome, *, trusted: bool = False) -> None:
    """Raise LoadError if a compile failed because of the file itself.

    A `trusted` file is a model library, which is executed rather than read.
    """
    if outcome.kind == "refused" and outcome.stage == "read":
        who = "" if trusted else "the vendor's reader rejected the file: "
        raise LoadError(path, f"{who}{outcome.sentence}")
    marks = {line.text for line in outcome.log}
    if outcome.kind == "crashed" and _COMPOSING in marks and _COMPOSED not in marks:
        from qnnmem.loader.dlc.composed import abort_reason

        reason = abort_reason("\n".join(outcome.tail))
        raise LoadError(path, "the model library crashed" if trusted else reason)


_TRY_S = 60.0  # for a cure that was not requested
STORED_VTCM = "the binary states 4 MiB of VTCM because VTCM was not set; the compiler used {used}"


def compile_model(
    path: Path,
    soc: Soc,
    options: CompileOptions | None = None,
    *,
    output: Path | None = None,
    worker: Worker | None = None,
    progress: Progress | None = None,
    deadline: Deadline | None = None,
    try_cures: bool = False,
) -> Compiled | CompileFailure:
    """Compile a model with the real library, and return the result or the failure.

    The binary overwrites the file `output`; without `output`, the binary's bytes are returned.
    `deadline` overrides the time limit of the options, for callers that do other work within the
    same limit. If `try_cures` is true, a refusal suggests a partition only if that partition
    compiled and ran.
    """
    options = options or CompileOptions()
    ends = deadline or Deadline.after(options.time_limit_s)
    check_options(soc, options)
    place = None if output is None else output.absolute().parent
    with (
        worker_or_new(worker) as used,
        tempfile.TemporaryDirectory(".qnnmem", dir=place) as scratch,
    ):
        job = _Job(Path(path), soc, options, used, Path(scratch), progress or no_progress, ends)
        result = job.run(try_cures=try_cures)
        if isinstance(result, CompileFailure):
            return result
        return job.finish(result, output)


def check_options(soc: Soc, options: CompileOptions) -> None:
    """Raise UsageError for options that the library accepts silently but handles wrongly."""
    largest = soc.vtcm_mb
    if options.vtcm_mb is not None and largest and options.vtcm_mb > largest:
        raise UsageError(
            f"{options.vtcm_mb} MiB of VTCM were requested but {soc.name} has {largest}; "
            "the library would compile the model, but the binary would not run on any "
            "device"
        )
    if options.calibration is not None and options.precision is HtpPrecision.FP16:
        raise UsageError("calibration data is only for precision int8 or w8a16")


@contextmanager
def worker_or_new(worker: Worker | None) -> Iterator[Worker]:
    """Yield the caller's worker, or a new one that is closed at the end."""
    if worker is not None:
        yield worker
        return
    with Worker(warm=True) as own:
        yield own


@dataclass(frozen=True)
class LibraryBench:
    """A worker that compiles for one SoC, with models and binaries in one folder."""

    soc: Soc
    worker: Worker
    folder: Path
    progress: Progress = field(default=no_progress, kw_only=True)


def quantize_request(
    options: CompileOptions, source: ModelSource, scratch: Path, target: Path
) -> QuantizeRequest:
    """Return the request to write a quantized model."""
    calibration = options.calibration
    return QuantizeRequest(
        source.model.absolute(),
        source.folder,
        scratch,
        target,
        options.precision.value,
        options.samples,
        options.seed,
        None if calibration is None else calibration.absolute(),
        Path.cwd(),
    )


@dataclass(frozen=True, slots=True)
class _Done:
    """A successful compile."""

    outcome: RequestOutcome
    model: Path  # the model that was compiled
    run: PartitionCheck | None = None  # trial run, if nodes stay on the CPU

    @property
    def reply(self) -> CompileReply:
        """The reply of the library."""
        return self.outcome.result(CompileReply)


@dataclass(frozen=True, slots=True)
class _Job:
    """A running compile."""

    path: Path
    soc: Soc
    options: CompileOptions
    worker: Worker
    scratch: Path
    progress: Progress
    deadline: Deadline

    def run(self, *, try_cures: bool) -> _Done | CompileFailure:
        """Return the outcome of compiling the file unchanged or, on failure, with fixed shapes."""
        self.progress(f"reading {self.path.name}")
        wanted = self.options
        if wanted.trust or is_composed(self.path):
            check_composed(self.path, wanted)
            return self._composed()
        source = model_source(self.path, wanted, self.scratch, self.deadline)
        if wanted.precision is not HtpPrecision.FP16:
            quantized = self._quantized(self._fixed(source))
            if isinstance(quantized, CompileFailure):
                return quantized
            source = quantized
        result = self._compile_or_fix(source)
        if isinstance(result, CompileFailure) and can_leave_rest(result):
            cure = self._partition_cure(result, source) if try_cures else _untried()
            return replace(result, why=chain_words(result.why, cure))
        return result

    def _compile_or_fix(self, source: ModelSource) -> _Done | CompileFailure:
        result = self._compile(source)
        if isinstance(result, CompileFailure) and result.stage == "partition":
            try:
                fixed = self._fixed(source)
            except LoadError as exc:
                # Fixed shapes do not help if QNN does not have the operator.
                if exc.cure and not any(has_no_builder(node.line) for node in result.unsupported):
                    raise
                return result
            return result if fixed is source else self._compile(fixed)
        return result

    def _fixed(self, source: ModelSource) -> ModelSource:
        if source.is_fixed:
            return source
        return fixed_source(self.path, self.options, self.scratch, self.deadline)

    def _partition_cure(self, refused: CompileFailure, source: ModelSource) -> Words:
        """Compile and run the model with `--partition`, and return the outcome as a suggestion."""
        limit = min(_TRY_S, self.deadline.left_s)
        options = replace(self.options, partition=True, log_file=None)
        trial = replace(self, options=options, deadline=Deadline.after(limit))
        tried = trial._compile(source)  # as the command line would
        them = "it" if len(refused.unsupported) == 1 else "them"
        if isinstance(tried, _Done):
            rest = f" leaves {them} on the CPU and compiles the rest; a trial compile succeeded"
            return "; ", Setting("partition"), rest
        if tried.outcome.kind in ("refused", "done"):  # done, but no node runs on HTP
            return chain_words(f"; with {them} on the CPU the compile fails too: ", tried.why)
        rest = f" might compile the rest; a trial ended with: {tried.outcome.sentence}"
        return "; ", Setting("partition"), rest

    def _quantized(self, source: ModelSource) -> ModelSource | CompileFailure:
        target = self.scratch / "quantized.onnx"
        request = quantize_request(self.options, source, self.scratch, target)
        outcome = self._ask(request)
        if outcome.stage == "usage":
            raise UsageError(outcome.sentence)
        if not outcome.is_done:
            return self._failure("quantize", outcome)
        return ModelSource(target, self.scratch, is_fixed=True)

    def _composed(self) -> _Done | CompileFailure:
        """Let the library compose and compile the graphs of a file, and return the outcome."""
        output = self.scratch / "model.bin"
        kind: Literal["library", "dlc"] = "library" if self.options.trust else "dlc"
        request = ComposeRequest(kind, self.path.absolute(), output, self._settings())
        outcome = self._ask(request)
        check_started(outcome)
        check_read(self.path, outcome, trusted=self.options.trust)
        if not outcome.is_done:
            return self._failure("compile", outcome)
        return _Done(outcome, self.path)

    def _settings(self) -> HtpSettings:
        wanted = self.options
        return HtpSettings(
            self.soc.model_id,
            wanted.vtcm_mb,
            wanted.opt_level,
            wanted.memhandle,
            wanted.log_level,
        )

    def _compile(self, source: ModelSource) -> _Done | CompileFailure:
        wanted = self.options
        # Delete the files of an earlier compile that was stopped late because of refused nodes.
        target = self.scratch / "model.onnx"
        for left in (target, *self.scratch.glob("model_*.bin")):
            left.unlink(missing_ok=True)
        strict = not wanted.partition
        request = CompileRequest(
            source.model.absolute(), source.folder, target, strict, settings=self._settings()
        )
        outcome = self._ask(request, UNSUPPORTED if strict else None)
        check_started(outcome)
        if not outcome.is_done or not outcome.result(CompileReply).binaries:
            # When memory runs out, the library refuses nodes that it would otherwise accept.
            refused = self._refused(outcome, source.model)
            return self._failure("partition" if refused.nodes else "compile", outcome, refused)
        done = _Done(outcome, source.model)
        is_split = wanted.partition and done.reply.on_cpu
        return self._ran(done, source) if is_split else done

    def _ran(self, done: _Done, source: ModelSource) -> _Done | CompileFailure:
        """Run a partitioned model on HTP and on the CPU; return the compile with the comparison.

        If the run fails, return the failure instead.
        """
        if len(done.reply.binaries) > 1 or done.reply.epcontext is None:
            several = not_compared(
                "ONNX Runtime wrote several binaries; the result is for the first"
            )
            return replace(done, run=several)
        self.progress(f"running {self.path.name} on HTP and on the CPU")
        ran = run_partition(
            self.worker,
            self._settings(),
            model=source.model,
            folder=source.folder,
            epcontext=done.reply.epcontext,
            deadline=self.deadline,
        )
        if isinstance(ran, RequestOutcome):
            return self._failure("run", ran)
        return replace(done, run=ran)

    def _refused(self, outcome: RequestOutcome, model: Path) -> Described:
        """Return the nodes that QNN refused; none if the compile failed for another reason."""
        if outcome.kind != "refused":  # e.g. out of memory: good nodes are refused, too
            return Described(())
        unknown = unknown_nodes(outcome.sentence, model, self.soc)
        if unknown.nodes or self.options.partition:
            return unknown
        nodes = with_origins(refused_nodes(outcome.log), judged_nodes(outcome.log), model)
        return described(nodes, model, self.soc)

    def _ask(
        self,
        request: CompileRequest | ComposeRequest | QuantizeRequest,
        stop_at: bytes | None = None,
    ) -> RequestOutcome:
        quantizes = isinstance(request, QuantizeRequest)
        doing = "quantizing" if quantizes else "compiling"
        text = f"{doing} {self.path.name} for {self.soc.name}"
        self.progress(text)

        def show(tick: Tick) -> None:
            used = "" if tick.peak_rss is None else f", {format_size(tick.peak_rss)} of host memory"
            if tick.sent is not None:
                used = ", sent {} of {}".format(*map(format_size, tick.sent))
            self.progress(f"{text}{used}")

        outcome = self.worker.ask(
            request,
            time_limit_s=self.deadline.left_s,
            memory_limit=self.options.memory_limit,
            stop_at=stop_at,
            log_file=None if quantizes else self.options.log_file,
            progress=show,
        )
        if outcome.kind != "timeout":
            return outcome
        # The request had only the remaining time; the user knows the whole limit.
        return replace(outcome, sentence=f"not finished within {self.deadline.limit_s:g} s")

    def _failure(
        self, stage: str, outcome: RequestOutcome, refused: Described | None = None
    ) -> CompileFailure:
        log, refused = parse_log(outcome.log), refused or Described(())
        unsupported = refused.nodes
        decisive = "" if log.cause is None else log.cause.line
        decisive = next((node.line for node in unsupported), decisive)
        if not decisive and outcome.kind in ("refused", "done"):
            decisive = decisive_line(outcome.log)
        why = failure_sentence(
            stage,
            self.soc,
            outcome,
            log,
            unsupported,
            decisive=decisive,
            quantized=self.options.precision is not HtpPrecision.FP16,
        )
        return CompileFailure(
            model=self.path,
            soc=self.soc,
            options=self.options,
            library=self.worker.library.name,
            stage=stage,
            why=why,
            outcome=outcome,
            log=log,
            code=outcome.code or (log.codes[-1] if log.codes else None),
            refusal=log.cause,
            unsupported=unsupported,
            line=decisive,
            all_refused=refused.all_refused,
        )

    def finish(self, done: _Done, output: Path | None) -> Compiled:
        """Read the binary and move it to its destination; return the result of the compile."""
        from qnnmem.htp.binary.read import read_context

        reply, log = done.reply, parse_log(done.outcome.log)
        written = reply.binaries[0]
        context = read_context(written)
        epcontext = None if reply.epcontext is None else reply.epcontext.read_bytes()
        missing, outputs = self._missing(epcontext, written.name, context, reply.outputs)
        binary = written.read_bytes() if output is None else None
        if output is not None:
            put_in_place(written, output)
        return Compiled(
            model=self.path,
            soc=self.soc,
            options=self.options,
            library=self.worker.library.name,
            context=context,
            log=log,
            outcome=done.outcome,
            epcontext=epcontext,
            binary_name=written.name,
            on_htp=reply.on_htp,
            on_cpu=named(reply.on_cpu, refused_nodes(done.outcome.log), done.model, self.soc),
            path=output,
            binary=binary,
            notes=tuple(_notes(self.options, log, len(reply.binaries))),
            missing_outputs=missing,
            model_outputs=outputs,
            run=done.run,
        )

    def _missing(
        self, epcontext: bytes | None, binary: str, context: HtpContext, composed: Sequence[str]
    ) -> tuple[tuple[MissingOutput, ...], int]:
        """Return the missing outputs, and the number of all outputs (0 if no output is missing)."""
        if epcontext is None:
            outputs = composed
            there = {tensor.name for graph in context.graphs for tensor in graph.outputs}
            missing = tuple(MissingOutput(name) for name in composed if name not in there)
        else:
            from qnnmem.loader.onnx import read_guarded

            outputs = [item.name for item in read_guarded(self.path).proto.graph.output]
            missing = tuple(missing_in_epcontext(outputs, epcontext, binary))
        return missing, len(outputs) if missing else 0


def _untried() -> Words:
    return "; ", Setting("partition"), " might compile the rest (not tried)"


def _notes(options: CompileOptions, log: CompileLog, binaries: int) -> Iterator[str]:
    if options.vtcm_mb is None and log.vtcm_size not in (None, 4 << 20):
        yield STORED_VTCM.format(used=format_size(log.vtcm_size or 0))
    if options.precision is not HtpPrecision.FP16 and options.calibration is None:
        yield "ranges come from random data, so sizes are right, but results are not accurate"
    if binaries > 1:
        yield f"ONNX Runtime wrote {binaries} binaries; the result is for the first"
    yield from log.warnings
