"""Bars and lines as SVG: drawn when the page is written, so they need no JavaScript."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from qnnmem.report.page.markup import Html, text
from qnnmem.units import format_size

_WIDTH, _LABEL, _VALUE, _ROW = 900, 170, 190, 30
_LEFT, _FLOOR = 84, 158


@dataclass(frozen=True, slots=True)
class Bar:
    """A number against what there is; pieces are its parts from left to right."""

    label: str
    pieces: Sequence[tuple[str, int]]  # class of colour, bytes
    limit: int | None = None
    start: int = 0  # where it begins, in a waterfall

    @property
    def total(self) -> int:
        """All pieces."""
        return sum(size for _, size in self.pieces)


def bars(rows: Sequence[Bar], title: str) -> Html:
    """Bars without a limit on one scale; one with a limit against that, which is a line."""
    most = max((row.start + row.total for row in rows if row.limit is None), default=0)
    parts = [part for number, row in enumerate(rows) for part in _bar(row, number * _ROW + 4, most)]
    return _svg(_ROW * len(rows) + 6, parts, title)


def _bar(row: Bar, top: int, most: int) -> Iterator[str]:
    whole = most if row.limit is None else max(row.total, row.limit)
    scale = (_WIDTH - _LABEL - _VALUE) / (whole or 1)
    left = _LABEL + row.start * scale
    yield f'<text x="{_LABEL - 10}" y="{top + 19}" class="end">{text(row.label, 30)}</text>'
    for kind, size in row.pieces:
        width = max(size * scale, 1 if size else 0)
        place = f'x="{left:.1f}" y="{top + 3}" width="{width:.1f}" height="{_ROW - 10}"'
        yield f'<rect {place} class="{kind}"/>'
        left += size * scale
    words, kind = format_size(row.total), "value"
    if row.limit is not None:
        at = _LABEL + row.limit * scale
        ends = f'x1="{at:.1f}" x2="{at:.1f}" y1="{top}" y2="{top + _ROW - 4}"'
        yield f'<line {ends} class="limit"/>'
        left = max(left, at)
        words += f" of {format_size(row.limit)}"
        kind = "over" if row.total > row.limit else "value"
    yield f'<text x="{left + 8:.1f}" y="{top + 19}" class="{kind}">{text(words)}</text>'


def line(
    points: Sequence[tuple[float, int]],
    title: str,
    limits: Sequence[tuple[str, int]] = (),
    *,
    stepped: bool = False,
) -> Html:
    """Bytes over something that grows, with limits as lines across."""
    if not points:
        return Html("")
    low, high = points[0][0], points[-1][0]
    top = max([size for _, size in points] + [limit for _, limit in limits]) or 1
    wide = (_WIDTH - _LEFT - 16) / ((high - low) or 1)
    tall = (_FLOOR - 14) / top

    def place(x: float, y: int) -> str:
        return f"{_LEFT + (x - low) * wide:.1f} {_FLOOR - y * tall:.1f}"

    path = [f"M{place(*points[0])}"]
    for (_, before), (x, y) in pairwise(points):
        path += [f"L{place(x, before)}"] if stepped and before != y else []
        path += [f"L{place(x, y)}"]
    area = f"{' '.join(path)} L{place(high, 0)} L{place(low, 0)} Z"
    parts = [
        f'<path d="{area}" class="area"/>',
        f'<path d="{" ".join(path)}" class="line"/>',
        f'<line x1="{_LEFT}" x2="{_WIDTH - 16}" y1="{_FLOOR}" y2="{_FLOOR}" class="axis"/>',
        f'<text x="{_LEFT - 8}" y="18" class="end">{text(format_size(top))}</text>',
        f'<text x="{_LEFT - 8}" y="{_FLOOR}" class="end">0</text>',
        f'<text x="{_LEFT}" y="{_FLOOR + 18}">{low:g}</text>',
        f'<text x="{_WIDTH - 16}" y="{_FLOOR + 18}" class="end">{high:g}</text>',
    ]
    for name, limit in limits:
        parts += _across(name, _FLOOR - limit * tall)
    return _svg(_FLOOR + 22, parts, title)


def _across(name: str, at: float) -> Iterator[str]:
    ends = f'x1="{_LEFT}" x2="{_WIDTH - 16}" y1="{at:.1f}" y2="{at:.1f}"'
    yield f'<line {ends} class="limit"/>'
    yield f'<text x="{_LEFT + 6}" y="{at - 4:.1f}" class="limitname">{text(name)}</text>'


def _svg(height: int, parts: Sequence[str], title: str) -> Html:
    body = "\n".join(parts)
    return Html(
        f'<svg class="chart" viewBox="0 0 {_WIDTH} {height}" role="img" '
        f'aria-label="{text(title)}"><title>{text(title)}</title>\n{body}\n</svg>'
    )
