"""A memory map for the terminal: time goes right, address goes up."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence

from qnnmem.planner import PlacedBuffer
from qnnmem.units import format_size

FREE, OTHER = "·", "▒"
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def draw_map(
    buffers: Sequence[PlacedBuffer],
    peak_bytes: int,
    letters: dict[str, str],
    width: int = 64,
    height: int = 12,
) -> list[str]:
    """Lines of the map; a column shows the fullest step of its stretch of time."""
    if not buffers or peak_bytes == 0:
        return []
    steps = _fullest_steps(buffers, width)
    cells = [[FREE] * len(steps) for _ in range(height)]
    for buffer in buffers:
        mark = letters.get(buffer.name, OTHER)
        first = bisect_left(steps, buffer.live.lower)
        last = bisect_left(steps, buffer.live.upper)
        bottom, top = _rows(buffer, peak_bytes, height)
        for row in cells[bottom:top]:
            row[first:last] = mark * (last - first)
    labels = {height - 1: format_size(peak_bytes), 0: "0 B"}
    pad = max(map(len, labels.values()))
    lines = [
        f"{labels.get(row, ''):>{pad}} │{''.join(cells[row])}" for row in reversed(range(height))
    ]
    begin = min(b.live.lower for b in buffers)
    end = max(b.live.upper for b in buffers) - 1
    axis = f"step {begin}"
    lines.append(f"{'':>{pad}} └{'─' * len(steps)}")
    lines.append(
        f"{'':>{pad}}  {axis}{str(end).rjust(max(len(steps) - len(axis), 2 + len(str(end))))}"
    )
    return lines


def _rows(buffer: PlacedBuffer, peak_bytes: int, height: int) -> tuple[int, int]:
    """Rows whose middle lies inside the buffer."""

    def row(address: int) -> int:
        return -(-(2 * address * height - peak_bytes) // (2 * peak_bytes))

    return max(row(buffer.offset), 0), row(buffer.offset + buffer.size)


def _fullest_steps(buffers: Sequence[PlacedBuffer], width: int) -> list[int]:
    """The fullest step of each of at most `width` equal stretches of time."""
    change: dict[int, int] = {}
    for buffer in buffers:
        change[buffer.live.lower] = change.get(buffer.live.lower, 0) + buffer.size
        change[buffer.live.upper] = change.get(buffer.live.upper, 0) - buffer.size
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
