"""From an ONNX model to a real HTP context binary, or to the reason why there is none."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

from qnnmem.errors import UsageError
from qnnmem.htp.binary.context import HtpContext
from qnnmem.htp.compile.failure import (
    NOTHING_TAKEN,
    UNSUPPORTED,
    OnnxNode,
    say_why,
    unsupported_nodes,
)
from qnnmem.htp.compile.model import ModelSource, model_source
from qnnmem.htp.log import CompileLog, Refusal, parse_log
from qnnmem.htp.worker import TIME_LIMIT_S, RequestOutcome, Tick, Worker
from qnnmem.targets.socs import Soc
from qnnmem.units import format_size

STORED_VTCM = "the binary says 4 MiB of VTCM because none was asked for; the compiler used {used}"


class HtpPrecision(Enum):
    """What floating-point values of the model become."""

    FP16 = "fp16"  # as HTP computes floats; a quantized model stays as it is
    INT8 = "int8"  # activations and weights of 8 bits
    W8A16 = "w8a16"  # activations of 16 bits, weights of 8


@dataclass(frozen=True, slots=True)
class CompileOptions:
    """Everything that changes the binary, and the limits of the work."""

    precision: HtpPrecision = HtpPrecision.FP16
    vtcm_mb: int | None = None  # None: the SoC's largest
    opt_level: int | None = None  # 1 to 3; None: the library's own, which is 2
    memhandle: bool = False  # inputs and outputs carry the Qmem hint
    partition: bool = False  # leave nodes that QNN cannot take to the CPU
    dims: Mapping[str, int] = field(default_factory=dict)
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    calibration: Path | None = None
    samples: int = 10  # of made-up calibration data
    seed: int = 0
    log_level: str = "verbose"  # info costs less and leaves out VTCM and limit
    log_file: Path | None = None
    time_limit_s: float = TIME_LIMIT_S
    memory_limit: int | None = None  # None: three quarters of the machine


@dataclass(frozen=True, slots=True)
class Compiled:
    """A context binary and everything known about its making."""

    model: Path
    soc: Soc
    options: CompileOptions
    library: str  # package and version
    context: HtpContext
    log: CompileLog
    outcome: RequestOutcome
    epcontext: bytes  # ONNX model that stands for the binary; names it as `binary_name`
    binary_name: str
    on_htp: int  # nodes, as ONNX Runtime counts them after its own optimisations
    on_cpu: tuple[OnnxNode, ...] = ()
    path: Path | None = None  # of the binary
    binary: bytes | None = None  # the binary itself, where no path was given
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CompileFailure:
    """Why there is no binary."""

    model: Path
    soc: Soc
    options: CompileOptions
    library: str
    stage: str  # quantize, partition or compile
    sentence: str
    outcome: RequestOutcome
    log: CompileLog
    code: int | None = None  # of QNN
    refusal: Refusal | None = None  # the line of the log that decides
    unsupported: tuple[OnnxNode, ...] = ()


def compile_model(
    path: Path,
    soc: Soc,
    options: CompileOptions | None = None,
    *,
    output: Path | None = None,
    worker: Worker | None = None,
    progress: Callable[[str], None] | None = None,
) -> Compiled | CompileFailure:
    """Compile a model with the real library.

    The binary is written to `output`, which is replaced; without it, its bytes are returned.
    """
    options = CompileOptions() if options is None else options
    check_options(soc, options)
    place = None if output is None else output.absolute().parent
    with given_or_own(worker) as used, tempfile.TemporaryDirectory(".qnnmem", dir=place) as scratch:
        job = _Job(Path(path), soc, options, used, Path(scratch), progress or tell_nobody)
        result = job.run()
        if isinstance(result, CompileFailure):
            return result
        return job.finish(result, output)


def check_options(soc: Soc, options: CompileOptions) -> None:
    """Refuses what the library would take without a word and get wrong."""
    largest = None if soc.vtcm_mb is None else soc.vtcm_mb.value
    if options.vtcm_mb is not None and largest and options.vtcm_mb > largest:
        raise UsageError(
            f"{soc.name} has {largest} MiB of VTCM, {options.vtcm_mb} are asked for; the library "
            "would compile that, and the binary would run nowhere"
        )
    if options.calibration is not None and options.precision is HtpPrecision.FP16:
        raise UsageError("calibration data is for precision int8 or w8a16")


@contextmanager
def given_or_own(given: Worker | None) -> Iterator[Worker]:
    """A worker: the caller's, or one that ends with the work."""
    if given is not None:
        yield given
        return
    with Worker(warm=True) as own:
        yield own


def tell_nobody(_text: str) -> None:
    """Nobody wants to know."""


@dataclass(frozen=True, slots=True)
class _Done:
    """A compile that went well."""

    outcome: RequestOutcome
    log: CompileLog


