"""The memory map of a plan as SVG, for a slide or a ticket; it follows a reader's light or dark."""

from __future__ import annotations

from html import escape

from qnnmem.report.plan_picture import (
    DrawnBox,
    DrawnLine,
    PlanPicture,
    Shape,
    picture_of,
)
from qnnmem.report.planned import PlanReport
from qnnmem.text import shorten

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


def render_svg(report: PlanReport) -> str:
    """The picture of a plan, under the name of its file."""
    return svg_of(picture_of(report))


def svg_of(picture: PlanPicture) -> str:
    """A picture as text."""
    label = escape(f"{picture.title}: memory map, time to the right, address up", quote=True)
    size = f'width="{picture.width}" height="{picture.height}"'
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {picture.width} {picture.height}" '
        f'{size} role="img" aria-label="{label}">'
    )
    paper = f'<rect class="paper" {size} rx="6"/>'
    shapes = map(_shape, picture.shapes)
    return "\n".join((head, f"<style>{_STYLE}</style>", paper, *shapes, "</svg>", ""))


def _shape(shape: Shape) -> str:
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
