"""Draw the memory map of a plan as SVG, as PNG, or with letters in text.

Time runs to the right, addresses run upwards, and each rectangle is a buffer. Persistent memory is
drawn above scratch on the same scale. The SVG follows the reader's light or dark mode. The PNG,
which Pillow draws, is light.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from html import escape
from io import BytesIO
from pathlib import PurePath
from typing import Any

from qnnmem.errors import UsageError
from qnnmem.installation import command_for
from qnnmem.results.plan import PlanBuffer, PlanMap, PlanResult
from qnnmem.text import counted, shorten
from qnnmem.units import format_size

_WIDTH, _LEFT, _RIGHT, _TOP = 960, 104, 24, 92
_SCRATCH_HEIGHT, _GAP = 360, 44
_TALLER = 3  # maximum height of persistent memory relative to scratch
_LEGEND_COLUMNS = 2
_LETTERS = "ABCDEFGH"
SHOWN_AT_PEAK = len(_LETTERS)
# For the letter map.
_LARGEST_MAP = 20_000  # buffers; a larger map would not be readable
FREE, OTHER = "·", "▒"
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
# For PNG.
_SCALE = 2  # pixels per unit: sharp on screen and in print
_DASH, _PAUSE = 5, 3
# Fill and edge colour for each kind of box.
_PNG_BOXES = {
    "scratch": ("#54aeff", "#0550ae"),
    "peak": ("#0969da", "#033d8b"),
    "io": ("#ffb77c", "#953800"),
    "persistent": ("#4ac26b", "#116329"),
}
_PNG_LINES = {"grid": "#d1d9e0", "line": "#59636e"}
_PNG_WORDS = {"ink": "#1f2328", "faint": "#59636e", "marktext": "#a40e26", "onpeak": "#ffffff"}
_PNG_MARK = "#cf222e"
_ANCHORS = {"start": "ls", "middle": "ms", "end": "rs"}


@dataclass(frozen=True, slots=True)
class DrawnBox:
    """Rectangle; `kind` selects its colours."""

    kind: str
    x: float
    y: float
    width: float
    height: float
    title: str = ""


@dataclass(frozen=True, slots=True)
class DrawnLine:
    """Line from (x, y) to (to_x, to_y)."""

    kind: str
    x: float
    y: float
    to_x: float
    to_y: float


@dataclass(frozen=True, slots=True)
class DrawnText:
    """Label; `kind` selects colour and weight, and `anchor` says which end of the label is at x."""

    x: float
    y: float
    words: str
    kind: str = "ink"
    anchor: str = "start"


Shape = DrawnBox | DrawnLine | DrawnText
_STEPS = "time in steps of one op; inputs are written at step -1"


@dataclass(frozen=True, slots=True)
class PlanPicture:
    """Picture with its size, and its shapes in drawing order."""

    width: int
    height: int
    title: str
    shapes: tuple[Shape, ...]


@dataclass(frozen=True)
class MapFrame:
    """Converts steps and addresses to pixels."""

    begin: int
    end: int
    scratch_bytes: int
    persistent_bytes: int

    @property
    def per_byte(self) -> float:
        """Return the height of a byte in pixels, limited so that large states fit on the map."""
        return _SCRATCH_HEIGHT / max(self.scratch_bytes, self.persistent_bytes / _TALLER, 1)

    @property
    def floor(self) -> dict[str, float]:
        """Return, by pool, the vertical pixel position of the pool's address 0."""
        persistent = _TOP + self.persistent_bytes * self.per_byte
        gap = _GAP if self.persistent_bytes else 0
        scratch = persistent + gap + self.scratch_bytes * self.per_byte
        return {"persistent": persistent, "scratch": scratch}

    def x(self, step: float) -> float:
        """Return the horizontal pixel position of a step."""
        return _LEFT + (step - self.begin) * (_WIDTH - _LEFT - _RIGHT) / (self.end - self.begin)

    def y(self, pool: str, address: int) -> float:
        """Return the vertical pixel position of an address in a pool."""
        return self.floor[pool] - address * self.per_byte


