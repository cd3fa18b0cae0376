"""The memory map on a page: its canvas, its controls, and the data for the drawing code.

`map.js` finds every `figure.map` and reads its JSON element. Without JavaScript, the tables below
hold the same numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from qnnmem.report.page.markup import Html, data, details, lines, tag
from qnnmem.report.page.markup import table as table_of
from qnnmem.results.plan import PlanBuffer, PlanMap
from qnnmem.text import counted
from qnnmem.units import format_size

_POOLS = ("scratch", "io", "persistent")
_HINT = (
    "Steps run to the right, addresses run upwards, and every box is a tensor. Point at a box or "
    "click it. Keys when the map has the focus: arrows move, + and - zoom, 0 shows all, "
    "n and p select the next or previous box, [ and ] the previous or next step, / searches."
)
_PEAKS = 24  # buttons for tensors at the peak
_FIRST = 3  # buttons that are not folded
_NAME = 48  # letters of a name in a button
_LISTED = 2000  # rows of the table; the map has all
_FAR = 2  # a plan with this many times the steps of the other gets its own time scale
_MOVES = Html(
    '<div class="tools">'
    '<input type="search" placeholder="tensor name" aria-label="Search tensors">'
    '<button type="button" data-zoom="in" aria-label="zoom in">+</button>'
    '<button type="button" data-zoom="out" aria-label="zoom out">\u2212</button>'
    '<button type="button" data-all>show all</button></div>'
)
_COLOURS = Html(
    '<div class="tools"><label>colour by <select><option value="pool">pool</option>'
    '<option value="op">op type</option><option value="life">lifetime</option>'
    '<option value="size">size</option></select></label>'
    '<span class="legend" role="group" aria-label="Colours"></span>'
    '<span class="saves">save the view as <button type="button" data-save="svg">SVG</button> '
    '<button type="button" data-save="png">PNG</button></span></div>'
)


def memory_map(
    plan: PlanMap,
    caption: str = "",
    *,
    beside: tuple[str, PlanMap] | None = None,
    budget: int | None = None,
    above: Html | None = None,
    below: Html | None = None,
) -> Html:
    """Return the figure of a plan's map; `beside` is a plan for comparison on the same axes.

    `above` is shown between the peak and the map, `below` under the map. A selection in the map is
    also marked in `below`.
    """
    boxes = drawn(plan)
    words = f"Memory map of {counted(len(boxes), 'tensor')} in {plan.scratch_bytes:,} bytes"
    peak = tag("div", *_peak(plan, boxes), *([] if above is None else [above]))
    hint = tag("output", _HINT, class_="told", data_hint=_HINT, aria_live="polite")
    parts = [
        Html('<figure class="map">'),
        *([tag("figcaption", caption)] if caption else []),
        *([] if beside else [peak]),
        _MOVES,
        tag("canvas", "", tabindex=0, role="img", aria_label=f"{words} of scratch"),
        _COLOURS,
        tag("div", hint, Html('<div class="near"></div>')),
        *([peak] if beside else []),  # two maps come first
        tag("div", *([] if below is None else [below]), _table(plan, boxes)),
        data(map_data(plan, boxes, beside, budget)),
        Html("</figure>"),
    ]
    return lines(parts)


def map_pair(
    before: PlanMap, after: PlanMap, captions: tuple[str, str], budget: int | None = None
) -> Html:
    """Return two maps on the same axes, with their peaks aligned and the difference shaded."""
    first = memory_map(before, captions[0], beside=("after", after), budget=budget)
    second = memory_map(after, captions[1], beside=("before", before), budget=budget)
    return tag("div", first, second, class_="pair")


def _peak(plan: PlanMap, boxes: Sequence[PlanBuffer]) -> Iterator[Html]:
    """Yield buttons for the tensors at the peak, the largest first."""
    if plan.peak is None:
        return
    number = {buffer.name: index for index, buffer in enumerate(boxes)}
    live = sorted(plan.peak.live, key=lambda buffer: -buffer.bytes)
    buttons = [
        tag(
            "li",
            tag(
                "button",
                f"{_ending(buffer.name)}: {format_size(buffer.bytes)}",
                type="button",
                data_box=number[buffer.name],
                title=f"{buffer.name}: {buffer.bytes:,} bytes",
            ),
        )
        for buffer in live[:_PEAKS]
        if buffer.name in number
    ]
    if not buttons:
        return
    op = f" ({plan.peak.op})" if plan.peak.op else ""
    size = format_size(plan.peak.bytes)
    yield tag("p", f"What sets the peak, {size} at step {plan.peak.step:,}{op}:")
    yield tag("ul", *buttons[:_FIRST], class_="peaks")
    if len(live) > _FIRST:
        which = "" if len(live) <= _PEAKS else f", of which these are the {_PEAKS - _FIRST} largest"
        more = f"{counted(len(live) - _FIRST, 'more tensor')} at the peak{which}"
        yield details(more, tag("ul", *buttons[_FIRST:], class_="peaks"))


def _ending(name: str) -> str:
    """Return the end of a long name, because names in a model often share their beginnings."""
    return name if len(name) <= _NAME else f"…{name[1 - _NAME :]}"


def _table(plan: PlanMap, boxes: Sequence[PlanBuffer]) -> Html:
    """Return a table of all tensors, the largest first; names of drawn tensors select boxes."""
    number = {id(buffer): index for index, buffer in enumerate(boxes)}
    largest = sorted(plan.buffers, key=lambda buffer: (-buffer.size_bytes, buffer.name))[:_LISTED]
    rows = (
        (
            tag("button", buffer.name, type="button", class_="link", data_box=number[id(buffer)])
            if id(buffer) in number
            else buffer.name,
            *(buffer.pool, buffer.size_bytes, buffer.offset_bytes),
            f"{buffer.lower} to {buffer.upper - 1}",
            buffer.shape,
        )
        for buffer in largest
    )
    head = ("tensor", "pool", "bytes", "offset", "steps", "shape")
    total = counted(len(plan.buffers), "tensor")
    which = "All" if len(largest) == len(plan.buffers) else f"The {_LISTED:,} largest of"
    return details(f"{which} {total}", table_of(head, rows))


def drawn(plan: PlanMap) -> list[PlanBuffer]:
    """Return the buffers that the map shows: those in scratch or persistent memory.

    Inputs and outputs outside scratch have no address and are left out.
    """
    outside = plan.io == "outside"
    return [
        buffer
        for buffer in plan.buffers
        if buffer.pool in _POOLS and not (outside and buffer.pool == "io")
    ]


def map_data(
    plan: PlanMap,
    boxes: Sequence[PlanBuffer],
    beside: tuple[str, PlanMap] | None = None,
    budget: int | None = None,
) -> dict[str, Any]:
    """Return the data for the drawing code as a JSON object."""
    name, other = beside or ("", plan)
    first, last = _steps(boxes)
    types = plan.op_types
    return {
        "scratch": plan.scratch_bytes,
        "persistent": plan.persistent_bytes,
        "bound": plan.lower_bound_bytes,
        "tallest": max(plan.scratch_bytes, other.scratch_bytes),
        "above": max(plan.persistent_bytes, other.persistent_bytes),
        "budget": budget,
        "other": {"name": name, "scratch": other.scratch_bytes} if name else None,
        "first": first,
        "last": last,
        "view": _view(plan, other),
        "peak": None if plan.peak is None else {"step": plan.peak.step},
        "ops": [
            f"{op} ({types[index]})" if index < len(types) else op
            for index, op in enumerate(plan.ops)
        ],
        "names": [box.name for box in boxes],
        "aliases": {index: box.aliases for index, box in enumerate(boxes) if box.aliases},
        "shapes": {index: box.shape for index, box in enumerate(boxes) if box.shape},
        "reads": {index: box.reads for index, box in enumerate(boxes) if box.reads},
        "boxes": [
            [_POOLS.index(box.pool), box.offset_bytes, box.size_bytes, box.lower, box.upper]
            for box in boxes
        ],
    }


def _steps(boxes: Sequence[PlanBuffer]) -> tuple[int, int]:
    firsts, lasts = [box.lower for box in boxes], [box.upper for box in boxes]
    return min(firsts, default=0), max(lasts, default=1)


def _view(plan: PlanMap, other: PlanMap) -> tuple[float, float]:
    """Return the first and the last visible step, with the peaks of compared plans aligned."""
    (first, last), (begin, end) = _steps(drawn(plan)), _steps(drawn(other))
    peak, second = (plan_map.peak.step if plan_map.peak else 0 for plan_map in (plan, other))
    long, short = max(last - first, end - begin), min(last - first, end - begin)
    if long <= _FAR * short:  # the same number of steps on both sides
        return peak - max(peak - first, second - begin), peak + max(last - peak, end - second)
    parts = (peak - first) / max(last - first, 1), (second - begin) / max(end - begin, 1)
    left = min(max(sum(parts) / 2, 0.05), 0.95)
    wide = max((peak - first) / left, (last - peak) / (1 - left))
    return peak - left * wide, peak + (1 - left) * wide
