"""Options and results of a compile: a context binary or a failure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from qnnmem.deadline import Deadline
from qnnmem.errors import Setting, UsageError, Words, WorkerError, chain_words, join_words
from qnnmem.htp.binary.context import HtpContext
from qnnmem.htp.compile.refused import UNSUPPORTED, RefusedNode, meaning
from qnnmem.htp.log import Cause, CompileLog, LogLine, Refusal
from qnnmem.htp.requests import (
    CompareReply,
    CompareRequest,
    CpuDifference,
    HtpSettings,
    RequestOutcome,
)
from qnnmem.htp.worker import TIME_LIMIT_S, Worker
from qnnmem.loader.onnx.inputs import InputValue
from qnnmem.options.htp import CompilerOptions, HtpModelOptions, HtpOptions, SweepOptions
from qnnmem.qnn.codes import code_name
from qnnmem.results.footprint import MissingOutput, OnnxNode, PartitionCheck
from qnnmem.targets.socs import Soc
from qnnmem.text import lazy_pattern, printable, quote
from qnnmem.units import format_size

if TYPE_CHECKING:
    import onnx

# --- Partitioned models: HTP runs a part, and an EPContext model loads the binary -----------------


TOLERANCE = 0.02  # relative to an output's largest value; FP16 explains differences up to this
_MOST_S = 60.0  # emulating HTP takes minutes for a large model
_RAN_AND_FAILED = ("compile", "run")  # stages of a request; at `sample` the CPU failed too


def compared(difference: float, output: str) -> PartitionCheck:
    """Return the verdict on a run; `output` is the output that differs most from the CPU."""
    share = f"{difference:.2%}" if difference < 1 else "100% and more"
    if difference <= TOLERANCE:
        verdict = f"verified: ran in ONNX Runtime, outputs within {share} of the model on the CPU"
        return PartitionCheck(True, difference, verdict)
    verdict = (
        f"not verified: ran in ONNX Runtime, but output {quote(output)} is {share} off the "
        f"model on the CPU for random inputs; FP16 explains only {TOLERANCE:.0%}"
    )
    return PartitionCheck(False, difference, verdict)


def not_compared(why: str) -> PartitionCheck:
    """Return the verdict for a model that was not run."""
    verdict = f"not verified, because the EPContext model was not compared with the CPU: {why}"
    return PartitionCheck(False, None, verdict)


def run_partition(
    worker: Worker,
    settings: HtpSettings,
    *,
    model: Path,
    folder: Path,
    epcontext: Path,
    deadline: Deadline,
) -> PartitionCheck | RequestOutcome:
    """Run the model on HTP and on the CPU with random inputs, and return the comparison.

    If only HTP fails, the outcome of the failed request is returned.
    """
    if worker.library.command:
        return not_compared("the library is on another machine")
    limit = min(_MOST_S, deadline.left_s)
    quiet = msgspec.structs.replace(settings, log="error")
    request = CompareRequest(model.absolute(), folder, epcontext, settings=quiet)
    outcome = worker.ask(request, time_limit_s=limit)
    if outcome.kind == "refused" and outcome.stage in _RAN_AND_FAILED:
        return outcome
    if not outcome.is_done:
        return not_compared(outcome.sentence)
    return worst_output(outcome.result(CompareReply).outputs)


def worst_output(outputs: Sequence[CpuDifference]) -> PartitionCheck:
    """Return the verdict on the output with the largest relative difference."""
    shares = [(output.worst / output.size, output.name) for output in outputs if output.size]
    if not shares:
        return not_compared("the outputs for random inputs have no finite values to compare")
    return compared(*max(shares))


_EPCONTEXT = "EPContext"


def rename_binary(epcontext: bytes, old: str, new: str) -> bytes:
    """Return the EPContext model with another file name for its binary, in the same folder."""
    model = _parsed(epcontext)
    for node in model.graph.node:
        for attribute in node.attribute:
            if attribute.name == "ep_cache_context" and attribute.s == old.encode():
                attribute.s = new.encode()
    return bytes(model.SerializeToString(deterministic=True))


def _parsed(epcontext: bytes) -> onnx.ModelProto:
    """Return the parsed model; raise WorkerError if it is invalid.

    A remote worker can send any bytes.
    """
    import onnx
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]  # no stubs

    try:
        model: onnx.ModelProto = onnx.ModelProto.FromString(epcontext)
    except DecodeError as exc:
        raise WorkerError(
            "the EPContext model that came with the binary is not an ONNX model"
        ) from exc
    return model


def missing_in_epcontext(
    outputs: Sequence[str], epcontext: bytes, binary: str
) -> Iterator[MissingOutput]:
    """Yield the outputs that the EPContext model does not take from `binary`, with the reason."""
    graph = _parsed(epcontext).graph
    makers = {name: node for node in graph.node for name in node.output}
    constants = {item.name for item in graph.initializer}
    inputs = {item.name for item in graph.input}
    for name in outputs:
        node = makers.get(name)
        if node is not None and node.op_type == _EPCONTEXT and _is_of(node, binary):
            continue
        if node is None:
            reason = "a constant" if name in constants else "an input" if name in inputs else ""
            yield MissingOutput(name, reason)
        elif node.op_type == _EPCONTEXT:
            yield MissingOutput(name, "in another binary")
        else:
            yield MissingOutput(name, f"{node.op_type} on the CPU")


def _is_of(node: onnx.NodeProto, binary: str) -> bool:
    """Return True if a node names this binary, or names none because its `main_context` is 0."""
    attributes = {item.name: item for item in node.attribute}
    if "main_context" in attributes and not attributes["main_context"].i:
        return True
    return "ep_cache_context" in attributes and attributes["ep_cache_context"].s == binary.encode()


# --- Options and results --------------------------------------------------------------------------


Progress = Callable[[str], None]  # called with a short description of the current step

_EVIDENCE = 6  # lines


def no_progress(_text: str) -> None:
    """Ignore progress messages (the default callback)."""


class HtpPrecision(Enum):
    """Data type of the model's floating-point values on HTP."""

    FP16 = "fp16"  # how HTP computes floats; a quantized model stays unchanged
    INT8 = "int8"  # activations and weights of 8 bits
    W8A16 = "w8a16"  # activations of 16 bits, weights of 8


