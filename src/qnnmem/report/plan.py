"""A memory plan for people: the short answer, and the whole story."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from qnnmem.flags import with_flags
from qnnmem.lpai.tcm import BINARY, TcmVerdict
from qnnmem.planner import Io, Pool
from qnnmem.planner.model_plan import alike, pool_sizes
from qnnmem.planner.tcm import too_many
from qnnmem.report.plan_map import LETTERS, OTHER, draw_map
from qnnmem.report.plan_next import next_lines, remedy_lines, useless_lines
from qnnmem.report.planned import PlanReport
from qnnmem.report.tcm import fatal_lines
from qnnmem.results.proof import ProofScope
from qnnmem.text import counted, shorten
from qnnmem.units import format_size

# Beyond this a picture of letters says nothing.
LARGEST_MAP = 20_000
SHOWN_AT_PEAK = 8
# Notes of the short answer; -v has all.
SHOWN_NOTES = 3
_TCM_NAMES = {BINARY: "constants"}  # of a plan, which has no binary yet
_WHY = dict.fromkeys(Pool, "largest") | {Pool.SCRATCH: "these cannot fit together"}


def render_answer(report: PlanReport) -> str:
    """The short answer: whether it fits, bytes of each pool, what is proven, what to do next."""
    parts = (_verdict, _other_pools, _budgets, useless_lines, _first_notes, next_lines)
    return "\n".join(line for part in parts for line in part(report)) + "\n"


def render_text(report: PlanReport) -> str:
    """Verdict first, then numbers, then why, then what to do next.

    Names from the file are made safe to print.
    """
    parts = (_verdict, _about, _pools, _budgets, remedy_lines, _reorder, _peak, _tcm, _map, _notes)
    blocks = ["\n".join(lines) for part in parts if (lines := list(part(report)))]
    blocks += next_lines(report, detailed=True)
    return "\n\n".join(["\n".join(blocks[:2]), *blocks[2:]]) + "\n"


def _verdict(report: PlanReport) -> Iterator[str]:
    plan = report.plan
    if plan.model.assumed:
        yield with_flags(plan.model.assumed)
    yield from map(_shortened, plan.model.holds_for)
    yield from budget_lines(report)
    yield from allocation_lines(report)
    yield f"scratch {_bytes(plan.scratch_bytes)}, {plan.proof_words}"


def allocation_lines(report: PlanReport) -> Iterator[str]:
    """That TCM serves fewer allocations than there are, where no budget of TCM says so."""
    if report.tcm_budget is None:
        yield from fatal_lines(report.tcm)


def budget_lines(report: PlanReport) -> Iterator[str]:
    """One line for each budget: whether it holds."""
    plan = report.plan
    in_time = "" if plan.search_missing else " in time"
    by = plan.by_estimate
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
            fits = "cannot tell: as far as is known" if plan.model.assumed else f"fits{by}:"
            yield f"{fits} {name} {takes} {budget.need:,} of {_bytes(budget.have)}"
        elif budget.pool is Pool.SCRATCH and plan.proof is ProofScope.UPPER_BOUND:
            yield (
                f"not found to fit: {name} takes {_bytes(budget.need)}, "
                f"{budget.need - budget.have:,} more than {budget.have:,}; branch and loop bodies "
                "are planned separately, so fewer may be enough"
            )
        else:
            missing = budget.at_least - budget.have
            needs = "need" if many else "needs"
            yield (
                f"does not fit{by}: {name} {needs} at least {_bytes(budget.at_least)}, "
                f"{missing:,} more than {budget.have:,}{_in_this_order(report, budget.pool)}"
            )
    if report.tcm_budget is not None:
        yield _tcm_budget_line(report.tcm_budget, report.tcm, by)


def _tcm_budget_line(asked: TcmVerdict, documented: TcmVerdict | None, by: str) -> str:
    need, have = asked.need, asked.limit.value
    crowded = too_many(asked.buffers, asked.max_buffers.value) if asked.is_crowded else ""
    if asked.missing:
        also = f"; {crowded}" if crowded else ""
        return (
            f"does not fit{by}: constants and IO need {_bytes(need)} of TCM, "
            f"{asked.missing:,} more than {have:,}{also}"
        )
    if crowded:
        return f"does not fit: {crowded}"
    pool = ""
    if documented is not None and documented.missing:
        pool = f"; the documented pool has {documented.limit.value:,}"
    return f"fits{by}: constants and IO take {need:,} of {_bytes(have)} of TCM{pool}"


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
    unit = "byte" if list(sizes.values())[-1] == 1 else "bytes"
    yield f"{', '.join(parts)} {unit}{inside}"


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
    """What stands in the way of each budget, by its bytes and its share of what is needed."""
    for budget in report.plan.budgets:
        if budget.fits or not budget.blockers:
            continue
        why = "fullest step" if budget.fits is None else _WHY[budget.pool]
        if why == _WHY[Pool.SCRATCH] and len(budget.blockers) == 1:
            why = "too large by itself"
        sizes = pool_sizes(report.plan, budget.pool)
        parts = [(name, sizes[name]) for name in budget.blockers]
        yield from _parts(why, budget.pool.value, parts, budget.need)
        if others := alike(report.plan, budget):
            are = "is" if others == 1 else "are"
            as_well = "too large, too" if len(parts) == 1 else "as large"
            yield f"  {counted(others, 'other')} {are} {as_well}"
    tcm = report.tcm_budget
    if tcm is not None and tcm.missing:
        rows = sorted(tcm.rows, key=lambda row: (-row.exact, row.what))
        parts = [(_TCM_NAMES.get(row.what, row.what), row.exact) for row in rows]
        yield from _parts("largest", "TCM", parts, tcm.need)


def _parts(why: str, pool: str, parts: Sequence[tuple[str, int]], need: int) -> Iterator[str]:
    total = sum(size for _name, size in parts)
    yield f"{why} ({len(parts)} in {pool}, {_bytes(total)}{_share(total, need)}):"
    for name, size in parts[:SHOWN_AT_PEAK]:
        yield f"  {size:>13,} {_percent(size, need):>7}  {shorten(name)}"
    rest = [size for _name, size in parts[SHOWN_AT_PEAK:]]
    if rest:
        yield f"  {sum(rest):>13,} {_percent(sum(rest), need):>7}  {len(rest):,} more"


def _share(part: int, whole: int) -> str:
    return "" if part == whole else f", {_percent(part, whole)} of {whole:,}"


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / max(whole, 1):.1f} %"


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
        share = _percent(buffer.size, peak.size)
        yield f"  {letters[buffer.name]} {buffer.size:>13,} {share:>7}  {shorten(buffer.name)}"
    rest = peak.live[SHOWN_AT_PEAK:]
    if rest:
        total = sum(buffer.size for buffer in rest)
        yield f"  {OTHER} {total:>13,} {_percent(total, peak.size):>7}  {len(rest)} more"


def map_lines(report: PlanReport) -> Iterator[str]:
    """What sets the peak, and the map with its letters."""
    yield from (*_peak(report), "", *_map(report))


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
    verdict = ("fits" if tcm.fits else "does not fit") + report.plan.by_estimate
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
    if report.plan.is_estimate:
        ops = counted(len(report.plan.model.ops), "op")
        yield (
            f"note: planned are the {ops} of the float model; "
            "quantizing fuses some and adds others, so it can need more bytes or fewer"
        )
    for note in report.notes:
        yield f"note: {_shortened(note)}"


def _shortened(sentence: str) -> str:
    return shorten(sentence, 200)


def _in_this_order(report: PlanReport, pool: Pool) -> str:
    """What a proof of scratch does not cover: another order of the ops."""
    known = (
        report.plan.proof in (ProofScope.ANY_ORDER, ProofScope.LIFETIMES)
        or not report.plan.model.ops
    )
    return "" if known or pool is not Pool.SCRATCH else ", with the ops in this order"


def _bytes(size: int) -> str:
    return counted(size, "byte")
