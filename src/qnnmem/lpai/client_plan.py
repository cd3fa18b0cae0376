"""What a C client must know about a model: graphs, pool sizes, inputs and outputs.

The source is a context binary, or a plan that `qnnmem plan` wrote as JSON.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path, PurePath

import msgspec

from qnnmem.bounded_file import read_bytes
from qnnmem.errors import LoadError, UsageError
from qnnmem.loader.file_kind import KINDS, kind_of_file, wrong_kind
from qnnmem.lpai.binary import read_binary
from qnnmem.lpai.compiled import CompiledContext, CompiledGraph
from qnnmem.lpai.inspect import data_type
from qnnmem.lpai.profiles import power_of_two
from qnnmem.planner import Io, Pool
from qnnmem.results.plan import PlanResult, PlansResult
from qnnmem.results.together import TogetherResult
from qnnmem.text import by_sizes, quote

MAX_UINT32 = (1 << 32) - 1
_LARGEST_PLAN = 256 << 20
_MAX_GRAPHS = 1024
_PLAN, _PLANS, _TOGETHER = "qnnmem.plan/1", "qnnmem.plans/1", "qnnmem.together/1"
_WHY = "which is neither an LPAI context binary nor a plan in JSON"
_CURE = "make a plan in JSON with qnnmem plan, or a binary with qnnmem prepare"


@dataclass(frozen=True, slots=True)
class ClientTensor:
    """An input or output of a graph."""

    name: str
    nbytes: int  # from a plan in JSON: with padding, or 0 if it shares a buffer
    offset: int | None  # offset in scratch; None: not in scratch
    kind: str = ""  # type and dimensions, if known


@dataclass(frozen=True, slots=True)
class ClientGraph:
    """A graph, and the memory that the client must provide for it."""

    name: str
    scratch_bytes: int
    persistent_bytes: int
    inputs: tuple[ClientTensor, ...]
    outputs: tuple[ClientTensor, ...]
    has_io: bool = True  # False for the plan of a buffer list
    align: int = 1  # of every offset in scratch

    @property
    def is_inside(self) -> bool:
        """True if every input and output has an offset in scratch."""
        return self.has_io and all(t.offset is not None for t in (*self.inputs, *self.outputs))


@dataclass(frozen=True, slots=True)
class SharedScratch:
    """One scratch pool for all graphs of a client."""

    size: int
    offsets: tuple[int, ...]  # offset of each graph
    assumed: str  # assumption about which graphs execute at the same time


@dataclass(frozen=True, slots=True)
class ClientPlan:
    """The graphs of one binary or plan, with their memory."""

    source: str  # the file that was read
    producer: str
    align: int
    graphs: tuple[ClientGraph, ...]
    shared: SharedScratch | None = None  # None: each graph has its own scratch


def read_client_plan(path: Path) -> ClientPlan:
    """Return what a C client must know, from a context binary or a plan in JSON."""
    kind = kind_of_file(path)
    if kind.name == "lpai":
        plan = of_context(read_binary(path)[0], str(path))
    elif kind.name in ("json", "result"):
        plan = _of_json(path)
    else:
        raise wrong_kind(path, kind, _WHY)
    _check(path, plan)
    return plan


def of_context(context: CompiledContext, source: str) -> ClientPlan:
    """Return what a C client must know about a compiled context."""
    align = max((int(graph.align) for graph in context.graphs), default=1)
    return ClientPlan(source, context.producer, align, tuple(map(_graph, context.graphs)))


def _graph(graph: CompiledGraph) -> ClientGraph:
    def tensors(names: Iterable[str]) -> tuple[ClientTensor, ...]:
        return tuple(_tensor(graph, name) for name in names)

    return ClientGraph(
        graph.name,
        int(graph.scratch_bytes),
        int(graph.persistent_bytes),
        tensors(graph.inputs),
        tensors(graph.outputs),
        align=int(graph.align),
    )


def _tensor(graph: CompiledGraph, name: str) -> ClientTensor:
    tensor, buffer = graph.model.tensors[name], graph.buffer_of.get(name)
    offset = None
    if buffer is not None and buffer.pool is Pool.SCRATCH and graph.io is Io.INSIDE:
        offset = int(buffer.offset)
    kind = data_type(tensor.dtype, name in graph.quants)
    return ClientTensor(name, int(tensor.nbytes), offset, f"{kind.name} {by_sizes(tensor.shape)}")


# --- A plan in JSON ------------------------------------------------------------------------------


class _Schema(msgspec.Struct):
    schema: str = ""


def _of_json(path: Path) -> ClientPlan:
    data = read_bytes(path, _LARGEST_PLAN)
    try:
        plans, shared = _plans(path, data)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as exc:
        reason = "nested too deeply" if isinstance(exc, RecursionError) else str(exc)
        what = f"is an incomplete plan: {reason.rstrip('.')[:160]}"
        raise LoadError(path, what, cure=_CURE) from exc
    tools = {plan.tool for plan in plans}
    align = max(plan.align_bytes for plan in plans)
    return ClientPlan(str(path), min(tools), align, tuple(map(_planned, plans)), shared)


def _plans(path: Path, data: bytes) -> tuple[tuple[PlanResult, ...], SharedScratch | None]:
    schema = msgspec.json.decode(data, type=_Schema).schema
    if schema == _TOGETHER:
        arranged = msgspec.json.decode(data, type=TogetherResult)
        return arranged.plans, _shared(path, arranged)
    if schema in (_PLAN, _PLANS):
        result = msgspec.json.decode(data, type=PlanResult | PlansResult)
        plans = result.plans if isinstance(result, PlansResult) else (result,)
        if plans:
            return plans, None
    if schema.startswith("qnnmem."):
        raise LoadError(path, f"is {quote(schema)}, not a plan", cure=_CURE)
    raise LoadError(path, f"is {KINDS['json'].words}, {_WHY}", cure=_CURE)


def _shared(path: Path, arranged: TogetherResult) -> SharedScratch:
    """Return the shared scratch; raise LoadError if it does not match the plans in the file."""
    sizes = [model.scratch_bytes for model in arranged.models]
    offsets = tuple(model.scratch_offset for model in arranged.models)
    if not sizes or sizes != [plan.scratch_bytes for plan in arranged.plans]:
        raise LoadError(path, "arranges models whose plans it does not contain", cure=_CURE)
    for offset, size in zip(offsets, sizes, strict=True):
        is_inside = offset + size <= min(arranged.scratch_bytes, MAX_UINT32)
        if offset % arranged.align_bytes or not is_inside:
            raise LoadError(path, f"places a model at invalid offset {offset:,} in scratch")
    return SharedScratch(arranged.scratch_bytes, offsets, arranged.assumed)


def _planned(plan: PlanResult) -> ClientGraph:
    """Return the graph of a plan; its name is the one that `prepare` gives the graph.

    State is not among the inputs and outputs.
    """
    buffers = {name: buffer for buffer in plan.buffers for name in buffer.aliases}
    buffers |= {buffer.name: buffer for buffer in plan.buffers}

    def tensors(names: Iterable[str]) -> tuple[ClientTensor, ...]:
        return tuple(
            ClientTensor(
                name,
                0 if buffer.aliases else buffer.size_bytes,
                buffer.offset_bytes if buffer.pool == "scratch" else None,
            )
            for name in names
            if (buffer := buffers.get(name)) is not None and buffer.pool != "persistent"
        )

    return ClientGraph(
        plan.graph or PurePath(plan.input).stem,
        plan.scratch_bytes,
        plan.persistent_bytes,
        tensors(plan.inputs),
        tensors(plan.outputs),
        has_io=bool(plan.inputs or plan.outputs),
        align=plan.align_bytes,
    )


# --- Limits of C ---------------------------------------------------------------------------------


def _check(path: Path, plan: ClientPlan) -> None:
    names = [graph.name for graph in plan.graphs]
    if len(names) > _MAX_GRAPHS:
        raise LoadError(path, f"has {len(names):,} graphs, over the limit of {_MAX_GRAPHS:,}")
    twice = next((name for i, name in enumerate(names) if name in names[:i]), None)
    if twice is not None:
        raise LoadError(path, f"has two graphs with the name {quote(twice)}")
    for graph in plan.graphs:
        tensors = (*graph.inputs, *graph.outputs)
        for name, kind in ((graph.name, "graph"), *((t.name, "tensor") for t in tensors)):
            if "\0" in name or (kind == "graph" and not name):
                raise LoadError(path, f"has a {kind} {quote(name)}, a name that C cannot use")
        sizes = (graph.scratch_bytes, graph.persistent_bytes, *(t.nbytes for t in tensors))
        if max(sizes) > MAX_UINT32:
            what = f"graph {quote(graph.name)} needs a buffer of {max(sizes):,} bytes"
            raise UsageError(f"{what}; the LPAI structs store sizes in 32 bits")
        _check_offsets(path, graph)


def _check_offsets(path: Path, graph: ClientGraph) -> None:
    """Raise LoadError for offsets outside scratch or not aligned for LPAI."""
    try:
        power_of_two(f"the alignment of graph {quote(graph.name)}", graph.align)
    except UsageError as exc:
        raise LoadError(path, str(exc)) from exc
    for tensor in (*graph.inputs, *graph.outputs):
        if tensor.offset is None:
            continue
        place = f"graph {quote(graph.name)} has {quote(tensor.name)} at offset {tensor.offset:,}"
        if tensor.offset + tensor.nbytes > graph.scratch_bytes:
            size = f"the tensor has {tensor.nbytes:,} bytes, scratch has {graph.scratch_bytes:,}"
            raise LoadError(path, f"{place} in scratch, past the end: {size}")
        if tensor.offset % graph.align:
            raise LoadError(path, f"{place} in scratch, which is not a multiple of {graph.align:,}")