@dataclass(frozen=True, slots=True)
class CompileOptions:
    """All settings that change the binary, and the limits of the compile."""

    precision: HtpPrecision = HtpPrecision.FP16
    vtcm_mb: int | None = None  # None: the SoC's largest
    opt_level: int | None = None  # 1 to 3; None: the library's own, which is 2
    memhandle: bool = False  # inputs and outputs carry the Qmem hint
    trust: bool = False  # the model is a library, whose code is executed
    partition: bool = False  # leave nodes that QNN cannot take to the CPU
    dims: Mapping[str, int] = field(default_factory=dict)
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    values: Mapping[str, InputValue] = field(default_factory=dict)
    calibration: Path | None = None
    samples: int = 10  # of random calibration data
    seed: int = 0
    log_level: str = "verbose"  # info is cheaper but does not log VTCM and limit
    log_file: Path | None = None
    time_limit_s: float = TIME_LIMIT_S  # of reading, quantizing, compiling and loading together
    memory_limit: int | None = None  # None: three quarters of the machine


@dataclass(frozen=True, slots=True)
class Compiled:
    """A context binary, and the settings, log and outcome of its compile."""

    model: Path
    soc: Soc
    options: CompileOptions
    library: str  # package and version
    context: HtpContext
    log: CompileLog
    outcome: RequestOutcome
    epcontext: bytes | None  # EPContext model that refers to the binary as `binary_name`
    binary_name: str
    on_htp: int  # nodes: of a DLC those of QNN, else as ONNX Runtime counts after optimising
    on_cpu: tuple[OnnxNode, ...] = ()
    path: Path | None = None  # path of the binary
    binary: bytes | None = None  # the bytes, if no path was given
    notes: tuple[str, ...] = ()
    missing_outputs: tuple[MissingOutput, ...] = ()  # outputs of the model that the binary lacks
    model_outputs: int = 0  # number of outputs of the model, if some are missing
    run: PartitionCheck | None = None  # trial run, if nodes stay on the CPU


