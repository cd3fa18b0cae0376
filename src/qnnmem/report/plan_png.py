"""The memory map of a plan as PNG, where SVG is not taken; drawn by Pillow, in light colours."""

from __future__ import annotations

from functools import cache
from io import BytesIO
from typing import Any

from qnnmem.errors import UsageError
from qnnmem.installation import command_for
from qnnmem.report.plan_picture import (
    DrawnBox,
    DrawnLine,
    DrawnText,
    PlanPicture,
    picture_of,
)
from qnnmem.report.planned import PlanReport
from qnnmem.text import shorten

_SCALE = 2  # pixels of one unit: sharp on a screen and in print
_DASH, _PAUSE = 5, 3
# Kind of a box: inside and edge.
_BOXES = {
    "scratch": ("#54aeff", "#0550ae"),
    "peak": ("#0969da", "#033d8b"),
    "io": ("#ffb77c", "#953800"),
    "persistent": ("#4ac26b", "#116329"),
}
_LINES = {"grid": "#d1d9e0", "line": "#59636e"}
_WORDS = {"ink": "#1f2328", "faint": "#59636e", "marktext": "#a40e26", "onpeak": "#ffffff"}
_MARK = "#cf222e"
_ANCHORS = {"start": "ls", "middle": "ms", "end": "rs"}


def render_png(report: PlanReport) -> bytes:
    """The picture of a plan, under the name of its file."""
    return png_of(picture_of(report))


def png_of(picture: PlanPicture) -> bytes:
    """A picture as a PNG file; UsageError without Pillow."""
    try:
        from PIL import Image, ImageDraw
    except ImportError as exc:
        raise UsageError(f"a PNG needs {command_for('png')}") from exc
    size = picture.width * _SCALE, picture.height * _SCALE
    image = Image.new("RGB", size, "#ffffff")
    pen = ImageDraw.Draw(image)
    for shape in picture.shapes:
        if isinstance(shape, DrawnBox):
            _box(pen, shape)
        elif isinstance(shape, DrawnLine):
            ends = [_at(shape.x), _at(shape.y), _at(shape.to_x), _at(shape.to_y)]
            pen.line(ends, fill=_LINES[shape.kind], width=_SCALE)
        else:
            _words(pen, shape)
    # Few colours: a third of the bytes, and no difference to the eye.
    written = BytesIO()
    image.quantize(128).save(written, "PNG", optimize=True)
    return written.getvalue()


def _box(pen: Any, box: DrawnBox) -> None:
    left, top = _at(box.x), _at(box.y)
    right, bottom = max(_at(box.x + box.width), left), max(_at(box.y + box.height), top)
    if box.kind == "mark":
        _dashed(pen, left, top, right, bottom)
        return
    inside, edge = _BOXES[box.kind]
    is_large = right - left > 3 * _SCALE and bottom - top > 3 * _SCALE
    pen.rectangle([left, top, right, bottom], inside, edge if is_large else None, _SCALE)


def _dashed(pen: Any, left: int, top: int, right: int, bottom: int) -> None:
    dash, every = _DASH * _SCALE, (_DASH + _PAUSE) * _SCALE
    for x in range(left, right, every):
        for y in (top, bottom):
            pen.line([x, y, min(x + dash, right), y], _MARK, 2 * _SCALE)
    for y in range(top, bottom, every):
        for x in (left, right):
            pen.line([x, y, x, min(y + dash, bottom)], _MARK, 2 * _SCALE)


def _words(pen: Any, shape: DrawnText) -> None:
    kinds = shape.kind.split()
    is_bold = "letter" in kinds or "title" in kinds
    words = shorten(shape.words, 200)
    place = shape.x * _SCALE, shape.y * _SCALE
    pen.text(
        place,
        words,
        _WORDS[kinds[0]],
        _font((16 if "title" in kinds else 13) * _SCALE),
        _ANCHORS[shape.anchor],
        stroke_width=0.6 if is_bold else 0,
    )


@cache
def _font(size: int) -> Any:
    """The font that comes with Pillow: the same picture on every machine."""
    from PIL import ImageFont

    return ImageFont.load_default(size)


def _at(units: float) -> int:
    return round(units * _SCALE)
