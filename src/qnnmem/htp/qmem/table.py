"""Raw or memhandle: the cost of each way to pass inputs and outputs to a model.

There are four combinations, because the mode is chosen twice: when the graph is prepared and at
each execution. A raw tensor is copied to and from a buffer of the backend; registered memory of the
application is used in place.
"""

from __future__ import annotations

import hashlib
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

from msgspec import structs

from qnnmem.deadline import Deadline
from qnnmem.errors import CannotTell, NotCompiled, Setting, UsageError, Words, chain_words
from qnnmem.flags import with_flags
from qnnmem.htp.binary.context import HtpContext, HtpGraph
from qnnmem.htp.binary.read import read_context
from qnnmem.htp.carriers import is_carrier
from qnnmem.htp.carriers.carrier_bill import context_of
from qnnmem.htp.compile import CompileFailure, CompileOptions, Progress, worker_or_new
from qnnmem.htp.library import has_library, library_or
from qnnmem.htp.measure import compile_target, load_target, measure, stored_bill
from qnnmem.htp.qmem.layer import Compute, IoLayer, LibraryGraph, Places, io_mode, numpy_type
from qnnmem.htp.qmem.memory import (
    ALIGNMENT,
    PAGE,
    HtpMemDescriptor,
    MemRegistry,
    SharedBuffer,
    packed_offsets,
)
from qnnmem.htp.qmem.misuse import obstacle_to_misuse, try_misuses
from qnnmem.htp.worker import TIME_LIMIT_S, Worker
from qnnmem.provenance import Origin, Sourced
from qnnmem.qnn.enums import DataType
from qnnmem.qnn.shared_memory import MemHandle
from qnnmem.qnn.tensor import TensorInfo
from qnnmem.results.footprint import Bill
from qnnmem.results.qmem import (
    CopyTime,
    IoMode,
    MisuseAnswer,
    QmemChoice,
    QmemFinding,
    QmemFlag,
    QmemResult,
    QmemRow,
    QmemRun,
    RanRow,
)
from qnnmem.targets.socs import Soc
from qnnmem.text import quote
from qnnmem.units import format_size, round_up

COMBINATIONS = tuple((prepared, executed) for prepared in IoMode for executed in IoMode)

_MOST_COPIED = 32 << 20  # bytes per copy of a measurement; larger sizes are extrapolated
_COPY_TIME_S = 0.05
_MATRIX = "IO layer emulated according to the vendor's description of Qmem graphs"


def qmem_of(
    context: HtpContext, bill: Bill, copy_time: Callable[[int], CopyTime] | None = None
) -> QmemResult:
    """Return the costs of all four combinations for a context.

    `copy_time` returns the time to copy a number of bytes; by default it is measured.
    """
    tensors = tuple(tensor for graph in context.graphs for tensor in graph.tensors)
    _check_known(tensors)
    if bill.io is None or bill.io_exact is None:
        raise CannotTell("the binary has no graph, so it has no inputs or outputs")
    hinted = sum(io_mode(tensor) is IoMode.MEMHANDLE for tensor in tensors)
    rows = tuple(_rows(context, bill, copy_time or measure_copy))
    # Least memory first, then fewest copied bytes: this selects memhandle at both steps.
    best = min(rows, key=lambda row: (row.internal, row.copied))
    result = QmemResult(
        file=bill.file,
        soc=bill.soc,
        tensors=len(tensors),
        memhandle_tensors=hinted,
        io_exact=bill.io_exact,
        io_stored=bill.io,
        process_domain_budget=bill.process_domain_budget,
        rows=rows,
        recommended=QmemChoice(best.prepared, best.executed),
        flags=memhandle_flags(),
        missing=bill.missing_sentence,
    )
    return structs.replace(result, advice=advise(result), traps=tuple(traps(result)))


def _check_known(tensors: tuple[TensorInfo, ...]) -> None:
    for tensor in tensors:
        if tensor.data_type is DataType.UNDEFINED:
            raise CannotTell(f"the data type of tensor {quote(tensor.name)} is unknown")