def frame_of(plan: PlanMap) -> MapFrame:
    """Return the frame that contains every buffer of scratch and persistent memory."""
    buffers = plan.buffers
    return MapFrame(
        min((b.lower for b in buffers), default=0),
        max((b.upper for b in buffers), default=1),
        plan.scratch_bytes,
        plan.persistent_bytes,
    )


def picture_of(plan: PlanResult) -> PlanPicture:
    """Return the picture of a plan, titled with the file name."""
    return draw(plan.map, PurePath(plan.input).name or plan.input)


def draw(plan: PlanMap, title: str) -> PlanPicture:
    """Return the picture of a memory map."""
    title = shorten(title, 200)
    frame = frame_of(plan)
    height = round(frame.floor["scratch"]) + 84 + 22 * _rows(plan)
    parts = (_heading(plan, title), _grid(frame), _boxes(plan, frame), _mark(plan, frame))
    all_parts = (*parts, _axes(frame, _STEPS), _legend(plan, frame))
    return PlanPicture(_WIDTH, height, title, tuple(shape for part in all_parts for shape in part))


def draw_named(plan: PlanMap, title: str, facts: str, axis: str) -> PlanPicture:
    """Return a picture of a small map with a name on every box; `axis` labels the time axis."""
    frame = frame_of(plan)
    shapes: list[Shape] = [DrawnText(20, 28, title, "ink title"), DrawnText(20, 50, facts, "faint")]
    shapes += _grid(frame)
    for buffer in plan.buffers:
        left, right = frame.x(buffer.lower), frame.x(buffer.upper)
        top = frame.y(buffer.pool, buffer.offset_bytes + buffer.size_bytes)
        height = frame.y(buffer.pool, buffer.offset_bytes) - top
        name = f"{shorten(buffer.name, 200)}: {counted(buffer.size_bytes, 'byte')}"
        shapes.append(DrawnBox(buffer.pool, left, top, right - left, height, name))
        if height >= 16:
            shapes.append(DrawnText(left + 6, top + height / 2 + 5, _short(buffer.name)))
    shapes += _axes(frame, axis)
    return PlanPicture(_WIDTH, round(frame.floor["scratch"]) + 56, title, tuple(shapes))


def _heading(plan: PlanMap, title: str) -> Iterator[Shape]:
    facts = f"scratch {counted(plan.scratch_bytes, 'byte')}, {plan.proof_words}"
    if plan.persistent_bytes:
        facts += f"; persistent {counted(plan.persistent_bytes, 'byte')}"
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
    """Yield the addresses to label: 0, round addresses at least 40 pixels apart, and `size`."""
    step = 64
    while step * frame.per_byte < 40:
        step *= 2
    for address in range(0, size, step):
        if (size - address) * frame.per_byte >= 18:
            yield address
    yield size


def _mark(plan: PlanMap, frame: MapFrame) -> Iterator[Shape]:
    peak = plan.peak
    if peak is None:
        return
    left, right = frame.x(peak.step), frame.x(peak.step + 1)
    top = frame.y("scratch", frame.scratch_bytes) - 4
    yield DrawnBox("mark", left, top, right - left, frame.floor["scratch"] - top)
    # Leave space for the pool's name at the left end of this line.
    where = max(left, _LEFT + 190)
    anchor = "start" if where < _WIDTH / 2 else "end"
    words = f"peak: step {peak.step}, {counted(peak.bytes, 'byte')} alive"
    yield DrawnText(where if anchor == "start" else right, top - 6, words, "marktext", anchor)


def _boxes(plan: PlanMap, frame: MapFrame) -> Iterator[Shape]:
    letters = _letters(plan)
    step = 0 if plan.peak is None else plan.peak.step
    for buffer in plan.buffers:
        pool = buffer.pool
        if pool not in frame.floor or not buffer.size_bytes:
            continue
        left, right = frame.x(buffer.lower), frame.x(buffer.upper)
        top = frame.y(pool, buffer.offset_bytes + buffer.size_bytes)
        height = frame.y(pool, buffer.offset_bytes) - top
        name = f"{shorten(buffer.name, 200)}: {counted(buffer.size_bytes, 'byte')}"
        kind = _kind(buffer, letters, frame)
        yield DrawnBox(kind, left, top, right - left, height, name)
        if buffer.name in letters and height >= 14:
            middle = frame.x(step + 0.5), top + height / 2 + 5
            ink = "onpeak" if kind == "peak" else "ink"
            yield DrawnText(*middle, letters[buffer.name], f"{ink} letter", "middle")


