"""Draw bars and curves as SVG, which need no JavaScript.

Shapes stretch with the page, labels do not. Bars of one group share a scale, and every axis has
numbers with units. Names of limits are below a chart, where no shape covers them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import log2

from qnnmem.report.page.markup import Html, lines, tag, text
from qnnmem.units import format_size

_WIDE, _TALL, _TOP = 1000, 150, 6  # size of a plot, which stretches to the page
_REACH = 99.4  # percent of the width: keeps the last tick fully visible
_FAR = 4  # a limit beyond this multiple of the longest bar is off the scale
_VISIBLE = 0.05  # used share of a limit that a bar can show
_COLOURS = 4  # curves in one chart
_NARROW = 250  # pixels of the narrowest plot; labels must not overlap there
_MARKED = 12  # points with a number below each
_DOUBLED = 8  # ratio of maximum to minimum that calls for a logarithmic scale


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar that compares a need with its limit; `pieces` are its parts from left to right."""

    label: str
    pieces: Sequence[tuple[str, int]]  # colour class and bytes
    limit: int | None = None
    start: int = 0  # first byte, in a waterfall chart
    origin: str = ""  # origin of the number: measured, computed, documented, reported
    limit_origin: str = ""

    @property
    def total(self) -> int:
        """Return the sum of all pieces."""
        return sum(size for _, size in self.pieces)

    @property
    def share(self) -> float:
        """Return the used share of the limit."""
        return self.total / max(self.limit or 0, 1)


def bars(rows: Sequence[Bar], title: str) -> Html:
    """Return bars on one scale; a tick marks each limit that is on the scale."""
    longest = max((row.start + row.total for row in rows), default=0)
    limits = [row.limit for row in rows if row.limit is not None]
    near = [limit for limit in limits if limit <= _FAR * longest or len(rows) == 1]
    whole = max([longest, *near]) or 1
    shown = [_bar(row, whole) for row in rows]
    return tag("div", *shown, _axis(whole), class_="bars", role="list", title=title)


def limit_bars(rows: Sequence[Bar], title: str, aside: Sequence[Bar] = ()) -> Html:
    """Return the tightest limit as a bar if its use is large enough to see, other limits as text.

    `aside` limits are always text lines, because reaching them is normal.
    """
    known = sorted((row for row in rows if row.limit is not None), key=lambda row: -row.share)
    drawn = known[: bool(known) and known[0].share >= _VISIBLE]
    rest = (*known[len(drawn) :], *aside)
    loose = [tag("li", f"{row.label}: ", _amount(row)) for row in rest]
    others = [tag("ul", *loose, class_="looser")] if loose else []
    return lines([*([bars(drawn, title)] if drawn else []), *others])


def _bar(row: Bar, whole: int) -> Html:
    shapes = "".join(_shapes(row, _REACH / whole, whole))
    return tag(
        "div",
        tag("span", row.label, class_="label"),
        Html(f'<svg aria-hidden="true">{shapes}</svg>'),
        _amount(row),
        class_="bar",
        role="listitem",
    )


def _shapes(row: Bar, scale: float, whole: int) -> Iterator[str]:
    left = row.start
    for kind, size in row.pieces:
        place = f'x="{left * scale:.3f}%" width="{size * scale:.3f}%"'
        title = f"<title>{text(kind)}: {size:,} bytes</title>"
        yield f'<rect {place} y="3" height="16" class="{text(kind)}">{title}</rect>'
        left += size
    if row.limit is not None and row.limit <= whole:
        x = f"{row.limit * scale:.3f}%"
        if row.total > row.limit:
            ends = f'x1="{x}" x2="{row.total * scale:.3f}%" y1="11" y2="11"'
            yield f'<line {ends} class="beyond"/><line {ends} class="excess"/>'
        yield f'<line x1="{x}" x2="{x}" y1="0" y2="22" class="limit"/>'


def _axis(whole: int) -> Html:
    marks = [
        f'<line x1="{place:.3f}%" x2="{place:.3f}%" y1="0" y2="5" class="axis"/>'
        f'<text x="{place:.3f}%" y="17"{" class=middle" if tick else ""}>{short_size(tick)}</text>'
        for tick in round_ticks(whole, 4, is_size=True)
        if (place := _REACH * tick / whole) < 92
    ]
    line = f'<line x1="0" x2="{_REACH}%" y1="0.5" y2="0.5" class="axis"/>'
    empty = tag("span", "", class_="label")
    drawn = Html(f'<svg aria-hidden="true">{line}{"".join(marks)}</svg>')
    return tag("div", empty, drawn, tag("span", "", class_="amount"), class_="bar scale")