def _rows(
    context: HtpContext, bill: Bill, copy_time: Callable[[int], CopyTime]
) -> Iterator[QmemRow]:
    graphs = context.graphs
    inputs = sum(tensor.nbytes for graph in graphs for tensor in graph.inputs)
    outputs = sum(tensor.nbytes for graph in graphs for tensor in graph.outputs)
    took = copy_time(inputs + outputs)
    none = CopyTime(0, Origin.COMPUTED, "nothing is copied")
    for prepared, executed in COMBINATIONS:
        raw = executed is IoMode.RAW
        kept = prepared is IoMode.RAW
        at_load = _internal(bill, kept)
        at_first = _internal(bill, raw and not kept)
        shared = 0 if raw else shared_bytes(context)
        pages = f"tensors at multiples of {ALIGNMENT} in one buffer of whole pages"
        yield QmemRow(
            prepared=prepared,
            executed=executed,
            reserved_at_load=at_load,
            reserved_at_first_inference=at_first,
            copied_in=_computed(inputs if raw else 0, "inputs, elements times element size"),
            copied_out=_computed(outputs if raw else 0, "outputs, elements times element size"),
            copy_time=took if raw else none,
            shared_memory=_computed(shared, pages),
            process_domain_left=_room(bill, at_load.value + at_first.value + shared),
        )


def _internal(bill: Bill, reserved: bool) -> Sourced:
    size = bill.io.value if reserved and bill.io is not None else 0
    source = "" if bill.io is None else bill.io.source
    return _computed(size, f"{_MATRIX}; size from {source}")


def shared_bytes(context: HtpContext) -> int:
    """Return the size of shared buffers, one per graph for all its inputs and outputs."""
    return sum(
        round_up(sum(round_up(t.nbytes, ALIGNMENT) for t in graph.tensors), PAGE)
        for graph in context.graphs
    )


def _room(bill: Bill, io: int) -> Sourced | None:
    """Return how many bytes of the process domain are free if inputs and outputs map `io` bytes."""
    if bill.process_domain is None or bill.io is None:
        return None
    domain = bill.process_domain
    left = bill.process_domain_budget.value - (domain.high.value - bill.io.value + io)
    source = "budget minus the loader's estimate, with the mapped memory in place of its IO"
    return _computed(left, source if domain.is_exact else f"{source}; at least")


def _computed(value: int, source: str) -> Sourced:
    return Sourced(value, Origin.COMPUTED, source)


def measure_copy(size: int) -> CopyTime:
    """Return the measured time to copy `size` bytes on this host."""
    part = min(size, _MOST_COPIED)
    source, target = memoryview(bytearray(part)), memoryview(bytearray(part))
    target[:] = source  # the first write allocates the pages
    best, end = float("inf"), time.perf_counter() + _COPY_TIME_S
    while True:
        started = time.perf_counter_ns()
        target[:] = source
        now = time.perf_counter_ns()
        best = min(best, now - started)
        if now / 1e9 > end:
            break
    how = "best of several copies on this host, not on a device"
    if part < size:
        how += f"; {part:,} bytes measured, scaled up"
    scaled = round(best * size / part) if part else 0
    return CopyTime(scaled, Origin.MEASURED, how)


# --- Advice: the option of each tool that selects memhandle ---------------------------------------


_FLAGS: tuple[tuple[str, Literal["prepare", "execute", "both"], Words], ...] = (
    (
        "qnnmem",
        "prepare",
        ("prepare ", Setting("backend", "htp"), " ", Setting("io_mem_type", "memhandle")),
    ),
    (
        "qnn-context-binary-generator",
        "prepare",
        "--input_output_tensor_mem_type memhandle",
    ),
    ("qnn-net-run", "execute", "--shared_buffer (Android only)"),
    (
        "ONNX Runtime",
        "both",
        "provider option enable_htp_shared_memory_allocator=1; at run time use values from "
        "that allocator, because plain arrays are copied",
    ),
    ("ExecuTorch", "both", "generate_qnn_executorch_compiler_spec(shared_buffer=True)"),
    ("LiteRT", "prepare", "--qualcomm_graph_io_tensor_mem_type=memhandle (its default)"),
)


def memhandle_flags() -> tuple[QmemFlag, ...]:
    """Return, for each tool, the option that selects memhandle."""
    return tuple(QmemFlag(tool, step, with_flags(text)) for tool, step, text in _FLAGS)