@dataclass(frozen=True, slots=True)
class CompileFailure:
    """Why a compile produced no binary, with the evidence."""

    model: Path
    soc: Soc
    options: CompileOptions
    library: str
    stage: str  # quantize, partition or compile
    why: Words  # one sentence with a suggestion
    outcome: RequestOutcome
    log: CompileLog
    code: int | None = None  # error code of QNN
    refusal: Refusal | None = None  # the decisive line of the log
    unsupported: tuple[RefusedNode, ...] = ()
    line: str = ""  # first decisive line of the log
    all_refused: bool = True  # no node is left that could be compiled

    @property
    def evidence(self) -> tuple[str, ...]:
        """The decisive log line, the lines after it, and the line that ends the compile."""
        texts = [line.text for line in self.outcome.log]
        index = texts.index(self.line) if self.line in texts else len(texts)
        mark = UNSUPPORTED.decode()
        last = next((text for text in texts if mark in text), self.outcome.sentence)
        known = texts[index : index + _EVIDENCE] or [self.line]
        return tuple(filter(None, dict.fromkeys((*known, last))))

    @property
    def sentence(self) -> str:
        """The reason as text, with settings named as in Python."""
        return join_words(self.why)

    @property
    def code_name(self) -> str:
        """The name of the error code in QNN."""
        return "" if self.code is None else code_name(self.code)


def cluster_options(options: CompileOptions) -> CompileOptions:
    """Return options that are valid on other machines; raise UsageError if any is a local file."""
    if any(isinstance(value, Path) for value in options.values.values()):
        raise UsageError("on a cluster, input values must be numbers, not files")
    return replace(options, log_file=None)


def compile_options(options: CompilerOptions) -> CompileOptions:
    """Return compile options for the options of a verb."""
    return CompileOptions(
        precision=HtpPrecision(options.precision)
        if isinstance(options, HtpOptions)
        else HtpPrecision.FP16,
        vtcm_mb=options.vtcm_mb if isinstance(options, HtpModelOptions) else None,
        memory_limit=options.memory_limit if isinstance(options, SweepOptions) else None,
        time_limit_s=options.time_limit,
        **options.sizes,
    )


# --- Why a compile failed, in one sentence with a suggestion --------------------------------------


_TENSOR = lazy_pattern(r"tensor_name: (\S{1,200})")
_PREFIX = lazy_pattern(
    r"^\[ONNXRuntimeError\] : \d{1,3} : \w{1,40} : (?:Exception during loading: )?"
    # source position of the message
    r"(?:/\S{1,300}\.(?:h|cc):\d{1,6} [^(]{1,500}\(.{0,2000}?\) (?=[A-Z]))?"
)
_SHOWN = 5
_REASONS = 3
# Types that a tensor between two parts of a cut model cannot have.
_NOT_BETWEEN = ("float64", "uint64", "bfloat16", "string", "complex")
_WIDE_TYPES = {
    "float64": "32-bit floats",
    "bfloat16": "32-bit floats",
    "uint64": "32-bit integers",
}
_FEW = 2


def failure_sentence(
    stage: str,
    soc: Soc,
    outcome: RequestOutcome,
    log: CompileLog,
    unsupported: tuple[RefusedNode, ...],
    *,
    decisive: str = "",
    quantized: bool = False,
) -> Words:
    """Return a sentence with the failed stage, the cause, the numbers and the cure.

    `decisive` is the first log line with the reason. If the model is already `quantized`, the
    sentence does not suggest quantization.
    """
    if unsupported:
        return _unsupported(soc, unsupported, quantized=quantized)
    if outcome.kind == "timeout":
        problem = f"{stage} was {outcome.sentence}; allow more time with "
        return problem, Setting("time_limit_s"), ", or try a smaller input or another VTCM size"
    if outcome.kind == "memory":
        used = "" if outcome.peak_rss is None else f" at {format_size(outcome.peak_rss)}"
        problem = f"{stage} ran out of host memory{used}; use a larger "
        return problem, Setting("memory_limit"), " or a machine with more memory"
    if outcome.kind == "crashed":
        end = f"the log ends with {quote(outcome.tail[-1])}" if outcome.tail else "the log is empty"
        return f"{stage} failed: {outcome.sentence}; {end}"
    if log.cause is not None:
        return _refusal(soc, log.cause, outcome.log)
    if outcome.is_done:
        why = f": {meaning(decisive, soc.name)}" if decisive else ", so no binary was made"
        return f"QNN supports no node of the model{why}"
    code = "" if outcome.code is None else f"{code_name(outcome.code)} ({outcome.code}): "
    reason = _short(meaning(_PREFIX.sub("", outcome.sentence), soc.name)).rstrip(".")
    if decisive and decisive not in outcome.sentence:
        return (
            f"{stage} failed: {code}{meaning(decisive, soc.name)}; the last log line is: {reason}"
        )
    return f"{stage} failed: {code}{reason}"


def needs_int8(failure: CompileFailure) -> bool:
    """Return True if a float model was refused because the SoC does not compute in FP16."""
    return failure.soc.fp16 is False and any("FP16" in node.reason for node in failure.unsupported)


