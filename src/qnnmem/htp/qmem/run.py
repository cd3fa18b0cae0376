"""The four combinations carried out: results by the real library, IO layer by us."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qnnmem.errors import CannotTell, Setting, UsageError, Words, chain_words
from qnnmem.finding import Finding
from qnnmem.htp.binary.context import HtpGraph, HtpTensor
from qnnmem.htp.binary.read import read_context
from qnnmem.htp.compile import Progress
from qnnmem.htp.qmem import COMBINATIONS
from qnnmem.htp.qmem.epcontext import epcontext_model, onnx_type
from qnnmem.htp.qmem.layer import Compute, Inference, IoLayer, IoMode, Views
from qnnmem.htp.qmem.memory import (
    ALIGNMENT,
    HtpMemDescriptor,
    HtpMemType,
    MemRegistry,
    SharedBuffer,
)
from qnnmem.htp.worker import TIME_LIMIT_S, Worker
from qnnmem.qnn.enums import MemRegisterType
from qnnmem.qnn.shared_memory import MemHandle
from qnnmem.text import quote
from qnnmem.units import round_up

MOST_IO = 1 << 30  # bytes of inputs and outputs; the emulated library is slow long before
INFERENCES = 2  # the second shows that what the first reserved is kept


@dataclass(frozen=True, slots=True)
class RanRow:
    """One combination as it was carried out."""

    prepared: IoMode
    executed: IoMode
    at_load: int
    inferences: tuple[Inference, ...]
    digest: str  # SHA-256 of all output bytes
    findings: tuple[Finding, ...]


@dataclass(frozen=True, slots=True)
class QmemRun:
    """All four, and whether their results are the same bit by bit."""

    library: str
    graph: str
    rows: tuple[RanRow, ...]
    binaries: (
        int  # 1: the same for both ways of preparing, of which the x86 library takes no notice
    )

    @property
    def agrees(self) -> bool:
        """Whether every inference of every row gave the same bytes."""
        return len({row.digest for row in self.rows}) == 1


def run_rows(
    binaries: Mapping[IoMode, Path],
    soc_id: int,
    *,
    worker: Worker,
    seed: int = 0,
    time_limit_s: float = TIME_LIMIT_S,
    progress: Progress | None = None,
) -> QmemRun:
    """Execute all combinations with the binary prepared for each mode.

    One binary may stand for both modes: the library for x86 carries the hint and ignores it.
    """
    graphs = {mode: _only_graph(path) for mode, path in binaries.items()}
    inputs = made_up_inputs(graphs[IoMode.RAW], seed)
    rows = []
    for prepared, executed in COMBINATIONS:
        if progress is not None:
            progress(f"prepared {prepared.value}, executed {executed.value}")
        with tempfile.TemporaryDirectory(".qnnmem") as scratch:
            library = RealGraph(
                binaries[prepared], graphs[prepared], soc_id, worker, Path(scratch), time_limit_s
            )
            rows.append(run_row(graphs[prepared], library, inputs, prepared, executed))
    return QmemRun(
        worker.library.name, graphs[IoMode.RAW].name, tuple(rows), len(set(binaries.values()))
    )


def run_row(
    graph: HtpGraph,
    compute: Compute,
    inputs: Mapping[str, bytes],
    prepared: IoMode,
    executed: IoMode,
) -> RanRow:
    """One combination: load, execute twice, free everything in the right order."""
    registry = MemRegistry()
    with ExitStack() as made:
        made.callback(registry.free)
        layer = IoLayer(graph, compute, registry, prepared)
        made.callback(layer.close)
        memory = _client_memory(graph, inputs, executed, registry, made)
        digest, ran = hashlib.sha256(), []
        for _ in range(INFERENCES):
            once = layer.execute(memory, memory)
            ran.append(once)
            for tensor in graph.outputs:
                given = memory[tensor.name]
                view = given.view if isinstance(given, MemHandle) else memoryview(given)
                digest.update(view[: tensor.nbytes])
        at_load = layer.reserved_at_load
    return RanRow(
        prepared, executed, at_load, tuple(ran), digest.hexdigest(), tuple(registry.findings)
    )


def _client_memory(
    graph: HtpGraph,
    inputs: Mapping[str, bytes],
    executed: IoMode,
    registry: MemRegistry,
    made: ExitStack,
) -> dict[str, Any]:
    """What an application would hold: plain buffers, or one shared buffer with all tensors."""
    if executed is IoMode.RAW:
        raw = {tensor.name: bytearray(tensor.nbytes) for tensor in graph.tensors}
        for name, blob in inputs.items():
            raw[name][:] = blob
        return raw
    offsets, end = {}, 0
    for tensor in graph.tensors:
        offsets[tensor.name] = end
        end += round_up(tensor.nbytes, ALIGNMENT)
    buffer = SharedBuffer(end)
    made.callback(buffer.close)
    for name, blob in inputs.items():
        buffer.view[offsets[name] : offsets[name] + len(blob)] = blob
    handles = registry.register(
        [_descriptor(tensor, buffer, offsets[tensor.name]) for tensor in graph.tensors]
    )
    made.callback(registry.deregister, handles)
    return dict(zip(offsets, handles, strict=True))


def _descriptor(tensor: HtpTensor, buffer: SharedBuffer, offset: int) -> HtpMemDescriptor:
    return HtpMemDescriptor(
        tensor.dimensions or (1,),
        tensor.data_type,
        buffer.fd,
        MemRegisterType.CUSTOM,
        HtpMemType.SHARED_BUFFER,
        buffer.size,
        offset,
    )


def made_up_inputs(graph: HtpGraph, seed: int) -> dict[str, bytes]:
    """Bytes for every input: normal numbers for floats, noise for quantized, 0 and 1 for the rest.

    Whole numbers may be indices, which must stay inside some table.
    """
    import numpy

    random = numpy.random.default_rng(seed)
    made = {}
    for tensor in graph.inputs:
        kind = tensor.data_type.name
        if kind.startswith("FLOAT"):
            numbers = random.standard_normal(tensor.dimensions)
            made[tensor.name] = numbers.astype(onnx_type(tensor).numpy).tobytes()
        elif "FIXED" in kind:
            made[tensor.name] = random.bytes(tensor.nbytes)
        else:
            ones = random.integers(0, 2, tensor.dimensions)
            made[tensor.name] = ones.astype(onnx_type(tensor).numpy).tobytes()
    return made


def _only_graph(path: Path) -> HtpGraph:
    graphs = read_context(path).graphs
    if why := obstacle(graphs):
        raise UsageError(chain_words(f"{path} ", why))
    return graphs[0]


def obstacle(graphs: Sequence[HtpGraph]) -> Words:
    """Why the rows of a binary cannot be carried out, as what follows its name; else nothing."""
    if len(graphs) != 1:
        return f"has {len(graphs)} graphs; ", Setting("run"), " is for binaries of one"
    names = [tensor.name for tensor in graphs[0].tensors]
    if len(set(names)) < len(names):
        what = "has two inputs or outputs of one name, which "
        return what, Setting("run"), " cannot tell apart"
    total = sum(tensor.nbytes for tensor in graphs[0].tensors)
    if total > MOST_IO:
        return f"has {total:,} bytes of IO; ", Setting("run"), f" takes at most {MOST_IO:,}"
    return ""


class RealGraph:
    """A binary in the real library: reads the inputs where they are, fills the outputs."""

    def __init__(
        self,
        binary: Path,
        graph: HtpGraph,
        soc_id: int,
        worker: Worker,
        scratch: Path,
        time_limit_s: float,
    ) -> None:
        self._graph, self._worker, self._scratch = graph, worker, scratch
        self._soc, self._time = soc_id, time_limit_s
        # An EPContext model names its binary by a path below itself.
        Path(scratch, "graph.bin").symlink_to(binary.absolute())
        Path(scratch, "graph.onnx").write_bytes(epcontext_model(graph, "graph.bin"))
        self._known: dict[str, dict[str, bytes]] = {}

    def __call__(self, inputs: Views, outputs: Views) -> None:
        """Run once; the same inputs are not run again in the slow library."""
        key = hashlib.sha256(b"".join(hashlib.sha256(v).digest() for v in inputs.values()))
        found = self._known.get(key.hexdigest())
        if found is None:
            found = self._known[key.hexdigest()] = dict(self._execute(inputs))
        for tensor in self._graph.outputs:
            outputs[tensor.name][:] = found[tensor.name]

    def _execute(self, inputs: Views) -> Iterator[tuple[str, bytes]]:
        files = {}
        for number, (name, view) in enumerate(inputs.items()):
            files[name] = self._scratch / f"in{number}.raw"
            files[name].write_bytes(view)
        request = {
            "model": str(self._scratch / "graph.onnx"),
            "inputs": {name: str(path) for name, path in files.items()},
            "output": str(self._scratch),
            "soc": self._soc,
            "log": "error",
        }
        outcome = self._worker.ask("execute", request, time_limit_s=self._time)
        if not outcome.is_done:
            what = quote(self._graph.name)
            raise CannotTell(f"the library did not execute graph {what}: {outcome.sentence[:300]}")
        for name, _type, _shape, path in outcome.reply["outputs"]:
            yield name, Path(path).read_bytes()
