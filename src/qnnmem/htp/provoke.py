"""Make the real library fail on demand, on a small crafted input."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Literal, NamedTuple

from msgspec.structs import replace

from qnnmem.errors import CannotTell, Setting, Words, chain_words
from qnnmem.flags import flag, with_flags
from qnnmem.htp.compile import (
    Compiled,
    CompileFailure,
    CompileOptions,
    LibraryBench,
    Progress,
    compile_model,
    no_progress,
    worker_or_new,
)
from qnnmem.htp.compile.compiled import failure_sentence
from qnnmem.htp.log import Cause, CompileLog, LogLine
from qnnmem.htp.measure import Loaded, load_binaries
from qnnmem.htp.requests import RequestOutcome
from qnnmem.htp.worker import Worker
from qnnmem.qnn.codes import code_name
from qnnmem.results.provoked import Attempt, ProvokedResult
from qnnmem.targets.socs import MIB, Soc, pd_budget


class FailureKind(Enum):
    """The kinds of failure that can be provoked."""

    GRAPH_LIMIT = "graph-limit"
    OP_OVER_VTCM = "op-over-vtcm"
    PD_FULL = "pd-full"
    HOST_MEMORY = "host-memory"
    BAD_BINARY = "bad-binary"


class Provoked(NamedTuple):
    """A provoked failure: its record, log and input."""

    record: ProvokedResult
    log_text: bytes  # the whole log, with paths of this machine replaced
    input_bytes: bytes


def record_of(
    kind: FailureKind,
    soc: Soc,
    library: str,
    stage: Literal["compile", "load"],
    attempts: Sequence[Attempt],
    sentence: Words,
    *,
    input_name: str,
    code: int | None = None,
    log: CompileLog | None = None,
    lines: Sequence[str] = (),
    seconds: float = 0.0,
    peak_rss: int | None = None,
) -> ProvokedResult:
    """Return the record of a provoked failure; the last attempt is the one that failed."""
    log = log or CompileLog()
    cause, option = log.cause, flag(Setting("soc", soc.name))
    stem = f"{kind.value}-{soc.name}"
    return ProvokedResult(
        kind=kind.value,
        soc=soc.name,
        soc_model=soc.model_id,
        library=library,
        library_version=log.library_version,
        command=f"qnnmem provoke {kind.value} {option} -o .",
        as_expected=_is_expected(kind, attempts, code, log),
        stage=stage,
        code=code,
        sentence=with_flags(sentence),
        cause=None if cause is None else cause.cause.value,
        need=None if cause is None else cause.need,
        limit=None if cause is None else cause.limit,
        lines=tuple(lines),
        log_file=f"{stem}.log",
        input_file=f"{stem}.{input_name.rpartition('.')[2]}",
        attempts=tuple(attempts),
        seconds=round(seconds, 3),
        peak_rss=peak_rss,
    )


def _is_expected(
    kind: FailureKind, attempts: Sequence[Attempt], code: int | None, log: CompileLog
) -> bool:
    """Return True if the library failed for the intended reason."""
    if kind is FailureKind.BAD_BINARY:
        return bool(code)
    failed = attempts[-1].outcome != "done" or bool(code)
    return failed and any(refusal.cause is Cause(kind.value) for refusal in log.refusals)


# --- Small models that need much memory: some hundred bytes of ONNX each, all in 8 bits -----------
# 8-bit models compile for every SoC, including those that do not compute in FP16.


_SIDE = 1024  # an input of h x 1024 x 1024 has h MiB


def sliced_inputs(count: int, mib: int) -> bytes:
    """Return a model that has `count` inputs of `mib` MiB and reads one row of each input."""
    from onnx import helper

    shape, row = [1, mib, _SIDE, _SIDE], [1, 1, 1, _SIDE]
    ends = _constants("begin", [0, 0, 0, 0]) + _constants("end", row)
    nodes, inputs, outputs = [], [], []
    for number in range(count):
        cut = helper.make_node(
            "Slice", [f"xf{number}", "begin", "end"], [f"yf{number}"], f"slice{number}"
        )
        nodes += [_dequantized(f"x{number}", f"xf{number}"), cut]
        nodes += [_quantized(f"yf{number}", f"y{number}")]
        inputs.append((f"x{number}", shape))
        outputs.append((f"y{number}", row))
    return _model(nodes, inputs, outputs, ends)


def wide_softmax(length: int) -> bytes:
    """Return a softmax model that cannot be tiled, because each output needs every input."""
    from onnx import helper

    nodes = [
        _dequantized("x", "xf"),
        helper.make_node("Softmax", ["xf"], ["yf"], "softmax", axis=-1),
        _quantized("yf", "y"),
    ]
    return _model(nodes, [("x", [1, length])], [("y", [1, length])], [])


def small_convolution() -> bytes:
    """Return a convolution that compiles for any SoC in a second."""
    import numpy
    from onnx import helper, numpy_helper

    channels, shape = 32, [1, 32, 16, 16]
    numbers = numpy.random.default_rng(0).integers(0, 256, (channels, channels, 1, 1))
    nodes = [
        _dequantized("w", "wf"),
        _dequantized("x", "xf"),
        helper.make_node("Conv", ["xf", "wf"], ["yf"], "conv"),
        _quantized("yf", "y"),
    ]
    weights = [numpy_helper.from_array(numbers.astype("uint8"), "w")]
    return _model(nodes, [("x", shape)], [("y", shape)], weights)


def _dequantized(source: str, target: str) -> Any:
    from onnx import helper

    return helper.make_node("DequantizeLinear", [source, "scale", "zero"], [target], target)


def _quantized(source: str, target: str) -> Any:
    from onnx import helper

    return helper.make_node("QuantizeLinear", [source, "scale", "zero"], [target], target)


def _constants(name: str, values: Sequence[int]) -> list[Any]:
    import numpy
    from onnx import numpy_helper

    return [numpy_helper.from_array(numpy.asarray(values, "int64"), name)]


def _model(
    nodes: Sequence[Any],
    inputs: Sequence[tuple[str, list[int]]],
    outputs: Sequence[tuple[str, list[int]]],
    constants: Sequence[Any],
) -> bytes:
    import numpy
    from onnx import TensorProto, helper, numpy_helper

    scale = [
        numpy_helper.from_array(numpy.asarray(1 / 256, "float32"), "scale"),
        numpy_helper.from_array(numpy.asarray(0, "uint8"), "zero"),
    ]
    given, wanted = (
        [helper.make_tensor_value_info(name, TensorProto.UINT8, shape) for name, shape in side]
        for side in (inputs, outputs)
    )
    graph = helper.make_graph(list(nodes), "provoked", given, wanted, [*scale, *constants])
    opsets = [helper.make_opsetid("", 17)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    blob: bytes = model.SerializeToString(deterministic=True)
    return blob


# --- The library, with its whole log --------------------------------------------------------------


_LINES = 60  # lines in a record
_RELEVANT = ("PD", "QnnGraph_finalize done", "terminate called")


@dataclass(frozen=True)
class LoggedLibrary(LibraryBench):
    """A worker that compiles and loads crafted inputs, and stores the log of the last attempt."""

    time_limit_s: float

    @property
    def name(self) -> str:
        """Package and version of the library."""
        return self.worker.library.name

    @property
    def log_file(self) -> Path:
        """Path of the whole log of the last attempt."""
        return self.folder / "log.txt"

    @property
    def binary(self) -> Path:
        """Path of the context binary of the last successful compile."""
        return self.folder / "model.bin"

    def compile(
        self, what: str, model: bytes, memory_limit: int | None = None
    ) -> Compiled | CompileFailure:
        """Compile a crafted model to `binary` and return the result."""
        self.progress(f"compiling {what}")
        path = self.folder / "model.onnx"
        path.write_bytes(model)
        options = CompileOptions(
            time_limit_s=self.time_limit_s, memory_limit=memory_limit, log_file=self.log_file
        )
        return compile_model(path, self.soc, options, output=self.binary, worker=self.worker)

    def load(self, what: str, binaries: Sequence[bytes]) -> Loaded:
        """Load binaries one after another into one process domain, and return the result."""
        self.progress(f"loading {what}")
        paths = [self.folder / f"load{number}.bin" for number in range(len(binaries))]
        for path, blob in zip(paths, binaries, strict=True):
            path.write_bytes(blob)
        return load_binaries(
            self.worker,
            paths,
            self.soc.model_id,
            time_limit_s=self.time_limit_s,
            log_file=self.log_file,
        )

    def compiled(self, what: str, model: bytes) -> bytes:
        """Return the binary of a model that must compile; raise CannotTell if it does not."""
        result = self.compile(what, model)
        if isinstance(result, CompileFailure):
            why = f"{what} did not compile, so it could not be loaded: "
            raise CannotTell(chain_words(why, result.why))
        return self.binary.read_bytes()

    def log_text(self) -> bytes:
        """Return the whole log, with paths of this machine replaced."""
        text = self.log_file.read_bytes() if self.log_file.is_file() else b""
        for path, word in (
            (self.folder, b"<work>"),
            (self.worker.library.folder, b"<library>"),
            (self.folder.parent, b"<temporary>"),
            (Path.home(), b"<home>"),
        ):
            if path != Path(path.anchor):
                text = text.replace(bytes(path), word)
        return text


def relevant_lines(outcome: RequestOutcome) -> tuple[str, ...]:
    """Return the last log lines about errors, process domains and stages."""
    return tuple([line.text for line in outcome.log if _matters(line)][-_LINES:])


def _matters(line: LogLine) -> bool:
    return line.level == "E" or any(word in line.text for word in _RELEVANT)


# --- Recipes: inputs to compile or load until the library fails -----------------------------------


_GIB = 1 << 30
_LEAST_LIMIT, _MOST_LIMIT, _LIMIT_STEP = 256 * MIB, 2048 * MIB, 16 * MIB


def graph_limit(library: LoggedLibrary) -> Provoked:
    """Provoke a refusal with inputs a few MiB above the limit of one graph.

    Inputs a few MiB below the limit are compiled first.
    """
    limit = library.soc.compile_limit
    if limit is None:
        raise CannotTell(f"the compile limit of {library.soc.name} is unknown")
    count = -(-limit.value // _GIB)
    fitting = limit.value // MIB // count
    tried = []
    for mib in (fitting - 1, fitting + 1):
        attempt = f"{count} inputs of {mib:,} MiB, limit {limit.value // MIB:,} MiB"
        model = sliced_inputs(count, mib)
        result = library.compile(attempt, model)
        tried.append(_attempt(attempt, result))
        if isinstance(result, CompileFailure):
            break
    return _of_compile(FailureKind.GRAPH_LIMIT, library, result, model, tried)


def op_over_vtcm(library: LoggedLibrary) -> Provoked:
    """Provoke a failure with a softmax that is an eighth larger than the whole VTCM."""
    vtcm = library.soc.vtcm_bytes
    if vtcm is None:
        raise CannotTell(f"the VTCM of {library.soc.name} is unknown")
    length = vtcm.value // 8 * 9
    attempt = f"a softmax over {length:,} bytes, with {vtcm.value:,} bytes of VTCM"
    model = wide_softmax(length)
    result = library.compile(attempt, model)
    return _of_compile(
        FailureKind.OP_OVER_VTCM, library, result, model, [_attempt(attempt, result)]
    )


def host_memory(library: LoggedLibrary) -> Provoked:
    """Provoke a failure with the largest address space in which a harmless model still fails.

    The log must state a reason for the failure. With less memory, other parts fail before the
    compiler does. Close to the limit the compiler might crash without stating a reason.
    """
    low, high = _LEAST_LIMIT, _MOST_LIMIT
    failure = _in_space(library, low)
    tried = [failure]
    while tried[0].record.failed and high - low > _LIMIT_STEP:
        middle = (low + high) // 2
        tried.append(_in_space(library, middle))
        if tried[-1].record.failed:
            low = middle
            if tried[-1].record.as_expected or not failure.record.as_expected:
                failure = tried[-1]
        else:
            high = middle
    others = [
        attempt for trial in tried if trial is not failure for attempt in trial.record.attempts
    ]
    record = replace(failure.record, attempts=(*others, *failure.record.attempts))
    return failure._replace(record=record)


def _in_space(library: LoggedLibrary, limit: int) -> Provoked:
    attempt = f"a small convolution in {limit // MIB:,} MiB of address space"
    model = small_convolution()
    result = library.compile(attempt, model, limit)
    return _of_compile(FailureKind.HOST_MEMORY, library, result, model, [_attempt(attempt, result)])


def _of_compile(
    kind: FailureKind,
    library: LoggedLibrary,
    result: Compiled | CompileFailure,
    model: bytes,
    tried: Sequence[Attempt],
) -> Provoked:
    failure = result if isinstance(result, CompileFailure) else None
    record = record_of(
        kind,
        library.soc,
        library.name,
        "compile",
        tried,
        "the model compiled" if failure is None else failure.why,
        input_name="model.onnx",
        code=None if failure is None else failure.code,
        log=result.log,
        lines=() if failure is None else relevant_lines(result.outcome),
        seconds=result.outcome.seconds,
        peak_rss=result.outcome.peak_rss,
    )
    return Provoked(record, library.log_text(), model)


def _attempt(what: str, result: Compiled | CompileFailure) -> Attempt:
    code = result.code if isinstance(result, CompileFailure) else 0
    return Attempt(what, result.outcome.kind, code)


def pd_full(library: LoggedLibrary) -> Provoked:
    """Fill a process domain: load a small binary repeatedly; each context has 1 GiB of inputs."""
    binary = library.compiled("a model with 1 GiB of inputs", sliced_inputs(1, 1024))
    count = pd_budget().value // _GIB + 1
    attempt = f"{count} contexts of 1 GiB, budget {pd_budget().value:,} bytes"
    loaded = library.load(attempt, [binary] * count)
    names = [f"context {number + 1} of {count}, 1 GiB of inputs" for number in range(count)]
    return _of_load(FailureKind.PD_FULL, library, loaded, binary, names)


def bad_binary(library: LoggedLibrary) -> Provoked:
    """Provoke failures with damaged copies of a good binary: all zeros, overwritten, truncated."""
    good = library.compiled("a small convolution", small_convolution())
    damaged = {
        "a file of zeros, as long as the binary": bytes(len(good)),
        "the binary with zeros in bytes 200 to 300": good[:200] + bytes(100) + good[300:],
        "the binary without its last byte": good[:-1],
    }
    attempt = f"{len(damaged)} damaged binaries"
    loaded = library.load(attempt, [good, *damaged.values()])
    names = ["a good binary", *damaged]
    return _of_load(FailureKind.BAD_BINARY, library, loaded, good[:-1], names)


def _of_load(
    kind: FailureKind,
    library: LoggedLibrary,
    loaded: Loaded,
    binary: bytes,
    names: Sequence[str],
) -> Provoked:
    outcome = loaded.outcome
    if loaded.codes:
        tried = [
            Attempt(name, "refused" if code else "done", code)
            for name, code in zip(names, loaded.codes, strict=True)
        ]
    else:
        tried = [Attempt(names[-1], outcome.kind, outcome.code)]
    record = record_of(
        kind,
        library.soc,
        library.name,
        "load",
        tried,
        _why(library.soc, tried[-1], loaded),
        input_name="model.bin",
        code=tried[-1].code or None,
        log=loaded.log,
        lines=relevant_lines(outcome),
        seconds=outcome.seconds,
        peak_rss=outcome.peak_rss,
    )
    return Provoked(record, library.log_text(), binary)


def _why(soc: Soc, last: Attempt, loaded: Loaded) -> Words:
    if not loaded.outcome.is_done or loaded.log.cause is not None:
        return failure_sentence("loading", soc, loaded.outcome, loaded.log, ())
    if not last.code:
        return "the binary was loaded"
    return f"{last.what}: {code_name(last.code)} ({last.code})"


TIME_LIMIT_S = 120.0


def provoke(
    kind: FailureKind,
    soc: Soc,
    *,
    worker: Worker | None = None,
    time_limit_s: float = TIME_LIMIT_S,
    progress: Progress | None = None,
) -> Provoked:
    """Try to make the library fail; return a record, even if the library did not fail."""
    recipe = _RECIPES[kind]
    with worker_or_new(worker) as used, tempfile.TemporaryDirectory(".qnnmem") as folder:
        say = progress or no_progress
        return recipe(LoggedLibrary(soc, used, Path(folder), time_limit_s, progress=say))


_RECIPES: dict[FailureKind, Callable[[LoggedLibrary], Provoked]] = {
    FailureKind.GRAPH_LIMIT: graph_limit,
    FailureKind.OP_OVER_VTCM: op_over_vtcm,
    FailureKind.PD_FULL: pd_full,
    FailureKind.HOST_MEMORY: host_memory,
    FailureKind.BAD_BINARY: bad_binary,
}