def can_leave_rest(failure: CompileFailure) -> bool:
    """Return True if the rest of a model might compile without the nodes that QNN refused."""
    types = (text for node in failure.unsupported for text in (*node.inputs, *node.outputs))
    is_cut = failure.stage == "partition" and not failure.all_refused and not needs_int8(failure)
    return is_cut and not any(text.startswith(_NOT_BETWEEN) for text in types)


def _unsupported(soc: Soc, nodes: Sequence[RefusedNode], *, quantized: bool) -> Words:
    """Return a sentence that lists the refused nodes by reason, then the cures that can help."""
    by_reason: dict[str, list[RefusedNode]] = {}
    for node in nodes[:_SHOWN]:
        by_reason.setdefault(node.reason, []).append(node)
    parts = [
        f"{', '.join(_named(node, few=len(nodes) <= _FEW) for node in some)}"
        f"{f': {reason}' if reason else ''}"
        for reason, some in by_reason.items()
    ]
    more = f", and {len(nodes) - _SHOWN} more" if len(nodes) > _SHOWN else ""
    count = "a node" if len(nodes) == 1 else f"{len(nodes)} nodes"
    verdict = f"QNN does not support {count} on {soc.name}: {'; '.join(parts[:_REASONS])}{more}"
    return chain_words(verdict, *_cures(soc, nodes, quantized=quantized))


def _named(node: RefusedNode, *, few: bool) -> str:
    """Return a node's name and operator and, if `few` is true, its inputs and outputs."""
    takes, gives = ", ".join(node.inputs), ", ".join(node.outputs)
    types = f": {takes}{' to ' if takes and gives else ''}{gives}" if few and takes + gives else ""
    return f"{quote(node.name)} ({node.operator}{types})"


def _cures(soc: Soc, nodes: Sequence[RefusedNode], *, quantized: bool) -> list[Words]:
    types = [text for node in nodes for text in (*node.inputs, *node.outputs)]
    wide = [word for word in _WIDE_TYPES if any(text.startswith(word) for text in types)]
    better = dict.fromkeys(_WIDE_TYPES[word] for word in wide)
    cures: list[Words] = [f"; export the model with {wider}" for wider in better]
    if soc.fp16 is False and not quantized and any("FP16" in node.reason for node in nodes):
        cures.append(("; try ", Setting("precision", "int8")))
    return cures


def _refusal(soc: Soc, refusal: Refusal, log: Sequence[LogLine]) -> str:
    need, limit = refusal.need or 0, refusal.limit
    if refusal.cause is Cause.GRAPH_LIMIT and limit is None:
        return (
            f"the graph's tensors in DDR need {need:,} bytes, more than the compiler can "
            "address; use a smaller batch or input, or cut the model"
        )
    if refusal.cause is Cause.GRAPH_LIMIT and limit is not None:
        return (
            f"the graph needs {need:,} bytes, {need - limit:,} over the limit of {limit:,} "
            f"for one graph on {soc.name}; use a smaller batch or input, use int8, or cut "
            "the model"
        )
    if refusal.cause is Cause.OP_OVER_VTCM:
        return (
            f"operator {quote(refusal.operator)} needs {need:,} bytes of VTCM at one time "
            "and cannot be split; use more VTCM, a smaller input, int8, or another SoC"
        )
    if refusal.cause is Cause.PD_FULL:
        return f"no process domain has room for {need:,} bytes; load fewer contexts"
    if refusal.cause is Cause.BAD_DEVICE:
        return f"SoC {soc.name} (id {soc.model_id}) is unknown to the library"
    if refusal.cause is Cause.OP_NOT_BUILDABLE:
        return f"the compiler cannot build operator {quote(refusal.operator)} for {soc.name}"
    if refusal.cause is Cause.TENSOR_TYPE:
        return _tensor_refused(soc, refusal, log)
    return f"the host ran out of memory: {_short(refusal.line)}"


def _tensor_refused(soc: Soc, refusal: Refusal, log: Sequence[LogLine]) -> str:
    names = (match[1] for line in log if (match := _TENSOR.search(line.text)))
    name = next(names, "")
    which = f"tensor {quote(name)}" if name else "a tensor"
    return (
        f"{which} cannot be passed to QNN: {meaning(refusal.line, soc.name)}; export the "
        "model with a type that QNN has"
    )


def _short(text: str) -> str:
    shown = printable(text)
    return shown if len(shown) <= 300 else f"{shown[:297]}..."