def round_ticks(top: int, count: int, *, is_size: bool) -> list[int]:
    """Return the multiples of a round number from 0 to `top`, at most `count` of them above 0.

    For sizes, the round number is a power of two.
    """
    step = 1
    factors = [2] if is_size else [2, 2.5, 2]
    turn = 0
    while top // step > count:
        step = int(step * factors[turn % len(factors)])
        turn += 1
    return list(range(0, top + 1, step))


def short_size(size: int) -> str:
    """Return a round size without trailing zeros."""
    number, _, unit = format_size(size).partition(" ")
    return f"{number.rstrip('0').rstrip('.') if '.' in number else number} {unit}" if size else "0"


def _amount(row: Bar) -> Html:
    if not row.pieces:
        there = "" if row.limit is None else f"; the limit is {format_size(row.limit)}"
        return tag("span", tag("span", f"not known{there}", class_="faint"), class_="amount")
    need, limit = row.total, row.limit
    exact = tag("span", format_size(need), title=f"{need:,} bytes")
    if limit is None:
        return tag("span", exact, mark(row.origin), class_="amount")
    words = [exact, mark(row.origin), *_against(need, limit, row.limit_origin)]
    return tag("span", *words, class_="amount over" if need > limit else "amount")


def _against(need: int, limit: int, origin: str) -> list[Html]:
    """Describe the limit and the distance to it, even if need and limit round to the same text."""
    there = tag("span", f" of {format_size(limit)}", title=f"{limit:,} bytes")
    if need > limit:
        return [there, mark(origin), tag("span", f", {format_size(need - limit)} over the limit")]
    if need == limit:
        return [there, mark(origin), tag("span", ", all of it")]
    if format_size(need) == format_size(limit):
        return [there, mark(origin), tag("span", f", {format_size(limit - need)} left")]
    return [there, mark(origin), tag("span", f", {share_words(need / limit)}", class_="faint")]


def share_words(share: float) -> str:
    """Return a share in percent; a tiny share is never shown as 0 %."""
    return f"{share:.0%}" if share >= 0.1 else f"{share:.1%}" if share >= 0.001 else "under 0.1%"


def mark(origin: str) -> Html:
    """Return a number's origin as a word to write after the number."""
    word = origin.partition(":")[0]
    return tag("span", f" {word}", class_="origin") if word else Html("")


Points = Sequence[tuple[float, int]]


def _below(x: float, names: Sequence[str]) -> str:
    if names:
        return names[int(x)]
    return f"{int(x):,}" if x == int(x) else f"{x:.4g}"


def line(
    points: Points,
    title: str,
    limits: Sequence[tuple[str, int]] = (),
    *,
    unit: str = "",
    stepped: bool = False,
    shown: Callable[[int], str] = format_size,
    names: Sequence[str] = (),
) -> Html:
    """Return a chart of one curve and its limits; `shown` formats the values, by default as sizes.

    `names` are written below the chart instead of the numbers 0, 1, 2 and so on.
    """
    alone = [("", points)]
    return curves(alone, title, limits, unit=unit, stepped=stepped, shown=shown, names=names)


