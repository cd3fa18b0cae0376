"""A plan as part of a page: the map, bytes over time, pools against their limits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import PurePath
from typing import Any

from qnnmem.report.page.charts import Bar, bars, line
from qnnmem.report.page.document import PageSection
from qnnmem.report.page.markup import (
    Html,
    badge,
    data,
    details,
    lines,
    size,
    table,
    tag,
    text,
)
from qnnmem.report.page.values import PlanBuffer, PlanValues
from qnnmem.text import counted

_POOLS = ("scratch", "io", "persistent")
_HINT = (
    "Point at a box or click it. Keys, once the map has the focus: arrows move, + and - zoom, "
    "0 shows all, n and p go from box to box, / searches."
)
_PEAKS = 24  # buttons for what sets the peak
_LISTED = 2000  # rows of the table; the map has all


def plan_section(plan: PlanValues) -> PageSection:
    """Everything a plan holds."""
    return PageSection(
        f"Plan of {PurePath(plan.input).name or plan.input}",
        lines(
            [
                _answer(plan),
                _pools(plan),
                memory_map(plan),
                _live(plan),
                *_tcm(plan),
                *(tag("p", note) for note in plan.notes),
                _buffers(plan),
                provenance(plan),
            ]
        ),
        has_map=True,
    )


def _answer(plan: PlanValues) -> Html:
    proof = (
        "proven smallest" if plan.optimal else f"at least {plan.lower_bound_bytes:,} by any plan"
    )
    answer = [badge(plan.fits), Html(" ")] if plan.budgets or plan.fits is not None else []
    return tag(
        "p",
        *answer,
        Html(f"scratch {size(plan.scratch_bytes)}, {text(proof)}"),
        class_="answer",
    )


def _pools(plan: PlanValues) -> Html:
    have = {one.pool: one.have_bytes for one in plan.budgets}
    rows = [
        Bar("scratch", [("scratch", plan.scratch_bytes)], have.get("scratch")),
        Bar("persistent", [("persistent", plan.persistent_bytes)], have.get("persistent")),
        Bar("inputs and outputs", [("io", plan.io_bytes)], have.get("io")),
        Bar("constants", [("constants", plan.constant_bytes)], have.get("constants")),
    ]
    if plan.tcm is not None:
        pieces = [("constants", plan.constant_bytes)]
        pieces.append(("io", max(0, plan.tcm.need_bytes - plan.constant_bytes)))
        rows.append(Bar("TCM: model and IO", pieces, plan.tcm.limit_bytes))
    shown = [row for row in rows if row.total or row.limit]
    inside = tag("p", "Inputs and outputs are part of scratch.", class_="faint")
    around = inside if plan.io == "inside" and plan.ops else Html("")
    return Html(f"{bars(shown, 'Bytes of each pool')}\n{around}")


def memory_map(plan: PlanValues) -> Html:
    """The canvas, its tools and its data."""
    boxes = drawn(plan)
    number = {buffer.name: at for at, buffer in enumerate(boxes)}
    live = [] if plan.peak is None else sorted(plan.peak.live, key=lambda one: -one.bytes)
    buttons = [
        tag(
            "li",
            tag("button", f"{one.name}: {one.bytes:,}", type="button", data_box=number[one.name]),
        )
        for one in live[:_PEAKS]
        if one.name in number
    ]
    where = "" if plan.peak is None else f" at step {plan.peak.step:,}"
    op = "" if plan.peak is None or not plan.peak.op else f" ({plan.peak.op})"
    keys = (Html(f'<span class="key"><i class="{pool}"></i>{pool}</span>') for pool in _POOLS)
    return lines(
        [
            Html('<figure class="map">'),
            tag(
                "figcaption",
                "Memory map: steps go right, addresses up, every box is a tensor, with its place "
                "and its time.",
            ),
            tag(
                "div",
                Html('<input type="search" placeholder="tensor name" aria-label="Search tensors">'),
                Html('<button type="button" data-all>show all</button>'),
                *keys,
                class_="tools",
            ),
            tag("canvas", "", tabindex=0, role="img", aria_label=_words(plan, len(boxes))),
            tag("output", _HINT, class_="told", data_hint=_HINT, aria_live="polite"),
            tag("p", f"What sets the peak{where}{op}:") if buttons else Html(""),
            tag("ul", *buttons, class_="peaks") if buttons else Html(""),
            data(map_data(plan, boxes)),
            Html("</figure>"),
        ]
    )


def _words(plan: PlanValues, boxes: int) -> str:
    return f"Memory map of {counted(boxes, 'tensor')} in {plan.scratch_bytes:,} bytes of scratch"


def drawn(plan: PlanValues) -> list[PlanBuffer]:
    """Buffers that have an address in scratch or persistent memory."""
    outside = plan.io == "outside"
    return [
        one for one in plan.buffers if one.pool in _POOLS and not (outside and one.pool == "io")
    ]


def map_data(plan: PlanValues, boxes: Sequence[PlanBuffer]) -> dict[str, Any]:
    """What the drawing code reads."""
    firsts, lasts = [one.lower for one in boxes], [one.upper for one in boxes]
    return {
        "scratch": plan.scratch_bytes,
        "persistent": plan.persistent_bytes,
        "bound": plan.lower_bound_bytes,
        "first": min(firsts, default=0),
        "last": max(lasts, default=1),
        "peak": None if plan.peak is None else {"step": plan.peak.step},
        "ops": plan.ops,
        "names": [one.name for one in boxes],
        "aliases": {at: one.aliases for at, one in enumerate(boxes) if one.aliases},
        "boxes": [
            [_POOLS.index(one.pool), one.offset_bytes, one.size_bytes, one.lower, one.upper]
            for one in boxes
        ],
    }


def _live(plan: PlanValues) -> Html:
    points = list(live_bytes([one for one in drawn(plan) if one.pool != "persistent"]))
    limits = [("scratch", plan.scratch_bytes)]
    limits += [("budget", one.have_bytes) for one in plan.budgets if one.pool == "scratch"]
    chart = line(points, "Bytes alive at each step", limits, stepped=True)
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


def _tcm(plan: PlanValues) -> Iterator[Html]:
    tcm = plan.tcm
    if tcm is not None:
        yield tag("h3", "TCM")
        rows = [
            ("bytes", tcm.need_bytes, tcm.limit_bytes),
            ("allocations", tcm.buffers, tcm.max_buffers),
        ]
        yield table(("of model and IO", "needed", "there"), rows)


def _buffers(plan: PlanValues) -> Html:
    largest = sorted(plan.buffers, key=lambda one: (-one.size_bytes, one.name))[:_LISTED]
    rows = (
        (one.name, one.pool, one.size_bytes, one.offset_bytes, f"{one.lower} to {one.upper - 1}")
        for one in largest
    )
    head = ("tensor", "pool", "bytes", "offset", "steps")
    total = counted(len(plan.buffers), "tensor")
    which = "All" if len(largest) == len(plan.buffers) else f"The {_LISTED:,} largest of"
    return details(f"{which} {total}", table(head, rows))


def provenance(plan: PlanValues) -> Html:
    """Where the numbers come from."""
    rows = [("file", plan.input), ("tool", plan.tool), ("alignment", f"{plan.align_bytes} bytes")]
    rows.append(("inputs and outputs", f"{plan.io} scratch"))
    rows.append(("bits", "as in the model" if plan.bits is None else str(plan.bits)))
    rows += sorted(plan.origins.items())
    return details("Where the numbers come from", table(("what", "from"), rows))
