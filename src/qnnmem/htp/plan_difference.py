"""Compares the plan of an ONNX model with the plan of the QNN graph made from it.

ONNX Runtime composes the model for the real library; the calls are recorded, but nothing is
compiled. ONNX Runtime keeps most tensor names, so most tensors pair by name. Its layout pass gives
new names; those tensors are paired by size. A tensor and its views share memory and count once.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from qnnmem.errors import LoadError
from qnnmem.htp.compile import fixed_source
from qnnmem.htp.compile.compiled import CompileOptions
from qnnmem.htp.library import check_started
from qnnmem.htp.requests import HtpSettings, ListenReply, ListenRequest
from qnnmem.htp.worker import Worker
from qnnmem.ir import lifetimes
from qnnmem.loader.dlc.composed import as_graphs
from qnnmem.loader.onnx.inputs import InputValue
from qnnmem.planner import MemoryPlan
from qnnmem.qnn.graph import ComposedGraph
from qnnmem.results.footprint import OnnxNode
from qnnmem.targets.socs import Soc
from qnnmem.text import counted, quote, shorten


@dataclass(frozen=True, slots=True)
class ComposedModel:
    """The QNN graphs made from a model, and the nodes left on the CPU."""

    graphs: tuple[ComposedGraph, ...]
    on_cpu: tuple[OnnxNode, ...]
    on_htp: int  # number of nodes, counted by ONNX Runtime after its own optimisations
    library: str  # package and version


def compose_onnx(
    path: Path,
    soc: Soc,
    *,
    dims: Mapping[str, int],
    shapes: Mapping[str, tuple[int, ...]],
    values: Mapping[str, InputValue],
    with_data: bool = False,
    time_limit_s: float = 120.0,
) -> ComposedModel:
    """Return the QNN graphs that ONNX Runtime makes of a model; `with_data` adds constants."""
    options = CompileOptions(dims=dims, shapes=shapes, values=values, time_limit_s=time_limit_s)
    with Worker() as worker, tempfile.TemporaryDirectory(".qnnmem") as folder:
        scratch = Path(folder)
        source = fixed_source(path, options, scratch)
        request = ListenRequest(
            source.model.absolute(),
            source.folder,
            scratch / "constants" if with_data else None,
            settings=HtpSettings(soc.model_id, log="error"),
        )
        outcome = worker.ask(request, time_limit_s=time_limit_s)
        check_started(outcome)
        if not outcome.is_done:
            raise LoadError(path, f"cannot be composed for QNN: {outcome.sentence}")
        reply = outcome.result(ListenReply)
        data = b"" if reply.data is None else reply.data.read_bytes()
        library = worker.library.name
    return composed_model(path, reply, data, library)


def composed_model(path: Path, reply: ListenReply, data: bytes, library: str) -> ComposedModel:
    """Return the graphs that a worker recorded; raise LoadError if they are inconsistent."""
    on_cpu = tuple(OnnxNode(name, operator) for name, operator in reply.on_cpu)
    if not reply.graphs:
        kinds = ", ".join(sorted({node.operator for node in on_cpu})[:5])
        nodes = counted(len(on_cpu), "node")
        raise LoadError(path, f"QNN supports no node of the model, which has {nodes} ({kinds})")
    graphs = as_graphs(path, reply.graphs, reply.shared, data)
    return ComposedModel(graphs, on_cpu, reply.on_htp, library)


_KINDS = 4  # operators named in a sentence
_NODES = 5
_MOVERS = frozenset(
    {
        *("Cast", "Concat", "Convert", "Gather", "Pack", "Pad", "Slice", "Split", "StridedSlice"),
        *("Transpose", "Tile", "Expand", "Identity"),
    }
)


def difference_notes(
    source: MemoryPlan, graph: MemoryPlan, composed: ComposedModel
) -> tuple[str, ...]:
    """Return notes about how the plan of the QNN graph differs from the model's plan, and why."""
    old, new = _memory(source), _memory(graph)
    old_names = {name: memory for memory in old for name in memory.names}
    new_names = {name for memory in new for name in memory.names}
    pairs = [
        (old_names.get(next((n for n in memory.names if n in old_names), "")), memory)
        for memory in new
    ]
    appeared = [memory for before, memory in pairs if before is None]
    vanished = [memory for memory in old if new_names.isdisjoint(memory.names)]
    whole = len(composed.graphs) == 1
    if whole:
        appeared, vanished = _unpaired(appeared, vanished)
    notes = [_sums(source, graph), *cpu_notes(composed.on_cpu)]
    notes += _kinds("only the QNN graph has", appeared)
    notes += _kinds("only the ONNX graph has", vanished if whole else [])
    notes += _changed([(before, memory) for before, memory in pairs if before is not None])
    return tuple(notes)


