"""What preparation made, as text: verdict first, then each graph, then what to do next."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

from qnnmem.lpai.compiled import CompiledContext, CompiledGraph
from qnnmem.lpai.tcm import TcmBill
from qnnmem.plan import Io, MemoryPlan
from qnnmem.text import shorten
from qnnmem.units import format_size

_WIDE = 400


def render(
    context: CompiledContext,
    plans: Sequence[MemoryPlan],
    bills: Sequence[TcmBill],
    notes: Sequence[str],
    path: str,
    size: int,
) -> str:
    """The whole text; names from files are made safe to print."""
    count = len(context.graphs)
    graphs = f"{count} graph{'' if count == 1 else 's'}"
    lines = [
        f"prepared {shorten(path, _WIDE)}: {graphs} for LPAI {context.hw_version}, "
        f"{size:,} bytes ({format_size(size)})"
    ]
    floats = sum(graph.float_ops for graph in context.graphs)
    if floats:
        lines.append(f"{floats} ops compute in floating point, which LPAI cannot: desk only")
    for graph, plan, bill in zip(context.graphs, plans, bills, strict=True):
        lines += ["", *_graph(graph, plan), *([_tcm(bill)] if graph.program else [])]
    lines += [f"note: {shorten(note, _WIDE)}" for note in notes]
    lines += ["", *_next(context, path)]
    return "\n".join(lines)


def _graph(graph: CompiledGraph, plan: MemoryPlan) -> Iterator[str]:
    proof = "proven minimal" if plan.scratch.optimal else "not proven minimal"
    order = "" if graph.in_order or not graph.program else ", run op by op"
    yield f"graph {shorten(graph.name)}: {len(graph.model.ops)} ops{order}"
    yield f"  scratch    {graph.scratch_bytes:>12,} bytes, {proof}"
    state = f", {len(graph.states)} state pairs" if graph.states else ""
    yield f"  persistent {graph.persistent_bytes:>12,} bytes{state}"
    where = "inside scratch" if graph.io is Io.INSIDE else "in the application's buffers"
    yield f"  IO         {sum(size for _, size in plan.io_sizes):>12,} bytes, {where}"
    for window in graph.windows:
        kind = "blocking" if window.blocking else "non-blocking"
        frames = f"{window.size} frames, {window.frames} per execution"
        yield f"  window {shorten(window.name)}: {frames}, {kind}"
    if not graph.program:
        yield "  a layout: pools and contract can be tried, execution cannot"


def _tcm(bill: TcmBill) -> str:
    spare = bill.limit - bill.total
    if bill.fits:
        verdict = f"fits with {spare:,} bytes to spare"
    elif spare < 0:
        verdict = f"does not fit, {-spare:,} bytes too many"
    else:
        verdict = "does not fit, too many allocations"
    return (
        f"  TCM        {bill.total:>12,} bytes for binary and IO, {verdict} "
        f"({bill.allocations} allocations)"
    )


def _next(context: CompiledContext, path: str) -> Iterator[str]:
    file = shlex.quote(path)
    yield f"look at it   qnnmem inspect {file}"
    if any(graph.program for graph in context.graphs):
        yield (
            "run it       qnnmem net-run --backend libQnnLpai.so "
            f"--retrieve_context {file} --input_list input_list.txt"
        )
