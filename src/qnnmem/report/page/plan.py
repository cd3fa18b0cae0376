"""A plan as part of a page: the map, bytes over time, pools against their limits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import PurePath

from qnnmem.report.page.charts import Bar, bars, line
from qnnmem.report.page.document import PageSection
from qnnmem.report.page.markup import Html, badge, details, lines, size, table, tag, text
from qnnmem.report.page.memory_map import drawn, memory_map
from qnnmem.results.plan import PlanBuffer, PlanResult
from qnnmem.results.proof import ProofScope
from qnnmem.text import counted

__all__ = ["live_bytes", "memory_map", "plan_section", "provenance"]
_LABELS = {
    "scratch": "scratch",
    "persistent": "persistent",
    "io": "inputs and outputs",
    "constants": "constants",
}
_LISTED = 2000  # rows of the table; the map has all


def plan_section(plan: PlanResult) -> PageSection:
    """Everything a plan holds."""
    return PageSection(
        f"Plan of {PurePath(plan.input).name or plan.input}",
        lines(
            [
                *(tag("p", line) for line in plan.holds_for),
                _answer(plan),
                _pools(plan),
                memory_map(plan.map, budget=plan.limits.get("scratch")),
                _live(plan),
                *_tcm(plan),
                *(tag("p", note) for note in plan.notes),
                _buffers(plan),
                provenance(plan),
            ]
        ),
        has_map=True,
    )


def _answer(plan: PlanResult) -> Html:
    answer = [badge(plan.fits), Html(" ")] if plan.budgets or plan.fits is False else []
    return tag(
        "p",
        *answer,
        Html(f"scratch {size(plan.scratch_bytes)}, {text(plan.proof_words)}"),
        class_="answer",
    )


def _pools(plan: PlanResult) -> Html:
    have, pools = plan.limits, plan.pools
    rows = [
        Bar(_LABELS[pool], [(pool, need)], have.get(pool), 0, _origin(plan, pool), "given")
        for pool, need in pools.items()
    ]
    if sum(need > 0 for need in pools.values()) > 1:
        rows.append(Bar("all together", list(pools.items())))
    tcm = plan.tcm
    if tcm is not None:
        pieces = [("constants", plan.constant_bytes)]
        pieces.append(("io", max(0, tcm.need_bytes - plan.constant_bytes)))
        source = plan.origins.get("tcm.limit_bytes", "")
        rows.append(Bar("TCM: model and IO", pieces, tcm.limit_bytes, 0, "computed", source))
        if "tcm" in have:
            rows.append(Bar("budget for TCM", pieces, have["tcm"], 0, "computed", "given"))
    shown = [row for row in rows if row.total or row.limit]
    inside = tag("p", "Inputs and outputs are part of scratch.", class_="faint")
    around = inside if plan.io == "inside" and plan.ops else Html("")
    return Html(f"{bars(shown, 'Bytes of each pool')}\n{around}")


def _origin(plan: PlanResult, pool: str) -> str:
    return plan.origins.get(f"{'constant' if pool == 'constants' else pool}_bytes", "")


def _live(plan: PlanResult) -> Html:
    points = list(live_bytes([one for one in drawn(plan.map) if one.pool != "persistent"]))
    limits = [(f"scratch, {plan.scope.value}", plan.scratch_bytes)]
    if plan.scope is ProofScope.NONE:
        limits.append(("lower bound for this order", plan.lower_bound_bytes))
    limits += [("budget", have) for pool, have in plan.limits.items() if pool == "scratch"]
    chart = line(points, "Bytes alive at each step", limits, unit="step", stepped=True)
    return Html(f"<h3>Bytes alive at each step</h3>\n{chart}") if points else Html("")


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
    tcm = plan.tcm
    if tcm is not None:
        yield tag("h3", "TCM of aDSP direct mode ", badge(tcm.fits), plan.scope.basis)
        source = plan.origins.get("tcm.limit_bytes", "")
        rows = [
            ("bytes", tcm.need_bytes, "computed", tcm.limit_bytes, source),
            ("allocations", tcm.buffers, "computed", tcm.max_buffers, source),
        ]
        yield table(("of model and IO", "needed", "origin", "there", "origin"), rows)


def _buffers(plan: PlanResult) -> Html:
    largest = sorted(plan.buffers, key=lambda one: (-one.size_bytes, one.name))[:_LISTED]
    rows = (
        (one.name, one.pool, one.size_bytes, one.offset_bytes, f"{one.lower} to {one.upper - 1}")
        for one in largest
    )
    head = ("tensor", "pool", "bytes", "offset", "steps")
    total = counted(len(plan.buffers), "tensor")
    which = "All" if len(largest) == len(plan.buffers) else f"The {_LISTED:,} largest of"
    return details(f"{which} {total}", table(head, rows))


def provenance(plan: PlanResult) -> Html:
    """Where the numbers come from."""
    rows = [("file", plan.input), ("tool", plan.tool), ("alignment", f"{plan.align_bytes} bytes")]
    rows.append(("inputs and outputs", f"{plan.io} scratch"))
    rows.append(("bits", "as in the model" if plan.bits is None else str(plan.bits)))
    rows.append(("planned in", f"{plan.seconds:.3f} s"))
    rows += sorted(plan.origins.items())
    return details("Where the numbers come from", table(("what", "from"), rows))
