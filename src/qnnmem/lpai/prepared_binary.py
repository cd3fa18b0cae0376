"""The result of a preparation, made of the context and the plans behind it."""

from __future__ import annotations

import math
from collections.abc import Sequence

from qnnmem.errors import join_words
from qnnmem.flags import flag_word
from qnnmem.lpai.compiled import CompiledGraph
from qnnmem.lpai.preparation import Prepared
from qnnmem.lpai.quantize.error import QuantizeError
from qnnmem.lpai.tcm import BinaryTcm, TcmVerdict
from qnnmem.planner import MemoryPlan
from qnnmem.planner.planned_file import search_missing_note
from qnnmem.results.prepared import PreparedBinary, PreparedGraph, QuantizedGraph, TriedWidths


def prepared_binary(
    prepared: Prepared,
    tcm: BinaryTcm,
    path: str,
    file_bytes: int,
    *,
    notes: Sequence[str] = (),
    next_steps: Sequence[str] = (),
) -> PreparedBinary:
    """What was written to `path`; `notes` are about the request."""
    context = prepared.context
    errors = {error.graph: error for error in prepared.errors}
    graphs = zip(context.graphs, prepared.plans, tcm.graphs, strict=True)
    return PreparedBinary(
        file=path,
        file_bytes=file_bytes,
        hw_version=context.hw_version,
        graphs=tuple(_graph(*graph, errors.get(graph[0].name)) for graph in graphs),
        notes=tuple(all_notes(prepared, notes)),
        next=tuple(next_steps),
    )


def all_notes(prepared: Prepared, notes: Sequence[str]) -> list[str]:
    """What the user should know: of the request, of each model, of what is not installed."""
    found = [*notes, *(join_words(note, flag_word) for note in prepared.notes)]
    missing = any(plan.search_missing for plan in prepared.plans)
    return [*found, search_missing_note()] if missing else found


def _graph(
    graph: CompiledGraph, plan: MemoryPlan, tcm: TcmVerdict | None, error: QuantizeError | None
) -> PreparedGraph:
    return PreparedGraph(
        name=graph.name,
        ops=len(graph.model.ops),
        scratch_bytes=graph.scratch_bytes,
        optimal=plan.scratch.optimal,
        proof=plan.proof,
        persistent_bytes=graph.persistent_bytes,
        io_bytes=sum(size for _, size in plan.io_sizes),
        io=graph.io.value,
        executable=bool(graph.program),
        float_ops=graph.float_ops,
        tcm_bytes=None if tcm is None else tcm.need,
        fits_tcm=None if tcm is None else tcm.fits,
        quantized=None if error is None else _quantization(error),
    )


def _quantization(error: QuantizeError) -> QuantizedGraph:
    return QuantizedGraph(
        bits=error.bits,
        weight_bits=error.weight_bits,
        error=_finite(error.error),
        error_is_large=error.is_large,
        made_up_samples=error.made_up,
        tried=tuple(
            TriedWidths(tried.bits, tried.weight_bits, _finite(tried.error))
            for tried in error.tried
        ),
    )


def _finite(number: float) -> float | None:
    return number if math.isfinite(number) else None  # JSON knows no infinity
