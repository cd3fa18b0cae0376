"""Bars and lines as SVG: drawn when the page is written, so they need no JavaScript.

Only shapes are stretched to the width of the page; words stay as large as the reader has them, so a
chart can be read in a narrow window, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from qnnmem.report.page.markup import Html, lines, tag, text
from qnnmem.units import format_size

_WIDE, _ROW = 1000, 20
_HEIGHT, _TOP, _FLOOR = 190, 26, 168
_COLOURS = 4  # of lines in one chart


@dataclass(frozen=True, slots=True)
class Bar:
    """A number against what there is; pieces are its parts from left to right, none if unknown."""

    label: str
    pieces: Sequence[tuple[str, int]]  # class of colour, bytes
    limit: int | None = None
    start: int = 0  # where it begins, in a waterfall
    origin: str = ""  # of the number: measured, computed, documented, reported
    limit_origin: str = ""

    @property
    def total(self) -> int:
        """All pieces."""
        return sum(size for _, size in self.pieces)


def bars(rows: Sequence[Bar], title: str) -> Html:
    """Bars without a limit on one scale; one with a limit against that, which is a line."""
    most = max((row.start + row.total for row in rows if row.limit is None), default=0)
    return tag("div", *(_bar(row, most) for row in rows), class_="bars", role="list", title=title)


def _bar(row: Bar, most: int) -> Html:
    whole = most if row.limit is None else max(row.total, row.limit)
    # The line of a limit that is the end of the scale must not be cut in half.
    scale = (_WIDE - 6) / (whole or 1)
    return tag(
        "div",
        tag("span", row.label, class_="label"),
        Html(
            f'<svg viewBox="0 0 {_WIDE} {_ROW}" preserveAspectRatio="none" aria-hidden="true">'
            f"{''.join(_shapes(row, scale))}</svg>"
        ),
        _amount(row),
        class_="bar",
        role="listitem",
    )


def _shapes(row: Bar, scale: float) -> Iterator[str]:
    left = row.start * scale
    for kind, size in row.pieces:
        width = max(size * scale, 2 if size else 0)
        place = f'x="{left:.1f}" y="2" width="{width:.1f}" height="{_ROW - 4}"'
        yield f'<rect {place} class="{kind}"/>'
        left += size * scale
    if row.limit is not None:
        at = row.limit * scale + 1
        yield f'<path d="M{at:.1f} 0V{_ROW}" class="limit"/>'


def _amount(row: Bar) -> Html:
    words = [tag("span", "not known", class_="faint")]
    if row.pieces:
        exact = f"{row.total:,} bytes"
        words = [tag("span", format_size(row.total), title=exact), mark(row.origin)]
    if row.limit is not None:
        words += [tag("span", f" of {format_size(row.limit)}", title=f"{row.limit:,} bytes")]
        words += [mark(row.limit_origin)]
        if row.total > row.limit:
            words.append(tag("span", f", {format_size(row.total - row.limit)} too many"))
    over = row.limit is not None and row.total > row.limit
    return tag("span", *words, class_="amount over" if over else "amount")


def mark(origin: str) -> Html:
    """Where a number comes from, in a word behind it."""
    word = origin.partition(":")[0]
    return tag("span", f" {word}", class_="origin") if word else Html("")


Points = Sequence[tuple[float, int]]


def line(
    points: Points,
    title: str,
    limits: Sequence[tuple[str, int]] = (),
    *,
    unit: str = "",
    stepped: bool = False,
    shown: Callable[[int], str] = format_size,
) -> Html:
    """Bytes, or what `shown` writes, over something that grows, with limits as lines across."""
    return curves([("", points)], title, limits, unit=unit, stepped=stepped, shown=shown)


def curves(
    series: Sequence[tuple[str, Points]],
    title: str,
    limits: Sequence[tuple[str, int]] = (),
    *,
    unit: str = "",
    stepped: bool = False,
    shown: Callable[[int], str] = format_size,
) -> Html:
    """Several such lines with their names; one alone is filled."""
    every = [point for _, points in series for point in points]
    if not every:
        return Html("")
    low, high = min(x for x, _ in every), max(x for x, _ in every)
    top = max([size for _, size in every] + [limit for _, limit in limits]) or 1
    wide, tall = (_WIDE - 12) / ((high - low) or 1), (_FLOOR - _TOP) / top

    def place(x: float, y: int) -> str:
        return f"{6 + (x - low) * wide:.1f} {_FLOOR - y * tall:.1f}"

    across = [(name, limit, _FLOOR - limit * tall) for name, limit in limits]
    shapes = [f'<path d="M0 {_FLOOR}H{_WIDE}" class="axis"/>']
    for number, (_, points) in enumerate(series):
        path = _path(points, place, stepped)
        if len(series) == 1:
            ends = f"L{place(points[-1][0], 0)} L{place(points[0][0], 0)} Z"
            shapes.append(f'<path d="{path} {ends}" class="area"/>')
        kind = f"s{number % _COLOURS}"
        shapes.append(f'<path d="{path}" class="line {kind}"/>')
        if not stepped:
            shapes += [f'<path d="M{place(x, y)}h0" class="dot {kind}"/>' for x, y in points]
    shapes += [f'<path d="M0 {at:.1f}H{_WIDE}" class="limit"/>' for _, _, at in across]
    named = [
        Html(f'<span class="key"><i class="s{at % _COLOURS}"></i>{text(name)}</span>')
        for at, (name, _) in enumerate(series)
        if name
    ]
    keys = tag("div", *named, class_="tools") if named else Html("")
    words = [*_top(top, limits, shown), *_words(low, high, unit, across)]
    return lines([_plot(title, shapes, words), keys])


def _path(points: Points, place: Callable[[float, int], str], stepped: bool) -> str:
    path = [f"M{place(*points[0])}"]
    for (_, before), (x, y) in pairwise(points):
        path += [f"L{place(x, before)}"] if stepped and before != y else []
        path += [f"L{place(x, y)}"]
    return " ".join(path)


def _top(top: int, limits: Sequence[tuple[str, int]], shown: Callable[[int], str]) -> Iterator[str]:
    if not any(limit == top for _, limit in limits):
        yield f'<text x="4" y="{_TOP - 8}">{text(shown(top))}</text>'


def _words(
    low: float, high: float, unit: str, across: Sequence[tuple[str, int, float]]
) -> Iterator[str]:
    used: list[float] = []
    for name, limit, at in sorted(across, key=lambda one: one[2]):
        y = at - 6
        while any(abs(y - other) < 15 for other in used):  # two limits that are close
            y += 15
        used.append(y)
        words = text(f"{name} {format_size(limit)}")
        yield f'<text x="100%" dx="-4" y="{y:.1f}" class="end limitname">{words}</text>'
    yield f'<text x="0" y="{_FLOOR + 17}">{low:g}</text>'
    yield f'<text x="50%" y="{_FLOOR + 17}" class="middle">{text(unit)}</text>'
    yield f'<text x="100%" y="{_FLOOR + 17}" class="end">{high:g}</text>'


def _plot(title: str, shapes: Sequence[str], words: Sequence[str]) -> Html:
    inner = "\n".join(shapes)
    return lines(
        [
            Html(
                f'<svg class="plot" width="100%" height="{_HEIGHT}" role="img" '
                f'aria-label="{text(title)}">'
            ),
            Html(
                f'<svg width="100%" height="100%" viewBox="0 0 {_WIDE} {_HEIGHT}" '
                f'preserveAspectRatio="none">\n{inner}\n</svg>'
            ),
            *map(Html, words),
            Html("</svg>"),
        ]
    )
