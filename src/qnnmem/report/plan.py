"""A memory plan for people, as text, and for programs, as JSON of schema `qnnmem.plan/1`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from qnnmem.installation import command_for
from qnnmem.lpai.tcm import TcmVerdict
from qnnmem.plan import Io, MemoryPlan, PlacedBuffer, Pool
from qnnmem.report.flags import with_flags
from qnnmem.report.plan_map import LETTERS, OTHER, draw_map
from qnnmem.report.schema import write_json
from qnnmem.report.shell import file_word, next_line
from qnnmem.text import counted, shorten
from qnnmem.units import Bytes, format_size

SCHEMA = "qnnmem.plan/1"

# Beyond this a picture of letters says nothing.
LARGEST_MAP = 20_000
SHOWN_AT_PEAK = 8
# Notes of the short answer; -v has all.
SHOWN_NOTES = 3
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
    tcm_budget: TcmVerdict | None = None  # against what the user can spare

    @property
    def fits(self) -> bool | None:
        """Whether every budget holds; None where the search could not tell in time."""
        answers = {budget.fits for budget in self.plan.budgets}
        answers |= set() if self.tcm_budget is None else {self.tcm_budget.fits}
        return False if False in answers else None if None in answers else True

    @property
    def has_budget(self) -> bool:
        """Whether the question was if it fits."""
        return bool(self.plan.budgets) or self.tcm_budget is not None

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


def render_answer(report: PlanReport) -> str:
    """The short answer: whether it fits, bytes of each pool, what is proven, what to do next."""
    parts = (_verdict, _other_pools, _budgets, _first_notes, _next)
    return "\n".join(line for part in parts for line in part(report)) + "\n"


def render_text(report: PlanReport) -> str:
    """Verdict first, then numbers, then why, then what to do next.

    Names from the file are made safe to print.
    """
    parts = (_verdict, _about, _pools, _budgets, _reorder, _peak, _tcm, _map, _notes)
    blocks = ["\n".join(lines) for part in parts if (lines := list(part(report)))]
    blocks += _next(report, detailed=True)
    return "\n\n".join(["\n".join(blocks[:2]), *blocks[2:]]) + "\n"


def _verdict(report: PlanReport) -> Iterator[str]:
    plan = report.plan
    if plan.model.assumed:
        yield with_flags(plan.model.assumed)
    yield from budget_lines(report)
    yield f"scratch {_bytes(plan.scratch_bytes)}, {plan.scratch.proof}"


def budget_lines(report: PlanReport) -> Iterator[str]:
    """One line for each budget: whether it holds."""
    plan = report.plan
    in_time = "" if plan.search_missing else " in time"
    for budget in plan.budgets:
        name = budget.pool.value
        many = name.endswith("s")
        if budget.fits is None:
            yield (
                f"cannot tell: no {name} plan within {_bytes(budget.have)} was found{in_time} "
                f"and none is ruled out; best {budget.need:,}, at least {budget.at_least:,}"
            )
        elif budget.fits:
            takes = "take" if many else "takes"
            yield f"fits: {name} {takes} {budget.need:,} of {_bytes(budget.have)}"
        else:
            missing = budget.at_least - budget.have
            needs = "need" if many else "needs"
            yield (
                f"does not fit: {name} {needs} at least {_bytes(budget.at_least)}, "
                f"{missing:,} more than {budget.have:,}{_in_this_order(report, budget.pool)}"
            )
    if report.tcm_budget is not None:
        yield _tcm_budget_line(report.tcm_budget, report.tcm)


def _tcm_budget_line(asked: TcmVerdict, documented: TcmVerdict | None) -> str:
    need, have = asked.need, asked.limit.value
    if asked.missing:
        return (
            f"does not fit: constants and IO need {_bytes(need)} of TCM, "
            f"{asked.missing:,} more than {have:,}"
        )
    if not asked.fits:
        most = asked.max_buffers.value
        return f"does not fit: TCM takes {most} allocations, constants and IO are {asked.buffers}"
    pool = ""
    if documented is not None and documented.missing:
        pool = f"; the documented pool has {documented.limit.value:,}"
    return f"fits: constants and IO take {need:,} of {_bytes(have)} of TCM{pool}"


def _other_pools(report: PlanReport) -> Iterator[str]:
    """What the answer about scratch leaves out, in one line."""
    plan = report.plan
    if plan.model.format == "csv":
        yield f"{counted(len(plan.model.buffers), 'buffer')} in one pool"
        return
    sizes = {pool.value: size for pool, size in report.pools if pool is not Pool.SCRATCH}
    inside = "; IO is inside scratch" if plan.options.io is Io.INSIDE else ""
    if inside:
        del sizes[Pool.IO.value]
    parts = (f"{'IO' if name == 'io' else name} {size:,}" for name, size in sizes.items())
    yield f"{', '.join(parts)} bytes{inside}"


def _first_notes(report: PlanReport) -> Iterator[str]:
    notes = list(_notes(report))
    yield from notes[:SHOWN_NOTES]
    if len(notes) > SHOWN_NOTES:
        yield f"note: {counted(len(notes) - SHOWN_NOTES, 'more note')} with -v"


def _about(report: PlanReport) -> Iterator[str]:
    plan = report.plan
    model = plan.model
    as_given = bool(model.buffers) and plan.options.align is None
    align = "alignments of the file" if as_given else f"alignment {plan.align}"
    facts = f"{align}, planned in {report.seconds:.2f} s"
    if model.format == "csv":
        listed = counted(len(model.buffers), "buffer")
        yield f"{shorten(report.input)}: {listed} in one pool, {facts}"
        return
    width = (
        f"floats stored in {plan.options.bits} bits"
        if plan.options.bits
        else "types as in the model"
    )
    yield (
        f"{shorten(report.input)}: {counted(len(model.ops), 'op')}, "
        f"{counted(len(model.inputs), 'input')}, "
        f"{counted(len(model.outputs), 'output')}, {width}, {facts}"
    )


def _pools(report: PlanReport) -> Iterator[str]:
    plan = report.plan
    if plan.model.format == "csv":
        return
    held = {pool: sum(b.pool is pool for b in plan.buffers) for pool in Pool}
    inside = plan.options.io is Io.INSIDE
    what = {
        Pool.SCRATCH: f"{counted(held[Pool.SCRATCH], 'buffer')} in turn"
        + (", IO among them" if inside else ""),
        Pool.PERSISTENT: counted(held[Pool.PERSISTENT], "state"),
        Pool.IO: f"{counted(len(plan.io_sizes), 'tensor')}, inside scratch"
        if inside
        else f"{counted(held[Pool.IO], 'buffer')} of the application",
        Pool.CONSTANTS: f"{counted(len(plan.model.constants), 'tensor')} of the model binary",
    }
    yield f"{'pool':<11}{'bytes':>15}{'size':>13}   holds"
    for pool, size in report.pools:
        yield f"{pool.value:<11}{size:>15,}{format_size(size):>13}   {what[pool]}"


def _budgets(report: PlanReport) -> Iterator[str]:
    for budget in report.plan.budgets:
        if budget.fits or not budget.blockers:
            continue
        why = "fullest step" if budget.fits is None else _WHY[budget.pool]
        if why == _WHY[Pool.SCRATCH] and len(budget.blockers) == 1:
            why = "too large by itself"
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
    held = counted(len(peak.live), "buffer")
    yield f"peak at step {peak.step}{where}: {_bytes(peak.size)} alive in {held}"
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


def _next(report: PlanReport, *, detailed: bool = False) -> Iterator[str]:
    plan = report.plan
    if report.input == "-":  # what came from a pipe would have to come again
        return
    command = ["qnnmem", "plan", file_word(report.input), *report.given]
    is_float = any(tensor.dtype.is_float for tensor in plan.model.tensors.values())
    lacks_scratch = any(b.pool is Pool.SCRATCH and b.fits is False for b in plan.budgets)
    if plan.likely_states:
        line = _next_states(plan.likely_states, command)
    elif not (plan.scratch.optimal or plan.scratch.search_missing):
        line = next_line("search longer", command, "--time-limit=60")
    elif plan.options.bits is None and is_float:
        why = "LPAI runs 8- and 16-bit models; as int8 it would be"
        line = next_line(why, command, "--bits=8")
    elif lacks_scratch and plan.model.ops and not plan.options.reorder:
        line = next_line("another order of the ops may need less", command, "--reorder")
    elif lacks_scratch and plan.model.ops and plan.options.io is Io.INSIDE:
        line = next_line("inputs and outputs in buffers of their own", command, "--io=outside")
    elif detailed:
        line = next_line("every offset, as a C header", command, "--format=c")
    else:
        line = next_line("the peak, and what lies where", command, "-v")
    if line:
        yield line


def _in_this_order(report: PlanReport, pool: Pool) -> str:
    """What a proof of scratch does not speak of: another order of the ops."""
    other = report.plan.model.ops and not report.plan.options.reorder
    return ", with the ops in this order" if pool is Pool.SCRATCH and other else ""


def _next_states(pairs: Sequence[tuple[str, str]], command: Sequence[str]) -> str:
    """All pairs or none: a plan with a part of the state is wrong without looking so."""
    settings = [f"--state={old}={new}" for old, new in pairs]
    line = next_line("these look like state kept between runs", command, *settings)
    why = f"{len(pairs)} pairs look like state kept between runs, likely_states lists them"
    return line or next_line(why, command, "--format=json")


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
    values: list[dict[str, Any]] = [
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
    tcm = report.tcm_budget
    if tcm is not None:
        sizes = {"need_bytes": tcm.need, "at_least_bytes": tcm.need, "have_bytes": tcm.limit.value}
        values.append({"pool": "tcm", **sizes, "fits": tcm.fits, "blockers": []})
    return values


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
