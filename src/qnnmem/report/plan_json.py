"""A plan as JSON, schema `qnnmem.plan/1`."""

from __future__ import annotations

import json
from typing import Any

from qnnmem.plan import PlacedBuffer
from qnnmem.report.plan_report import PlanReport

SCHEMA = "qnnmem.plan/1"


def render(report: PlanReport) -> str:
    """One JSON object; sizes are integer bytes, steps count ops from 0."""
    return json.dumps(as_values(report), indent=1, ensure_ascii=True) + "\n"


def as_values(report: PlanReport) -> dict[str, Any]:
    """The object behind the JSON text."""
    plan = report.plan
    return {
        "schema": SCHEMA,
        "tool": report.tool,
        "input": report.input,
        "scratch_bytes": plan.scratch_bytes,
        "persistent_bytes": plan.persistent_bytes,
        "io_bytes": plan.io_bytes,
        "constant_bytes": plan.constant_bytes,
        "lower_bound_bytes": plan.scratch.lower_bound,
        "optimal": plan.scratch.optimal,
        "seconds": round(report.seconds, 6),
        "align_bytes": plan.align,
        "io": plan.options.io.value,
        "bits": plan.options.bits,
        "inputs": list(plan.model.inputs),
        "outputs": list(plan.model.outputs),
        "peak": _peak(report),
        "tcm": _tcm(report),
        "budgets": _budgets(report),
        "reorder": _reorder(report),
        "likely_states": [f"{old}={new}" for old, new in plan.likely_states],
        "buffers": [_buffer(buffer) for buffer in plan.buffers],
        "notes": list(report.notes),
        "origins": _origins(report),
    }


def schema() -> dict[str, Any]:
    """Read the JSON Schema (2020-12) that every rendered plan satisfies."""
    from importlib.resources import files

    text = files("qnnmem.report").joinpath("schemas/plan-1.json").read_text("utf-8")
    found: dict[str, Any] = json.loads(text)
    return found


def _peak(report: PlanReport) -> dict[str, Any] | None:
    peak = report.plan.peak
    if peak is None:
        return None
    return {
        "step": peak.step,
        "op": report.op_at_peak,
        "bytes": peak.size,
        "live": [{"name": buffer.name, "bytes": buffer.size} for buffer in peak.live],
    }


def _tcm(report: PlanReport) -> dict[str, Any] | None:
    tcm = report.tcm
    if tcm is None:
        return None
    return {
        "fits": tcm.fits,
        "need_bytes": tcm.need,
        "limit_bytes": tcm.limit.value,
        "buffers": tcm.buffers,
        "max_buffers": tcm.max_buffers.value,
    }


def _budgets(report: PlanReport) -> list[dict[str, Any]]:
    return [
        {
            "pool": budget.pool.value,
            "need_bytes": budget.need,
            "at_least_bytes": budget.at_least,
            "have_bytes": budget.have,
            "fits": budget.fits,
            "blockers": list(budget.blockers),
        }
        for budget in report.plan.budgets
    ]


def _reorder(report: PlanReport) -> dict[str, Any] | None:
    found = report.plan.reordered
    if found is None:
        return None
    return {
        "before_bytes": found.before,
        "after_bytes": found.after,
        "proven": found.proven,
        "order": [op.name for op in report.plan.model.ops],
    }


def _buffer(buffer: PlacedBuffer) -> dict[str, Any]:
    return {
        "name": buffer.name,
        "pool": buffer.pool.value,
        "size_bytes": buffer.size,
        "lower": buffer.live.lower,
        "upper": buffer.live.upper,
        "offset_bytes": buffer.offset,
        "aliases": list(buffer.aliases),
    }


def _origins(report: PlanReport) -> dict[str, str]:
    origins = dict.fromkeys(
        ("scratch_bytes", "persistent_bytes", "io_bytes", "constant_bytes", "lower_bound_bytes"),
        "computed",
    )
    if report.tcm is not None:
        origins["tcm.need_bytes"] = "computed"
        origins["tcm.limit_bytes"] = f"{report.tcm.limit.origin.value}: {report.tcm.limit.source}"
        origins["tcm.max_buffers"] = origins["tcm.limit_bytes"]
    return origins
