"""What preparation made, as text: verdict first, then each graph, then what to do next."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

from qnnmem.errors import FloatModel, Setting, UsageError, join_words
from qnnmem.lpai.compiled import CompiledContext, CompiledGraph
from qnnmem.lpai.preparation import Prepared, PrepareOptions
from qnnmem.lpai.tcm import BinaryTcm, TcmVerdict
from qnnmem.plan import Io, MemoryPlan
from qnnmem.report.flags import flag_word
from qnnmem.report.plan import SEARCH_MISSING
from qnnmem.report.tcm import together, verdict_words
from qnnmem.text import shorten
from qnnmem.units import format_size

_WIDE = 400


def render_text(
    prepared: Prepared, tcm: BinaryTcm, notes: Sequence[str], path: str, size: int
) -> str:
    """The whole text; names from files are made safe to print."""
    context = prepared.context
    count = len(context.graphs)
    graphs = f"{count} graph{'' if count == 1 else 's'}"
    lines = [
        f"prepared {shorten(path, _WIDE)}: {graphs} for LPAI {context.hw_version}, "
        f"{size:,} bytes ({format_size(size)})"
    ]
    floats = sum(graph.float_ops for graph in context.graphs)
    if floats:
        lines.append(f"{floats} ops compute in floating point, which LPAI cannot: desk only")
    for graph, plan, alone in zip(context.graphs, prepared.plans, tcm.graphs, strict=True):
        lines += ["", *_graph(graph, plan), *([] if alone is None else [_tcm(alone)])]
    if shared := together(tcm):
        lines += ["", f"{shared[0]} in one run", _tcm(shared[1])]
    said = (*notes, *(join_words(note, flag_word) for note in prepared.notes))
    if any(plan.search_missing for plan in prepared.plans):
        said = (*said, SEARCH_MISSING)
    lines += [f"note: {shorten(note, _WIDE)}" for note in said]
    lines += ["", *_next(context, path)]
    return "\n".join(lines)


def word_float_model(error: FloatModel, options: PrepareOptions) -> UsageError:
    """The refusal of a float model, with the command to paste that quantizes it."""
    if not error.quantizable:
        return error
    experiment = (Setting("allow_float"), " for a desk experiment")
    command = quantize_command(error.path, options)
    cure = (f"quantize it on the way with {command} or add ", *experiment)
    return UsageError(error.what, where=error.where, cure=cure)


def quantize_command(path: str, options: PrepareOptions) -> str:
    """The command to paste that quantizes a model on the way to its binary."""
    bits = options.quantize or 8
    data = "DIR" if options.calibration is None else str(options.calibration)
    words = ["qnnmem", "prepare", path, "--backend", "lpai", "--quantize", f"int{bits}"]
    words += ["--calibration", data]
    words += map(flag_word, options.fixed)
    words += [f"--state={old}={new}" for old, new in options.states]
    return shlex.join([*words, "-o", "model.bin"])


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


def _tcm(verdict: TcmVerdict) -> str:
    return f"  TCM        {verdict.need:>12,} bytes for binary and IO, {verdict_words(verdict)}"


def _next(context: CompiledContext, path: str) -> Iterator[str]:
    file = shlex.quote(path)
    yield f"look at it   qnnmem inspect {file}"
    if any(graph.program for graph in context.graphs):
        several = len(context.graphs) > 1  # net-run takes a list for each graph
        numbers = range(1, len(context.graphs) + 1)
        lists = ",".join(f"inputs_{number}.txt" for number in numbers)
        yield (
            "run it       qnnmem net-run --backend libQnnLpai.so "
            f"--retrieve_context {file} --input_list {lists if several else 'input_list.txt'}"
        )
