"""The memory map of a plan as a picture: boxes, lines and words, for whoever draws it.

Time goes right, address goes up, one rectangle is one buffer. Persistent memory stands above
scratch on the same scale.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from qnnmem.report.plan_json import as_values
from qnnmem.report.planned import PlanReport
from qnnmem.results.proof import as_proof, proof_words
from qnnmem.text import counted, shorten

_WIDTH, _LEFT, _RIGHT, _TOP = 960, 104, 24, 92
_SCRATCH_HEIGHT, _GAP = 360, 44
_TALLER = 3  # persistent memory than scratch, at most
_LEGEND_COLUMNS = 2
_LETTERS = "ABCDEFGH"
_NAME_LENGTH = 52


@dataclass(frozen=True, slots=True)
class DrawnBox:
    """A rectangle; `kind` says its colours."""

    kind: str
    x: float
    y: float
    width: float
    height: float
    title: str = ""


@dataclass(frozen=True, slots=True)
class DrawnLine:
    """A line, across where `to` is as high as `y`."""

    kind: str
    x: float
    y: float
    to_x: float
    to_y: float


@dataclass(frozen=True, slots=True)
class DrawnText:
    """Words; `kind` says colour and weight, `anchor` which end of them stands at x."""

    x: float
    y: float
    words: str
    kind: str = "ink"
    anchor: str = "start"


Shape = DrawnBox | DrawnLine | DrawnText


@dataclass(frozen=True, slots=True)
class PlanPicture:
    """Shapes in the order in which they cover each other."""

    width: int
    height: int
    title: str
    shapes: tuple[Shape, ...]


@dataclass(frozen=True)
class MapFrame:
    """Where steps and bytes land on the page."""

    begin: int
    end: int
    scratch_bytes: int
    persistent_bytes: int

    @property
    def per_byte(self) -> float:
        """Pixels of one byte; states that are far larger than scratch do not make a tower."""
        return _SCRATCH_HEIGHT / max(self.scratch_bytes, self.persistent_bytes / _TALLER, 1)

    @property
    def floor(self) -> dict[str, float]:
        """Where address 0 of each pool lies."""
        persistent = _TOP + self.persistent_bytes * self.per_byte
        gap = _GAP if self.persistent_bytes else 0
        scratch = persistent + gap + self.scratch_bytes * self.per_byte
        return {"persistent": persistent, "scratch": scratch}

    def x(self, step: float) -> float:
        """Pixels of a step."""
        return _LEFT + (step - self.begin) * (_WIDTH - _LEFT - _RIGHT) / (self.end - self.begin)

    def y(self, pool: str, address: int) -> float:
        """Pixels of an address."""
        return self.floor[pool] - address * self.per_byte


def frame_of(plan: dict[str, Any]) -> MapFrame:
    """The frame that holds every buffer of scratch and persistent."""
    buffers = plan["buffers"]
    return MapFrame(
        min((b["lower"] for b in buffers), default=0),
        max((b["upper"] for b in buffers), default=1),
        plan["scratch_bytes"],
        plan["persistent_bytes"],
    )


def picture_of(report: PlanReport) -> PlanPicture:
    """The picture of a plan, under the name of its file."""
    return draw(as_values(report), PurePath(report.input).name or report.input)


def draw(plan: dict[str, Any], title: str) -> PlanPicture:
    """The picture of a plan as JSON has it."""
    title = shorten(title, 200)
    frame = frame_of(plan)
    height = round(frame.floor["scratch"]) + 84 + 22 * _rows(plan)
    parts = (_heading(plan, title), _grid(frame), _boxes(plan, frame), _mark(plan, frame))
    every = (*parts, _axes(frame), _legend(plan, frame))
    return PlanPicture(_WIDTH, height, title, tuple(shape for part in every for shape in part))


def _heading(plan: dict[str, Any], title: str) -> Iterator[Shape]:
    proof = as_proof(plan.get("proof", ""), optimal=plan["optimal"])
    words = proof_words(proof, plan["scratch_bytes"], plan["lower_bound_bytes"])
    facts = f"scratch {counted(plan['scratch_bytes'], 'byte')}, {words}"
    if plan["persistent_bytes"]:
        facts += f"; persistent {counted(plan['persistent_bytes'], 'byte')}"
    yield DrawnText(20, 28, title, "ink title")
    yield DrawnText(20, 50, facts, "faint")


def _grid(frame: MapFrame) -> Iterator[Shape]:
    for pool, size in _panels(frame):
        for address in _round_addresses(size, frame):
            y = frame.y(pool, address)
            yield DrawnLine("grid", _LEFT, y, _WIDTH - _RIGHT, y)
            yield DrawnText(_LEFT - 8, y + 4, f"{address:,}", "faint", "end")
        yield DrawnText(_LEFT, frame.y(pool, size) - 8, f"{pool}, address in bytes")


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


def _mark(plan: dict[str, Any], frame: MapFrame) -> Iterator[Shape]:
    peak = plan["peak"]
    if peak is None:
        return
    left, right = frame.x(peak["step"]), frame.x(peak["step"] + 1)
    top = frame.y("scratch", frame.scratch_bytes) - 4
    yield DrawnBox("mark", left, top, right - left, frame.floor["scratch"] - top)
    # The left end of this line belongs to the name of the pool.
    where = max(left, _LEFT + 190)
    anchor = "start" if where < _WIDTH / 2 else "end"
    words = f"peak: step {peak['step']}, {counted(peak['bytes'], 'byte')} alive"
    yield DrawnText(where if anchor == "start" else right, top - 6, words, "marktext", anchor)


def _boxes(plan: dict[str, Any], frame: MapFrame) -> Iterator[Shape]:
    letters = _letters(plan)
    for buffer in plan["buffers"]:
        pool = buffer["pool"]
        if pool not in frame.floor or not buffer["size_bytes"]:
            continue
        left, right = frame.x(buffer["lower"]), frame.x(buffer["upper"])
        top = frame.y(pool, buffer["offset_bytes"] + buffer["size_bytes"])
        height = frame.y(pool, buffer["offset_bytes"]) - top
        name = f"{shorten(buffer['name'], 200)}: {counted(buffer['size_bytes'], 'byte')}"
        kind = _kind(buffer, letters, frame)
        yield DrawnBox(kind, left, top, right - left, height, name)
        if buffer["name"] in letters and height >= 14:
            middle = frame.x(plan["peak"]["step"] + 0.5), top + height / 2 + 5
            ink = "onpeak" if kind == "peak" else "ink"
            yield DrawnText(*middle, letters[buffer["name"]], f"{ink} letter", "middle")


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


def _axes(frame: MapFrame) -> Iterator[Shape]:
    bottom = frame.floor["scratch"]
    for pool, size in _panels(frame):
        top, floor = frame.y(pool, size), frame.y(pool, 0)
        yield DrawnLine("line", _LEFT, top, _LEFT, floor)
        yield DrawnLine("line", _LEFT, floor, _WIDTH - _RIGHT, floor)
    every = max(1, (frame.end - frame.begin) // 10)
    for step in range(frame.begin + 1 if frame.begin == -1 else frame.begin, frame.end, every):
        yield DrawnText(frame.x(step + 0.5), bottom + 18, str(step), "faint", "middle")
    yield DrawnText(
        (_LEFT + _WIDTH - _RIGHT) / 2,
        bottom + 38,
        "time in steps, one op each; inputs are written at step -1",
        "ink",
        "middle",
    )


def _legend(plan: dict[str, Any], frame: MapFrame) -> Iterator[Shape]:
    top = frame.floor["scratch"] + 66
    kinds = [("scratch", "temporary"), ("peak", "alive at the peak"), ("io", "input or output")]
    if frame.persistent_bytes:
        kinds.append(("persistent", "state kept between runs"))
    for k, (kind, words) in enumerate(kinds):
        x = 20.0 + k * 210
        yield DrawnBox(kind, x, top - 11, 16, 13)
        yield DrawnText(x + 24, top, words)
    sizes = {b["name"]: b["bytes"] for b in plan["peak"]["live"]} if plan["peak"] else {}
    for k, (name, letter) in enumerate(_letters(plan).items()):
        x = 20 + (k % _LEGEND_COLUMNS) * (_WIDTH - 40) / _LEGEND_COLUMNS
        y = top + 28 + (k // _LEGEND_COLUMNS) * 22
        yield DrawnText(x, y, letter, "ink letter")
        yield DrawnText(x + 20, y, f"{sizes[name]:,}  {_short(name)}", "faint")


def _rows(plan: dict[str, Any]) -> int:
    """Lines of the legend that name buffers."""
    return -(-len(_letters(plan)) // _LEGEND_COLUMNS)


def _short(name: str) -> str:
    """The end of a long name, which is the part that tells tensors apart."""
    return name if len(name) <= _NAME_LENGTH else f"…{name[-_NAME_LENGTH + 1 :]}"
