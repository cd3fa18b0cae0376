"""A plan as part of a page: verdict, what decides, what to change, pools, the map."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import PurePath

from qnnmem.report.page.charts import Bar, bars, line
from qnnmem.report.page.document import PageSection
from qnnmem.report.page.markup import Html, answer, badge, command, details, lines, table, tag
from qnnmem.report.page.memory_map import drawn, memory_map
from qnnmem.report.shell import command_line, file_word
from qnnmem.results.plan import PlanBudget, PlanBuffer, PlanResult
from qnnmem.results.proof import ProofScope
from qnnmem.results.together import TogetherResult
from qnnmem.text import shorten
from qnnmem.units import format_size

_LABELS = {
    "scratch": "scratch",
    "persistent": "persistent",
    "io": "inputs and outputs",
    "constants": "constants",
    "tcm": "TCM",
}
_NAMED = 3  # tensors that a sentence names


def plan_section(plan: PlanResult) -> PageSection:
    """Everything a plan holds, the answer first."""
    below = lines([*_live(plan)])
    return PageSection(
        f"Plan of {PurePath(plan.input).name or plan.input}",
        lines(
            [
                *(tag("p", line) for line in plan.holds_for),
                _answer(plan),
                *_deciding(plan),
                *_changes(plan),
                _pools(plan),
                memory_map(plan.map, budget=plan.limits.get("scratch"), below=below),
                *_tcm(plan),
                *(tag("p", note) for note in plan.notes),
                provenance(plan),
            ]
        ),
        has_map=True,
    )


def together_section(found: TogetherResult) -> PageSection:
    """Models that share their pools: assumptions, places, map."""
    rows = [
        (model.name, model.scratch_bytes, model.scratch_offset, model.persistent_bytes)
        for model in found.models
    ]
    titles = ("model", "scratch", "from byte", "persistent")
    said = found.summary
    return PageSection(
        f"{len(found.models)} models together",
        lines(
            [
                answer(found.fits, said) if found.budgets else tag("p", said, class_="answer"),
                tag("p", found.assumed),
                table(titles, rows),
                memory_map(found.map, "Each model at its place in the pools that all share"),
            ]
        ),
        has_map=True,
    )


def _answer(plan: PlanResult) -> Html:
    scratch = f"scratch {plan.scratch_bytes:,} bytes, {plan.proof_words}"
    if not plan.budgets and plan.fits is not False:
        return tag("p", scratch, class_="answer")
    tcm = plan.tcm
    if not plan.budgets and tcm is not None:
        return answer(False, f"{tcm.buffers:,} allocations, TCM serves {tcm.max_buffers:,}")
    told = [_budget_words(plan, one) for one in _by_need(plan)[:1]]
    return answer(plan.fits, *told, f"; {scratch}" if plan.lacking != ("scratch",) else "")


def _by_need(plan: PlanResult) -> list[PlanBudget]:
    """Budgets, those that are broken first, then the tightest."""
    order = {False: 0, None: 1, True: 2}
    return sorted(
        plan.budgets, key=lambda one: (order[one.fits], -one.need_bytes / max(one.have_bytes, 1))
    )


def _budget_words(plan: PlanResult, one: PlanBudget) -> str:
    pool, have = _LABELS[one.pool], format_size(one.have_bytes)
    verb = "" if one.pool in ("io", "constants") else "s"
    need = format_size(one.need_bytes)
    if one.fits:
        left = format_size(one.have_bytes - one.need_bytes)
        return f"{pool} take{verb} {need} of {have}, {left} left{plan.scope.basis}"
    over = format_size(one.need_bytes - one.have_bytes)
    if one.fits is None:
        least = format_size(one.at_least_bytes)
        return f"{pool} needs {least} to {need}, the limit is {have}; the search ended in between"
    words = f"{pool} need{verb} {need}, {over} over the limit of {have}{plan.scope.basis}"
    if plan.scope is ProofScope.UPPER_BOUND and one.pool == "scratch":
        words += "; branch and loop bodies are planned separately, so fewer may be enough"
    if one.at_least_bytes < one.need_bytes:
        words += f"; any plan needs at least {one.at_least_bytes:,} bytes"
    return words


def _deciding(plan: PlanResult) -> Iterator[Html]:
    """What sets the number that decides: the peak, or the largest tensors of another pool."""
    first = next(iter(_by_need(plan)), None)
    if first is not None and first.pool != "scratch":
        if first.blockers:
            sizes = zip(first.blockers, first.blocker_bytes, strict=False)
            yield tag("p", f"Largest of {_LABELS[first.pool]}: {_named(list(sizes))}.")
        return
    peak = plan.peak
    if peak is not None and peak.live:
        op = f", {peak.op}" if peak.op else ""
        live = sorted(((one.name, one.bytes) for one in peak.live), key=lambda one: -one[1])
        yield tag("p", f"Fullest at step {peak.step:,}{op}: {_named(live)}.")


def _named(tensors: Sequence[tuple[str, int]]) -> str:
    named = [f"{shorten(name)} {format_size(size)}" for name, size in tensors[:_NAMED]]
    more = len(tensors) - len(named)
    return ", ".join(named) + (f" and {more:,} more" if more > 0 else "")


def _changes(plan: PlanResult) -> Iterator[Html]:
    """Options that were planned and help; for a model that can be changed, the search for more."""
    best = next((one for one in plan.remedies or () if one.fits), None)
    best = best or next(iter(plan.remedies or ()), None)
    if best is not None:
        then = "which fits" if best.fits else "still too much"
        size = format_size(best.need_bytes)
        yield tag("p", f"With these options {_LABELS[best.pool]} is {size}, {then}:")
        yield command(" ".join(best.options))
    is_onnx = plan.input.lower().endswith(".onnx") and not plan.seen_as and not plan.holds_for
    lacking = set(plan.lacking)
    is_met = best is not None and best.fits
    if not lacking or is_met or not is_onnx or "persistent" in lacking:
        return
    words = [f"--budget={pool}={have}" for pool, have in plan.limits.items()]
    pasted = command_line(["qnnmem", "fix", file_word(plan.input), *words, "-o", "fixed"])
    if pasted:
        yield tag("p", "Search for a change that fits:")
        yield command(pasted)


def _pools(plan: PlanResult) -> Html:
    have, pools = plan.limits, plan.pools
    rows = [
        Bar(_LABELS[pool], [(pool, need)], have.get(pool), 0, _origin(plan, pool), "given")
        for pool, need in pools.items()
    ]
    if sum(need > 0 for need in pools.values()) > 1:
        rows.append(Bar("all together", list(pools.items())))
    if plan.tcm is not None and _asks_tcm(plan):
        rows += _tcm_bars(plan)
    shown = [row for row in rows if row.total or row.limit]
    inside = tag("p", "Inputs and outputs are part of scratch.", class_="faint")
    around = inside if plan.io == "inside" and plan.ops else Html("")
    return Html(f"{bars(shown, 'Bytes of each pool')}\n{around}")


def _tcm_bars(plan: PlanResult) -> Iterator[Bar]:
    tcm = plan.tcm
    if tcm is not None:
        pieces = [("constants", plan.constant_bytes)]
        pieces.append(("io", max(0, tcm.need_bytes - plan.constant_bytes)))
        source = plan.origins.get("tcm.limit_bytes", "")
        yield Bar("TCM: model and IO", pieces, tcm.limit_bytes, 0, "computed", source)
        if "tcm" in plan.limits:
            yield Bar("budget for TCM", pieces, plan.limits["tcm"], 0, "computed", "given")


def _asks_tcm(plan: PlanResult) -> bool:
    """Return whether TCM was asked about, the file is for LPAI, or TCM is why it cannot run."""
    crowded = plan.tcm is not None and plan.tcm.is_crowded
    return crowded or "tcm" in plan.limits or plan.input.lower().endswith(".eaix")


def _origin(plan: PlanResult, pool: str) -> str:
    return plan.origins.get(f"{'constant' if pool == 'constants' else pool}_bytes", "")


def _live(plan: PlanResult) -> Iterator[Html]:
    points = list(live_bytes([one for one in drawn(plan.map) if one.pool != "persistent"]))
    limits = [(f"scratch, {plan.scope.value}", plan.scratch_bytes)]
    if plan.scope is ProofScope.NONE:
        limits.append(("lower bound for this order", plan.lower_bound_bytes))
    budgets = [have for pool, have in plan.limits.items() if pool == "scratch"]
    limits += [("budget", have) for have in budgets if have <= 2 * plan.scratch_bytes]
    if points:
        yield tag("h3", "Bytes alive at each step")
        yield line(points, "Bytes alive at each step", limits, unit="step", stepped=True)


def live_bytes(buffers: Sequence[PlanBuffer]) -> Iterator[tuple[int, int]]:
    """Steps at which the sum changes, and the sum from there."""
    changes: dict[int, int] = {}
    for one in buffers:
        changes[one.lower] = changes.get(one.lower, 0) + one.size_bytes
        changes[one.upper] = changes.get(one.upper, 0) - one.size_bytes
    total = 0
    for step in sorted(changes):
        total += changes[step]
        yield step, total


def _tcm(plan: PlanResult) -> Iterator[Html]:
    """Numbers of TCM: only LPAI has it, so they are folded unless it was asked about."""
    tcm = plan.tcm
    if tcm is None:
        return
    source = plan.origins.get("tcm.limit_bytes", "")
    rows = [
        ("bytes", tcm.need_bytes, "computed", tcm.limit_bytes, source),
        ("allocations", tcm.buffers, "computed", tcm.max_buffers, source),
    ]
    head = ("of model and IO", "needed", "origin", "there", "origin")
    numbers = table(head, rows)
    if _asks_tcm(plan):
        yield tag("h3", "TCM of aDSP direct mode ", badge(tcm.fits), plan.scope.basis)
        yield numbers
    else:
        yield details("On LPAI: TCM of aDSP direct mode", lines([badge(tcm.fits), numbers]))


def provenance(plan: PlanResult) -> Html:
    """Where the numbers come from."""
    rows = [("file", plan.input), ("tool", plan.tool), ("alignment", f"{plan.align_bytes} bytes")]
    rows.append(("inputs and outputs", f"{plan.io} scratch"))
    rows.append(("bits", "as in the model" if plan.bits is None else str(plan.bits)))
    rows.append(("planned in", f"{plan.seconds:.3f} s"))
    rows += sorted(plan.origins.items())
    return details("Where the numbers come from", table(("what", "from"), rows))