def curves(
    series: Sequence[tuple[str, Points]],
    title: str,
    limits: Sequence[tuple[str, int]] = (),
    *,
    unit: str = "",
    stepped: bool = False,
    shown: Callable[[int], str] = format_size,
    names: Sequence[str] = (),
) -> Html:
    """Return a chart of several named curves on common axes; a single curve is filled."""
    if stepped:
        series = [(name, _lasting(points)) for name, points in series]
    all_points = [point for _, points in series for point in points]
    if not all_points:
        return Html("")
    low, high = min(x for x, _ in all_points), max(x for x, _ in all_points)
    # Space values that double, such as batches, evenly.
    scale = log2 if not stepped and low > 0 and high >= _DOUBLED * low else float
    first, last = scale(low), scale(high)
    top = max([size for _, size in all_points] + [limit for _, limit in limits]) or 1
    wide, tall = (_WIDE - 12) / ((last - first) or 1), (_TALL - _TOP) / top

    def place(x: float, y: int) -> str:
        return f"{6 + (scale(x) - first) * wide:.1f} {_TALL - y * tall:.1f}"

    is_size = shown is format_size
    ticks = round_ticks(top, 4, is_size=is_size)
    shapes = [f'<path d="M0 {_TALL - tick * tall:.1f}H{_WIDE}" class="axis"/>' for tick in ticks]
    for number, (_, points) in enumerate(series):
        shapes += _shapes_of(points, place, f"s{number % _COLOURS}", stepped, len(series) == 1)
    shapes += [
        f'<path d="M0 {_TALL - limit * tall:.1f}H{_WIDE}" class="limit l{index}"/>'
        for index, (_, limit) in enumerate(limits)
    ]
    write = short_size if is_size else shown
    up = [
        f'<text x="70" y="{_TALL - tick * tall + 4:.1f}" class="end">{text(write(tick))}</text>'
        for tick in ticks
    ]
    inner = "\n".join(shapes)
    known = sorted({x for x, _ in all_points})
    places = _round_places(low, high) if stepped or len(known) > _MARKED else known
    across = _across([((wide * (scale(x) - first) + 6) / 10, _below(x, names)) for x in places])
    return lines(
        [
            Html(
                f'<div class="plot" role="img" aria-label="{text(title)}" '
                f'data-low="{low:g}" data-high="{high:g}">'
                f'<svg class="up" height="{_TALL + 6}">{"".join(up)}</svg>'
                f'<svg class="field" height="{_TALL}" viewBox="0 0 {_WIDE} {_TALL}" '
                f'preserveAspectRatio="none">\n{inner}\n</svg>'
                f'<svg class="across" height="20">{"".join(across)}</svg>'
                f'<span class="unit">{text(unit)}</span></div>'
            ),
            _keys(series, limits, shown, max(size for _, size in all_points)),
        ]
    )


def _shapes_of(
    points: Points, place: Callable[[float, int], str], kind: str, stepped: bool, filled: bool
) -> Iterator[str]:
    path = _path(points, place, stepped)
    if filled:
        ends = f"L{place(points[-1][0], 0)} L{place(points[0][0], 0)} Z"
        yield f'<path d="{path} {ends}" class="area"/>'
    yield f'<path d="{path}" class="line {kind}"/>'
    if not stepped:
        yield from (f'<path d="M{place(x, y)}h0" class="dot {kind}"/>' for x, y in points)


def _keys(
    series: Sequence[tuple[str, Points]],
    limits: Sequence[tuple[str, int]],
    shown: Callable[[int], str],
    highest: int,
) -> Html:
    named = [
        Html(f'<span class="key"><i class="s{number % _COLOURS}"></i>{text(name)}</span>')
        for number, (name, _) in enumerate(series)
        if name
    ]
    named += [
        Html(
            f'<span class="key"><svg width="26" height="10" aria-hidden="true">'
            f'<line x1="0" x2="26" y1="5" y2="5" class="limit l{number}"/></svg>'
            f"{text(name)} {text(shown(limit))}</span>"
        )
        for number, (name, limit) in enumerate(limits)
    ]
    if not limits:  # limits are mostly at the highest point
        named.append(tag("span", f"highest {shown(highest)}", class_="key"))
    return tag("div", *named, class_="tools")


def _path(points: Points, place: Callable[[float, int], str], stepped: bool) -> str:
    path = [f"M{place(*points[0])}"]
    for (_, before), (x, y) in pairwise(points):
        path += [f"L{place(x, before)}"] if stepped and before != y else []
        path += [f"L{place(x, y)}"]
    return " ".join(path)


def _lasting(points: Points) -> Points:
    """Return the points of a step curve; a last value above 0 is extended a little to the right."""
    if not points or not points[-1][1]:
        return points
    (first, _), (last, value) = points[0], points[-1]
    return [*points, (last + ((last - first) / 40 or 1), value)]


def _round_places(low: float, high: float) -> list[float]:
    step = max(round_ticks(max(int(high - low), 1), 5, is_size=False)[1:2] or [1])
    begin = -(-low // step) * step
    return [begin + index * step for index in range(int((high - begin) // step) + 1)] or [low]


def _across(marks: Sequence[tuple[float, str]]) -> Iterator[str]:
    """Yield SVG labels at percentages of the plot's width, without labels that would overlap."""
    free = -1.0
    for place, words in marks:
        half = 50 * (7.5 * len(words) + 8) / _NARROW
        if place - half >= free or place == marks[0][0]:
            end = " end" if place + half > 100 else "" if place < half else " middle"
            yield f'<text x="{place:.2f}%" y="14" class="x{end}">{text(words)}</text>'
            free = place + (0 if end == " end" else half if end else 2 * half)