def advise(qmem: QmemResult) -> str:
    """Return the recommendation, which is the first sentence of every report."""
    if qmem.tensors == 0 or qmem.io_exact.value == 0:
        return "no input and no output: raw and memhandle cost the same"
    raw = qmem.row(IoMode.RAW, IoMode.RAW)
    saved = f"saves {_size(raw.internal)} of IO memory and {_size(raw.copied)} of copies"
    if qmem.prepared is IoMode.MEMHANDLE:
        return (
            "prepared for memhandle: pass registered shared memory in each execution; this "
            f"{saved} per inference"
        )
    if qmem.prepared is None:
        return (
            f"{qmem.memhandle_tensors} of {qmem.tensors} inputs and outputs are prepared for "
            "memhandle: prepare all of them, and pass registered shared memory; compared "
            f"with raw, that {saved} per inference"
        )
    return f"prepare and execute with memhandle: this {saved} per inference"


def traps(qmem: QmemResult) -> Iterator[str]:
    """Yield warnings about surprising combinations, with this model's numbers."""
    wasted = qmem.row(IoMode.RAW, IoMode.MEMHANDLE).internal
    late = qmem.row(IoMode.MEMHANDLE, IoMode.RAW).reserved_at_first_inference.value
    if wasted:
        yield f"prepared raw, executed memhandle: {_size(wasted)} are reserved but never used"
    if late:
        yield (
            f"prepared memhandle, executed raw: {_size(late)} are reserved in the first "
            "inference, which makes that inference slow; ONNX Runtime does this with plain arrays"
        )
    if qmem.memhandle_tensors < qmem.tensors:
        yield (
            "the memory type of each tensor is also in the compiled blob: prepare the model "
            "again, do not patch the file"
        )


def _size(size: int) -> str:
    return f"{size:,} bytes ({format_size(size)})" if size >= 1024 else f"{size:,} bytes"


# --- The four combinations executed: results by the real library, IO layer emulated ---------------


MOST_IO = 1 << 30  # bytes of inputs and outputs; the emulated library is slow with far fewer
INFERENCES = 2  # the second shows that memory reserved by the first stays reserved


_TIMED = 3  # executions after one load: the first is timed separately


def run_rows(
    binaries: Mapping[IoMode, Path],
    soc_id: int,
    *,
    worker: Worker,
    seed: int = 0,
    deadline: Deadline | None = None,
    progress: Progress | None = None,
) -> QmemRun:
    """Return the results of all combinations, executed within one time limit.

    `binaries` has the binary prepared for each mode. Both modes can use the same binary, because
    the library for x86 ignores the mode that the binary states.
    """
    graphs = {mode: _only_graph(path) for mode, path in binaries.items()}
    inputs = random_inputs(graphs[IoMode.RAW], seed)
    ends = deadline or Deadline.after(TIME_LIMIT_S)
    rows = []
    for prepared, executed in COMBINATIONS:
        if progress is not None:
            progress(f"prepared {prepared.value}, executed {executed.value}")
        graph = graphs[prepared]
        library = LibraryGraph(
            binaries[prepared], graph, soc_id, worker, deadline=ends, times=_TIMED
        )
        row = run_row(graph, _CachedOutputs(library), inputs, prepared, executed)
        rows.append(structs.replace(row, seconds=tuple(library.seconds)))
    return QmemRun(
        library=worker.library.name,
        graph=graphs[IoMode.RAW].name,
        agrees=len({row.sha256 for row in rows}) == 1,
        binaries=len(set(binaries.values())),
        rows=tuple(rows),
    )


def run_row(
    graph: HtpGraph,
    compute: Compute,
    inputs: Mapping[str, bytes],
    prepared: IoMode,
    executed: IoMode,
) -> RanRow:
    """Return the results of one combination: load, execute twice, free in the right order."""
    registry = MemRegistry()
    with ExitStack() as cleanup:
        cleanup.callback(registry.free)
        layer = IoLayer(graph, compute, registry, prepared)
        cleanup.callback(layer.close)
        memory = _client_memory(graph, inputs, executed, registry, cleanup)
        digest, ran = hashlib.sha256(), []
        for _ in range(INFERENCES):
            once = layer.execute(memory, memory)
            ran.append(once)
            for tensor in graph.outputs:
                held = memory[tensor.name]
                view = held.view if isinstance(held, MemHandle) else memoryview(held)
                digest.update(view[: tensor.nbytes])
        at_load = layer.reserved_at_load
    return RanRow(
        prepared=prepared,
        executed=executed,
        reserved_at_load=at_load,
        inferences=tuple(ran),
        sha256=digest.hexdigest(),
        findings=tuple(
            QmemFinding(finding.rule, finding.sentence) for finding in registry.findings
        ),
    )


