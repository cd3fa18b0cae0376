"""Render the result of `prepare`: verdict first, then each graph, then next steps."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from qnnmem.errors import join_words
from qnnmem.flags import flag_word
from qnnmem.lpai.compiled import CompiledContext, CompiledGraph
from qnnmem.lpai.net_run.files import sanitized
from qnnmem.lpai.preparation import Prepared, all_notes
from qnnmem.lpai.tcm import BinaryTcm
from qnnmem.planner import Io, MemoryPlan
from qnnmem.report.table import size_column, size_words
from qnnmem.report.tcm import fatal_lines, shared_pools, together, verdict_words
from qnnmem.results.plan import TcmAnswer
from qnnmem.results.prepared import QuantizedGraph, TriedWidths, percent
from qnnmem.text import counted, shorten

_WIDE = 400


def render_text(
    prepared: Prepared, tcm: BinaryTcm, notes: Sequence[str], path: str, size: int
) -> str:
    """Render the whole result; names from files are made printable."""
    context = prepared.context
    graphs = counted(len(context.graphs), "graph")
    assumed = (plan.model.assumed for plan in prepared.plans)
    alone = [None if verdict is None else verdict.answer for verdict in tcm.graphs]
    fatal = [line for answer in alone for line in fatal_lines(answer)]
    lines = [
        *fatal[:1],
        *error_lines(prepared.errors),
        *(join_words(words, flag_word) for words in assumed if words),
        *(shorten(line, _WIDE) for plan in prepared.plans for line in plan.model.holds_for),
        f"prepared {shorten(path, _WIDE)}: {graphs} for LPAI {context.hw_version}, "
        f"{size_words(size)}",
    ]
    floats = sum(graph.float_ops for graph in context.graphs)
    if floats:
        lines.append(
            f"{counted(floats, 'op')} compute in floating point, which LPAI does not support: "
            "the binary is only for experiments on the host"
        )
    for graph, plan, answer in zip(context.graphs, prepared.plans, alone, strict=True):
        lines += ["", *_graph(graph, plan), *([] if answer is None else [_tcm(answer)])]
    if shared := together(None if tcm.together is None else tcm.together.answer, alone):
        sizes = [(graph.scratch_bytes, graph.persistent_bytes) for graph in context.graphs]
        lines += ["", f"{shared[0]} together", _tcm(shared[1]), *shared_pools(sizes)]
    lines += [f"note: {shorten(note, _WIDE)}" for note in all_notes(prepared, notes)]
    lines += ["", *(f"{step:<12} {command}" for step, command in next_commands(context, path))]
    return "\n".join(lines) + "\n"


def error_lines(errors: Mapping[str, QuantizedGraph]) -> list[str]:
    """Return a warning for each graph with a large quantization error, and bit widths to use."""
    return [
        f"warning: graph {shorten(graph)}, {error.sentence}; {_cures(error)}"
        for graph, error in errors.items()
        if error.error_is_large
    ]


def _cures(error: QuantizedGraph) -> str:
    seen = [f"{_widths(error, tried)} gives {percent(tried.error)}" for tried in error.cures]
    parts = ["tried with the same samples: " + ", ".join(seen)] if seen else []
    if not seen and error.tried:
        parts.append("no wider data type that was tried halves the error")
    if error.made_up_samples:
        parts.append("pass real samples with --calibration: random samples have other ranges")
    elif not seen:
        parts.append("check that the samples are what the model expects")
    return "; ".join(parts)


def _widths(error: QuantizedGraph, tried: TriedWidths) -> str:
    """Return options for the bit widths in which a try differs from the present graph."""
    bits = f"--quantize int{tried.bits}" if tried.bits != error.bits else ""
    weights = f"--weight-bits {tried.weight_bits}" if tried.weight_bits != error.weight_bits else ""
    return f"{bits} {weights}".strip()


def _graph(graph: CompiledGraph, plan: MemoryPlan) -> Iterator[str]:
    order = "" if graph.in_order or not graph.program else ", executed op by op"
    yield f"graph {shorten(graph.name)}: {counted(len(graph.model.ops), 'op')}{order}"
    yield f"  scratch    {size_column(graph.scratch_bytes, 12)}, {plan.proof_words}"
    state = f", {counted(len(graph.states), 'state pair')}" if graph.states else ""
    yield f"  persistent {size_column(graph.persistent_bytes, 12)}{state}"
    where = "inside scratch" if graph.io is Io.INSIDE else "in the application's buffers"
    yield f"  IO         {size_column(sum(size for _, size in plan.io_sizes), 12)}, {where}"
    for window in graph.windows:
        kind = "blocking" if window.blocking else "non-blocking"
        frames = f"{counted(window.size, 'frame')}, {window.frames} per execution"
        yield f"  window {shorten(window.name)}: {frames}, {kind}"
    if not graph.program:
        yield "  layout only: memory calls can be tested, the graph cannot run"


def _tcm(answer: TcmAnswer) -> str:
    need = size_column(answer.need_bytes, 12)
    return f"  TCM        {need} for binary and IO, {verdict_words(answer)}"


def next_commands(context: CompiledContext, path: str) -> Iterator[tuple[str, str]]:
    """Yield the next steps for a binary: a description and a command to paste."""
    file = shlex.quote(path)
    yield "inspect it", f"qnnmem inspect {file}"
    if any(graph.program for graph in context.graphs):
        # A separate folder, so that outputs of another binary do not collide.
        folder = f"{sanitized(Path(path).stem)}_output"
        yield "run it", f"qnnmem net-run {file} --random-inputs 1 --output_dir {folder}"
