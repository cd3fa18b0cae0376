"""The four combinations carried out: results by the real library, IO layer by us."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from qnnmem.deadline import Deadline
from qnnmem.errors import Setting, UsageError, Words, chain_words
from qnnmem.htp.binary.context import HtpGraph
from qnnmem.htp.binary.read import read_context
from qnnmem.htp.compile import Progress
from qnnmem.htp.qmem import COMBINATIONS
from qnnmem.htp.qmem.layer import Compute, IoLayer, Places, numpy_type
from qnnmem.htp.qmem.library import LibraryGraph
from qnnmem.htp.qmem.memory import (
    HtpMemDescriptor,
    MemRegistry,
    SharedBuffer,
    packed_offsets,
)
from qnnmem.htp.worker import TIME_LIMIT_S, Worker
from qnnmem.qnn.shared_memory import MemHandle
from qnnmem.results.qmem import IoMode, QmemFinding, QmemRun, RanRow

MOST_IO = 1 << 30  # bytes of inputs and outputs; the emulated library is slow long before
INFERENCES = 2  # the second shows that what the first reserved is kept


def run_rows(
    binaries: Mapping[IoMode, Path],
    soc_id: int,
    *,
    worker: Worker,
    seed: int = 0,
    deadline: Deadline | None = None,
    progress: Progress | None = None,
) -> QmemRun:
    """Execute all combinations with the binary prepared for each mode, all within one limit.

    One binary may stand for both modes: the library for x86 carries the hint and ignores it.
    """
    graphs = {mode: _only_graph(path) for mode, path in binaries.items()}
    inputs = made_up_inputs(graphs[IoMode.RAW], seed)
    ends = deadline or Deadline.after(TIME_LIMIT_S)
    rows = []
    for prepared, executed in COMBINATIONS:
        if progress is not None:
            progress(f"prepared {prepared.value}, executed {executed.value}")
        graph = graphs[prepared]
        library = LibraryGraph(binaries[prepared], graph, soc_id, worker, deadline=ends)
        rows.append(run_row(graph, _Remembered(library), inputs, prepared, executed))
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
        prepared=prepared,
        executed=executed,
        reserved_at_load=at_load,
        inferences=tuple(ran),
        sha256=digest.hexdigest(),
        findings=tuple(QmemFinding(one.rule, one.sentence) for one in registry.findings),
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
    places, end = packed_offsets(tensor.nbytes for tensor in graph.tensors)
    offsets = {tensor.name: at for tensor, at in zip(graph.tensors, places, strict=True)}
    buffer = SharedBuffer(end)
    made.callback(buffer.close)
    for name, blob in inputs.items():
        buffer.view[offsets[name] : offsets[name] + len(blob)] = blob
    handles = registry.register(
        [
            HtpMemDescriptor.inside(buffer, one.dimensions, one.data_type, offsets[one.name])
            for one in graph.tensors
        ]
    )
    made.callback(registry.deregister, handles)
    return dict(zip(offsets, handles, strict=True))


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
            made[tensor.name] = numbers.astype(numpy_type(tensor)).tobytes()
        elif "FIXED" in kind:
            made[tensor.name] = random.bytes(tensor.nbytes)
        else:
            ones = random.integers(0, 2, tensor.dimensions)
            made[tensor.name] = ones.astype(numpy_type(tensor)).tobytes()
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


class _Remembered:
    """A graph that is not run again in the slow library for inputs that it has seen."""

    def __init__(self, compute: Compute) -> None:
        self._compute = compute
        self._known: dict[bytes, dict[str, bytes]] = {}

    def __call__(self, inputs: Places, outputs: Places) -> None:
        """Run once, or fill in what came of the same inputs before."""
        parts = (hashlib.sha256(place.view).digest() for place in inputs.values())
        key = hashlib.sha256(b"".join(parts)).digest()
        if key not in self._known:
            self._compute(inputs, outputs)
            self._known[key] = {name: bytes(place.view) for name, place in outputs.items()}
        for name, place in outputs.items():
            place.view[:] = self._known[key][name]