@dataclass(frozen=True, slots=True)
class _Job:
    """One compile on its way."""

    path: Path
    soc: Soc
    options: CompileOptions
    worker: Worker
    scratch: Path
    say: Callable[[str], None]

    def run(self) -> _Done | CompileFailure:
        """Compile the file as it is where that works, else with every shape fixed."""
        self.say(f"reading {self.path.name}")
        wanted = self.options
        source = model_source(self.path, wanted.dims, wanted.shapes, self.scratch)
        if wanted.precision is not HtpPrecision.FP16:
            return self._quantized(source.fixed())
        result = self._compile(source)
        if isinstance(result, CompileFailure) and result.stage == "partition":
            fixed = source.fixed()
            return result if fixed is source else self._compile(fixed)
        return result

    def _quantized(self, source: ModelSource) -> _Done | CompileFailure:
        wanted, target = self.options, self.scratch / "quantized.onnx"
        request = {
            "model": str(source.model),
            "folder": str(source.folder),
            "scratch": str(self.scratch),
            "output": str(target),
            "precision": wanted.precision.value,
            "calibration": None if wanted.calibration is None else str(wanted.calibration),
            "samples": wanted.samples,
            "seed": wanted.seed,
        }
        outcome = self._ask("quantize", request, None)
        if outcome.stage == "usage":
            raise UsageError(outcome.sentence)
        if not outcome.is_done:
            return self._failure("quantize", outcome)
        return self._compile(ModelSource(self.path, target, self.scratch))

    def _compile(self, source: ModelSource) -> _Done | CompileFailure:
        wanted = self.options
        request = {
            "model": str(source.model),
            "folder": str(source.folder),
            "output": str(self.scratch / "model.onnx"),
            "soc": self.soc.model_id,
            "vtcm_mb": wanted.vtcm_mb,
            "opt_level": wanted.opt_level,
            "memhandle": wanted.memhandle,
            "strict": not wanted.partition,
            "log": wanted.log_level,
        }
        outcome = self._ask("compile", request, None if wanted.partition else UNSUPPORTED)
        if not outcome.is_done or not outcome.reply["binaries"]:
            # Without memory the library refuses nodes that it could take.
            starved = outcome.kind == "memory"
            nodes = () if starved else unsupported_nodes(outcome)
            if not nodes and not starved and NOTHING_TAKEN in outcome.sentence:
                nodes = self._survey(request)
            return self._failure("partition" if nodes else "compile", outcome, nodes)
        return _Done(outcome, parse_log(outcome.log))

    def _survey(self, request: dict[str, Any]) -> tuple[OnnxNode, ...]:
        """Names of the nodes of a model of which QNN takes none; then the log lists nothing."""
        outcome = self._ask("compile", {**request, "strict": False}, None)
        return tuple(OnnxNode(name, kind) for name, kind in outcome.reply.get("on_cpu", ()))

    def _ask(self, verb: str, request: dict[str, Any], stop_at: bytes | None) -> RequestOutcome:
        doing = {"compile": "compiling", "quantize": "quantizing"}[verb]
        text = f"{doing} {self.path.name} for {self.soc.name}"
        self.say(text)

        def tell(tick: Tick) -> None:
            used = "" if tick.peak_rss is None else f", {format_size(tick.peak_rss)} of host memory"
            self.say(f"{text}{used}")

        return self.worker.ask(
            verb,
            request,
            time_limit_s=self.options.time_limit_s,
            memory_limit=self.options.memory_limit,
            stop_at=stop_at,
            log_file=self.options.log_file if verb == "compile" else None,
            progress=tell,
        )

    def _failure(
        self, stage: str, outcome: RequestOutcome, unsupported: tuple[OnnxNode, ...] = ()
    ) -> CompileFailure:
        log = parse_log(outcome.log)
        return CompileFailure(
            model=self.path,
            soc=self.soc,
            options=self.options,
            library=self.worker.library.name,
            stage=stage,
            sentence=say_why(stage, self.soc, outcome, log, unsupported),
            outcome=outcome,
            log=log,
            code=outcome.code or (log.codes[-1] if log.codes else None),
            refusal=log.cause,
            unsupported=unsupported,
        )

    def finish(self, done: _Done, output: Path | None) -> Compiled:
        """Read the binary back and put it where it belongs."""
        from qnnmem.htp.binary.read import read_context

        reply = done.outcome.reply
        made = Path(reply["binaries"][0])
        context = read_context(made)
        epcontext = Path(reply["epcontext"]).read_bytes()
        binary = made.read_bytes() if output is None else None
        if output is not None:
            made.chmod(0o644)
            made.replace(output)
        return Compiled(
            model=self.path,
            soc=self.soc,
            options=self.options,
            library=self.worker.library.name,
            context=context,
            log=done.log,
            outcome=done.outcome,
            epcontext=epcontext,
            binary_name=made.name,
            on_htp=reply["on_htp"],
            on_cpu=tuple(OnnxNode(name, kind) for name, kind in reply["on_cpu"]),
            path=output,
            binary=binary,
            notes=tuple(_notes(self.options, done.log, len(reply["binaries"]))),
        )


def _notes(options: CompileOptions, log: CompileLog, binaries: int) -> Iterator[str]:
    if options.vtcm_mb is None and log.vtcm_size not in (None, 4 << 20):
        yield STORED_VTCM.format(used=format_size(log.vtcm_size or 0))
    if options.precision is not HtpPrecision.FP16 and options.calibration is None:
        yield "ranges were learnt from made-up data: sizes are right, results are not"
    if binaries > 1:
        yield f"ONNX Runtime wrote {binaries} binaries; this is the first"
    yield from log.warnings