def _client_memory(
    graph: HtpGraph,
    inputs: Mapping[str, bytes],
    executed: IoMode,
    registry: MemRegistry,
    cleanup: ExitStack,
) -> dict[str, Any]:
    """Return an application's memory by tensor: plain buffers, or handles into a shared buffer."""
    if executed is IoMode.RAW:
        raw = {tensor.name: bytearray(tensor.nbytes) for tensor in graph.tensors}
        for name, blob in inputs.items():
            raw[name][:] = blob
        return raw
    places, end = packed_offsets(tensor.nbytes for tensor in graph.tensors)
    offsets = {tensor.name: offset for tensor, offset in zip(graph.tensors, places, strict=True)}
    buffer = SharedBuffer(end)
    cleanup.callback(buffer.close)
    for name, blob in inputs.items():
        buffer.view[offsets[name] : offsets[name] + len(blob)] = blob
    handles = registry.register(
        [
            HtpMemDescriptor.inside(
                buffer, tensor.dimensions, tensor.data_type, offsets[tensor.name]
            )
            for tensor in graph.tensors
        ]
    )
    cleanup.callback(registry.deregister, handles)
    return dict(zip(offsets, handles, strict=True))


def random_inputs(graph: HtpGraph, seed: int) -> dict[str, bytes]:
    """Return random input bytes: normal floats, random quantized values, integers 0 and 1.

    Integers might be indices, so they must be valid for a small table.
    """
    import numpy

    random = numpy.random.default_rng(seed)
    inputs = {}
    for tensor in graph.inputs:
        kind = tensor.data_type.name
        if kind.startswith("FLOAT"):
            numbers = random.standard_normal(tensor.dimensions)
            inputs[tensor.name] = numbers.astype(numpy_type(tensor)).tobytes()
        elif "FIXED" in kind:
            inputs[tensor.name] = random.bytes(tensor.nbytes)
        else:
            ones = random.integers(0, 2, tensor.dimensions)
            inputs[tensor.name] = ones.astype(numpy_type(tensor)).tobytes()
    return inputs


def _only_graph(path: Path) -> HtpGraph:
    graphs = read_context(path).graphs
    if why := obstacle(graphs):
        raise UsageError(chain_words(f"{path} ", why))
    return graphs[0]


def obstacle(graphs: Sequence[HtpGraph]) -> Words:
    """Return why the combinations of a binary cannot be executed; empty if they can.

    The text continues a sentence that begins with the file's name.
    """
    if len(graphs) != 1:
        return f"has {len(graphs)} graphs; ", Setting("run"), " is for binaries with one graph"
    names = [tensor.name for tensor in graphs[0].tensors]
    if len(set(names)) < len(names):
        problem = "has two inputs or outputs with the same name, which "
        return problem, Setting("run"), " cannot tell apart"
    total = sum(tensor.nbytes for tensor in graphs[0].tensors)
    if total > MOST_IO:
        return f"has {total:,} bytes of IO; ", Setting("run"), f" accepts at most {MOST_IO:,}"
    return ""


class _CachedOutputs:
    """A graph that caches its outputs, because the library is slow."""

    def __init__(self, compute: Compute) -> None:
        self._compute = compute
        self._known: dict[bytes, dict[str, bytes]] = {}

    def __call__(self, inputs: Places, outputs: Places) -> None:
        """Write the outputs: from the cache if the inputs are known, else by running the graph."""
        parts = (hashlib.sha256(place.view).digest() for place in inputs.values())
        key = hashlib.sha256(b"".join(parts)).digest()
        if key not in self._known:
            self._compute(inputs, outputs)
            self._known[key] = {name: bytes(place.view) for name, place in outputs.items()}
        for name, place in outputs.items():
            place.view[:] = self._known[key][name]


# --- The table of a file: a binary unchanged, a model compiled first ------------------------------


_OF_BINARY = (Setting("run"), " needs the context binary itself, not a model that contains it")


class QmemTable(NamedTuple):
    """The costs of all combinations; `no_run` says why they cannot be executed."""

    result: QmemResult
    no_run: Words = ""  # why the combinations cannot be executed; empty if they can be or were


