"""The memory map of a page: its canvas, its tools and the data that the drawing code reads.

`map.js` finds every `figure.map` and reads the JSON element in it. Without JavaScript the tables
beside it hold the same numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from qnnmem.report.page.markup import Html, data, lines, tag
from qnnmem.results.plan import PlanBuffer, PlanMap
from qnnmem.text import counted

_POOLS = ("scratch", "io", "persistent")
_HINT = (
    "Point at a box or click it. Keys, once the map has the focus: arrows move, + and - zoom, "
    "0 shows all, n and p go from box to box, / searches."
)
_CAPTION = (
    "Memory map: steps go right, addresses up, every box is a tensor, with its place and its time."
)
_PEAKS = 24  # buttons for what sets the peak


def memory_map(
    plan: PlanMap,
    caption: str = _CAPTION,
    *,
    beside: PlanMap | None = None,
    budget: int | None = None,
) -> Html:
    """The whole figure; on one scale with the map of the plan that it stands `beside`."""
    boxes = drawn(plan)
    used = {one.pool for one in boxes}
    keys = (
        Html(f'<span class="key"><i class="{pool}"></i>{pool}</span>')
        for pool in _POOLS
        if pool in used
    )
    words = f"Memory map of {counted(len(boxes), 'tensor')} in {plan.scratch_bytes:,} bytes"
    return lines(
        [
            Html('<figure class="map">'),
            tag("figcaption", caption),
            tag(
                "div",
                Html('<input type="search" placeholder="tensor name" aria-label="Search tensors">'),
                Html('<button type="button" data-zoom="in" aria-label="zoom in">+</button>'),
                Html('<button type="button" data-zoom="out" aria-label="zoom out">\u2212</button>'),
                Html('<button type="button" data-all>show all</button>'),
                *keys,
                class_="tools",
            ),
            tag("canvas", "", tabindex=0, role="img", aria_label=f"{words} of scratch"),
            tag("output", _HINT, class_="told", data_hint=_HINT, aria_live="polite"),
            _peak(plan, boxes),
            data(map_data(plan, boxes, beside, budget)),
            Html("</figure>"),
        ]
    )


def _peak(plan: PlanMap, boxes: Sequence[PlanBuffer]) -> Html:
    """Buttons that lead to what sets the peak, the largest first."""
    if plan.peak is None:
        return Html("")
    number = {buffer.name: at for at, buffer in enumerate(boxes)}
    live = sorted(plan.peak.live, key=lambda one: -one.bytes)
    buttons = [
        tag(
            "li",
            tag("button", f"{one.name}: {one.bytes:,}", type="button", data_box=number[one.name]),
        )
        for one in live[:_PEAKS]
        if one.name in number
    ]
    if not buttons:
        return Html("")
    op = f" ({plan.peak.op})" if plan.peak.op else ""
    rest = f"; the {_PEAKS} largest of {len(live)}" if len(live) > _PEAKS else ""
    where = f"What sets the peak, {plan.peak.bytes:,} bytes at step {plan.peak.step:,}{op}{rest}:"
    return lines([tag("p", where), tag("ul", *buttons, class_="peaks")])


def drawn(plan: PlanMap) -> list[PlanBuffer]:
    """Buffers that have an address in scratch or persistent memory."""
    outside = plan.io == "outside"
    return [
        one for one in plan.buffers if one.pool in _POOLS and not (outside and one.pool == "io")
    ]


def map_data(
    plan: PlanMap,
    boxes: Sequence[PlanBuffer],
    beside: PlanMap | None = None,
    budget: int | None = None,
) -> dict[str, Any]:
    """What the drawing code reads."""
    both = (plan, beside or plan)
    firsts, lasts = [one.lower for one in boxes], [one.upper for one in boxes]
    return {
        "scratch": plan.scratch_bytes,
        "persistent": plan.persistent_bytes,
        "bound": plan.lower_bound_bytes,
        "tallest": max(one.scratch_bytes for one in both),
        "above": max(one.persistent_bytes for one in both),
        "budget": budget,
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
