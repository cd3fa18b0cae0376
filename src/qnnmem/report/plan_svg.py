"""The memory map of a plan as SVG, for a slide or a ticket.

Time goes right, address goes up, one rectangle is one buffer. Persistent memory stands above
scratch on the same scale. Colours follow the reader's light or dark setting.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from pathlib import PurePath
from typing import Any

from qnnmem.report.plan_json import as_values
from qnnmem.report.planned import PlanReport
from qnnmem.text import counted, shorten

_WIDTH, _LEFT, _RIGHT, _TOP = 960, 104, 24, 92
_SCRATCH_HEIGHT, _GAP = 360, 44
_LEGEND_COLUMNS = 2
_LETTERS = "ABCDEFGH"
_NAME_LENGTH = 52

_STYLE = """
.paper { fill: #ffffff } .ink { fill: #1f2328 } .faint { fill: #59636e }
.line { stroke: #59636e; fill: none } .grid { stroke: #d1d9e0; fill: none }
.scratch { fill: #54aeff; stroke: #0550ae } .peak { fill: #0969da; stroke: #033d8b }
.io { fill: #ffb77c; stroke: #953800 } .persistent { fill: #4ac26b; stroke: #116329 }
.mark { stroke: #cf222e; fill: none; stroke-width: 2; stroke-dasharray: 5 3 }
.marktext { fill: #a40e26 } .onpeak { fill: #ffffff }
text { font: 13px system-ui, 'DejaVu Sans', sans-serif }
.title { font-weight: 600; font-size: 16px } .letter { font-weight: 600 }
@media (prefers-color-scheme: dark) {
.paper { fill: #0d1117 } .ink { fill: #f0f6fc } .faint { fill: #9198a1 }
.line { stroke: #9198a1 } .grid { stroke: #30363d }
.scratch { fill: #0c4a8f; stroke: #54aeff } .peak { fill: #388bfd; stroke: #b6e3ff }
.io { fill: #9a4a0b; stroke: #ffb77c } .persistent { fill: #1a7f37; stroke: #7ee787 }
.mark { stroke: #ff7b72 } .marktext { fill: #ffa198 } .onpeak { fill: #0d1117 }
}
"""


@dataclass(frozen=True)
class MapFrame:
    """Where steps and bytes land on the page."""

    begin: int
    end: int
    scratch_bytes: int
    persistent_bytes: int

    @property
    def per_byte(self) -> float:
        """Pixels of one byte."""
        return _SCRATCH_HEIGHT / max(self.scratch_bytes, 1)

    @property
    def floor(self) -> dict[str, float]:
        """Where address 0 of each pool lies."""
        persistent = _TOP + self.persistent_bytes * self.per_byte
        gap = _GAP if self.persistent_bytes else 0
        return {"persistent": persistent, "scratch": persistent + gap + _SCRATCH_HEIGHT}

    def x(self, step: float) -> float:
        """Pixels of a step."""
        return _LEFT + (step - self.begin) * (_WIDTH - _LEFT - _RIGHT) / (self.end - self.begin)

    def y(self, pool: str, address: int) -> float:
        """Pixels of an address."""
        return self.floor[pool] - address * self.per_byte


def render_svg(report: PlanReport) -> str:
    """The picture of a plan, under the name of its file."""
    return draw(as_values(report), PurePath(report.input).name or report.input)


def frame_of(plan: dict[str, Any]) -> MapFrame:
    """The frame that holds every buffer of scratch and persistent."""
    buffers = plan["buffers"]
    return MapFrame(
        min((b["lower"] for b in buffers), default=0),
        max((b["upper"] for b in buffers), default=1),
        plan["scratch_bytes"],
        plan["persistent_bytes"],
    )


def draw(plan: dict[str, Any], title: str) -> str:
    """The SVG text of a plan as JSON has it."""
    title = shorten(title, 200)
    frame = frame_of(plan)
    height = round(frame.floor["scratch"]) + 84 + 22 * _rows(plan)
    parts = (_heading(plan, title), _grid(frame), _boxes(plan, frame), _mark(plan, frame))
    lines = [line for part in (*parts, _axes(frame), _legend(plan, frame)) for line in part]
    label = escape(f"{title}: memory map, time to the right, address up", quote=True)
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" '
        f'width="{_WIDTH}" height="{height}" role="img" aria-label="{label}">'
    )
    paper = f'<rect class="paper" width="{_WIDTH}" height="{height}" rx="6"/>'
    return "\n".join((head, f"<style>{_STYLE}</style>", paper, *lines, "</svg>", ""))


def _text(x: float, y: float, words: str, kind: str = "ink", anchor: str = "start") -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
    return f'<text class="{kind}" {place}>{escape(shorten(words, 200))}</text>'


def _heading(plan: dict[str, Any], title: str) -> Iterator[str]:
    proof = "proven minimal" if plan["optimal"] else f"at least {plan['lower_bound_bytes']:,}"
    facts = f"scratch {counted(plan['scratch_bytes'], 'byte')}, {proof}"
    if plan["persistent_bytes"]:
        facts += f"; persistent {counted(plan['persistent_bytes'], 'byte')}"
    yield _text(20, 28, title, "ink title")
    yield _text(20, 50, facts, "faint")


def _grid(frame: MapFrame) -> Iterator[str]:
    for pool, size in _panels(frame):
        for address in _round_addresses(size, frame):
            y = frame.y(pool, address)
            yield f'<path class="grid" d="M{_LEFT} {y:.1f}H{_WIDTH - _RIGHT}"/>'
            yield _text(_LEFT - 8, y + 4, f"{address:,}", "faint", "end")
        yield _text(_LEFT, frame.y(pool, size) - 8, f"{pool}, address in bytes")


def _panels(frame: MapFrame) -> Iterator[tuple[str, int]]:
    yield "scratch", frame.scratch_bytes
    if frame.persistent_bytes:
        yield "persistent", frame.persistent_bytes


def _round_addresses(size: int, frame: MapFrame) -> Iterator[int]:
    """0, round addresses at least 40 pixels apart, and the size itself."""
    step = 64
    while step * frame.per_byte < 40:
        step *= 2
    for address in range(0, size, step):
        if (size - address) * frame.per_byte >= 18:
            yield address
    yield size


def _mark(plan: dict[str, Any], frame: MapFrame) -> Iterator[str]:
    peak = plan["peak"]
    if peak is None:
        return
    left, right = frame.x(peak["step"]), frame.x(peak["step"] + 1)
    top = frame.y("scratch", frame.scratch_bytes) - 4
    size = f'width="{right - left:.1f}" height="{frame.floor["scratch"] - top:.1f}"'
    yield f'<rect class="mark" x="{left:.1f}" y="{top:.1f}" {size}/>'
    # The left end of this line belongs to the name of the pool.
    where = max(left, _LEFT + 190)
    anchor = "start" if where < _WIDTH / 2 else "end"
    words = f"peak: step {peak['step']}, {counted(peak['bytes'], 'byte')} alive"
    yield _text(where if anchor == "start" else right, top - 6, words, "marktext", anchor)


def _boxes(plan: dict[str, Any], frame: MapFrame) -> Iterator[str]:
    letters = _letters(plan)
    for buffer in plan["buffers"]:
        pool = buffer["pool"]
        if pool not in frame.floor or not buffer["size_bytes"]:
            continue
        left, right = frame.x(buffer["lower"]), frame.x(buffer["upper"])
        top = frame.y(pool, buffer["offset_bytes"] + buffer["size_bytes"])
        height = frame.y(pool, buffer["offset_bytes"]) - top
        name = escape(f"{shorten(buffer['name'], 200)}: {counted(buffer['size_bytes'], 'byte')}")
        size = f'width="{right - left:.1f}" height="{height:.1f}"'
        kind = _kind(buffer, letters, frame)
        place = f'class="{kind}" x="{left:.1f}" y="{top:.1f}"'
        yield f"<rect {place} {size}><title>{name}</title></rect>"
        if buffer["name"] in letters and height >= 14:
            middle = frame.x(plan["peak"]["step"] + 0.5), top + height / 2 + 5
            ink = "onpeak" if kind == "peak" else "ink"
            yield _text(*middle, letters[buffer["name"]], f"{ink} letter", "middle")


def _letters(plan: dict[str, Any]) -> dict[str, str]:
    live = plan["peak"]["live"] if plan["peak"] else []
    return {buffer["name"]: letter for buffer, letter in zip(live, _LETTERS, strict=False)}


def _kind(buffer: dict[str, Any], letters: dict[str, str], frame: MapFrame) -> str:
    if buffer["pool"] == "persistent":
        return "persistent"
    # Inputs live before the first op (step -1), outputs until after the last one.
    if buffer["lower"] < 0 or buffer["upper"] == frame.end:
        return "io"
    return "peak" if buffer["name"] in letters else "scratch"


def _axes(frame: MapFrame) -> Iterator[str]:
    bottom = frame.floor["scratch"]
    for pool, size in _panels(frame):
        yield f'<path class="line" d="M{_LEFT} {frame.y(pool, size):.1f}V{frame.y(pool, 0):.1f}"/>'
        yield f'<path class="line" d="M{_LEFT} {frame.y(pool, 0):.1f}H{_WIDTH - _RIGHT}"/>'
    every = max(1, (frame.end - frame.begin) // 10)
    for step in range(frame.begin + 1 if frame.begin == -1 else frame.begin, frame.end, every):
        yield _text(frame.x(step + 0.5), bottom + 18, str(step), "faint", "middle")
    yield _text(
        (_LEFT + _WIDTH - _RIGHT) / 2,
        bottom + 38,
        "time in steps, one op each; inputs are written at step -1",
        "ink",
        "middle",
    )


def _legend(plan: dict[str, Any], frame: MapFrame) -> Iterator[str]:
    top = frame.floor["scratch"] + 66
    kinds = [("scratch", "temporary"), ("peak", "alive at the peak"), ("io", "input or output")]
    if frame.persistent_bytes:
        kinds.append(("persistent", "state kept between runs"))
    for k, (kind, words) in enumerate(kinds):
        x = 20.0 + k * 210
        yield f'<rect class="{kind}" x="{x:.1f}" y="{top - 11:.1f}" width="16" height="13"/>'
        yield _text(x + 24, top, words)
    sizes = {b["name"]: b["bytes"] for b in plan["peak"]["live"]} if plan["peak"] else {}
    for k, (name, letter) in enumerate(_letters(plan).items()):
        x = 20 + (k % _LEGEND_COLUMNS) * (_WIDTH - 40) / _LEGEND_COLUMNS
        y = top + 28 + (k // _LEGEND_COLUMNS) * 22
        yield _text(x, y, letter, "ink letter")
        yield _text(x + 20, y, f"{sizes[name]:,}  {_short(name)}", "faint")


def _rows(plan: dict[str, Any]) -> int:
    """Lines of the legend that name buffers."""
    return -(-len(_letters(plan)) // _LEGEND_COLUMNS)


def _short(name: str) -> str:
    """The end of a long name, which is the part that tells tensors apart."""
    return name if len(name) <= _NAME_LENGTH else f"…{name[-_NAME_LENGTH + 1 :]}"