def _letters(plan: PlanMap) -> dict[str, str]:
    live = plan.peak.live if plan.peak else []
    return {buffer.name: letter for buffer, letter in zip(live, _LETTERS, strict=False)}


def _kind(buffer: PlanBuffer, letters: dict[str, str], frame: MapFrame) -> str:
    if buffer.pool == "persistent":
        return "persistent"
    # Inputs are live before the first op (step -1), outputs until after the last op.
    if buffer.lower < 0 or buffer.upper == frame.end:
        return "io"
    return "peak" if buffer.name in letters else "scratch"


def _axes(frame: MapFrame, words: str) -> Iterator[Shape]:
    bottom = frame.floor["scratch"]
    for pool, size in _panels(frame):
        top, floor = frame.y(pool, size), frame.y(pool, 0)
        yield DrawnLine("line", _LEFT, top, _LEFT, floor)
        yield DrawnLine("line", _LEFT, floor, _WIDTH - _RIGHT, floor)
    interval = max(1, (frame.end - frame.begin) // 10)
    for step in range(frame.begin + 1 if frame.begin == -1 else frame.begin, frame.end, interval):
        yield DrawnText(frame.x(step + 0.5), bottom + 18, str(step), "faint", "middle")
    yield DrawnText(
        (_LEFT + _WIDTH - _RIGHT) / 2,
        bottom + 38,
        words,
        "ink",
        "middle",
    )


def _legend(plan: PlanMap, frame: MapFrame) -> Iterator[Shape]:
    top = frame.floor["scratch"] + 66
    kinds = [("scratch", "temporary"), ("peak", "alive at the peak"), ("io", "input or output")]
    if frame.persistent_bytes:
        kinds.append(("persistent", "state kept between runs"))
    for k, (kind, words) in enumerate(kinds):
        x = 20.0 + k * 210
        yield DrawnBox(kind, x, top - 11, 16, 13)
        yield DrawnText(x + 24, top, words)
    sizes = {b.name: b.bytes for b in plan.peak.live} if plan.peak else {}
    for k, (name, letter) in enumerate(_letters(plan).items()):
        x = 20 + (k % _LEGEND_COLUMNS) * (_WIDTH - 40) / _LEGEND_COLUMNS
        y = top + 28 + (k // _LEGEND_COLUMNS) * 22
        yield DrawnText(x, y, letter, "ink letter")
        yield DrawnText(x + 20, y, f"{sizes[name]:,}  {_short(name)}", "faint")


def _rows(plan: PlanMap) -> int:
    """Return the number of legend lines that contain buffer names."""
    return -(-len(_letters(plan)) // _LEGEND_COLUMNS)


def _short(name: str) -> str:
    """Return the end of a long name, because names in a model often share their beginnings."""
    return name if len(name) <= _NAME_LENGTH else f"…{name[-_NAME_LENGTH + 1 :]}"


def render_svg(plan: PlanResult) -> str:
    """Render the picture of a plan as SVG text."""
    return svg_of(picture_of(plan))


def svg_of(picture: PlanPicture) -> str:
    """Return a picture as SVG text."""
    label = escape(f"{picture.title}: memory map, time to the right, address up", quote=True)
    size = f'width="{picture.width}" height="{picture.height}"'
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {picture.width} {picture.height}" '
        f'{size} role="img" aria-label="{label}">'
    )
    paper = f'<rect class="paper" {size} rx="6"/>'
    shapes = map(_svg_shape, picture.shapes)
    return "\n".join((head, f"<style>{_STYLE}</style>", paper, *shapes, "</svg>", ""))


def _svg_shape(shape: Shape) -> str:
    if isinstance(shape, DrawnBox):
        place = f'class="{shape.kind}" x="{shape.x:.1f}" y="{shape.y:.1f}"'
        size = f'width="{shape.width:.1f}" height="{shape.height:.1f}"'
        if not shape.title:
            return f"<rect {place} {size}/>"
        return f"<rect {place} {size}><title>{escape(shape.title)}</title></rect>"
    if isinstance(shape, DrawnLine):
        to = f"H{shape.to_x:.1f}" if shape.y == shape.to_y else f"V{shape.to_y:.1f}"
        return f'<path class="{shape.kind}" d="M{shape.x:.1f} {shape.y:.1f}{to}"/>'
    place = f'x="{shape.x:.1f}" y="{shape.y:.1f}" text-anchor="{shape.anchor}"'
    return f'<text class="{shape.kind}" {place}>{escape(shorten(shape.words, 200))}</text>'


def render_png(plan: PlanResult) -> bytes:
    """Render the picture of a plan as PNG bytes."""
    return png_of(picture_of(plan))


def png_of(picture: PlanPicture) -> bytes:
    """Return a picture as PNG bytes; raise UsageError if Pillow is missing."""
    try:
        from PIL import Image, ImageDraw
    except ImportError as exc:
        raise UsageError(f"a PNG needs {command_for('png')}") from exc
    size = picture.width * _SCALE, picture.height * _SCALE
    image = Image.new("RGB", size, "#ffffff")
    pen = ImageDraw.Draw(image)
    for shape in picture.shapes:
        if isinstance(shape, DrawnBox):
            _png_box(pen, shape)
        elif isinstance(shape, DrawnLine):
            ends = [_at(shape.x), _at(shape.y), _at(shape.to_x), _at(shape.to_y)]
            pen.line(ends, fill=_PNG_LINES[shape.kind], width=_SCALE)
        else:
            _png_words(pen, shape)
    # A small palette saves two thirds of the bytes without a visible difference.
    written = BytesIO()
    image.quantize(128).save(written, "PNG", optimize=True)
    return written.getvalue()


def _png_box(pen: Any, box: DrawnBox) -> None:
    left, top = _at(box.x), _at(box.y)
    right, bottom = max(_at(box.x + box.width), left), max(_at(box.y + box.height), top)
    if box.kind == "mark":
        _dashed(pen, left, top, right, bottom)
        return
    inside, edge = _PNG_BOXES[box.kind]
    is_large = right - left > 3 * _SCALE and bottom - top > 3 * _SCALE
    pen.rectangle([left, top, right, bottom], inside, edge if is_large else None, _SCALE)


def _dashed(pen: Any, left: int, top: int, right: int, bottom: int) -> None:
    dash, period = _DASH * _SCALE, (_DASH + _PAUSE) * _SCALE
    for x in range(left, right, period):
        for y in (top, bottom):
            pen.line([x, y, min(x + dash, right), y], _PNG_MARK, 2 * _SCALE)
    for y in range(top, bottom, period):
        for x in (left, right):
            pen.line([x, y, x, min(y + dash, bottom)], _PNG_MARK, 2 * _SCALE)


def _png_words(pen: Any, shape: DrawnText) -> None:
    kinds = shape.kind.split()
    is_bold = "letter" in kinds or "title" in kinds
    words = shorten(shape.words, 200)
    place = shape.x * _SCALE, shape.y * _SCALE
    pen.text(
        place,
        words,
        _PNG_WORDS[kinds[0]],
        _font((16 if "title" in kinds else 13) * _SCALE),
        _ANCHORS[shape.anchor],
        stroke_width=0.6 if is_bold else 0,
    )


@cache
def _font(size: int) -> Any:
    """Return Pillow's built-in font, which is the same on every machine."""
    from PIL import ImageFont

    return ImageFont.load_default(size)


def _at(units: float) -> int:
    return round(units * _SCALE)


# --- In letters ----------------------------------------------------------------------------------


def map_lines(plan: PlanMap) -> Iterator[str]:
    """Yield the tensors at the peak, then the map drawn with letters."""
    yield from (*peak_lines(plan), "", *letter_map(plan))


def peak_lines(plan: PlanMap) -> Iterator[str]:
    """Yield the peak step and its live buffers, the largest first."""
    peak = plan.peak
    if peak is None:
        return
    where = f", {shorten(peak.op)}" if peak.op else ""
    held = counted(len(peak.live), "buffer")
    alive = counted(peak.bytes, "byte")
    yield f"peak at step {peak.step}{where}: {alive} alive in {held}"
    letters = _letters(plan)
    for buffer in peak.live[:SHOWN_AT_PEAK]:
        share = percent(buffer.bytes, peak.bytes)
        yield f"  {letters[buffer.name]} {buffer.bytes:>13,} {share:>7}  {shorten(buffer.name)}"
    rest = peak.live[SHOWN_AT_PEAK:]
    if rest:
        total = sum(buffer.bytes for buffer in rest)
        yield f"  {OTHER} {total:>13,} {percent(total, peak.bytes):>7}  {len(rest)} more"


def percent(part: int, whole: int) -> str:
    """Return a part in percent of the whole, such as `12.5 %`."""
    return f"{100 * part / max(whole, 1):.1f} %"


def letter_map(plan: PlanMap) -> Iterator[str]:
    """Yield the map of scratch drawn with letters; yield nothing if there are too many buffers."""
    scratch = [buffer for buffer in plan.buffers if buffer.pool == "scratch"]
    if len(scratch) <= _LARGEST_MAP:
        yield from draw_map(scratch, plan.scratch_bytes, _letters(plan))


def draw_map(
    buffers: Sequence[PlanBuffer],
    peak_bytes: int,
    letters: dict[str, str],
    width: int = 64,
    height: int = 12,
) -> list[str]:
    """Return the lines of a letter map; each column shows the fullest step of its interval."""
    if not buffers or peak_bytes == 0:
        return []
    steps = _fullest_steps(buffers, width)
    cells = [[FREE] * len(steps) for _ in range(height)]
    for buffer in buffers:
        mark = letters.get(buffer.name, OTHER)
        first = bisect_left(steps, buffer.lower)
        last = bisect_left(steps, buffer.upper)
        bottom, top = _map_rows(buffer, peak_bytes, height)
        for row in cells[bottom:top]:
            row[first:last] = mark * (last - first)
    labels = {height - 1: format_size(peak_bytes), 0: "0 B"}
    pad = max(map(len, labels.values()))
    lines = [
        f"{labels.get(row, ''):>{pad}} │{''.join(cells[row])}" for row in reversed(range(height))
    ]
    begin = min(b.lower for b in buffers)
    end = max(b.upper for b in buffers) - 1
    axis = f"step {begin}"
    lines.append(f"{'':>{pad}} └{'─' * len(steps)}")
    lines.append(
        f"{'':>{pad}}  {axis}{str(end).rjust(max(len(steps) - len(axis), 2 + len(str(end))))}"
    )
    return lines


def _map_rows(buffer: PlanBuffer, peak_bytes: int, height: int) -> tuple[int, int]:
    """Return the half-open range of rows whose middle lies inside the buffer."""

    def row(address: int) -> int:
        return -(-(2 * address * height - peak_bytes) // (2 * peak_bytes))

    return max(row(buffer.offset_bytes), 0), row(buffer.offset_bytes + buffer.size_bytes)


def _fullest_steps(buffers: Sequence[PlanBuffer], width: int) -> list[int]:
    """Divide the steps into at most `width` equal intervals; return the fullest step of each."""
    change: dict[int, int] = {}
    for buffer in buffers:
        change[buffer.lower] = change.get(buffer.lower, 0) + buffer.size_bytes
        change[buffer.upper] = change.get(buffer.upper, 0) - buffer.size_bytes
    begin, end = min(change), max(change)
    columns = min(width, end - begin)
    edges = [begin + column * (end - begin) // columns for column in range(columns)]
    fullest = [(-1, begin)] * columns
    load = 0
    for step in sorted({*change, *edges} - {end}):
        load += change.get(step, 0)
        column = bisect_right(edges, step) - 1
        if load > fullest[column][0]:
            fullest[column] = (load, step)
    return [step for _, step in fullest]
