"""What preparation made, as JSON, schema `qnnmem.prepared/1`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from qnnmem.lpai.compiled import CompiledGraph
from qnnmem.lpai.preparation import Prepared
from qnnmem.lpai.quantize.error import QuantizeError
from qnnmem.lpai.tcm import BinaryTcm, TcmVerdict
from qnnmem.planner import MemoryPlan
from qnnmem.report.prepare import all_notes, next_commands
from qnnmem.results.schema import write_json

SCHEMA = "qnnmem.prepared/1"


def render_json(
    prepared: Prepared, tcm: BinaryTcm, notes: Sequence[str], path: str, size: int, tool: str
) -> str:
    """One JSON object."""
    context = prepared.context
    errors = {error.graph: error for error in prepared.errors}
    graphs = zip(context.graphs, prepared.plans, tcm.graphs, strict=True)
    return write_json(
        {
            "schema": SCHEMA,
            "tool": tool,
            "file": path,
            "file_bytes": size,
            "hw_version": context.hw_version,
            "graphs": [_graph(*graph, errors.get(graph[0].name)) for graph in graphs],
            "notes": all_notes(prepared, notes),
            "next": [command for _, command in next_commands(context, path)],
        }
    )


def _graph(
    graph: CompiledGraph, plan: MemoryPlan, tcm: TcmVerdict | None, error: QuantizeError | None
) -> dict[str, Any]:
    return {
        "name": graph.name,
        "ops": len(graph.model.ops),
        "scratch_bytes": graph.scratch_bytes,
        "optimal": plan.scratch.optimal,
        "proof": plan.proof.value,
        "persistent_bytes": graph.persistent_bytes,
        "io_bytes": sum(size for _, size in plan.io_sizes),
        "io": graph.io.value,
        "executable": bool(graph.program),
        "float_ops": graph.float_ops,
        "tcm_bytes": None if tcm is None else tcm.need,
        "fits_tcm": None if tcm is None else tcm.fits,
        "quantized": None if error is None else _quantized(error),
    }


def _quantized(error: QuantizeError) -> dict[str, Any]:
    return {
        "bits": error.bits,
        "weight_bits": error.weight_bits,
        "error": _number(error.error),
        "error_is_large": error.is_large,
        "made_up_samples": error.made_up,
        "tried": [
            {"bits": one.bits, "weight_bits": one.weight_bits, "error": _number(one.error)}
            for one in error.tried
        ],
    }


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None  # JSON knows no infinity
