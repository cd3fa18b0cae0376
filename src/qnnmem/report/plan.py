"""A memory plan for people, as text, and for programs, as JSON of schema `qnnmem.plan/1`."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from qnnmem.installation import command_for
from qnnmem.lpai.tcm import TcmVerdict
from qnnmem.plan import Io, MemoryPlan, PlacedBuffer, Pool
from qnnmem.report.plan_map import LETTERS, OTHER, draw_map
from qnnmem.report.schema import write_json
from qnnmem.text import shorten
from qnnmem.units import Bytes, format_size

SCHEMA = "qnnmem.plan/1"

# Beyond this a picture of letters says nothing.
LARGEST_MAP = 20_000
SHOWN_AT_PEAK = 8
_WHY = dict.fromkeys(Pool, "largest") | {Pool.SCRATCH: "these cannot fit together"}


def search_missing() -> str:
    """That a better plan may be found, and by what."""
    return (
        "the exact search is not installed and may find a lower plan or prove this one minimal: "
        + command_for("search")
    )


@dataclass(frozen=True, slots=True)
class PlanReport:
    """A memory plan with its verdicts, where it came from and how long it took."""

    plan: MemoryPlan
    tcm: TcmVerdict | None  # None for a bare list of buffers
    input: str
    tool: str
    seconds: float
    given: tuple[str, ...] = ()  # options the user gave, for commands to paste

    @property
    def op_at_peak(self) -> str | None:
        """The op that runs at the fullest step; None before the first and after the last."""
        peak, ops = self.plan.peak, self.plan.model.ops
        if peak is None or not 0 <= peak.step < len(ops):
            return None
        return f"{ops[peak.step].name} ({ops[peak.step].type})"

    @property
    def notes(self) -> tuple[str, ...]:
        """What the reader of the file said, and how far the proof goes."""
        notes = list(self.plan.model.notes)
        if any(op.bodies for op in self.plan.model.ops):
            notes.append(
                "the bodies of control-flow ops are planned apart and take one block while the op "
                "runs; the minimum is one of this arrangement"
            )
        if self.plan.reordered is not None and self.plan.reordered.skipped is not None:
            notes.append(f"reordering ops was skipped: {self.plan.reordered.skipped}")
        if self.plan.scratch.cut_by_clock and not self.plan.scratch.optimal:
            notes.append("the clock ended the search, so another run may find another plan")
        if self.plan.search_missing:
            notes.append(search_missing())
        return tuple(notes)

    @property
    def pools(self) -> tuple[tuple[Pool, Bytes], ...]:
        """Pools and their sizes, in the order they are shown."""
        return tuple((pool, self.plan.pool_bytes(pool)) for pool in Pool)


def render_text(report: PlanReport) -> str:
    """Verdict first, then numbers, then why, then what to do next.

    Names from the file are made safe to print.
    """
    parts = (_verdict, _about, _pools, _budgets, _reorder, _peak, _tcm, _map, _notes, _next)
    blocks = ["\n".join(lines) for part in parts if (lines := list(part(report)))]
    return "\n\n".join(["\n".join(blocks[:2]), *blocks[2:]]) + "\n"


def _verdict(report: PlanReport) -> Iterator[str]:
    plan = report.plan
    in_time = "" if plan.search_missing else " in time"
    for budget in plan.budgets:
        name = budget.pool.value
        if budget.fits is None:
            yield (
                f"cannot tell: no {name} plan within {_bytes(budget.have)} was found{in_time} "
                f"and none is ruled out; best {budget.need:,}, at least {budget.at_least:,}"
            )
        elif budget.fits:
            yield f"fits: {name} takes {budget.need:,} of {_bytes(budget.have)}"
        else:
            missing = budget.at_least - budget.have
            yield (
                f"does not fit: {name} needs at least {_bytes(budget.at_least)}, "
                f"{missing:,} more than {budget.have:,}"
            )
    yield f"scratch {_bytes(plan.scratch_bytes)}, {_proof(report)}"


def _proof(report: PlanReport) -> str:
    plan = report.plan.scratch
    if plan.optimal:
        return "proven minimal"
    above = 100 * (plan.peak - plan.lower_bound) / max(plan.lower_bound, 1)
    return f"at most {above:.2f} % above the minimum (proven bound {plan.lower_bound:,})"


def _about(report: PlanReport) -> Iterator[str]:
    plan = report.plan
    model = plan.model
    as_given = bool(model.buffers) and plan.options.align is None
    align = "alignments of the file" if as_given else f"alignment {plan.align}"
    facts = f"{align}, planned in {report.seconds:.2f} s"
    if model.format == "csv":
        yield f"{shorten(report.input)}: {len(model.buffers):,} buffers in one pool, {facts}"
        return
    width = (
        f"floats stored in {plan.options.bits} bits"
        if plan.options.bits
        else "types as in the model"
    )
    yield (
        f"{shorten(report.input)}: {_count(len(model.ops), 'op')}, "
        f"{_count(len(model.inputs), 'input')}, "
        f"{_count(len(model.outputs), 'output')}, {width}, {facts}"
    )


def _pools(report: PlanReport) -> Iterator[str]:
    plan = report.plan
    if plan.model.format == "csv":
        return
    held = {pool: sum(b.pool is pool for b in plan.buffers) for pool in Pool}
    inside = plan.options.io is Io.INSIDE
    what = {
        Pool.SCRATCH: f"{held[Pool.SCRATCH]} buffers in turn"
        + (", IO among them" if inside else ""),
        Pool.PERSISTENT: _count(held[Pool.PERSISTENT], "state"),
        Pool.IO: f"{len(plan.io_sizes)} tensors, inside scratch"
        if inside
        else f"{held[Pool.IO]} buffers of the application",
        Pool.CONSTANTS: f"{len(plan.model.constants)} tensors of the model binary",
    }
    yield f"{'pool':<11}{'bytes':>15}{'size':>13}   holds"
    for pool, size in report.pools:
        yield f"{pool.value:<11}{size:>15,}{format_size(size):>13}   {what[pool]}"


def _budgets(report: PlanReport) -> Iterator[str]:
    for budget in report.plan.budgets:
        if budget.fits or not budget.blockers:
            continue
        why = "fullest step" if budget.fits is None else _WHY[budget.pool]
        yield f"{why} ({len(budget.blockers)} in {budget.pool.value}):"
        for name in budget.blockers[:SHOWN_AT_PEAK]:
            yield f"  {shorten(name)}"
        if len(budget.blockers) > SHOWN_AT_PEAK:
            yield f"  … and {len(budget.blockers) - SHOWN_AT_PEAK} more"


def _reorder(report: PlanReport) -> Iterator[str]:
    found = report.plan.reordered
    if found is None or found.skipped is not None:
        return
    proof = ", no order needs less" if found.proven else ""
    if found.after < found.before:
        gain = 100 * (found.before - found.after) / found.before
        yield (
            f"reordering ops lowers the scratch alive at the peak from {found.before:,} "
            f"to {_bytes(found.after)} "
            f"({gain:.1f} % less{proof})"
        )
    else:
        yield (
            f"reordering ops does not lower the {_bytes(found.before)} of scratch "
            f"alive at the peak{proof}"
        )


def _peak(report: PlanReport) -> Iterator[str]:
    peak = report.plan.peak
    if peak is None:
        return
    where = f", {shorten(report.op_at_peak)}" if report.op_at_peak else ""
    yield f"peak at step {peak.step}{where}: {_bytes(peak.size)} alive in {len(peak.live)} buffers"
    letters = _letters(report)
    for buffer in peak.live[:SHOWN_AT_PEAK]:
        share = 100 * buffer.size / max(peak.size, 1)
        yield f"  {letters[buffer.name]} {buffer.size:>13,} {share:>5.1f} %  {shorten(buffer.name)}"
    rest = peak.live[SHOWN_AT_PEAK:]
    if rest:
        total = sum(buffer.size for buffer in rest)
        yield f"  {OTHER} {total:>13,} {100 * total / peak.size:>5.1f} %  {len(rest)} more"


def _letters(report: PlanReport) -> dict[str, str]:
    live = report.plan.peak.live if report.plan.peak else ()
    names = [buffer.name for buffer in live[:SHOWN_AT_PEAK]]
    return dict(zip(names, LETTERS, strict=False))


def _tcm(report: PlanReport) -> Iterator[str]:
    tcm = report.tcm
    if tcm is None:
        return
    spare = tcm.limit.value - tcm.need
    room = f"{spare:,} to spare" if spare >= 0 else f"{-spare:,} too many"
    verdict = "fits" if tcm.fits else "does not fit"
    yield (
        f"TCM (aDSP direct mode, {tcm.limit.origin.value} limit): {verdict}, "
        f"constants and IO take {tcm.need:,} of {_bytes(tcm.limit.value)}, {room}; "
        f"{tcm.buffers} of {tcm.max_buffers.value} allocations"
    )


def _map(report: PlanReport) -> Iterator[str]:
    plan = report.plan
    scratch = [b for b in plan.buffers if b.pool is Pool.SCRATCH]
    if len(scratch) <= LARGEST_MAP:
        yield from draw_map(scratch, plan.scratch_bytes, _letters(report))


def _notes(report: PlanReport) -> Iterator[str]:
    for note in report.notes:
        yield f"note: {shorten(note, 200)}"


def _next(report: PlanReport) -> Iterator[str]:
    plan = report.plan
    command = shlex.join(["qnnmem", "plan", report.input, *report.given])
    if plan.likely_states:
        pairs = " ".join(f"--state {shlex.quote(f'{a}={b}')}" for a, b in plan.likely_states[:4])
        yield f"next: these look like state kept between runs: {shorten(f'{command} {pairs}', 300)}"
    elif not (plan.scratch.optimal or plan.scratch.search_missing):
        yield f"next: search longer: {shorten(command, 200)} --time-limit 60"
    elif plan.options.bits is None and any(t.dtype.is_float for t in plan.model.tensors.values()):
        shown = shorten(command, 200)
        yield f"next: LPAI runs 8- and 16-bit models; as int8 it would be: {shown} --bits 8"
    elif plan.model.format != "csv":
        yield f"next: the same for a program: {shorten(command, 200)} --format json"


def _count(number: int, thing: str) -> str:
    return f"{number:,} {thing}" if number == 1 else f"{number:,} {thing}s"


def _bytes(size: int) -> str:
    return f"{size:,} bytes"


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
        "seconds": round(report.seconds, 6),
        "align_bytes": plan.align,
        "io": plan.options.io.value,
        "bits": plan.options.bits,
        "inputs": list(plan.model.inputs),
        "outputs": list(plan.model.outputs),
        "peak": _peak_values(report),
        "tcm": _tcm_values(report),
        "budgets": _budgets_values(report),
        "reorder": _reorder_values(report),
        "likely_states": [f"{old}={new}" for old, new in plan.likely_states],
        "buffers": [_buffer_values(buffer) for buffer in plan.buffers],
        "notes": list(report.notes),
        "origins": _origins(report),
    }


def _peak_values(report: PlanReport) -> dict[str, Any] | None:
    peak = report.plan.peak
    if peak is None:
        return None
    return {
        "step": peak.step,
        "op": report.op_at_peak,
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
