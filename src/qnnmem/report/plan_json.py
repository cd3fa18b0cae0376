"""A memory plan for programs: JSON of schema `qnnmem.plan/1`."""

from __future__ import annotations

from typing import Any

from qnnmem.flags import flag, with_flags
from qnnmem.planner import MemoryPlan, PlacedBuffer
from qnnmem.planner.model_plan import pool_sizes
from qnnmem.planner.pools import BudgetVerdict
from qnnmem.report.planned import PlanReport, op_at_peak
from qnnmem.results.schema import write_json

SCHEMA = "qnnmem.plan/1"


def render_json(report: PlanReport) -> str:
    """One JSON object; sizes are integer bytes, steps count ops from 0."""
    return write_json(as_values(report))


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
        "proof": plan.proof.value,
        "seconds": round(report.seconds, 6),
        "align_bytes": plan.align,
        "io": plan.options.io.value,
        "bits": plan.options.bits,
        "as": report.seen_as,
        "inputs": list(plan.model.inputs),
        "outputs": list(plan.model.outputs),
        "peak": _peak_values(plan),
        "tcm": _tcm_values(report),
        "budgets": _budgets_values(report),
        "fits": report.fits,
        "exit_code": report.exit_code,
        "remedies": _remedies_values(report),
        "reorder": _reorder_values(report),
        "likely_states": [f"{old}={new}" for old, new in plan.likely_states],
        "ops": [op.name for op in plan.model.ops],
        "buffers": [_buffer_values(buffer) for buffer in plan.buffers],
        "holds_for": list(plan.model.holds_for),
        "notes": [*_first(report), *report.notes],
        "origins": _origins(report),
    }


def _first(report: PlanReport) -> list[str]:
    """What makes every number a guess, or less than the whole."""
    return with_flags(report.plan.model.assumed).splitlines()


def map_values(plan: MemoryPlan) -> dict[str, Any]:
    """What a memory map shows, under the names that a plan has for it."""
    return {
        "scratch_bytes": plan.scratch_bytes,
        "persistent_bytes": plan.persistent_bytes,
        "lower_bound_bytes": plan.scratch.lower_bound,
        "optimal": plan.scratch.optimal,
        "proof": plan.proof.value,
        "io": plan.options.io.value,
        "peak": _peak_values(plan),
        "ops": [op.name for op in plan.model.ops],
        "buffers": [_buffer_values(buffer) for buffer in plan.buffers],
    }


def _peak_values(plan: MemoryPlan) -> dict[str, Any] | None:
    peak = plan.peak
    if peak is None:
        return None
    return {
        "step": peak.step,
        "op": op_at_peak(plan),
        "bytes": peak.size,
        "live": [{"name": buffer.name, "bytes": buffer.size} for buffer in peak.live],
    }


def _tcm_values(report: PlanReport) -> dict[str, Any] | None:
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


def _budgets_values(report: PlanReport) -> list[dict[str, Any]]:
    values: list[dict[str, Any]] = [
        {
            "pool": budget.pool.value,
            "need_bytes": budget.need,
            "at_least_bytes": budget.at_least,
            "have_bytes": budget.have,
            "fits": budget.fits,
            "blockers": list(budget.blockers),
            "blocker_bytes": _blocker_bytes(report, budget),
        }
        for budget in report.plan.budgets
    ]
    tcm = report.tcm_budget
    if tcm is not None:
        sizes = {"need_bytes": tcm.need, "at_least_bytes": tcm.need, "have_bytes": tcm.limit.value}
        none: dict[str, list[int]] = {"blockers": [], "blocker_bytes": []}
        values.append({"pool": "tcm", **sizes, "fits": tcm.fits, **none})
    return values


def _blocker_bytes(report: PlanReport, budget: BudgetVerdict) -> list[int]:
    sizes = pool_sizes(report.plan, budget.pool)
    return [sizes[name] for name in budget.blockers]


def _remedies_values(report: PlanReport) -> list[dict[str, Any]] | None:
    if report.remedies is None:
        return None
    return [
        {
            "options": [flag(setting) for setting in remedy.settings],
            "pool": remedy.pool,
            "saved_bytes": remedy.saved,
            "need_bytes": remedy.after,
            "fits": remedy.fits,
        }
        for remedy in report.remedies.found
    ]


def _reorder_values(report: PlanReport) -> dict[str, Any] | None:
    found = report.plan.reordered
    if found is None:
        return None
    return {
        "before_bytes": found.before,
        "after_bytes": found.after,
        "proven": found.proven,
        "order": [op.name for op in report.plan.model.ops],
    }


def _buffer_values(buffer: PlacedBuffer) -> dict[str, Any]:
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