def _unpaired(
    appeared: Sequence[_Memory], vanished: Sequence[_Memory]
) -> tuple[list[_Memory], list[_Memory]]:
    """Return both lists without pairs of equal size, because a layout change renames tensors.

    Tensors of ops that compute are paired first, so tensors of ops that only move data remain.
    """
    left: dict[int, list[_Memory]] = {}
    for memory in sorted(vanished, key=_moves, reverse=True):
        left.setdefault(memory.size, []).append(memory)
    alone = []
    for memory in sorted(appeared, key=_moves):
        if left.get(memory.size):
            left[memory.size].pop()
        else:
            alone.append(memory)
    return alone, [memory for memories in left.values() for memory in memories]


def _moves(memory: _Memory) -> bool:
    return memory.maker in _MOVERS


class _Memory(NamedTuple):
    """Memory that a tensor and its views share, and the type of the op that writes it."""

    names: tuple[str, ...]
    size: int
    maker: str


def _memory(plan: MemoryPlan) -> list[_Memory]:
    makers = {name: op.type for op in plan.model.ops for name in op.outputs}
    return [
        _Memory((lifetime.name, *lifetime.aliases), lifetime.size, makers[lifetime.name])
        for lifetime in lifetimes(plan.model, bits=plan.options.bits)
        if lifetime.name in makers  # inputs have no maker
    ]


def _sums(source: MemoryPlan, graph: MemoryPlan) -> str:
    before, after = source.scratch_bytes, graph.scratch_bytes
    change = "the same" if before == after else f"{abs(after - before):,} "
    if before != after:
        change += "more" if after > before else "less"
    return (
        f"scratch is {after:,} bytes for the QNN graph and {before:,} for the ONNX graph: {change}"
    )


def cpu_notes(nodes: Sequence[OnnxNode]) -> Iterator[str]:
    """Yield a note on the nodes that stay on the CPU."""
    if nodes:
        named = ", ".join(
            f"{node.operator} {quote(shorten(node.name, 60))}" for node in nodes[:_NODES]
        )
        more = ", …" if len(nodes) > _NODES else ""
        yield (
            f"QNN does not support {counted(len(nodes), 'node')}, which stay on the CPU: "
            f"{named}{more}"
        )


def _kinds(what: str, memories: Sequence[_Memory]) -> Iterator[str]:
    """Yield a note with the sizes of tensors, summed by the op that makes them, largest first."""
    sums: dict[str, list[int]] = {}
    for memory in memories:
        sums.setdefault(memory.maker, []).append(memory.size)
    if not sums:
        return
    largest = sorted(sums.items(), key=lambda item: (-sum(item[1]), item[0]))
    listed = ", ".join(f"{kind} {len(sizes)} ({sum(sizes):,})" for kind, sizes in largest[:_KINDS])
    more = ", …" if len(largest) > _KINDS else ""
    total = sum(memory.size for memory in memories)
    tensors = counted(len(memories), "tensor")
    yield f"{what} {tensors} with {total:,} bytes: outputs of {listed}{more}"


def _changed(pairs: Sequence[tuple[_Memory, _Memory]]) -> Iterator[str]:
    """Yield notes on tensors whose size differs between the model and the QNN graph."""
    for what, sign in (("grew", 1), ("shrank", -1)):
        changes = [(a, b) for a, b in pairs if sign * (b.size - a.size) > 0]
        if not changes:
            continue
        old, new = max(changes, key=lambda pair: (abs(pair[1].size - pair[0].size), pair[1].names))
        name = quote(shorten(new.names[0], 60))
        yield (
            f"{counted(len(changes), 'tensor')} {what}; the largest change is {name}, from "
            f"{old.size:,} to {new.size:,} bytes"
        )