def qmem_of_file(
    path: Path,
    soc: Soc | None,
    options: CompileOptions,
    *,
    run: bool = False,
    misuse: bool = False,
    worker: Worker | None = None,
    progress: Progress,
) -> QmemTable | CompileFailure:
    """Return the table of a binary or a model, or the reason why the model does not compile.

    `run` also executes the combinations. `misuse` makes every deliberate mistake with the first
    graph, in the real library too if it is installed.
    """
    ends = Deadline.after(options.time_limit_s)
    try:
        context = context_of(path)
    except NotCompiled:
        target = compile_target(path, soc)
        return _of_model(path, target, options, run, misuse, worker, progress, ends)
    qmem = qmem_of(context, stored_bill(path, soc, context))
    mistakes: tuple[MisuseAnswer, ...] = ()
    if misuse:
        mistakes = _misuses(path, context, soc, worker, progress, ends)
    if not run:
        no_run = _no_run(path, context, soc)
        return QmemTable(structs.replace(qmem, misuses=mistakes), no_run)
    if not is_binary_itself(path):
        raise UsageError(chain_words(f"{path}: ", _OF_BINARY))
    model_id = load_target(path, context, soc)
    if worker is None:
        library_or(("without ", Setting("run"), " the table is computed from the file"))
    with worker_or_new(worker) as used:
        both = {IoMode.RAW: path, IoMode.MEMHANDLE: path}
        ran = run_rows(both, model_id, worker=used, deadline=ends, progress=progress)
    return QmemTable(structs.replace(qmem, run=ran, misuses=mistakes))


def _misuses(
    path: Path,
    context: HtpContext,
    soc: Soc | None,
    worker: Worker | None,
    progress: Progress,
    ends: Deadline,
) -> tuple[MisuseAnswer, ...]:
    if not is_binary_itself(path):
        itself = (
            Setting("misuse"),
            " needs the context binary itself, not a model that contains it",
        )
        raise UsageError(chain_words(f"{path}: ", itself))
    graph = context.graphs[0]
    if why := obstacle_to_misuse(graph):
        problem = (f"graph {quote(graph.name)} {why}; ", Setting("misuse"), " needs another")
        raise UsageError(chain_words(f"{path}: ", problem))
    target = context.soc_model if soc is None else soc.model_id
    if worker is None and (target is None or not has_library()):
        return try_misuses(path, graph, None, progress=progress)
    with worker_or_new(worker) as used:
        return try_misuses(path, graph, target, worker=used, deadline=ends, progress=progress)


def _no_run(path: Path, context: HtpContext, soc: Soc | None) -> Words:
    """Return why the combinations cannot be executed; empty if no obstacle is known in advance."""
    if not is_binary_itself(path):
        return _OF_BINARY
    if why := obstacle(context.graphs):
        return chain_words("it ", why)
    if soc is None and context.soc_model is None:
        return "executing the four combinations needs a SoC: ", Setting("soc"), " chooses it"
    if not has_library():
        return Setting("run"), (
            " executes the four combinations with the real library, on Linux x86-64"
        )
    return ""


def is_binary_itself(path: Path) -> bool:
    """Return True if the library can load a file unchanged."""
    return path.suffix.lower() != ".onnx" and not is_carrier(path)


def is_model(path: Path) -> bool:
    """Return True if a file must be compiled before its table can be made."""
    try:
        context_of(path)
    except NotCompiled:
        return True
    return False


def _of_model(
    path: Path,
    soc: Soc,
    options: CompileOptions,
    run: bool,
    misuse: bool,
    worker: Worker | None,
    progress: Progress,
    ends: Deadline,
) -> QmemTable | CompileFailure:
    with worker_or_new(worker) as used, tempfile.TemporaryDirectory(".qnnmem") as folder:
        binaries = {}
        for mode in IoMode if run else (IoMode.RAW,):
            binary = binaries[mode] = Path(folder, f"{mode.value}.bin")
            wanted = replace(options, memhandle=mode is IoMode.MEMHANDLE)
            measured = measure(
                *(path, soc, wanted),
                output=binary,
                worker=used,
                progress=progress,
                deadline=ends,
                try_cures=True,
            )
            if isinstance(measured, CompileFailure):
                return measured
            if mode is IoMode.RAW:
                qmem = qmem_of(measured.compiled.context, measured.bill)
        ran = None
        mistakes: tuple[MisuseAnswer, ...] = ()
        if misuse:
            binary = binaries[IoMode.RAW]
            mistakes = _misuses(binary, read_context(binary), soc, used, progress, ends)
        if run:
            ran = run_rows(binaries, soc.model_id, worker=used, deadline=ends, progress=progress)
    return QmemTable(structs.replace(qmem, compiled=True, run=ran, misuses=mistakes))
